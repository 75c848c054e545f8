"""Modules on top of the pooled vector or of a token: what sentence-transformers calls Dense, and classifiers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.pooling import PoolingMode

HeadActivation = Literal["identity", "tanh", "relu", "gelu", "sigmoid", "silu"]

HEAD_ACTIVATIONS: dict[HeadActivation, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
}


@dataclass(frozen=True, slots=True)
class ClassifierConfig:
    """The head of a sequence classifier, before its labels.

    Attributes
    ----------
    dense, out : str
        Stripped names of the two linear layers in the checkpoint, without ``.weight`` and ``.bias``.
    activation : HeadActivation
        Between them.
    dense_bias : bool
    norm : str or None
        Stripped name of a layer norm behind the activation.
    norm_eps : float
    norm_bias : bool
    pooling : PoolingMode
        What the head reads of a text.
    """

    dense: str
    out: str
    activation: HeadActivation
    dense_bias: bool = True
    norm: str | None = None
    norm_eps: float = 1e-5
    norm_bias: bool = True
    pooling: PoolingMode = "cls"


class Classifier(nn.Module):
    """Two linear layers with an activation, and in some families a norm, between them.

    Parameters
    ----------
    config : ClassifierConfig
    hidden_size, num_labels : int
    """

    def __init__(self, config: ClassifierConfig, hidden_size: int, num_labels: int) -> None:
        super().__init__()
        self.config = config
        self.dense = nn.Linear(hidden_size, hidden_size, bias=config.dense_bias)
        self.norm = nn.LayerNorm(hidden_size, config.norm_eps, bias=config.norm_bias) if config.norm else nn.Identity()
        self.out = nn.Linear(hidden_size, num_labels)

    def forward(self, pooled: Tensor) -> Tensor:
        """Map (B, D) to logits (B, num_labels)."""
        logits: Tensor = self.out(self.norm(HEAD_ACTIVATIONS[self.config.activation](self.dense(pooled))))
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
