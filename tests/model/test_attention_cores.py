"""Claims about the attention core: three functions, one answer; what is hidden has no weight at all."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import model.attention_cores
from model.attention_cores import attend_explicit, attend_fused, attend_products, attention_weights
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


@pytest.fixture
def products_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have few queries computed by products as well."""
    monkeypatch.setattr(model.attention_cores, "FEWEST_QUERIES", 0)


@pytest.mark.usefixtures("products_for_all")
@pytest.mark.parametrize("at_once", [2**22, 1])
@pytest.mark.parametrize("length", [*LENGTHS, 96, 131])
@torch.inference_mode()
def test_products_are_the_formula(length: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mask, with one for keys, for pairs, or added to the scores; all queries at once, or some at a time."""
    monkeypatch.setattr(model.attention_cores, "MAX_SCORES", at_once)
    query, key, value = random_heads(length)
    keys = torch.arange(length) < torch.tensor([length, max(1, length - 3)]).unsqueeze(1)  # (B, L)
    bias = torch.randn(H, length, length, generator=torch.Generator().manual_seed(1))
    masks = [
        *masks_for(length),
        keys[:, None, None],
        keys[:, None, None] & subsequent_mask(length),
        bias.expand(B, -1, -1, -1),
        torch.where(keys[:, None, None], bias, torch.finfo(bias.dtype).min),
    ]
    for mask in masks:
        context, none = attend_products(query, key, value, mask)
        expected, _ = attend_explicit(query, key, value, mask)
        torch.testing.assert_close(context, expected, rtol=1e-5, atol=1e-5)
        assert none is None
        rounded, _ = attend_products(query.bfloat16(), key.bfloat16(), value.bfloat16(), mask)
        torch.testing.assert_close(rounded.float(), expected, rtol=0, atol=0.1)
        assert rounded.dtype == torch.bfloat16


@pytest.mark.usefixtures("products_for_all")
def test_products_give_a_hidden_key_no_weight_at_all() -> None:
    """Whatever its value is; and equal texts of a group have equal contexts, to the last bit."""
    query, key, value = (heads.bfloat16() for heads in random_heads(64))
    mask = (torch.arange(64) < 40).expand(B, 1, 1, 64)
    context, _ = attend_products(query, key, value, mask)
    value[:, :, 40:] = 1e30
    again, _ = attend_products(query, key, value, mask)
    torch.testing.assert_close(again, context, rtol=0, atol=0)
    first, second = attend_products(*(heads[:1].expand(B, -1, -1, -1) for heads in (query, key, value)))[0]
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_few_queries_go_to_the_fused_kernel() -> None:
    """Where the products' own small operations would take longer."""
    heads = [heads.bfloat16() for heads in random_heads(17)]
    torch.testing.assert_close(attend_products(*heads)[0], attend_fused(*heads)[0], rtol=0, atol=0)


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
