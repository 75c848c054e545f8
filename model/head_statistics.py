"""Numbers that describe attention heads: how widely, how far and at what they look. Pure functions on their maps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from model.maps import hide

STATISTICS = (
    "entropy",
    "entropy_norm",
    "effective_tokens",
    "confidence",
    "mean_distance",
    "to_cls",
    "to_sep",
    "to_self",
    "to_prev",
    "to_next",
)
"""What :func:`head_statistics` says of each head; and ``kept_mass`` where special tokens are left out."""


def head_statistics(
    weights: Tensor, *, cls: int | None, separators: Sequence[int], kept: Tensor | None = None
) -> dict[str, Tensor]:
    """Describe each head of a layer by numbers, averaged over query rows.

    Parameters
    ----------
    weights : Tensor, shape (..., L, L)
        Single heads.
    cls : int or None
        The opening special token.
    separators : sequence of int
        The other special tokens.
    kept : Tensor, shape (n,), int64, or None
        The tokens that stay where special tokens are left out: statistics are then of the renormalised rows of these,
        but ``to_cls`` and ``to_sep`` of the rows before, where they are what ``kept_mass`` lacks to 1.

    Returns
    -------
    dict of str to Tensor, shape (...)
        :data:`STATISTICS`, and ``kept_mass`` with ``kept``. NaN where one has no meaning: no token is left, every row
        kept nothing, there is no such special token. Entropy is in nats; ``entropy_norm`` is it over ln n, 0 where a
        row has one key; ``effective_tokens`` is the mean of exp(entropy) over rows; distances are in tokens of the
        whole text. A row without a token before (or behind) it puts no mass there.

    References
    ----------
    Clark et al. 2019, sections 3 and 4.
    """
    nothing = weights.new_full(weights.shape[:-2], math.nan)
    asking = weights if kept is None else weights.index_select(-2, kept)  # (..., n, L)
    to_special = {
        name: asking[..., list(columns)].sum(dim=-1).mean(dim=-1) if columns else nothing
        for name, columns in (("to_cls", () if cls is None else (cls,)), ("to_sep", separators))
    }
    if kept is None:
        positions = torch.arange(weights.shape[-1], device=weights.device)
        rows, mass = weights, weights.new_ones(weights.shape[:-1])
    else:
        positions = kept
        rows, mass = hide(weights, kept, renormalize=True)
    if not len(positions):
        return dict.fromkeys((*STATISTICS, "kept_mass"), nothing)
    found = _of_rows(rows, mass > 0, positions) | to_special
    if kept is not None:
        found["kept_mass"] = mass.mean(dim=-1)
    return found


def _of_rows(rows: Tensor, is_counted: Tensor, positions: Tensor) -> dict[str, Tensor]:
    """Compute what concerns rows that sum to 1; rows of 0 (nothing kept) count in no average."""
    num_keys = len(positions)
    count = is_counted.sum(dim=-1)

    def mean(per_row: Tensor) -> Tensor:
        return (per_row * is_counted).sum(dim=-1) / count  # 0 / 0 is the NaN that says so

    entropy = torch.special.entr(rows).sum(dim=-1)  # (..., n)
    distance = (positions.unsqueeze(0) - positions.unsqueeze(1)).abs().to(rows.dtype)  # (n, n)
    follows = (positions.diff() == 1).to(rows.dtype)  # (n - 1,): no special token was left out between the two
    spread = math.log(num_keys) if num_keys > 1 else math.inf
    return {
        "entropy": mean(entropy),
        "entropy_norm": mean(entropy) / spread,
        "effective_tokens": mean(entropy.exp()),
        "confidence": mean(rows.amax(dim=-1)),
        "mean_distance": (rows * distance).sum(dim=(-2, -1)) / count,
        "to_self": rows.diagonal(dim1=-2, dim2=-1).sum(dim=-1) / count,
        "to_prev": (rows.diagonal(-1, dim1=-2, dim2=-1) * follows).sum(dim=-1) / count,
        "to_next": (rows.diagonal(1, dim1=-2, dim2=-1) * follows).sum(dim=-1) / count,
    }
