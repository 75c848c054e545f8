"""Claims about packing and grouping."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.batch import (
    MAX_GROUP_PADDING,
    Grouping,
    cut_by_tokens,
    group_bounds,
    pack,
    padding_ratio,
)
from model.contract import EncodeInput

steady = settings(deadline=None)  # a busy machine is no failure
lengths_of_texts = st.lists(st.integers(1, 300), min_size=1, max_size=40)


def make_inputs(lengths: list[int]) -> list[EncodeInput]:
    """Texts whose ids tell text and place: 1000 x text + place."""
    return [
        EncodeInput([1000 * text + place for place in range(length)], [text % 2] * length, length)
        for text, length in enumerate(lengths)
    ]


@steady
@given(lengths_of_texts)
def test_a_pack_holds_every_token_once_and_knows_where(lengths: list[int]) -> None:
    """Texts stand shortest first, whole, with their own types and positions, where ``starts`` and ``order`` say."""
    batch = pack(make_inputs(lengths))
    assert sorted(batch.order) == list(range(len(lengths)))
    assert list(batch.lengths) == sorted(lengths)
    assert len(batch.input_ids) == len(batch.token_type_ids) == len(batch.positions) >= sum(lengths)
    assert batch.groups[-1].stop == sum(lengths)  # idle rows behind the last text belong to no group
    for text, start, length in zip(batch.order, batch.starts, batch.lengths, strict=True):
        assert length == lengths[text]
        here = slice(start, start + length)
        assert batch.input_ids[here].tolist() == [1000 * text + place for place in range(length)]
        assert batch.token_type_ids[here].tolist() == [text % 2] * length
        assert batch.positions[here].tolist() == list(range(length))


def test_the_first_rows_are_the_texts_and_the_others_are_idle() -> None:
    """Idle rows stand behind all texts and look up rows that every table has."""
    batch = pack(make_inputs([3, 2]))
    for column in (batch.input_ids, batch.token_type_ids, batch.positions):
        assert not column[5:].any()


def test_batches_come_in_few_sizes() -> None:
    """Kernels are made for each number of rows and kept: a server that met every number would grow for days."""
    sizes = [len(pack(make_inputs([length])).input_ids) for length in range(1, 2049)]
    assert len(set(sizes)) < 80
    assert sizes == sorted(sizes)
    assert sum(sizes) / sum(range(1, 2049)) < 1.06


def test_texts_of_one_length_keep_their_order() -> None:
    """Packing is stable, so that a batch is the same every time."""
    assert pack(make_inputs([5, 3, 5, 3, 5])).order == (1, 3, 0, 2, 4)


@steady
@given(lengths_of_texts, st.floats(0, 0.9), st.integers(1, 400))
def test_groups_cover_every_text_once_and_keep_the_bound(lengths: list[int], bound: float, long: int) -> None:
    """Runs follow each other without gap or overlap; none is padded beyond the share, long texts are alone."""
    ordered = sorted(lengths)
    expected_first = 0
    for first, stop in group_bounds(ordered, Grouping(bound, alone_from=long)):
        assert first == expected_first
        assert stop > first
        slots = (stop - first) * ordered[stop - 1]
        assert slots - sum(ordered[first:stop]) <= bound * slots + 1e-9
        assert stop == first + 1 or ordered[stop - 1] < long
        expected_first = stop
    assert expected_first == len(ordered)


@steady
@given(lengths_of_texts)
def test_no_padding_allowed_means_one_group_a_length(lengths: list[int]) -> None:
    """With a bound of 0 each distinct length is a group, none is cut in two."""
    assert len(list(group_bounds(sorted(lengths), Grouping(0.0)))) == len(set(lengths))


def test_like_lengths_share_a_group() -> None:
    """Groups are as few as the bound allows: it is not a group per length."""
    assert list(group_bounds([9, 10, 10, 11])) == [(0, 4)]
    assert list(group_bounds([2, 2, 100])) == [(0, 2), (2, 3)]
    assert list(group_bounds([])) == []
    assert list(group_bounds([19, 20, 20, 20], Grouping(alone_from=20))) == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_a_group_is_made_longer_where_little_is_missing() -> None:
    """Up to a quarter of the step, if there are four texts; one that is as long as the group is padded then, too."""
    grouping = Grouping(align=16)
    lengths = (1, 11, 12, 16, 17, 27, 28, 32)
    assert [grouping.padded_length(length, 4) for length in lengths] == [1, 11, 16, 16, 17, 27, 32, 32]
    assert [grouping.padded_length(length, 3) for length in lengths] == [*lengths]
    [group] = pack(make_inputs([30, 30, 30, 30]), grouping=grouping).groups
    assert (group.length, group.num_texts) == (32, 4)
    assert group.mask is not None
    assert group.mask.sum(1).tolist() == [30] * 4
    assert padding_ratio([30] * 4, grouping) == pytest.approx(2 / 32)
    assert [Grouping().padded_length(length, 9) for length in (30, 31)] == [30, 31]


@steady
@given(lengths_of_texts, st.sampled_from([Grouping(), Grouping(align=16), Grouping(alone_from=100)]))
def test_pad_and_pack_are_inverse(lengths: list[int], grouping: Grouping) -> None:
    """Laid side by side and packed again, every row of every group is where it was; padding is the text's own."""
    batch = pack(make_inputs(lengths), grouping=grouping)
    packed = torch.arange(1, sum(lengths) + 1, dtype=torch.float32).unsqueeze(1).repeat(1, 2)  # (T, 2)
    again = []
    place = 0
    for group in batch.groups:
        padded = group.pad(packed)
        assert padded.shape == (group.num_texts, group.length, 2)
        for row in padded:
            length = batch.lengths[place]
            start = batch.starts[place]
            torch.testing.assert_close(row[:length], packed[start : start + length], rtol=0, atol=0)
            own = set(packed[start : start + length, 0].tolist())
            assert set(row[length:, 0].tolist()) <= own | {0.0}  # finite, and never a neighbour's
            place += 1
        if group.mask is not None:
            real = [batch.lengths[place - group.num_texts + text] for text in range(group.num_texts)]
            assert group.mask.sum(1).tolist() == real
        else:
            assert group.stop - group.start == group.num_texts * group.length
        again.append(group.pack(padded))
    torch.testing.assert_close(torch.cat(again), packed, rtol=0, atol=0)


