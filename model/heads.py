"""Modules on top of the pooled vector or of a token: Dense as sentence-transformers has it, classifiers, masked LMs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.config import Activation
from model.linear import Linear
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


BLOCK_ROWS = 16
"""A classifier runs on so many texts at a time: a kernel may sum rows that do not fill a block in another order than
the rest, and then equal texts would not score equal."""


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
        self.dense = Linear(hidden_size, hidden_size, bias=config.dense_bias)
        self.norm = nn.LayerNorm(hidden_size, config.norm_eps, bias=config.norm_bias) if config.norm else nn.Identity()
        self.out = Linear(hidden_size, num_labels)

    def forward(self, pooled: Tensor) -> Tensor:
        """Map (B, D) to logits (B, num_labels). Packed, not even the last bit of a text's depends on the others."""
        num_texts = len(pooled)
        filled = F.pad(pooled, (0, 0, 0, -num_texts % BLOCK_ROWS))
        return torch.cat([self._logits(block) for block in torch.split(filled, BLOCK_ROWS)])[:num_texts]

    def _logits(self, pooled: Tensor) -> Tensor:
        logits: Tensor = self.out(self.norm(HEAD_ACTIVATIONS[self.config.activation](self.dense(pooled))))
        return logits


@dataclass(frozen=True, slots=True)
class MaskedLMConfig:
    """The head of a masked language model.

    Attributes
    ----------
    dense, norm, decoder : str
        Stripped names of the layers in the checkpoint, without ``.weight`` and ``.bias``.
    activation : Activation
        Between dense layer and norm; none of the gated ones.
    bias : str or None
        Stripped name of the bias of each token of the vocabulary, where it is not called after ``decoder``; None where
        there is none.
    norm_eps : float
    dense_bias, norm_bias : bool
    is_tied : bool
        Whether the decoder's weight is the table of token embeddings.
    """

    dense: str
    norm: str
    decoder: str
    activation: Activation
    bias: str | None
    norm_eps: float
    dense_bias: bool = True
    norm_bias: bool = True
    is_tied: bool = True


class MaskedLMHead(nn.Module):
    """From the state of a token to a logit for each token of the vocabulary.

    Parameters
    ----------
    config : MaskedLMConfig
    hidden_size, embedding_size, vocab_size : int
    """

    def __init__(self, config: MaskedLMConfig, hidden_size: int, embedding_size: int, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.dense = Linear(hidden_size, embedding_size, bias=config.dense_bias, activation=config.activation)
        self.norm = nn.LayerNorm(embedding_size, config.norm_eps, bias=config.norm_bias)
        self.decoder = nn.Linear(embedding_size, vocab_size, bias=config.bias is not None)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Map (T, D) to (T, E): what :meth:`logits` reads."""
        transformed: Tensor = self.norm(self.dense(hidden_states))
        return transformed

    def logits(self, transformed: Tensor, columns: slice) -> Tensor:
        """Give the logits of some tokens of the vocabulary: (T, E) -> (T, columns)."""
        bias: Tensor | None = self.decoder.bias
        return F.linear(transformed, self.decoder.weight[columns], None if bias is None else bias[columns])


class Dense(nn.Module):
    """A linear layer and an activation on the pooled vector, or on a token's (``2_Dense`` in a model folder).

    Parameters
    ----------
    in_features, out_features : int
    bias : bool
    activation : HeadActivation
    has_residual : bool
        Add what comes in, projected where the two differ in width.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        activation: HeadActivation,
        has_residual: bool = False,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation = activation
        self.residual: nn.Module | None = None
        if has_residual:
            is_square = in_features == out_features
            self.residual = nn.Identity() if is_square else nn.Linear(in_features, out_features, bias=False)

    @property
    def weight(self) -> Tensor:
        """What it multiplies by where its activation is the identity, the residual with it: (out, in)."""
        weight = self.linear.weight
        if isinstance(self.residual, nn.Linear):
            return weight + self.residual.weight
        return weight if self.residual is None else weight + torch.eye(len(weight)).to(weight)

    def forward(self, pooled: Tensor) -> Tensor:
        """Map (B, in_features) to (B, out_features)."""
        out = HEAD_ACTIVATIONS[self.activation](self.linear(pooled))
        return out if self.residual is None else out + self.residual(pooled)
