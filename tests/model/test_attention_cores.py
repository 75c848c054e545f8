"""Claims about the attention core: three functions, one answer; what is hidden has no weight at all."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import model.attention_cores
from model.attention_cores import (
    LONG_TEXT,
    attend_alone,
    attend_explicit,
    attend_fused,
    attention_weights,
    rounded_length,
)
from model.masks import subsequent_mask, window_mask

B, H, K = 2, 3, 4
LENGTHS = (1, 2, 17, 64)


def random_heads(length: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values."""
    query, key, value = torch.randn(3, B, H, length, K, generator=torch.Generator().manual_seed(length)).to(dtype)
    return query, key, value


def slow_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: list[list[bool]] | None
) -> tuple[list[list[float]], list[list[float]]]:
    """One head: the formula in plain Python, with a sum over the visible keys alone."""
    contexts, maps = [], []
    for i, q in enumerate(query.tolist()):
        scores = [sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q)) for k in key.tolist()]
        seen = [mask is None or mask[i][j] for j in range(len(scores))]
        powers = [math.exp(score) if visible else 0.0 for score, visible in zip(scores, seen, strict=True)]
        weights = [power / sum(powers) for power in powers]
        maps.append(weights)
        columns = zip(*value.tolist(), strict=True)
        contexts.append([sum(w * v for w, v in zip(weights, column, strict=True)) for column in columns])
    return contexts, maps


def masks_for(length: int) -> list[Tensor | None]:
    """No mask, causal, a window, and a padding mask that hides the last key from everybody."""
    padded = torch.ones(length, length, dtype=torch.bool)
    padded[:, length - 1 :] = length == 1
    return [None, subsequent_mask(length), window_mask(length, 2), padded]


@pytest.mark.parametrize("length", LENGTHS)
def test_both_paths_are_the_formula(length: int) -> None:
    """softmax(Q K^T / sqrt(K)) V, computed by loops, is what both paths give under every mask."""
    query, key, value = random_heads(length)
    for mask in masks_for(length):
        fused, none = attend_fused(query, key, value, mask)
        explicit, weights = attend_explicit(query, key, value, mask)
        assert none is None
        assert weights is not None
        torch.testing.assert_close(fused, explicit, rtol=0, atol=1e-6)
        context, maps = slow_attention(query[0, 1], key[0, 1], value[0, 1], None if mask is None else mask.tolist())
        torch.testing.assert_close(explicit[0, 1], torch.tensor(context), rtol=0, atol=1e-5)
        torch.testing.assert_close(weights[0, 1], torch.tensor(maps), rtol=0, atol=1e-6)