@steady
@given(lengths_of_texts, st.sampled_from([Grouping(), Grouping(align=16), Grouping(alone_from=100)]))
def test_the_padding_ratio_is_the_share_of_empty_slots(lengths: list[int], grouping: Grouping) -> None:
    """What is reported is what the batch's own groups have, and stays below the bound where there is but that."""
    slots = sum(group.num_texts * group.length for group in pack(make_inputs(lengths), grouping=grouping).groups)
    assert padding_ratio(lengths, grouping) == pytest.approx(1 - sum(lengths) / slots)
    assert 0 <= padding_ratio(lengths) <= MAX_GROUP_PADDING + 1e-9


def test_nothing_has_no_padding() -> None:
    """No texts, no slots, no division by zero; equal texts have no padding either."""
    assert padding_ratio([]) == 0.0
    assert padding_ratio([7, 7, 7]) == 0.0
    assert padding_ratio([7, 9], None) == 0.0


@steady
@given(st.lists(st.integers(1, 300), max_size=40), st.integers(1, 600))
def test_batches_cover_every_text_once_within_the_budget(lengths: list[int], budget: int) -> None:
    """Every text is in one batch; a batch is over the budget only if it is a single text; longest come first."""
    batches = list(cut_by_tokens(lengths, budget))
    order = [index for batch in batches for index in batch]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[index] for index in order] == sorted(lengths, reverse=True)
    for batch in batches:
        assert batch
        assert len(batch) == 1 or sum(lengths[index] for index in batch) <= budget


def test_batches_are_filled() -> None:
    """A batch is closed only when the next text does not fit."""
    assert [len(batch) for batch in cut_by_tokens([10] * 10, 30)] == [3, 3, 3, 1]


def test_no_padding_where_none_is_allowed() -> None:
    """Only texts of one length share a group."""
    batch = pack(make_inputs([19, 20, 19, 18]), grouping=Grouping(0.0))
    assert [(group.num_texts, group.length) for group in batch.groups] == [(1, 18), (2, 19), (1, 20)]
    assert all(group.mask is None for group in batch.groups)
    assert padding_ratio([19, 20, 19, 18], grouping=Grouping(0.0)) == 0.0


@steady
@given(lengths_of_texts, st.integers(0, 2**40))
def test_texts_with_hidden_tokens_share_no_group_with_others(lengths: list[int], drawn: int) -> None:
    """So that no other text takes a mask for them; in each group every text is seen as far as it says."""
    inputs = [
        replace(item, num_seen=max(1, item.num_tokens // 2) if drawn >> place & 1 else None)
        for place, item in enumerate(make_inputs(lengths))
    ]
    batch = pack(inputs)
    assert list(batch.num_seen) == [inputs[index].num_seen or lengths[index] for index in batch.order]
    assert [group.start for group in batch.groups] == [0, *(group.stop for group in batch.groups[:-1])]
    first = 0
    for group in batch.groups:
        texts = [inputs[index] for index in batch.order[first : first + group.num_texts]]
        first += group.num_texts
        assert len({item.hides_tokens for item in texts}) == 1
        assert (group.seen is not None) == texts[0].hides_tokens
        if group.seen is not None:
            assert group.seen.sum(dim=1).tolist() == [item.num_seen for item in texts]
            assert group.seen.shape == (group.num_texts, group.length)
    assert first == len(lengths)
