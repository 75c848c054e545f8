"""Claims about which tokens stay. What a tokenizer makes of it: tests/model/test_tokenizer.py."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.truncation import Side, cut, cut_ids, longest_first
from tests.model.folders import wordpiece

steady = settings(deadline=None)  # a busy machine is no failure


def slow_longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Take one token at a time from the longer text; of equal ones, from the one that was not longer at first."""
    kept = [first, second]
    at_a_tie = 1 if first > second else 0
    while sum(kept) > room:
        loser = at_a_tie if kept[0] == kept[1] else kept.index(max(kept))
        kept[loser] -= 1
    return kept[0], kept[1]


@steady
@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 80))
def test_the_longer_text_loses_tokens_first(first: int, second: int, room: int) -> None:
    """The room is shared as by a loop that takes tokens one by one."""
    assert longest_first(first, second, room) == slow_longest_first(first, second, room)


@pytest.mark.parametrize(("side", "kept"), [("right", [0, 1, 2]), ("left", [5, 6, 7])])
def test_ids_are_cut_to_a_list_of_their_own(side: Side, kept: list[int]) -> None:
    """The caller's list is left alone, and is not the one that is given back."""
    ids = list(range(8))
    assert cut_ids(ids, 3, side) == kept
    assert ids == list(range(8))
    whole = cut_ids(ids, 9, side)
    assert whole == ids
    assert whole is not ids
    assert cut_ids(ids, 0, side) == []


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("length", [0, 1, 5, 8])
def test_a_cut_leaves_nothing_behind(side: Side, length: int) -> None:
    """An encoding keeps its tokens at that side, and of what is cut off at most one piece."""
    encoding = wordpiece().encode("the cat sat the dog sat the cat", add_special_tokens=False)
    ids = list(encoding.ids)
    assert len(ids) == 8
    cut(encoding, length, side)
    assert encoding.ids == cut_ids(ids, length, side)
    assert len(encoding.overflowing) <= 1
