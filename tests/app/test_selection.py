"""Claims about which texts run next: budgets hold, neighbours are alike, short ones overtake, and nobody starves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.selection import SHORT_RATIO, WINDOW_BUDGETS, Cost, select_batch

ANY_COST = st.builds(Cost, st.integers(1, 45), st.integers(0, 15))
TOKENS, VALUES = 30, 10


def select(waiting: list[Cost], *, oldest_is_due: bool = False) -> list[int]:
    """Select with the budgets of these tests."""
    return select_batch(waiting, TOKENS, VALUES, oldest_is_due=oldest_is_due)


def costs(*tokens: int) -> list[Cost]:
    """Make texts that cost so many tokens and no maps."""
    return [Cost(number) for number in tokens]


@given(st.lists(ANY_COST, min_size=1, max_size=30), st.booleans())
def test_a_batch_is_within_both_budgets(waiting: list[Cost], oldest_is_due: bool) -> None:
    """No batch exceeds a budget, except a single text that does so by itself."""
    batch = [waiting[index] for index in select(waiting, oldest_is_due=oldest_is_due)]
    within_tokens = sum(cost.tokens for cost in batch) <= TOKENS
    within_values = sum(cost.attention_values for cost in batch) <= VALUES
    assert (within_tokens and within_values) or len(batch) == 1


@given(st.lists(ANY_COST, min_size=1, max_size=30), st.lists(st.lists(ANY_COST, max_size=3), max_size=40))
def test_nobody_starves(waiting: list[Cost], arrivals: list[list[Cost]]) -> None:
    """Of two batches in a row one has the oldest text, whatever arrives meanwhile; so every text runs in the end.

    https://github.com/huggingface/text-embeddings-inference/issues/723 looped for ever over a text that fits nowhere.
    """
    num_batches, num_texts, oldest_is_due = 0, len(waiting) + sum(map(len, arrivals)), False
    coming = iter(arrivals)
    while waiting:
        chosen = select(waiting, oldest_is_due=oldest_is_due)
        assert chosen == sorted(set(chosen))
        assert chosen[0] == 0 or not oldest_is_due
        oldest_is_due = chosen[0] != 0
        waiting = [cost for index, cost in enumerate(waiting) if index not in chosen] + next(coming, [])
        num_batches += 1
    assert num_batches <= num_texts


@given(st.lists(st.builds(Cost, st.integers(4, 10), st.integers(0, 3)), min_size=1, max_size=3))
def test_what_fits_is_taken_in_order(waiting: list[Cost]) -> None:
    """If everything fits and nothing is short, everything is taken, in order of arrival."""
    assert select(waiting) == list(range(len(waiting)))


def test_neighbours_are_of_similar_length() -> None:
    """If not everything fits, the texts nearest in length to the oldest go with it."""
    assert select(costs(9, 27, 12, 3, 9)) == [0, 2, 4]


def test_like_lengths_are_looked_for_within_the_window_only() -> None:
    """Among four budgets of the oldest texts, and not beyond."""
    assert select(costs(10, 10, *[TOKENS - 5] * WINDOW_BUDGETS, 10)) == [0, 1]


def test_a_text_that_does_not_fit_blocks_no_smaller_one() -> None:
    """A batch is filled up past a text that is too large for what is left."""
    assert select(costs(18, 15, 12)) == [0, 2]


def test_maps_have_their_own_budget() -> None:
    """Texts that ask for maps are kept apart by their size; the others ride along."""
    assert select([Cost(2, 8), Cost(2, 8), Cost(2, 0), Cost(2, 2)]) == [0, 2, 3]


def test_a_text_over_the_map_budget_runs_alone() -> None:
    """Not even a text without maps joins a text that is over the budget."""
    assert select([Cost(2, 11), Cost(2, 0)]) == [0]


def test_short_ones_overtake() -> None:
    """Up to a quarter of the budget of texts that are a quarter of the oldest or shorter, the shortest first."""
    assert SHORT_RATIO == 4
    assert select(costs(24, 4, 3, 6, 1, 7)) == [2, 4]  # with the next, 4, there would be 8 tokens of at most 7
    assert select(costs(24, 6, 24)) == [1]
    assert select(costs(24, 7, 24)) == [0]  # more than a quarter of 24


def test_the_oldest_is_due_after_that() -> None:
    """The next batch is the oldest text's, with those nearest to it in length."""
    assert select(costs(24, 4, 24), oldest_is_due=True) == [0, 1]
    assert select(costs(24, 4, 6), oldest_is_due=True) == [0, 2]


def test_nobody_overtakes_where_little_waits() -> None:
    """What is quick as a whole, a quarter of the budget, is not cut in two."""
    assert select(costs(4, 1, 2)) == [0, 1, 2]
