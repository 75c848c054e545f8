"""Claims about masks, against loops that say the same in plain Python."""

from __future__ import annotations

import itertools

import pytest
import torch

from model.masks import padding_mask, subsequent_mask, text_mask, window_mask

LENGTHS = (1, 2, 5, 9)
WINDOWS = (0, 1, 3, 8, 20)


def visible(length: int, window: int | None, causal: bool) -> list[list[bool]]:
    """Whether each query (row) may see each key (column)."""
    return [
        [(window is None or abs(key - query) <= window) and (not causal or key <= query) for key in range(length)]
        for query in range(length)
    ]


def test_padding_is_hidden_and_real_tokens_are_not() -> None:
    """True stands for as many tokens as the text has, from the first on."""
    mask = padding_mask([1, 4, 3], 4)
    assert mask.dtype == torch.bool
    assert mask.tolist() == [[True, False, False, False], [True] * 4, [True, True, True, False]]


def test_a_padding_mask_may_be_wider_than_the_longest_text() -> None:
    """The padded length is what was asked for."""
    assert padding_mask([2], 5).tolist() == [[True, True, False, False, False]]


@pytest.mark.parametrize("length", LENGTHS)
def test_the_causal_triangle_is_true_on_and_below_the_diagonal(length: int) -> None:
    """A token sees itself and what came before it, never what comes after."""
    mask = subsequent_mask(length)
    assert mask.dtype == torch.bool
    assert mask.tolist() == visible(length, None, causal=True)
    assert mask.diagonal().all()
    assert not mask.triu(1).any()


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("length", LENGTHS)
def test_a_window_reaches_so_many_tokens_to_each_side(length: int, window: int) -> None:
    """A query sees the keys at most ``window`` away, on both sides, itself included."""
    assert window_mask(length, window).tolist() == visible(length, window, causal=False)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, *WINDOWS])
@pytest.mark.parametrize("length", LENGTHS)
def test_window_and_causality_hide_what_either_hides(length: int, window: int | None, causal: bool) -> None:
    """The mask of a text is both together; None where it would hide nothing and nothing causal was asked."""
    mask = text_mask(length, window=window, causal=causal)
    expected = visible(length, window, causal)
    if mask is None:
        assert not causal
        assert all(itertools.chain.from_iterable(expected))
    else:
        assert mask.tolist() == expected


def test_a_window_as_wide_as_the_text_costs_nothing() -> None:
    """Where a window hides nothing there is no mask at all, so that the kernel needs none."""
    assert text_mask(5, window=4, causal=False) is None
    assert text_mask(5, window=3, causal=False) is not None
    assert text_mask(5, window=None, causal=False) is None
