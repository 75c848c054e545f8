"""The access log: which requests are worth a line, and what stands in it. Never a text, never a raw path."""

from __future__ import annotations

import logging
import zlib
from typing import Any

from app.facts import RequestFacts

LATE_STATUSES = frozenset({503, 504})
"""Answers of a server that starts, drains or is overloaded: no fault, and they come in floods."""

NOT_SUPPORTED = 501
"""What the model cannot do, which any caller may ask for: no fault either."""

_requests = logging.getLogger("app.requests")


class AccessLog:
    """Writes a line for a request that failed by our fault, that was slow, or that the sample holds.

    A flood of requests must not flood the log, so that any other is a line at debug only; all are counted in
    ``eyeline_requests_total``.

    Parameters
    ----------
    sample : float
        Share of requests that are logged at info, 0 to 1. The request's id decides (:func:`is_sampled`).
    slow_seconds : float or None
        A request that took longer is logged as a warning; None logs none for that.
    """

    def __init__(self, sample: float = 0.0, slow_seconds: float | None = None) -> None:
        self._sample = sample
        self._slow_seconds = slow_seconds

    def write(
        self, request_id: str, method: str, route_template: str, status: int, seconds: float, facts: RequestFacts
    ) -> None:
        """Log the end of one request, if it is to be logged.

        Parameters
        ----------
        request_id : str
        method : str
        route_template : str
            Such as ``/models/{name}/encode``, never the raw path.
        status : int
            499 for a caller that left. From 500 up it is a fault of ours, but for :data:`NOT_SUPPORTED` and
            :data:`LATE_STATUSES`.
        seconds : float
            From when the head is read to the last byte.
        facts : RequestFacts
        """
        level = self._level(request_id, status, seconds)
        if _requests.isEnabledFor(level):
            fields: dict[str, Any] = {
                "method": method,
                "route": route_template,
                "status": status,
                "seconds": round(seconds, 6),
            }
            if facts.key is not None:
                fields["key"] = facts.key
            if facts.model is not None:
                counts = {"num_texts": facts.num_texts, "num_tokens": facts.num_tokens, "truncated": facts.truncated}
                fields |= {"model": facts.model, **counts}
            fields |= {f"{stage}_seconds": round(total, 6) for stage, total in facts.seconds().items()}
            _requests.log(level, "%s %s %d", method, route_template, status, extra=fields)

    def _level(self, request_id: str, status: int, seconds: float) -> int:
        if status >= 500 and status not in LATE_STATUSES and status != NOT_SUPPORTED:
            return logging.ERROR
        if self._slow_seconds is not None and seconds > self._slow_seconds:
            return logging.WARNING
        return logging.INFO if is_sampled(request_id, self._sample) else logging.DEBUG


def is_sampled(request_id: str, share: float) -> bool:
    """Whether a sample of that share, 0 to 1, holds the request: the same everywhere, and a larger sample holds it too.

    Notes
    -----
    CRC-32 of the id, so that replicas, and whoever reads the logs, agree without a word. A caller who chooses ids can
    choose whether he is in the sample, of which nothing but his own log lines depends.
    """
    return zlib.crc32(request_id.encode()) < share * 2**32
