"""What each key has waiting, and may have."""

from __future__ import annotations

import pytest

from app.errors import KeyQueueFullError, RequestTooLargeError
from app.shares import KeyShares, ShareLimits


@pytest.mark.parametrize(
    ("share", "limits"), [(1.0, None), (0.5, ShareLimits(5, 50)), (0.09, ShareLimits(1, 9)), (1e-9, ShareLimits(1, 1))]
)
def test_a_share_of_a_queue(share: float, limits: ShareLimits | None) -> None:
    """Rounded down, but never to nothing; the whole queue is no limit."""
    assert ShareLimits.of(share, 10, 100) == limits


def test_texts_are_counted_by_key_in_both_directions() -> None:
    """Each change is told once a key, with what waits now; whoever shows no key is not counted."""
    told: list[tuple[str, int, int]] = []
    shares = KeyShares(ShareLimits(5, 50), lambda *now: told.append(now))
    shares.add([("a", 3), ("b", 4), ("a", 5), (None, 6)])
    assert told == [("a", 2, 8), ("b", 1, 4)]
    shares.add([("a", 3), (None, 6)], -1)
    assert told[2:] == [("a", 1, 5)]
    assert (shares.waiting("a"), shares.waiting("b"), shares.waiting("c")) == ((1, 5), (1, 4), (0, 0))


@pytest.mark.parametrize(("new", "unit"), [((4, 1), "texts"), ((1, 43), "tokens")])
def test_the_unit_that_is_full_is_named(new: tuple[int, int], unit: str) -> None:
    """A request that just fits passes, one more text or token does not; without a key or a limit all passes."""
    shares = KeyShares(ShareLimits(5, 50), lambda *now: None)
    shares.add([("a", 4), ("a", 4)])
    shares.check("a", (3, 42), 1.5)
    with pytest.raises(KeyQueueFullError, match=f"{unit} of your key are waiting") as caught:
        shares.check("a", new, 1.5)
    assert caught.value.retry_after_seconds == 1.5
    shares.check("b", new, 1.5)
    shares.check(None, (99, 999), 1.5)
    KeyShares(None, lambda *now: None).check("a", (99, 999), 1.5)


@pytest.mark.parametrize(("new", "limit"), [((6, 1), 5), ((1, 51), 50)])
def test_what_never_fits_is_another_error(new: tuple[int, int], limit: int) -> None:
    """Whatever waits now."""
    shares = KeyShares(ShareLimits(5, 50), lambda *now: None)
    shares.check_size("a", (5, 50))
    with pytest.raises(RequestTooLargeError) as caught:
        shares.check_size("a", new)
    assert (caught.value.limit, caught.value.actual) == (limit, max(new))
