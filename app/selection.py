"""Which of the waiting texts run next.

A batch begins with the text that has waited longest and is filled with texts of like length, which share the attention
core's groups. Alone, that rule would let a short text wait for every long one that came before it; so short ones may
overtake, once, and then the oldest is due. Pure functions of what the texts cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WINDOW_BUDGETS = 4
"""A batch's neighbours of like length are looked for among so many token budgets of waiting texts."""

MAX_CANDIDATES = 4_096
"""A batch is chosen among so many of the oldest texts, so that a choice takes a millisecond, however many wait. Of
texts of four tokens they are eight full batches on a CPU, one on a GPU; of any that are longer, more."""

SHORT_RATIO = 4
"""Short is so many times shorter than the oldest text; quick, so many times under a batch's token budget."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one text takes of a batch: tokens, and values in its attention maps or its sparse vector."""

    tokens: int
    attention_values: int = 0


def select_batch(
    waiting: Sequence[Cost], max_tokens: int, max_attention_values: int, *, oldest_is_due: bool
) -> list[int]:
    """Choose the next batch: the oldest text and those nearest to it in length, unless short ones may overtake it.

    Short is a quarter of the oldest or less. Such texts go first, up to a quarter of the budget, where more than that
    waits: so a short text waits for the batch that runs, and not for all the long ones that came before it. Then the
    oldest is due, so that nobody starves.

    Parameters
    ----------
    waiting : sequence of Cost
        Oldest first; at least one, and for the sake of time no more than :data:`MAX_CANDIDATES`.
    max_tokens, max_attention_values : int
        The budgets of one batch. A text over a budget runs alone.
    oldest_is_due : bool
        Whether the oldest text was overtaken last time.

    Returns
    -------
    list of int
        Indices into ``waiting``, ascending; 0 among them if the oldest is due. All if all fit and none overtakes.
    """
    quick_tokens = max_tokens // SHORT_RATIO
    if not oldest_is_due and sum(cost.tokens for cost in waiting) > quick_tokens:
        short = [index for index, cost in enumerate(waiting) if SHORT_RATIO * cost.tokens <= waiting[0].tokens]
        if short:
            short.sort(key=lambda index: waiting[index].tokens)
            return _fill(short, waiting, quick_tokens, max_attention_values)
    window = _window(waiting, WINDOW_BUDGETS * max_tokens)
    nearest_first = sorted(window, key=lambda index: (index > 0, abs(waiting[index].tokens - waiting[0].tokens)))
    return _fill(nearest_first, waiting, max_tokens, max_attention_values)


def _window(waiting: Sequence[Cost], max_tokens: int) -> range:
    """Find the texts that have waited longest: as many as ``max_tokens`` hold, at least one."""
    tokens = 0
    for index, cost in enumerate(waiting):
        tokens += cost.tokens
        if index and tokens > max_tokens:
            return range(index)
    return range(len(waiting))


def _fill(candidates: Sequence[int], waiting: Sequence[Cost], max_tokens: int, max_values: int) -> list[int]:
    """Take the first candidate, and of the others in turn what fits beside what is taken. Ascending."""
    first = candidates[0]
    selected, tokens, attention_values = [first], waiting[first].tokens, waiting[first].attention_values
    for index in candidates[1:]:
        more_tokens = tokens + waiting[index].tokens
        more_values = attention_values + waiting[index].attention_values
        if more_tokens <= max_tokens and more_values <= max_values:
            selected.append(index)
            tokens, attention_values = more_tokens, more_values
    return sorted(selected)
