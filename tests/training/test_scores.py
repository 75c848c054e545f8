"""Measures, against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from training.scores import average_precision, ndcg, ranks, spearman


def test_equal_values_share_their_ranks() -> None:
    """Ranks of ties are averaged."""
    assert ranks([10, 20, 20, 5, 20]).tolist() == [2, 4, 4, 1, 4]


def test_spearman_is_one_for_any_rising_function() -> None:
    """Only the order counts."""
    x = np.random.default_rng(0).normal(size=50)
    assert spearman(x, np.exp(x)) == pytest.approx(1)
    assert spearman(x, -(x**3)) == pytest.approx(-1)


def test_spearman_without_ties_is_the_textbook_formula() -> None:
    """1 - 6 sum d^2 / (n (n^2 - 1)): for (1 2 3 4) and (1 3 2 4), 1 - 12 / 60."""
    assert spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)


def test_spearman_with_ties_correlates_the_averaged_ranks() -> None:
    """Ranks (1.5 1.5 3) and (1 2 3): covariance 1.5, spreads 1.5 and 2."""
    assert spearman([7, 7, 9], [1, 2, 3]) == pytest.approx(1.5 / math.sqrt(1.5 * 2))


def test_spearman_of_a_constant_is_no_number() -> None:
    """There is no order to agree with."""
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))


def test_ndcg_of_a_worked_example() -> None:
    """Gains 0 1 2 against the best order 2 1: (1/log2(3) + 2/2) / (2 + 1/log2(3))."""
    assert ndcg([0, 1, 2], [1, 2]) == pytest.approx((1 / math.log2(3) + 1) / (2 + 1 / math.log2(3)))
    assert ndcg([2, 1], [1, 2]) == pytest.approx(1)


def test_ndcg_looks_at_the_first_ten() -> None:
    """A document on place 11 gains nothing, and more relevant ones than ten do not make a full ten worse."""
    assert ndcg([0] * 10 + [1], [1]) == 0
    assert ndcg([1] * 10, [1] * 30) == pytest.approx(1)


def test_average_precision_of_a_worked_example() -> None:
    """Relevant on places 1 and 3, a third one never found: (1/1 + 2/3) / 3."""
    assert average_precision([True, False, True, False], 3) == pytest.approx((1 + 2 / 3) / 3)
    assert average_precision([False, False], 1) == 0
