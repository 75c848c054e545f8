"""The client that waits: one method for each thing that a server does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

import httpx

from eyeline.attention_records import HeadDistances, TextAttention
from eyeline.calls import (
    HEALTH,
    attention_heads_operation,
    attention_operation,
    chunks_operation,
    encode_operation,
    info_operation,
    similarity_operation,
    tokenize_operation,
)
from eyeline.errors import EyelineError, NoAnswerInTimeError
from eyeline.options import AttentionOptions, ChunkOptions, EncodeOptions, TextOptions, VectorOptions
from eyeline.records import ChunkedText, Encoded, Similarity, Text, TokenizedText
from eyeline.retry import RetryPolicy, described
from eyeline.sender import Sender, Wait
from eyeline.settings import DEFAULT_URL, POLL_SECONDS, ClientSettings


class Client:
    """A server, from code that waits for its answers. Threads may share one.

    Parameters
    ----------
    base_url : str
        Where the server is, with a path if it has one behind a gateway.
    timeout_seconds, max_concurrency, max_texts_per_request, retry, warn_on_truncation, headers, api_key,
    request_timeout_seconds
        As in :class:`eyeline.settings.ClientSettings`, by the same names and defaults.
    transport : httpx.BaseTransport, optional
        How requests travel: for other certificates, a Unix socket, a test.
    wait : callable, optional
        Waits so many seconds between two attempts; real time by default.
    clock : callable
        Seconds, monotonic.

    Examples
    --------
    >>> with Client("http://127.0.0.1:8080") as client:  # doctest: +SKIP
    ...     client.encode(["The cat sat."]).embeddings.shape
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
        api_key: str | None = None,
        request_timeout_seconds: float | None = None,
        transport: httpx.BaseTransport | None = None,
        wait: Wait | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = ClientSettings(
            timeout_seconds=timeout_seconds,
            max_concurrency=max_concurrency,
            max_texts_per_request=max_texts_per_request,
            retry=retry or RetryPolicy(),
            warn_on_truncation=warn_on_truncation,
            headers=headers or {},
            api_key=api_key,
            request_timeout_seconds=request_timeout_seconds,
        )
        self._sender = Sender(base_url, self._settings, transport, wait, clock)

    def encode(self, texts: str | Iterable[Text], **options: Unpack[EncodeOptions]) -> Encoded:
        """Encode texts, or pairs of texts.

        Parameters
        ----------
        texts : str or iterable of str or pair of str
            One text is a list of one. A long list is sent in several requests; the order stays.
        **options
            ``model``, ``truncate``, ``prompt_name``, ``prompt``, ``dimensions``, ``normalize``,
            ``output_dtype``.

        Returns
        -------
        Encoded
            ``embeddings`` has shape (n, D), float32 or ``output_dtype``, bit for bit the server's.

        Raises
        ------
        EyelineError
            Of the requests of a long list, the first that fails; no more are sent. AsyncClient drops those under way;
            Client waits for each, ``timeout_seconds`` at most, as nothing ends a thread that waits for an answer.
        """
        encoded = self._sender.run(encode_operation(texts, options, self._settings.max_texts_per_request))
        self._settings.report_truncation(encoded.truncated, "texts")
        return encoded

    def encode_chunks(
        self,
        texts: str | Iterable[str],
        *,
        unit: Literal["token", "sentence"],
        size: int,
        **options: Unpack[ChunkOptions],
    ) -> list[ChunkedText]:
        """Cut long texts into chunks, and encode each chunk.

        Parameters
        ----------
        texts : str or iterable of str
            One text is a list of one. A long list is sent in several requests; the order stays.
        unit : "token" or "sentence"
        size : int
            Units of a chunk.
        **options
            Those of :meth:`encode`, and ``overlap``, ``mode``, ``offset_unit``.

        Returns
        -------
        list of ChunkedText
            One per text.

        Raises
        ------
        EyelineError
        """
        operation = chunks_operation(texts, unit, size, options, self._settings.max_texts_per_request)
        chunked = self._sender.run(operation)
        self._settings.report_truncation([text.truncated for text in chunked], "texts")
        return chunked

    @overload  # str is an iterable of str, too: the first that fits counts
    def attention(self, texts: str, **options: Unpack[AttentionOptions]) -> TextAttention: ...  # type: ignore[overload-overlap]
    @overload
    def attention(self, texts: Iterable[Text], **options: Unpack[AttentionOptions]) -> list[TextAttention]: ...
    def attention(
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
        views = self._sender.run(attention_operation(texts, options))
        self._settings.report_truncation([view.truncated for view in views], "texts")
        return views[0] if isinstance(texts, str) else views

    def attention_heads(
        self,
        texts: str | Iterable[Text],
        *,
        special: Literal["keep", "renormalize"] = "keep",
        **options: Unpack[TextOptions],
    ) -> HeadDistances:
        """Find out which heads of a model do the same thing on some texts.

        Parameters
        ----------
        texts : str or iterable of str or pair of str
            Sent in one request, so the server's limits are those of the list.
        special : "keep" or "renormalize"
            The latter leaves out the special tokens that the template added.
        **options
            ``model``, ``truncate``, ``prompt_name``, ``prompt``.

        Raises
        ------
        EyelineError
        """
        found = self._sender.run(attention_heads_operation(texts, options, special))
        self._settings.report_truncation(found.truncated, "texts")
        return found

    def similarity(
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
        found = self._sender.run(similarity_operation(texts, pairs, options, size, explain=explain, unit=unit))
        self._settings.report_truncation(found.truncated, "texts" if pairs is None else "pairs")
        return found

    @overload  # str is an iterable of str, too: the first that fits counts
    def tokenize(self, texts: str, **options: Unpack[TextOptions]) -> TokenizedText: ...  # type: ignore[overload-overlap]
    @overload
    def tokenize(self, texts: Iterable[Text], **options: Unpack[TextOptions]) -> list[TokenizedText]: ...
    def tokenize(
        self, texts: str | Iterable[Text], **options: Unpack[TextOptions]
    ) -> TokenizedText | list[TokenizedText]:
        """Show texts as the model reads them: one for one text, of a list a list.

        Raises
        ------
        EyelineError
        """
        tokenized = self._sender.run(tokenize_operation(texts, options, self._settings.max_texts_per_request))
        return tokenized[0] if isinstance(texts, str) else tokenized

    def info(self) -> dict[str, Any]:
        """Return what is served, and the limits in force, as ``GET /info`` says them.

        Raises
        ------
        EyelineError
        """
        return self._sender.run(info_operation())

    def health(self) -> str:
        """Return "ready", "loading", "draining" or "failing". Asks once.

        Raises
        ------
        UnreachableError, NoAnswerInTimeError, AnswerError or UnexpectedAnswerError
            If there is no server, or something else answers in its place.
        """
        try:
            return HEALTH.read(self._sender.attempt(HEALTH, self._settings.timeout_seconds))
        except httpx.TransportError as error:
            raise described(error) from error

    def wait_until_ready(self, timeout_seconds: float = 60.0) -> None:
        """Wait for a server that starts: until it is ready, whether or not it can be reached yet.

        Raises
        ------
        NoAnswerInTimeError
            If it is not ready after ``timeout_seconds``; its cause is the last error, where there was one.
        """
        end = self._sender.clock() + timeout_seconds
        while True:
            state = "not reached"
            cause: EyelineError | None = None
            try:
                state = self.health()
            except EyelineError as error:
                cause = error
            if state == "ready":
                return
            if self._sender.clock() + POLL_SECONDS >= end:
                raise NoAnswerInTimeError(f"not ready in {timeout_seconds:g} seconds: {cause or state}") from cause
            self._sender.wait(POLL_SECONDS)

    def close(self) -> None:
        """Close the connections."""
        self._sender.close()

    def __enter__(self) -> Self:
        """Return the client, which is closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()
