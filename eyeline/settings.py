"""What both clients are told when they are made, and the warning that both give."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from eyeline.errors import TruncationWarning
from eyeline.retry import RetryPolicy

DEFAULT_URL = "http://127.0.0.1:8080"

MAX_SECONDS = 86_400.0
"""A day: no caller waits longer, the server takes no longer time limit, and a socket takes none of 1e300 seconds."""

POLL_SECONDS = 0.2
"""Between two looks at a server that is not ready yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How a client goes about its work.

    Attributes
    ----------
    timeout_seconds : float
        Longest an attempt may wait for a connection, for room to write, and for the answer to go on; also cut to what
        is left of the deadline. More than 0, at most a day.
    max_concurrency : int
        Requests of one call that are under way together.
    max_texts_per_request : int
        The server's own limit is in ``info()["max_client_batch_size"]``; more is :class:`eyeline.TooLargeError`.
    retry : RetryPolicy
    warn_on_truncation : bool
        Give a :class:`eyeline.TruncationWarning` when texts were cut.
    headers : mapping of str to str
        Sent with every request: an ``Authorization`` for a gateway, for instance.
    api_key : str, optional
        Of a server that asks for one; sent as ``Authorization: Bearer`` with every request, and shown nowhere.
    request_timeout_seconds : float, optional
        How long the server may take for a request before it drops it: :class:`eyeline.DeadlineExceededError`. From 0
        to a day.
    """

    timeout_seconds: float = 60.0
    max_concurrency: int = 4
    max_texts_per_request: int = 256
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    warn_on_truncation: bool = True
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_key: str | None = field(default=None, repr=False)
    request_timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse what would send nothing, or never an end."""
        if not 0 < self.timeout_seconds <= MAX_SECONDS:
            limits = f"more than 0 and at most {MAX_SECONDS:g}"
            raise ValueError(f"timeout_seconds must be {limits}, it is {self.timeout_seconds}")
        if self.request_timeout_seconds is not None and not 0 <= self.request_timeout_seconds <= MAX_SECONDS:
            limits = f"from 0 to {MAX_SECONDS:g}"
            raise ValueError(f"request_timeout_seconds must be {limits}, it is {self.request_timeout_seconds}")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable() and self.api_key):
            raise ValueError("api_key must be printable ASCII characters, at least one")  # and is not repeated here
        for name in ("max_concurrency", "max_texts_per_request"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, it is {getattr(self, name)}")

    def sent_headers(self) -> dict[str, str]:
        """Return what is sent with every request; a header that was given by name wins."""
        sent = {}
        if self.api_key is not None:
            sent["Authorization"] = f"Bearer {self.api_key}"
        if self.request_timeout_seconds is not None:
            sent["X-Request-Timeout"] = f"{self.request_timeout_seconds:.9g}"
        given = {name.lower() for name in self.headers}
        return {name: value for name, value in sent.items() if name.lower() not in given} | dict(self.headers)

    def report_truncation(self, truncated: ArrayLike, name: str) -> None:
        """Warn the caller of the method that calls this, if texts were cut and that is wanted.

        Parameters
        ----------
        truncated : array of bool, shape (n,), or (n, 2) of pairs
        name : str
            "texts" or "pairs": what the caller gave.
        """
        cut = np.asarray(truncated, np.bool_)
        places = np.flatnonzero(cut.any(axis=1) if cut.ndim == 2 else cut)
        if self.warn_on_truncation and len(places):
            message = (
                f"{len(places)} of {len(cut)} {name} cut to what the model reads, the first is {name}[{places[0]}]"
            )
            warnings.warn(message, TruncationWarning, stacklevel=3)
