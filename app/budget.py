"""What a batch may hold, and how much of that is used: all of it, or less for a while after memory ran out."""

from __future__ import annotations

from collections.abc import Callable

DEFAULT_BATCH_TOKENS = {"cpu": 2_048, "cuda": 16_384}

RECOVERY_SECONDS = 60.0
"""How long a lowered share is kept before it is doubled."""

MIN_SHARE = 1 / 16
"""No lower: below it the weights and the longest text take what memory there is, and small batches waste the rest. A
batch that still does not fit is halved all the same, by itself."""


def batch_budget(asked: int | None, device_type: str, longest: int) -> int:
    """Return the token budget of a batch: what was asked, or the device's default, but that not under one text.

    Parameters
    ----------
    asked : int or None
    device_type : str
        "cpu" or "cuda".
    longest : int
        Tokens of the longest text that the model reads.
    """
    return asked if asked is not None else max(DEFAULT_BATCH_TOKENS[device_type], longest)


class BatchShare:
    """The share of the budgets that batches are cut to, 1 at first.

    Parameters
    ----------
    clock : callable
        Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._share = 1.0
        self._recovers_at = 0.0

    def now(self) -> float:
        """Return the share that holds now: over 0, at most 1."""
        while self._share < 1 and self._clock() >= self._recovers_at:
            self._share = min(1.0, 2 * self._share)
            self._recovers_at += RECOVERY_SECONDS
        return self._share

    def shrink(self, failed: float) -> None:
        """Lower the share to half of what there was no memory for; it is never raised by this.

        Parameters
        ----------
        failed : float
            The share of the budgets that the failed batch used.
        """
        self._share = max(MIN_SHARE, min(self.now(), failed / 2))
        self._recovers_at = self._clock() + RECOVERY_SECONDS
