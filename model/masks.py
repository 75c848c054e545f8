"""Masks: which key each query may see. Boolean, True = may be seen.

``docs/masks.md`` has the picture of both. Seed 0 draws its triangle with 1 on the *future* and then hides what is 0,
so its two functions together hide the past and the token itself; here True always means visible.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def padding_mask(lengths: Sequence[int], max_length: int, device: torch.device | None = None) -> Tensor:
    """Mark the real tokens of a padded batch.

    Parameters
    ----------
    lengths : sequence of B ints
        Real tokens of each text.
    max_length : int
        L, the padded length.

    Returns
    -------
    Tensor, shape (B, L), bool
        True where a token is real.

    Notes
    -----
    Made from the lengths, never from ``id != pad``: a user may type ``[PAD]``, and some families have no pad id.
    """
    positions = torch.arange(max_length, device=device)
    return positions < torch.tensor(lengths, device=device).unsqueeze(1)  # (B, L)


def subsequent_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Let every token see itself and the past.

    Returns
    -------
    Tensor, shape (L, L), bool
        True on and below the diagonal.

    References
    ----------
    Vaswani et al. 2017, section 3.2.3; ``generate_triu`` in the first document of seeds/, with the sense put right.
    """
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def window_mask(length: int, window: int, device: torch.device | None = None) -> Tensor:
    """Let every token see ``window`` tokens on each side of itself.

    Returns
    -------
    Tensor, shape (L, L), bool
    """
    positions = torch.arange(length, device=device)
    return (positions.unsqueeze(0) - positions.unsqueeze(1)).abs() <= window


def text_mask(length: int, *, window: int | None, causal: bool, device: torch.device | None = None) -> Tensor | None:
    """Combine what a layer hides inside one text.

    Returns
    -------
    Tensor, shape (L, L), bool, or None
        None where every token sees every other.
    """
    mask = None
    if window is not None and window < length - 1:
        mask = window_mask(length, window, device)
    if causal:
        causal_mask = subsequent_mask(length, device)
        mask = causal_mask if mask is None else mask & causal_mask
    return mask
