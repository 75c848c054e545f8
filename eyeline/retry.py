"""When a request is sent again, and after how long: decisions without waiting, the same for both clients."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from eyeline.errors import EyelineError, NoAnswerInTimeError, UnreachableError

RETRIED_STATUSES = frozenset({429, 503})
"""No room, not ready: nothing was computed, and the server says that it will be otherwise soon."""

RETRIED_ERRORS = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout)
"""No connection, or a lost one. Every call computes and stores nothing, so sending it twice does no harm."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long, and how patiently, to go on.

    Attributes
    ----------
    deadline_seconds : float
        From the first attempt of a request to the end of the last one, waits included. A list that is sent in several
        requests has it for each. 0: one attempt, with the client's time-out.
    first_wait_seconds, max_wait_seconds : float
        Without Retry-After the n-th wait is random between half and all of ``first_wait_seconds * 2 ** n``, which is
        cut at ``max_wait_seconds``; with it, what the server says, and up to ``first_wait_seconds`` more, so that
        callers who were refused together do not come back together.
    max_connection_retries : int
        How often a lost or refused connection is tried again: an address that is wrong should be said soon.
    """

    deadline_seconds: float = 60.0
    first_wait_seconds: float = 0.25
    max_wait_seconds: float = 8.0
    max_connection_retries: int = 4

    def __post_init__(self) -> None:
        """Refuse what would wait backwards."""
        for name in ("deadline_seconds", "first_wait_seconds", "max_wait_seconds", "max_connection_retries"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, it is {getattr(self, name)}")


class Attempts:
    """The attempts at one request.

    Parameters
    ----------
    policy : RetryPolicy
    clock : callable
        Seconds, monotonic.
    randomness : callable
        A number from 0 up to 1.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        clock: Callable[[], float] = time.monotonic,
        randomness: Callable[[], float] = random.random,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._randomness = randomness
        self._end = clock() + policy.deadline_seconds
        self._num_waits = 0
        self._num_lost = 0

    def timeout_seconds(self, timeout_seconds: float) -> float:
        """Return how long the next attempt may take: what was asked, but not longer than the deadline leaves."""
        if self._policy.deadline_seconds == 0:
            return timeout_seconds
        return max(0.001, min(timeout_seconds, self._end - self._clock()))  # 0 would mean "at once" to a socket

    def after_answer(self, response: httpx.Response) -> float | None:
        """Return the seconds to wait before the next attempt; None if this answer is the last word.

        Parameters
        ----------
        response : httpx.Response
            Only its status and its Retry-After in seconds are read; a date there counts as none.
        """
        if response.status_code not in RETRIED_STATUSES:
            return None
        stated = response.headers.get("Retry-After", "")
        if stated.isdecimal():
            return self._if_in_time(int(stated) + self._randomness() * self._policy.first_wait_seconds)
        return self._if_in_time(self._back_off())

    def after_error(self, error: httpx.TransportError) -> float:
        """Return the seconds to wait before the next attempt.

        Raises
        ------
        UnreachableError
            If a connection failed or broke for the last time.
        NoAnswerInTimeError
            If the server did not answer in time: it is at work, and asking again would add to it.
        """
        if isinstance(error, RETRIED_ERRORS):
            self._num_lost += 1
            if self._num_lost <= self._policy.max_connection_retries:
                seconds = self._if_in_time(self._back_off())
                if seconds is not None:
                    return seconds
        raise described(error, self._num_lost) from error

    def _back_off(self) -> float:
        longest = min(self._policy.max_wait_seconds, self._policy.first_wait_seconds * 2.0 ** min(self._num_waits, 60))
        return longest * (0.5 + 0.5 * self._randomness())

    def _if_in_time(self, seconds: float) -> float | None:
        """Count a wait, if an attempt could still follow it."""
        if self._clock() + seconds >= self._end:
            return None
        self._num_waits += 1
        return seconds


def described(error: httpx.TransportError, num_attempts: int = 1) -> EyelineError:
    """Make an error of ours from httpx's."""
    reason = f"{type(error).__name__}{f': {error}' if str(error) else ''}"
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        return NoAnswerInTimeError(f"no answer in time ({reason})")
    times = "" if num_attempts < 2 else f", {num_attempts} times"
    return UnreachableError(f"the server cannot be reached ({reason}{times})")
