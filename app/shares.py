"""How much of a queue each API key fills, and how much it may: nobody who shares a server can fill all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.errors import KeyQueueFullError, RequestTooLargeError

Waiting = tuple[int, int]
"""Texts and tokens."""

UNITS = ("texts", "tokens")


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """What one key may have waiting.

    Attributes
    ----------
    texts, tokens : int
        At least 1.
    """

    texts: int
    tokens: int

    @classmethod
    def of(cls, share: float, max_texts: int, max_tokens: int) -> ShareLimits | None:
        """Take a share of a queue's limits; None where it is all of it, and there is nothing to check."""
        if share >= 1:
            return None
        return cls(max(1, int(share * max_texts)), max(1, int(share * max_tokens)))


class KeyShares:
    """Counts what each key has waiting in one queue. Whoever shows no key is not counted.

    Parameters
    ----------
    limits : ShareLimits or None
        None: counted and not limited.
    changed : callable
        Told a key, and its texts and tokens that wait now.
    """

    def __init__(self, limits: ShareLimits | None, changed: Callable[[str, int, int], None]) -> None:
        self._limits = limits
        self._changed = changed
        self._waiting: dict[str, Waiting] = {}

    def waiting(self, key: str) -> Waiting:
        """Return what a key has waiting."""
        return self._waiting.get(key, (0, 0))

    def add(self, entries: Iterable[tuple[str | None, int]], sign: int = 1) -> None:
        """Count texts that begin to wait, or with ``sign`` -1 end it: of each its key and its tokens."""
        touched: dict[str, Waiting] = {}
        for key, tokens in entries:
            if key is not None:
                texts, sum_of_tokens = touched.get(key, (0, 0))
                touched[key] = (texts + sign, sum_of_tokens + sign * tokens)
        for key, (more_texts, more_tokens) in touched.items():
            texts, sum_of_tokens = self.waiting(key)
            now = self._waiting[key] = (texts + more_texts, sum_of_tokens + more_tokens)
            self._changed(key, *now)

    def check_size(self, key: str | None, new: Waiting) -> None:
        """Refuse a request that no waiting makes fit.

        Raises
        ------
        RequestTooLargeError
        """
        for unit, size, limit in self._limits_of(key, new):
            if size > limit:
                message = f"a request with your key may hold {limit} {unit}, this one holds {size}"
                raise RequestTooLargeError(message, param="texts", limit=limit, actual=size)

    def check(self, key: str | None, new: Waiting, retry_after_seconds: float) -> None:
        """Refuse a request for which a key has too much waiting now.

        Raises
        ------
        KeyQueueFullError
        """
        waiting = (0, 0) if key is None else self.waiting(key)
        for (unit, size, limit), already in zip(self._limits_of(key, new), waiting, strict=False):
            if already + size > limit:
                raise KeyQueueFullError(
                    f"{already} of at most {limit} {unit} of your key are waiting, this request has {size}",
                    limit=limit,
                    actual=already + size,
                    retry_after_seconds=retry_after_seconds,
                )

    def _limits_of(self, key: str | None, new: Waiting) -> list[tuple[str, int, int]]:
        if key is None or self._limits is None:
            return []
        return list(zip(UNITS, new, (self._limits.texts, self._limits.tokens), strict=True))
