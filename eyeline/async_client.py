"""The client of asyncio: the methods of :class:`eyeline.Client`, awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

import httpx

from eyeline.calls import (
    HEALTH,
    Call,
    Operation,
    attention_operation,
    encode_operation,
    info_operation,
    similarity_operation,
    tokenize_operation,
)
from eyeline.errors import EyelineError, NoAnswerInTimeError
from eyeline.options import AttentionOptions, EncodeOptions, TextOptions, VectorOptions
from eyeline.records import Encoded, Similarity, Text, TextAttention, TokenizedText
from eyeline.retry import Attempts, RetryPolicy, described
from eyeline.settings import DEFAULT_URL, POLL_SECONDS, ClientSettings

P = TypeVar("P")
R = TypeVar("R")

Wait = Callable[[float], Awaitable[object]]
"""Waits so many seconds."""


class AsyncClient:
    """A server, from a coroutine. Tasks of one event loop may share one.

    Parameters
    ----------
    base_url : str
        Where the server is, with a path if it has one behind a gateway.
    timeout_seconds, max_concurrency, max_texts_per_request, retry, warn_on_truncation, headers
        As in :class:`eyeline.settings.ClientSettings`, by the same names and defaults.
    transport : httpx.AsyncBaseTransport, optional
        How requests travel: for other certificates, a Unix socket, a test.
    wait : callable
        Waits so many seconds between two attempts; real time by default.
    clock : callable
        Seconds, monotonic.

    Examples
    --------
    >>> async with AsyncClient("http://127.0.0.1:8080") as client:  # doctest: +SKIP
    ...     (await client.encode(["The cat sat."])).embeddings.shape
    (1, 384)
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        timeout_seconds: float = 60.0,
        max_concurrency: int = 4,
        max_texts_per_request: int = 256,
        retry: RetryPolicy | None = None,
        warn_on_truncation: bool = True,
        headers: dict[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        wait: Wait = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = ClientSettings(
            timeout_seconds=timeout_seconds,
            max_concurrency=max_concurrency,
            max_texts_per_request=max_texts_per_request,
            retry=retry or RetryPolicy(),
            warn_on_truncation=warn_on_truncation,
            headers=headers or {},
        )
        self._wait = wait
        self._clock = clock
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers=self._settings.headers,
            transport=transport,
            # Concurrency is bounded by this class; a pool's limit would make threads time out while they wait for it.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=max_concurrency),
        )

    async def encode(self, texts: str | Iterable[Text], **options: Unpack[EncodeOptions]) -> Encoded:
        """Encode texts, or pairs of texts.

        Parameters
        ----------
        texts : str or iterable of str or pair of str
            One text is a list of one. A long list is sent in several requests; the order stays.
        **options
            ``model``, ``truncate``, ``prompt_name``, ``prompt``, ``dimensions``, ``normalize``.

        Returns
        -------
        Encoded
            ``embeddings`` has shape (n, D), float32, bit for bit the server's.

        Raises
        ------
        EyelineError
            Of the requests of a long list, the first that fails; the others are given up.
        """
        encoded = await self._run(encode_operation(texts, options, self._settings.max_texts_per_request))
        self._settings.report_truncation(encoded.truncated, "texts")
        return encoded

    @overload  # str is an iterable of str, too: the first that fits counts
    async def attention(self, texts: str, **options: Unpack[AttentionOptions]) -> TextAttention: ...  # type: ignore[overload-overlap]
    @overload
    async def attention(self, texts: Iterable[Text], **options: Unpack[AttentionOptions]) -> list[TextAttention]: ...
    async def attention(
        self, texts: str | Iterable[Text], **options: Unpack[AttentionOptions]
    ) -> TextAttention | list[TextAttention]:
        """Encode texts, and see where the model looked.

        Parameters
        ----------
        texts : str or iterable of str or pair of str
            Each is sent in a request of its own.
        **options
            Those of :meth:`encode`, and those of :class:`eyeline.options.AttentionOptions`.

        Returns
        -------
        TextAttention or list of TextAttention
            One for one text; of a list a list.

        Raises
        ------
        EyelineError
        """
        views = await self._run(attention_operation(texts, options))
        self._settings.report_truncation([view.truncated for view in views], "texts")
        return views[0] if isinstance(texts, str) else views

    async def similarity(
        self,
        texts: Iterable[str] | None = None,
        *,
        pairs: Iterable[tuple[str, str]] | None = None,
        explain: bool = False,
        unit: Literal["token", "word"] = "token",
        **options: Unpack[VectorOptions],
    ) -> Similarity:
        """Compare texts, each with all, or two by two.

        Parameters
        ----------
        texts : iterable of str, optional
            For a matrix; sent in one request, so the server's limits are those of the list.
        pairs : iterable of pair of str, optional
            For one cosine each.
        explain : bool
            With pairs: also what each pair of tokens adds to the cosine.
        unit : "token" or "word"
            Of explanations.
        **options
            ``model``, ``truncate``, ``prompt_name``, ``prompt``, ``dimensions``.

        Raises
        ------
        ValueError
            If there are not either texts or pairs, or texts are to be explained.
        EyelineError
        """
        size = self._settings.max_texts_per_request
        found = await self._run(similarity_operation(texts, pairs, options, size, explain=explain, unit=unit))
        self._settings.report_truncation(found.truncated, "texts" if pairs is None else "pairs")
        return found

    @overload  # str is an iterable of str, too: the first that fits counts
    async def tokenize(self, texts: str, **options: Unpack[TextOptions]) -> TokenizedText: ...  # type: ignore[overload-overlap]
    @overload
    async def tokenize(self, texts: Iterable[Text], **options: Unpack[TextOptions]) -> list[TokenizedText]: ...
    async def tokenize(
        self, texts: str | Iterable[Text], **options: Unpack[TextOptions]
    ) -> TokenizedText | list[TokenizedText]:
        """Show texts as the model reads them: one for one text, of a list a list.

        Raises
        ------
        EyelineError
        """
        tokenized = await self._run(tokenize_operation(texts, options, self._settings.max_texts_per_request))
        return tokenized[0] if isinstance(texts, str) else tokenized

    async def info(self) -> dict[str, Any]:
        """Return what is served, and the limits in force, as ``GET /info`` says them.

        Raises
        ------
        EyelineError
        """
        return await self._run(info_operation())

    async def health(self) -> str:
        """Return "ready", "loading" or "draining". Asks once.

        Raises
        ------
        UnreachableError, NoAnswerInTimeError, AnswerError or UnexpectedAnswerError
            If there is no server, or something else answers in its place.
        """
        try:
            return HEALTH.read(await self._attempt(HEALTH, self._settings.timeout_seconds))
        except httpx.TransportError as error:
            raise described(error) from error

    async def wait_until_ready(self, timeout_seconds: float = 60.0) -> None:
        """Wait for a server that starts: until it is ready, whether or not it can be reached yet.

        Raises
        ------
        NoAnswerInTimeError
            If it is not ready after ``timeout_seconds``; its cause is the last error, where there was one.
        """
        end = self._clock() + timeout_seconds
        while True:
            state = "not reached"
            cause: EyelineError | None = None
            try:
                state = await self.health()
            except EyelineError as error:
                cause = error
            if state == "ready":
                return
            if self._clock() + POLL_SECONDS >= end:
                raise NoAnswerInTimeError(f"not ready in {timeout_seconds:g} seconds: {cause or state}") from cause
            await self._wait(POLL_SECONDS)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        """Return the client, which is closed at the end of the block."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self.aclose()

    async def _run(self, operation: Operation[P, R]) -> R:
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
        attempts = Attempts(self._settings.retry, self._clock)
        while True:
            seconds: float | None
            try:
                response = await self._attempt(call, attempts.timeout_seconds(self._settings.timeout_seconds))
            except httpx.TransportError as error:
                seconds = attempts.after_error(error)
            else:
                seconds = attempts.after_answer(response)
                if seconds is None:
                    return call.read(response)
            await self._wait(seconds)

    async def _attempt(self, call: Call[Any], timeout_seconds: float) -> httpx.Response:
        return await self._http.request(
            call.method, call.path, content=call.content(), headers=call.headers(), timeout=timeout_seconds
        )
