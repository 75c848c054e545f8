"""What a reading adds to a text, and which tokens of it have a vector."""

from __future__ import annotations

from model.contract import EncodeInput, TokenTable
from model.readings import Added, Reading

PREFIX, EXPANSION_TOKEN = Added(50, "[D] "), Added(9, "[MASK]")


def text(*ids: int, total: int | None = None, prompt_length: int = 0) -> EncodeInput:
    """A text as the tokenizer gives it, without details."""
    return EncodeInput(list(ids), [0] * len(ids), total or len(ids), prompt_length)


def test_a_prefix_stands_behind_the_first_token() -> None:
    """It is processed and counted, and belongs to the prompt where there is one."""
    reading = Reading(max_length=8, prefix=PREFIX)
    item = reading.read(text(1, 5, 6, 2))
    assert (item.input_ids, item.token_type_ids) == ([1, 50, 5, 6, 2], [0] * 5)
    assert (item.num_tokens_total, item.is_truncated, item.prompt_length, reading.num_added) == (5, False, 0, 1)
    assert (item.num_seen, item.kept, item.hides_tokens, item.num_vectors) == (None, None, False, 5)
    assert reading.read(text(1, 5, 6, 2, total=9, prompt_length=2)).prompt_length == 3
    assert reading.read(text(1, 5, 6, 2, total=9)).is_truncated
    assert Reading(max_length=8).num_added == 0


def test_a_prefix_of_a_text_without_tokens_is_all_of_it() -> None:
    """A tokenizer without a template may give none."""
    assert Reading(max_length=8, prefix=PREFIX).read(text()).input_ids == [50]


def test_a_query_is_filled_up() -> None:
    """What fills it is not looked at, unless the model says so, and has vectors like every other token."""
    reading = Reading(max_length=7, prefix=PREFIX, expansion_token=EXPANSION_TOKEN, expansion_length=7)
    item = reading.read(text(1, 5, 2))
    assert item.input_ids == [1, 50, 5, 2, 9, 9, 9]
    assert (item.num_seen, item.hides_tokens, item.num_vectors, item.is_truncated) == (4, True, 7, False)
    seen = Reading(max_length=7, expansion_token=EXPANSION_TOKEN, expansion_length=7, attend_to_expansion=True).read(
        text(1, 5, 2)
    )
    assert (seen.input_ids, seen.num_seen, seen.hides_tokens) == ([1, 5, 2, 9, 9, 9, 9], None, False)


def test_a_query_that_is_full_is_left() -> None:
    """Also one that is longer than what queries are filled up to."""
    for length in (2, 3):
        reading = Reading(max_length=9, expansion_token=EXPANSION_TOKEN, expansion_length=length)
        assert reading.read(text(1, 5, 2)) == text(1, 5, 2)


def test_skipped_tokens_are_read_and_have_no_vector() -> None:
    """Their places are left out; a text without such tokens keeps all."""
    reading = Reading(max_length=9, prefix=PREFIX, skiplist_ids=frozenset({7, 8}))
    item = reading.read(text(1, 7, 5, 8, 2))
    assert (item.input_ids, item.kept, item.num_vectors) == ([1, 50, 7, 5, 8, 2], (0, 1, 3, 5), 4)
    assert reading.read(text(1, 5, 2)).kept is None
    assert reading.keep(text(1, 7, 2)) == EncodeInput([1, 7, 2], [0] * 3, 3, kept=(0, 2))


def test_added_tokens_are_described() -> None:
    """As special ones, which stand for none of the text; the words stay."""
    table = TokenTable(
        ids=[1, 5, 2],
        texts=["[CLS]", "a", "[SEP]"],
        starts=[0, 0, 0],
        ends=[0, 1, 0],
        special=[True, False, True],
        segments=[None, 0, None],
        words=[None, 0, None],
    )
    reading = Reading(max_length=6, prefix=PREFIX, expansion_token=EXPANSION_TOKEN, expansion_length=6)
    item = reading.read(EncodeInput([1, 5, 2], [0] * 3, 3, tokens=table))
    assert item.tokens == TokenTable(
        ids=[1, 50, 5, 2, 9, 9],
        texts=["[CLS]", "[D] ", "a", "[SEP]", "[MASK]", "[MASK]"],
        starts=[0] * 6,
        ends=[0, 0, 1, 0, 0, 0],
        special=[True, True, False, True, True, True],
        segments=[None, None, 0, None, None, None],
        words=[None, None, 0, None, None, None],
    )
