"""What holds for any input, drawn by hypothesis: of attention, of what is made of its maps, of the tokenizer.

``TEST_SCALE=20`` draws twenty times as many.
"""

from __future__ import annotations

import os

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model.attention_cores import attend_explicit, attend_fused, attention_weights
from model.maps import membership, merge_words, reduce_heads
from model.tokenizer import Tokenizer, TokenizerConfig
from tests.model.folders import wordpiece

TEST_SCALE = float(os.environ.get("TEST_SCALE", "1"))
often = settings(
    max_examples=int(60 * TEST_SCALE),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

SIZES = st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 5))  # heads, tokens, head size
LARGE = st.sampled_from([0.0, 1.0, 30.0, 1e4])  # of scores: flat, ordinary, sharp, beyond what exp can hold


@st.composite
def heads(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of one text, (H, L, K), and a mask of its keys with at least one to be seen."""
    shape, scale = draw(SIZES), draw(LARGE)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    query, key, value = (torch.randn(*shape, generator=generator) for _ in range(3))
    seen = draw(st.lists(st.booleans(), min_size=shape[1], max_size=shape[1]).filter(any))
    return query * scale, key, value, torch.tensor(seen)


@st.composite
def weights(draw: st.DrawFn) -> torch.Tensor:
    """Maps, (H, L, L), whose rows sum to 1."""
    num_heads, length, _ = draw(SIZES)
    values = draw(arrays.arrays(np.float32, (num_heads, length, length), elements=st.floats(0, 1, width=32)))
    values = values + np.float32(0.001)
    return torch.from_numpy(values / values.sum(axis=-1, keepdims=True))


@often
@given(heads())
def test_rows_sum_to_1_and_padding_gets_0(
    drawn: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    """However large the scores and whatever is hidden: each row is a distribution over the keys that are seen."""
    query, key, _, seen = drawn
    found = attention_weights(query, key, seen)
    assert bool(torch.isfinite(found).all())
    assert bool((found >= 0).all())
    torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:-1]), atol=1e-5, rtol=0)
    assert float(found[..., ~seen].abs().sum()) == 0


@often
@given(heads())
def test_padding_changes_nothing(drawn: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    """What is attended to is the same with hidden keys beside it and without them, on both paths."""
    query, key, value, seen = drawn
    mask = seen.expand(query.shape[1], -1)
    alone, _ = attend_explicit(query[None], key[None][:, :, seen], value[None][:, :, seen])
    for attend in (attend_explicit, attend_fused):
        padded, _ = attend(query[None], key[None], value[None], mask)
        torch.testing.assert_close(padded, alone, atol=1e-4, rtol=1e-4)


@often
@given(weights(), st.data())
def test_merging_words_keeps_the_mass(maps: torch.Tensor, data: st.DataObject) -> None:
    """Rows of words sum to 1 as rows of tokens do, and words of one token each change nothing."""
    length = maps.shape[-1]
    num_words = data.draw(st.integers(1, length))
    extra = st.lists(st.integers(0, num_words - 1), min_size=length - num_words, max_size=length - num_words)
    members = sorted([*range(num_words), *data.draw(extra)])
    merged = merge_words(maps, membership(members, num_words))
    assert merged.shape == (maps.shape[0], num_words, num_words)
    torch.testing.assert_close(merged.sum(-1), torch.ones(merged.shape[:-1]), atol=1e-5, rtol=0)
    torch.testing.assert_close(merge_words(maps, membership(range(length), length)), maps, atol=1e-6, rtol=0)


@often
@given(weights(), st.sampled_from(["mean", "max"]))
def test_heads_taken_together_are_a_map(maps: torch.Tensor, how: str) -> None:
    """Their mean and their renormalised maximum have rows that sum to 1, and one head is itself."""
    reduced = reduce_heads(maps, how)  # type: ignore[arg-type]
    assert reduced.shape == (1, *maps.shape[1:])
    torch.testing.assert_close(reduced.sum(-1), torch.ones(reduced.shape[:-1]), atol=1e-5, rtol=0)
    torch.testing.assert_close(reduce_heads(maps[:1], how), maps[:1], atol=1e-6, rtol=0)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A tokenizer that reads 12 tokens."""
    return Tokenizer(wordpiece(), TokenizerConfig(max_length=12))


@often
@given(texts=st.lists(st.text(max_size=80) | st.tuples(st.text(max_size=60), st.text(max_size=60)), max_size=4))
def test_any_text_is_read_within_the_limits(tokenizer: Tokenizer, texts: list[str | tuple[str, str]]) -> None:
    """One input a text, in order; never over the maximum, never under the special tokens; what was cut is told."""
    inputs = tokenizer.encode(texts, details=True)
    assert len(inputs) == len(texts)
    for text, item in zip(texts, inputs, strict=True):
        assert 1 <= item.num_tokens <= tokenizer.max_length
        assert (
            item.num_tokens
            == len(item.input_ids)
            == len(item.token_type_ids)
            == min(item.num_tokens_total, tokenizer.max_length)
        )
        assert item.is_truncated == (item.num_tokens_total > item.num_tokens)
        assert all(0 <= token < tokenizer.vocab_size for token in item.input_ids)
        assert item.tokens is not None
        parts = (text, "") if isinstance(text, str) else text
        for start, end, segment in zip(item.tokens.starts, item.tokens.ends, item.tokens.segments, strict=True):
            assert 0 <= start <= end <= len(parts[segment or 0])


@often
@given(texts=st.lists(st.text(max_size=40), min_size=1, max_size=5))
def test_a_text_is_read_the_same_among_others(tokenizer: Tokenizer, texts: list[str]) -> None:
    """Alone or in a list, with details or without, a text has the same ids."""
    together = [item.input_ids for item in tokenizer.encode(texts)]
    assert together == [tokenizer.encode([text])[0].input_ids for text in texts]
    assert together == [item.input_ids for item in tokenizer.encode(texts, details=True)]
