"""After memory ran out batches are smaller for a while."""

from __future__ import annotations

import pytest

from app.budget import DEFAULT_BATCH_TOKENS, MIN_SHARE, RECOVERY_SECONDS, BatchShare, batch_budget
from tests.doubles import FakeClock


def test_a_default_holds_the_longest_text() -> None:
    """What is asked stays as it is, however small; the device's default is raised."""
    assert [batch_budget(asked, "cpu", 4_000) for asked in (7, 5_000, None)] == [7, 5_000, 4_000]
    assert batch_budget(None, "cpu", 512) == DEFAULT_BATCH_TOKENS["cpu"] < batch_budget(None, "cuda", 512)


def test_all_of_the_budget_at_first() -> None:
    """Nothing is held back before anything has failed, however late it is."""
    clock = FakeClock()
    share = BatchShare(clock)
    assert share.now() == 1
    clock.advance(10 * RECOVERY_SECONDS)
    assert share.now() == 1


def test_half_of_what_failed() -> None:
    """The share is half of what did not fit; a part of it that fits changes nothing, one that fails lowers it again."""
    share = BatchShare(FakeClock())
    share.shrink(0.8)
    assert share.now() == pytest.approx(0.4)
    share.shrink(0.8)  # the other half of the same batch
    assert share.now() == pytest.approx(0.4)
    share.shrink(0.4)
    assert share.now() == pytest.approx(0.2)
    share.shrink(0.8)  # a batch that was cut before that
    assert share.now() == pytest.approx(0.2)


def test_it_never_vanishes() -> None:
    """However often memory runs out, some of the budget stays: a text that never fits must not slow down the rest."""
    share = BatchShare(FakeClock())
    for _ in range(50):
        share.shrink(share.now())
    assert share.now() == MIN_SHARE


def test_it_comes_back_by_doubling() -> None:
    """Kept for a minute, then doubled each minute until it is whole; another shortage begins the minute again."""
    clock = FakeClock()
    share = BatchShare(clock)
    share.shrink(0.5)
    clock.advance(RECOVERY_SECONDS - 1)
    assert share.now() == 0.25
    share.shrink(0.25)
    clock.advance(RECOVERY_SECONDS - 1)
    assert share.now() == 0.125
    seen = []
    for _ in range(5):
        clock.advance(RECOVERY_SECONDS)
        seen.append(share.now())
    assert seen == [0.25, 0.5, 1, 1, 1]


def test_a_quiet_hour_brings_all_of_it_back() -> None:
    """Time that passes without a batch counts as well."""
    clock = FakeClock()
    share = BatchShare(clock)
    for _ in range(10):
        share.shrink(share.now())
    clock.advance(3_600)
    assert share.now() == 1
