"""Refuses comparisons that are too large, before any forward pass, with ways out that would fit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from app.errors import AttentionTooLargeError, InvalidRequestError
from model.contract import EncodeInput, Unit
from model.embedder import Embedder
from model.maps import Units


def explained_units(embedder: Embedder, inputs: Sequence[EncodeInput], unit: Unit, limit: int) -> list[Units]:
    """Find what rows and columns of the similarity maps of pairs stand for, and check how large the maps are.

    Parameters
    ----------
    embedder : Embedder
    inputs : sequence of EncodeInput
        The texts of the pairs, one after the other: a1, b1, a2, b2, ...
    unit : "token" or "word"
    limit : int
        Values in all maps together.

    Returns
    -------
    list of Units
        In the order of ``inputs``.

    Raises
    ------
    AttentionTooLargeError
        If the maps are larger than that.
    """
    units = [embedder.pooled_units(item, unit) for item in inputs]
    sizes = _sizes(units)
    ways_out = _first_that_fit(sizes, limit, "pairs")
    if unit == "token" and sum(sizes) > limit:
        by_word = sum(_sizes([embedder.pooled_units(item, "word") for item in inputs]))
        if by_word <= limit:
            ways_out.insert(0, f"unit=word gives {by_word}")
    words = "the explanations asked for have {actual} values, an answer may hold {limit}"
    _check(sizes, limit, words, "explain", ways_out)
    return units


def check_heads(hidden: Sequence[Sequence[bool] | None], values: Sequence[int], limit: int) -> None:
    """Check a comparison of heads.

    Parameters
    ----------
    hidden : sequence of (sequence of bool or None)
        For each text which of its tokens are left out, None = none.
    values : sequence of int
        The attention values of each text, all of which are computed.
    limit : int

    Raises
    ------
    InvalidRequestError
        If no token is left to compare heads on.
    AttentionTooLargeError
        If there are more than ``limit`` values together.
    """
    if all(special is not None and all(special) for special in hidden):
        raise InvalidRequestError("without special tokens nothing is left of the texts", param="texts")
    words = "all heads on these texts have {actual} attention values, a request may have {limit} computed"
    _check(values, limit, words, "texts", _first_that_fit(values, limit, "texts"))


def _sizes(units: Sequence[Units]) -> list[int]:
    return [a.num_units * b.num_units for a, b in zip(units[0::2], units[1::2], strict=True)]


def _first_that_fit(sizes: Sequence[int], limit: int, what: str) -> list[str]:
    """Say how far into the list the limit reaches."""
    fitting = [total for total in itertools.accumulate(sizes) if total <= limit]
    return [f"the first {len(fitting)} {what} give {fitting[-1]}" if fitting else "send shorter texts"]


def _check(sizes: Sequence[int], limit: int, words: str, param: str, ways_out: Sequence[str]) -> None:
    actual = sum(sizes)
    if actual > limit:
        message = f"{words.format(actual=actual, limit=limit)}: {'; '.join(ways_out)}"
        raise AttentionTooLargeError(message, param=param, limit=limit, actual=actual)