def lone_heads(length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one text."""
    query, key, value = random_heads(length)
    return query[:1], key[:1], value[:1]


@pytest.mark.parametrize("length", [112, 128, 131, 188, 257, 512])
@torch.inference_mode()
def test_a_lone_text_has_the_context_of_the_formula(length: int) -> None:
    """Exact in float32; in bfloat16 to its rounding, and other than the fused kernel's: it is another way."""
    heads = lone_heads(length)
    context, none = attend_alone(*heads)
    expected, _ = attend_explicit(*heads)
    torch.testing.assert_close(context, expected, rtol=1e-5, atol=1e-5)
    assert none is None
    rounded = [head.bfloat16() for head in heads]
    context, _ = attend_alone(*rounded)
    torch.testing.assert_close(context.float(), expected, rtol=0, atol=0.02)
    assert context.dtype == torch.bfloat16
    assert not torch.equal(context, attend_fused(*rounded)[0])


def test_whatever_is_no_lone_long_text_goes_to_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short one, two, one with a mask, one whose scores would take too much memory, one in training."""
    asked = []

    def fused(*arguments: object) -> tuple[None, None]:
        asked.append(arguments)
        return None, None

    monkeypatch.setattr(model.attention_cores, "attend_fused", fused)
    heads, mask = lone_heads(160), torch.ones(160, 160, dtype=torch.bool)
    attend_alone(*heads)
    assert asked == []
    for others, mask_, dropout in (
        (lone_heads(111), None, 0.0),
        (random_heads(160), None, 0.0),
        (heads, mask, 0.0),
        (lone_heads(1281), None, 0.0),
        (heads, None, 0.1),
    ):
        attend_alone(*others, mask_, dropout)
        assert asked.pop() == (*others, mask_, dropout)


def test_lengths_are_few() -> None:
    """Never shorter, by a quarter longer at most where it matters; up to 512 tokens a dozen."""
    lengths = range(1, 8193)
    rounded = [rounded_length(length) for length in lengths]
    assert all(slots >= length and slots % 32 == 0 for length, slots in zip(lengths, rounded, strict=True))
    assert all(slots <= 1.25 * length for length, slots in zip(lengths, rounded, strict=True) if length > 127)
    assert sorted(set(rounded[LONG_TEXT - 1 : 512])) == [128, 160, 192, 224, 256, 320, 384, 448, 512]
    assert len(set(rounded)) <= 28
    assert rounded == sorted(rounded)


@pytest.mark.parametrize("length", LENGTHS)
def test_rows_sum_to_one(length: int) -> None:
    """Every query spends exactly all of its attention, whatever is hidden from it."""
    query, key, _ = random_heads(length)
    for mask in masks_for(length):
        sums = attention_weights(query, key, mask).double().sum(-1)
        torch.testing.assert_close(sums, torch.ones(B, H, length, dtype=torch.float64), rtol=0, atol=1e-6)


def test_a_hidden_key_has_no_weight_at_all() -> None:
    """Padded keys get 0.0, not a small number, and the others what they get without padding."""
    query, key, value = random_heads(7)
    key[:, :, 5:] = 50.0 * query[:, :, :2].sign()  # the padding would win every row
    value[:, :, 5:] = 1e6
    mask = torch.arange(7) < 5
    context, weights = attend_explicit(query, key, value, mask)
    assert weights is not None
    assert not weights[..., 5:].any()
    alone, weights_alone = attend_explicit(query[:, :, :5], key[:, :, :5], value[:, :, :5])
    assert weights_alone is not None
    torch.testing.assert_close(weights[:, :, :5, :5], weights_alone, rtol=0, atol=1e-6)
    torch.testing.assert_close(context[:, :, :5], alone, rtol=0, atol=1e-5)
    fused, _ = attend_fused(query, key, value, mask.expand(7, 7))
    torch.testing.assert_close(fused[:, :, :5], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_that_sees_nothing_is_uniform(dtype: torch.dtype) -> None:
    """A wholly hidden row gives equal weights on the explicit path, not NaN, and leaves the other rows alone."""
    query, key, value = random_heads(6, dtype)
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[2] = False
    context, weights = attend_explicit(query, key, value, mask)
    assert weights is not None
    torch.testing.assert_close(weights[:, :, 2].float(), torch.full((B, H, 6), 1 / 6), rtol=0, atol=2e-3)
    assert context.isfinite().all()
    plain = attention_weights(query, key)
    torch.testing.assert_close(weights[:, :, 3], plain[:, :, 3], rtol=0, atol=0)


def test_a_float_mask_is_added_to_the_scores() -> None:
    """A bias b multiplies a weight's share by e^b, on both paths."""
    query, key, value = random_heads(5)
    bias = torch.randn(H, 5, 5, generator=torch.Generator().manual_seed(0))
    plain, shifted = attention_weights(query, key), attention_weights(query, key, bias)
    shares = plain * bias.exp()
    torch.testing.assert_close(shifted, shares / shares.sum(-1, keepdim=True), rtol=0, atol=1e-6)
    fused, _ = attend_fused(query, key, value, bias.expand(B, -1, -1, -1))
    torch.testing.assert_close(fused, shifted @ value, rtol=0, atol=1e-6)


def test_dropout_scales_what_it_leaves() -> None:
    """Dropped weights change the context, never the weights that are given out."""
    torch.manual_seed(0)
    query, key, value = random_heads(17)
    plain, weights = attend_explicit(query, key, value)
    dropped, same = attend_explicit(query, key, value, None, 0.5)
    torch.testing.assert_close(weights, same, rtol=0, atol=0)
    assert (plain - dropped).abs().max() > 0.01
