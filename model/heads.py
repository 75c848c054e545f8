"""Modules on top of the pooled vector or of a token: what sentence-transformers calls Dense, and classifiers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HeadActivation = Literal["identity", "tanh", "relu", "gelu", "sigmoid", "silu"]

HEAD_ACTIVATIONS: dict[HeadActivation, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
}


class Dense(nn.Module):
    """A linear layer and an activation on the pooled vector (``2_Dense`` in a model folder).

    Parameters
    ----------
    in_features, out_features : int
    bias : bool
    activation : HeadActivation
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool, activation: HeadActivation) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation = activation

    def forward(self, pooled: Tensor) -> Tensor:
        """Map (B, in_features) to (B, out_features)."""
        return HEAD_ACTIVATIONS[self.activation](self.linear(pooled))
