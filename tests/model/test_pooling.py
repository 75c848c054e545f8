"""Claims about pooling and what follows it, against loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from model.pooling import POOLING_FUNCTIONS, PoolingMode, Spans, finish, sum_pool

LENGTHS = (4, 1, 6)
STARTS = (0, 4, 5)


def slow_pool(mode: PoolingMode, tokens: list[list[float]]) -> list[float]:
    """Pool the tokens of one text column by column."""
    columns = list(zip(*tokens, strict=True))
    if mode == "mean":
        return [sum(column) / len(column) for column in columns]
    if mode == "max":
        return [max(column) for column in columns]
    return tokens[0] if mode == "cls" else tokens[-1]


def random_states(dtype: torch.dtype = torch.float32) -> Tensor:
    """Hidden states of the three texts, all below zero in the first column."""
    states = torch.randn(sum(LENGTHS), 5, generator=torch.Generator().manual_seed(0))
    states[:, 0] = -states[:, 0].abs() - 1  # a maximum that starts at 0 would show
    return states.to(dtype)


@pytest.mark.parametrize("mode", POOLING_FUNCTIONS)
@pytest.mark.parametrize("skipped", [(0, 0, 0), (2, 0, 3), (1, 5, 6)])
def test_pooling_is_what_its_name_says(mode: PoolingMode, skipped: tuple[int, ...]) -> None:
    """Each text is pooled over its own tokens alone, without those of the prompt where they are left out."""
    states = random_states()
    pooled = POOLING_FUNCTIONS[mode](states, Spans.of(STARTS, LENGTHS, skipped))
    for text, (start, length, skip) in enumerate(zip(STARTS, LENGTHS, skipped, strict=True)):
        tokens = states[start : start + length].tolist()
        kept = tokens[skip:] or tokens[-1:]  # a text that is nothing but prompt keeps its last token
        torch.testing.assert_close(pooled[text], torch.tensor(slow_pool(mode, kept)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", POOLING_FUNCTIONS)
def test_pooled_vectors_are_float32(mode: PoolingMode) -> None:
    """Whatever the encoder computes in, one vector per text comes out in float32."""
    pooled = POOLING_FUNCTIONS[mode](random_states(torch.bfloat16), Spans.of(STARTS, LENGTHS, (0, 0, 0)))
    assert pooled.dtype == torch.float32
    assert pooled.shape == (3, 5)


def test_the_mean_of_half_precision_is_summed_in_float32() -> None:
    """300 bfloat16 tokens have the mean of their values, not that of a sum that stopped growing at 256."""
    states = torch.ones(300, 2, dtype=torch.bfloat16)
    states[:, 1] = 1.0078125
    pooled = POOLING_FUNCTIONS["mean"](states, Spans.of([0], [300], [0]))
    torch.testing.assert_close(pooled, torch.tensor([[1.0, 1.0078125]]), rtol=0, atol=1e-6)


def test_a_sum_is_of_a_texts_own_tokens_in_float32() -> None:
    """300 bfloat16 tokens add up to 300, and the text beside them to its own."""
    pooled = sum_pool(torch.ones(304, 2, dtype=torch.bfloat16), Spans.of([0, 300], [300, 4], [0, 1]))
    assert pooled.dtype == torch.float32
    assert pooled.tolist() == [[300.0, 300.0], [3.0, 3.0]]


@pytest.mark.parametrize("skip", [0, 1, 3, 4, 5, 1000])
def test_a_span_is_never_empty(skip: int) -> None:
    """However long the prompt, at least the last token is pooled, and never one of another text."""
    spans = Spans.of([7], [4], [skip])
    assert spans.stops == (11,)
    assert 7 <= spans.starts[0] < 11
    assert spans.starts[0] == min(7 + skip, 10)


def test_dimensions_are_cut_before_the_length_becomes_one() -> None:
    """A shortened embedding is a unit vector of its own, in the direction of the first dimensions."""
    pooled = torch.tensor([[3.0, 4.0, 12.0], [0.0, 2.0, 1.0]])
    cut = finish(pooled, dimensions=2, normalize=True)
    torch.testing.assert_close(cut, torch.tensor([[0.6, 0.8], [0.0, 1.0]]), rtol=0, atol=1e-7)
    whole = finish(pooled, dimensions=None, normalize=True)
    torch.testing.assert_close(whole[0], torch.tensor([3.0, 4.0, 12.0]) / 13, rtol=0, atol=1e-7)


def test_raw_vectors_are_only_cut() -> None:
    """Without ``normalize`` the numbers are the pooled ones."""
    pooled = torch.tensor([[3.0, 4.0, 12.0]])
    assert finish(pooled, dimensions=None, normalize=False).tolist() == [[3.0, 4.0, 12.0]]
    assert finish(pooled, dimensions=2, normalize=False).tolist() == [[3.0, 4.0]]


def test_a_zero_vector_stays_zero() -> None:
    """What has no direction gets none, and no NaN."""
    assert finish(torch.zeros(1, 3), dimensions=None, normalize=True).tolist() == [[0.0, 0.0, 0.0]]
