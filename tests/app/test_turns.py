"""How comparisons run in turns; tests/app/routes/test_explain.py and test_attention.py have what comes of them."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from app.comparison_flows import _turns


@given(st.lists(st.integers(0, 50)), st.integers(1, 100))
def test_turns_hold_what_fits(costs: list[int], budget: int) -> None:
    """Every item once, in order; together within the budget, or alone; and no two neighbours would fit one turn."""
    turns = _turns(costs, budget)
    assert list(chain.from_iterable(turns)) == list(range(len(costs)))
    totals = [sum(costs[index] for index in turn) for turn in turns]
    assert all(total <= budget or len(turn) == 1 for total, turn in zip(totals, turns, strict=True))
    assert all(total + costs[turn.start] > budget for total, turn in zip(totals, turns[1:], strict=False))
