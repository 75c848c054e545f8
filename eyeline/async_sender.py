"""How the client of asyncio makes calls: what :mod:`eyeline.sender` does, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx

from eyeline.calls import Call, Operation
from eyeline.replies import undecodable
from eyeline.retry import Attempts
from eyeline.settings import ClientSettings

P = TypeVar("P")
R = TypeVar("R")

Wait = Callable[[float], Awaitable[object]]
"""Waits so many seconds."""


class AsyncSender:
    """Owns the connections to one server. Tasks of one event loop may share it.

    Parameters
    ----------
    base_url : str
    settings : ClientSettings
    transport : httpx.AsyncBaseTransport or None
    wait : callable
        Waits so many seconds between two attempts.
    clock : callable
        Seconds, monotonic.
    """

    def __init__(
        self,
        base_url: str,
        settings: ClientSettings,
        transport: httpx.AsyncBaseTransport | None,
        wait: Wait,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self.wait = wait
        self.clock = clock
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers=settings.sent_headers(),
            transport=transport,
            # Concurrency is bounded by this class; a pool's limit would make tasks time out while they wait for it.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=settings.max_concurrency),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def run(self, operation: Operation[P, R]) -> R:
        """Make the calls of an operation, some together, and put the results together in their order."""
        results: dict[int, P] = {}
        pending = iter(enumerate(operation.calls))

        async def work() -> None:
            for place, call in pending:  # shared: each call is taken by one worker
                results[place] = await self._send(call)

        num_workers = min(len(operation.calls), self._settings.max_concurrency)
        workers = [asyncio.create_task(work()) for _ in range(num_workers)]
        try:
            await asyncio.gather(*workers)
        finally:  # after an error, or when the caller is cancelled, nobody wants the rest
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return operation.merge([results[place] for place in range(len(operation.calls))])

    async def _send(self, call: Call[P]) -> P:
        """Make a call until it is answered, or there is no more to hope for."""
        attempts = Attempts(self._settings.retry, self.clock)
        while True:
            seconds: float | None
            try:
                response = await self.attempt(call, attempts.timeout_seconds(self._settings.timeout_seconds))
            except httpx.TransportError as error:
                seconds = attempts.after_error(error)
            else:
                seconds = attempts.after_answer(response)
                if seconds is None:
                    return call.read(response)
            await self.wait(seconds)

    async def attempt(self, call: Call[Any], timeout_seconds: float) -> httpx.Response:
        """Make a call once; raises httpx's own errors of transport, and :class:`UnexpectedAnswerError`."""
        try:
            return await self._http.request(
                call.method, call.path, content=call.content(), headers=call.headers(), timeout=timeout_seconds
            )
        except httpx.DecodingError as error:  # the one other error of a request, as no redirect is followed
            raise undecodable(error) from error
