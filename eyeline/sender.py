"""How the client that waits makes calls: connections, attempts, and several requests together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, TypeVar

import httpx

from eyeline.calls import Call, Operation
from eyeline.errors import EyelineError
from eyeline.replies import undecodable
from eyeline.retry import Attempts
from eyeline.settings import ClientSettings

P = TypeVar("P")
R = TypeVar("R")

Wait = Callable[[float], object]
"""Waits so many seconds; true if there is no need to go on."""


class Sender:
    """Owns the connections to one server. Threads may share it.

    Parameters
    ----------
    base_url : str
    settings : ClientSettings
    transport : httpx.BaseTransport or None
    wait : callable or None
        Waits so many seconds between two attempts; None is real time.
    clock : callable
        Seconds, monotonic.
    """

    def __init__(
        self,
        base_url: str,
        settings: ClientSettings,
        transport: httpx.BaseTransport | None,
        wait: Wait | None,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._wait = wait
        self.wait: Wait = wait or time.sleep
        self.clock = clock
        self._http = httpx.Client(
            base_url=base_url,
            headers=settings.sent_headers(),
            transport=transport,
            # Concurrency is bounded by this class; a pool's limit would make threads time out while they wait for it.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=settings.max_concurrency),
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def run(self, operation: Operation[P, R]) -> R:
        """Make the calls of an operation, some together, and put the results together in their order."""
        calls = operation.calls
        if len(calls) == 1:
            return operation.merge([self._send(calls[0], self.wait)])
        results: dict[int, P] = {}
        pending = iter(enumerate(calls))
        lock = threading.Lock()
        stopped = threading.Event()

        def work() -> None:
            while not stopped.is_set():
                with lock:
                    place, call = next(pending, (-1, None))
                if call is None:
                    return
                results[place] = self._send(call, self._wait or stopped.wait)

        num_workers = min(len(calls), self._settings.max_concurrency)
        with ThreadPoolExecutor(num_workers, "eyeline") as pool:
            try:
                for worker in as_completed([pool.submit(work) for _ in range(num_workers)]):
                    worker.result()
            finally:
                stopped.set()  # after an error, or Ctrl-C, nobody wants the rest; what is under way is waited for
        return operation.merge([results[place] for place in range(len(calls))])

    def _send(self, call: Call[P], wait: Wait) -> P:
        """Make a call until it is answered, or there is no more to hope for."""
        attempts = Attempts(self._settings.retry, self.clock)
        while True:
            seconds: float | None
            try:
                response = self.attempt(call, attempts.timeout_seconds(self._settings.timeout_seconds))
            except httpx.TransportError as error:
                seconds = attempts.after_error(error)
            else:
                seconds = attempts.after_answer(response)
                if seconds is None:
                    return call.read(response)
            if wait(seconds):
                raise EyelineError("given up, as another request of this call has failed")

    def attempt(self, call: Call[Any], timeout_seconds: float) -> httpx.Response:
        """Make a call once; raises httpx's own errors of transport, and :class:`UnexpectedAnswerError`."""
        try:
            return self._http.request(
                call.method, call.path, content=call.content(), headers=call.headers(), timeout=timeout_seconds
            )
        except httpx.DecodingError as error:  # the one other error of a request, as no redirect is followed
            raise undecodable(error) from error
