"""What is made of attention maps: heads taken together, special tokens left out, words, large weights, rollout.

Pure functions on maps of shape (..., L, L), row = query (who looks), column = key (looked at): one layer's
(heads, L, L) as well as all layers' (layers, heads, L, L). The order of work is that of this page: heads, special
tokens, words, sparse rows. Rollout is multiplied on whole maps, and what follows the heads is done to the product.

References: Clark et al. 2019 (words), Abnar and Zuidema 2020 (rollout).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.contract import EncodeInput, HeadReduction, SpecialMode, TokenTable, Unit

# --- heads ---


def reduce_heads(weights: Tensor, how: HeadReduction) -> Tensor:
    """Take heads together: (..., heads, L, L) -> (..., 1, L, L), rows summing to 1.

    The maxima of a row sum to more than 1, so that each row is divided by its sum.
    """
    if how == "mean":
        return weights.mean(dim=-3, keepdim=True)
    largest = weights.amax(dim=-3, keepdim=True)
    return largest / largest.sum(dim=-1, keepdim=True)


# --- units: special tokens and words ---


@dataclass(frozen=True, slots=True)
class Units:
    """What the rows and columns of a text's maps stand for.

    Attributes
    ----------
    tokens : list of int
        The first token of each unit.
    words : list of int or None
        The word of each unit; None for a special token and one of the prompt.
    kept : list of int
        The tokens that stay, in order.
    members : list of int
        The unit of each of ``kept``.
    """

    tokens: list[int]
    words: list[int | None]
    kept: list[int]
    members: list[int]

    @property
    def num_units(self) -> int:
        """Length of the query and of the key axis."""
        return len(self.tokens)


def units_of(table: TokenTable, unit: Unit, special: SpecialMode) -> Units:
    """Find the units of a text.

    Special tokens are those that the template added, whatever was typed. Where they stay, each is a unit of its own, as
    each token of a prompt is. A word is known by its number, which no two texts of a pair share.
    """
    kept = [token for token, is_special in enumerate(table.special) if special == "keep" or not is_special]
    return units_among(table, kept, unit)


def units_among(table: TokenTable, kept: Sequence[int], unit: Unit) -> Units:
    """Find the units that these tokens of a text make up, in the order of the text."""
    if unit == "token":
        return Units(list(kept), [table.words[token] for token in kept], list(kept), list(range(len(kept))))
    units = Units([], [], list(kept), [])
    unit_of_word: dict[int, int] = {}
    for token in kept:
        word = table.words[token]
        member = units.num_units if word is None else unit_of_word.setdefault(word, units.num_units)
        if member == units.num_units:
            units.tokens.append(token)
            units.words.append(word)
        units.members.append(member)
    return units


def num_units(text: EncodeInput, unit: Unit, special: SpecialMode) -> int:
    """Count the units of a text without listing them.

    Raises
    ------
    ValueError
        If that takes the token table, and the text was tokenized without.
    """
    if unit == "token" and special == "keep":
        return text.num_tokens
    if text.tokens is None or text.words is None:
        raise ValueError("words and special tokens are known only of texts that were tokenized with details")
    hidden = 0 if special == "keep" else sum(text.tokens.special)
    if unit == "token":
        return text.num_tokens - hidden
    return len(text.words.texts) + text.tokens.words.count(None) - hidden


def hide(weights: Tensor, kept: Tensor, *, renormalize: bool) -> tuple[Tensor, Tensor]:
    """Leave out rows and columns.

    Parameters
    ----------
    weights : Tensor, shape (..., L, L)
    kept : Tensor, shape (n,), int64
        The tokens that stay.
    renormalize : bool
        Divide each row by what it kept. A row that kept nothing stays 0.

    Returns
    -------
    Tensor, shape (..., n, n)
    Tensor, shape (..., n)
        What each row kept of its mass. A row that kept next to nothing looks like any other once it is renormalised:
        this alone tells them apart.
    """
    rows = weights.index_select(-2, kept).index_select(-1, kept)  # (..., n, n)
    mass = rows.sum(dim=-1)  # (..., n)
    if renormalize:
        rows = rows / torch.where(mass > 0, mass, 1.0).unsqueeze(-1)
    return rows, mass


def membership(members: Sequence[int], num_units: int, device: torch.device | None = None) -> Tensor:
    """Return the matrix that says which unit each token is of: (units, tokens), 1 where it is, float32."""
    matrix = torch.zeros(num_units, len(members), device=device)
    matrix[torch.tensor(members, dtype=torch.int64), torch.arange(len(members))] = 1.0
    return matrix


def merge_words(weights: Tensor, member_of: Tensor) -> Tensor:
    """Merge the pieces of words: keys are summed, queries averaged, so that rows keep their sums.

    Parameters
    ----------
    weights : Tensor, shape (..., n, n)
    member_of : Tensor, shape (units, n)
        From :func:`membership`.

    Returns
    -------
    Tensor, shape (..., units, units)

    References
    ----------
    Clark et al. 2019, section 4.1.
    """
    return mean_of_pieces(member_of) @ (weights @ member_of.T)


def mean_of_pieces(member_of: Tensor) -> Tensor:
    """Return the matrix that averages the pieces of each unit: (units, n)."""
    return member_of / member_of.sum(dim=1, keepdim=True)


# --- sparse rows ---


def largest_weights(weights: Tensor, bound: int, min_weight: float) -> tuple[Tensor, Tensor, Tensor]:
    """Select the largest weights of each row.

    Parameters
    ----------
    weights : Tensor, shape (..., n)
    bound : int
        At most so many of each row.
    min_weight : float
        None below this.

    Returns
    -------
    counts : Tensor, shape (rows,), int64
        How many of each row, in C order.
    index : Tensor, int64
        Their places in the row, row after row, the largest first.
    weight : Tensor, same shape as ``index``
    """
    values, places = weights.flatten(0, -2).topk(bound, dim=-1)  # (rows, bound)
    is_chosen = values >= min_weight if min_weight > 0 else torch.ones_like(values, dtype=torch.bool)
    return is_chosen.sum(dim=-1), places[is_chosen], values[is_chosen]


# --- rollout ---


def rollout_step(joint: Tensor | None, weights: Tensor, residual: float, how: HeadReduction) -> Tensor:
    """Multiply one more layer onto a rollout: ``(residual I + (1 - residual) A) joint``, the later layer on the left.

    Parameters
    ----------
    joint : Tensor, shape (L, L), or None
        The product so far; None before the first layer.
    weights : Tensor, shape (heads, L, L)
        All heads of the layer.
    residual : float
    how : "mean" or "max"

    Returns
    -------
    Tensor, shape (L, L)
        Rows sum to 1.

    References
    ----------
    Abnar and Zuidema 2020, section 3.
    """
    step = (1.0 - residual) * reduce_heads(weights, how).squeeze(-3)
    step.diagonal().add_(residual)
    return step if joint is None else step @ joint
