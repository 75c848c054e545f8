"""Who asks, and how long they wait: what a request's headers say beside its body."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request

from app.errors import InvalidRequestError

TIMEOUT_HEADER = "X-Request-Timeout"
MAX_TIMEOUT_SECONDS = 86_400.0
SECONDS = re.compile(r"\d{1,20}(\.\d{0,20})?(e[+-]?\d{1,3})?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and since when.

    Attributes
    ----------
    key : str or None
        The name of the API key that was shown.
    arrived_at : float or None
        Reading of the service's clock when the head was read; None: time counts from when the texts are known.
    timeout_seconds : float or None
        How long the caller says that they wait.
    """

    key: str | None = None
    arrived_at: float | None = None
    timeout_seconds: float | None = None


ANYONE = Caller()


def caller_of(request: Request) -> Caller:
    """Return who sends a request; raises :class:`InvalidRequestError` for a time-out that is none."""
    state = request.scope.get("state", {})
    return Caller(state.get("key"), state.get("arrived_at"), timeout_of(request.headers))


def timeout_of(headers: Headers) -> float | None:
    """Read ``X-Request-Timeout``: seconds, as a decimal number from 0 to a day.

    Raises
    ------
    InvalidRequestError
        If it is anything else.
    """
    text = headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    seconds = float(text) if SECONDS.fullmatch(text) else None
    if seconds is None or seconds > MAX_TIMEOUT_SECONDS:
        raise InvalidRequestError(
            f"{TIMEOUT_HEADER} must be seconds, a decimal number from 0 to {MAX_TIMEOUT_SECONDS:g}",
            param=TIMEOUT_HEADER,
            limit=MAX_TIMEOUT_SECONDS,
            actual=seconds if seconds is not None and seconds < 1e300 else None,
        )
    return seconds
