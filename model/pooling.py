"""From one vector per token to one per text, and the last touches on it: dimensions and unit length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

PoolingMode = Literal["mean", "cls", "max", "lasttoken"]
"""As sentence-transformers names them: Reimers and Gurevych 2019, section 3; ``lasttoken`` for causal encoders."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """How a model folder pools.

    Attributes
    ----------
    mode : PoolingMode
    include_prompt : bool
        False leaves the tokens of the prompt (and the special tokens before it) out.
    """

    mode: PoolingMode = "mean"
    include_prompt: bool = True


@dataclass(frozen=True, slots=True)
class Spans:
    """Where the tokens to pool stand in a packed tensor.

    Attributes
    ----------
    starts, stops : tuple of B ints
        ``hidden_states[starts[i] : stops[i]]`` are those of text i; no span is empty.
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]

    @classmethod
    def of(cls, starts: Sequence[int], lengths: Sequence[int], skipped: Sequence[int]) -> Spans:
        """Make spans that leave out the first ``skipped[i]`` tokens of each text, but never all of them."""
        firsts = (start + min(skip, length - 1) for start, length, skip in zip(starts, lengths, skipped, strict=True))
        stops = (start + length for start, length in zip(starts, lengths, strict=True))
        return cls(tuple(firsts), tuple(stops))


def mean_pool(hidden_states: Tensor, spans: Spans) -> Tensor:
    """Average the tokens of each text: (T, D) -> (B, D) float32.

    Notes
    -----
    Sums in float32 whatever the dtype of the encoder, so that a text alone and in a batch agree to 1e-5.
    """
    return torch.stack([hidden_states[start:stop].float().mean(dim=0) for start, stop in _pairs(spans)])


def max_pool(hidden_states: Tensor, spans: Spans) -> Tensor:
    """Take the largest value of each dimension: (T, D) -> (B, D) float32."""
    return torch.stack([hidden_states[start:stop].amax(dim=0) for start, stop in _pairs(spans)]).float()


def sum_pool(hidden_states: Tensor, spans: Spans) -> Tensor:
    """Add up the tokens of each text: (T, D) -> (B, D) float32, summed in float32."""
    return torch.stack([hidden_states[start:stop].float().sum(dim=0) for start, stop in _pairs(spans)])


def cls_pool(hidden_states: Tensor, spans: Spans) -> Tensor:
    """Take the first token: (T, D) -> (B, D) float32."""
    return hidden_states[list(spans.starts)].float()


def last_token_pool(hidden_states: Tensor, spans: Spans) -> Tensor:
    """Take the last token: (T, D) -> (B, D) float32."""
    return hidden_states[[stop - 1 for stop in spans.stops]].float()


def _pairs(spans: Spans) -> zip[tuple[int, int]]:
    return zip(spans.starts, spans.stops, strict=True)


POOLING_FUNCTIONS: dict[PoolingMode, Callable[[Tensor, Spans], Tensor]] = {
    "mean": mean_pool,
    "cls": cls_pool,
    "max": max_pool,
    "lasttoken": last_token_pool,
}


def finish(pooled: Tensor, *, dimensions: int | None, normalize: bool) -> Tensor:
    """Cut to the first ``dimensions``, then scale to unit length: (B, D) -> (B, dimensions).

    Notes
    -----
    In this order: a cut unit vector is no unit vector. A zero vector stays zero.

    References
    ----------
    Kusupati et al. 2022 (Matryoshka representations).
    """
    cut = pooled if dimensions is None else pooled[:, :dimensions]
    return F.normalize(cut, dim=-1) if normalize else cut
