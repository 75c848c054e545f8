"""How requests are cut into turns; the tests of the routes /similarity, /attention/heads and /rerank run them."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from app.turns import cut_turns


@given(st.lists(st.integers(0, 50)), st.integers(1, 100))
def test_turns_hold_what_fits(costs: list[int], budget: int) -> None:
    """Every item once, in order; together within the budget, or alone; and no two neighbours would fit one turn."""
    turns = cut_turns(costs, budget)
    ranges = [range(turn.start, turn.stop) for turn in turns]
    assert list(chain.from_iterable(ranges)) == list(range(len(costs)))
    totals = [sum(costs[index] for index in turn) for turn in ranges]
    assert all(total <= budget or len(turn) == 1 for total, turn in zip(totals, ranges, strict=True))
    assert all(total + costs[turn.start] > budget for total, turn in zip(totals, ranges[1:], strict=False))
