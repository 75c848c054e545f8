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


class Classifier(nn.Module):
    """Two linear layers with an activation between them, on the first token of a text.

    Parameters
    ----------
    hidden_size, num_labels : int
    activation : HeadActivation
    """

    def __init__(self, hidden_size: int, num_labels: int, activation: HeadActivation) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.out = nn.Linear(hidden_size, num_labels)
        self.activation = activation

    def forward(self, first_tokens: Tensor) -> Tensor:
        """Map (B, D) to logits (B, num_labels)."""
        logits: Tensor = self.out(HEAD_ACTIVATIONS[self.activation](self.dense(first_tokens)))
        return logits


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
