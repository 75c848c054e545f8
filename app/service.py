"""The flow of one request: texts in, rows out. Read :meth:`Service.encode` from top to bottom.

Each step it names is one file: ``model/tokenizer.py`` makes ids, ``app/batcher.py`` waits for a place in a batch,
``model/embedder.py`` runs it, ``app/answers.py`` writes what comes back.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from app.batcher import Batcher, QueueLimits
from app.callers import ANYONE, Caller
from app.errors import (
    InvalidRequestError,
    TooManyTextsError,
    UnknownModelError,
)
from app.facts import facts_var, note_stage
from app.limits import Limits, check_attention
from app.metrics import ModelMetrics
from app.naming import name_in_pairs, naming
from app.plain import PlainRequest
from app.schemas.body import TextOptions
from app.schemas.encode import AttentionOptions, EncodeRequest, TokenizeRequest
from app.schemas.similarity import SimilarityRequest
from model.contract import AttentionSelection, EncodeInput, FloatArray, OutputSpec, Row
from model.embedder import Embedder
from model.errors import TextTooLongError
from model.output_dtype import check_output_dtype
from model.readings import Role
from model.tokenizer import Text, TokenIds
from model.truncation import Side

T = TypeVar("T")

INLINE_CHARACTERS = 4_000
"""Up to so many characters are tokenized on the event loop (a few hundred microseconds); more go to a thread."""

LONG_CHARACTERS = 200_000
"""A request of more is tokenized alone, as a text takes up to 500 times its characters in bytes until it is cut."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model, its queue and its metrics, under the name that callers use."""

    name: str
    embedder: Embedder
    batcher: Batcher
    metrics: ModelMetrics
    limits: QueueLimits


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a request's time went, in seconds.

    For a request of several texts, ``queue`` and ``inference`` are those of the text that took longest.
    """

    tokenize: float
    queue: float = 0.0
    inference: float = 0.0


@dataclass(frozen=True, slots=True)
class Encoded:
    """What the encoder found for one request, before it is written down.

    Attributes
    ----------
    model : ServedModel
    inputs : list of EncodeInput
    embeddings : array, shape (texts, dimensions), float32
        0 dimensions where none was asked for.
    rows : list of Row
    selection : AttentionSelection or None
        Of the texts whose rows have attention.
    timings : Timings
    query : EncodeInput or None
        Which every text was compared with, where it was read by itself.
    """

    model: ServedModel
    inputs: list[EncodeInput]
    embeddings: FloatArray
    rows: list[Row]
    selection: AttentionSelection | None
    timings: Timings
    query: EncodeInput | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that were processed, special tokens included."""
        return sum(item.num_tokens for item in self.inputs) + (0 if self.query is None else self.query.num_tokens)


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Texts as the model reads them."""

    model: ServedModel
    inputs: list[EncodeInput]
    timings: Timings


class Service:
    """Serves requests with the models it is given.

    Parameters
    ----------
    models : sequence of ServedModel
        The first is the default.
    limits : Limits
    timeout_seconds : float or None
        After so long a request's waiting texts are dropped.
    clock : callable
        Seconds, monotonic; the batchers' own clock.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        limits: Limits,
        timeout_seconds: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.models = {model.name: model for model in models}
        self.limits = limits
        self._default = models[0]
        self.timeout_seconds = timeout_seconds
        self._long_turn = asyncio.Lock()
        self._long_work: set[asyncio.Task[object]] = set()
        self._clock = clock
        self.caller = ANYONE

    def for_caller(self, caller: Caller) -> Service:
        """Return this service as it serves one caller: their deadline, and their share of the queue."""
        other = copy.copy(self)
        other.caller = caller
        return other

    def with_models(self, models: Sequence[ServedModel]) -> Service:
        """Return a service with these models, which shares everything else with this one.

        A request holds one service from its beginning to its end, so that it never sees two models of one name.
        """
        other = copy.copy(self)
        other.models = {model.name: model for model in models}
        other._default = models[0]
        return other

    async def encode(self, request: EncodeRequest, *, binary: bool, route: str) -> Encoded:
        """Encode the texts of a request.

        Parameters
        ----------
        request : EncodeRequest
        binary : bool
            Whether maps leave as bytes, which may be more than JSON lists may.
        route : str
            Template, for the metrics.

        Raises
        ------
        ServiceError, InputError
            See ``app/errors.py``.
        """
        model = self.find_model(request.model)
        if request.attention is None or request.output_dtype != "float32":
            model.embedder.check_kind("embedding")  # of any other, attention may be asked for by itself
        texts: Sequence[Text] = [request.texts] if isinstance(request.texts, str) else request.texts
        dimensions = model.embedder.check_dimensions(request.dimensions)
        check_output_dtype(request.output_dtype, dimensions or model.embedder.dimensions, normalize=request.normalize)
        asked = _asked_items(request.attention, len(texts))
        selection = _selection(model, request.attention)
        inputs, tokenize_seconds = await self.tokenize_texts(model, texts, request, details=selection is not None)
        if selection is not None and request.attention is not None:
            # first, as no way out of too much attention makes it fit the queue
            model.batcher.check_size(len(inputs), sum(item.num_tokens for item in inputs), self.caller.key)
            as_list = request.attention.encoding == "list" and not binary
            check_attention(selection, {index: inputs[index] for index in sorted(asked)}, self.limits, as_list=as_list)
        specs = [
            OutputSpec(
                pooled=model.embedder.info.kind == "embedding",
                normalize=request.normalize,
                dimensions=dimensions,
                attention=selection if index in asked else None,
            )
            for index in range(len(inputs))
        ]
        rows, timings = await self.run(model, inputs, specs, tokenize_seconds, route)
        return Encoded(model, inputs, stack(rows), rows, selection, timings)

    async def similarity(self, request: SimilarityRequest, *, route: str) -> Encoded:
        """Encode the texts of a comparison; those of pairs one after the other, a1, b1, a2, b2, ..."""
        with naming(name_in_pairs if request.pairs is not None else str):
            return await self._similarity(request, route)

    async def _similarity(self, request: SimilarityRequest, route: str) -> Encoded:
        model = self.find_model(request.model)
        model.embedder.check_kind("embedding")
        texts = request.texts or [text for pair in request.pairs or () for text in pair]
        dimensions = model.embedder.check_dimensions(request.dimensions)
        inputs, tokenize_seconds = await self.tokenize_texts(model, texts, request, details=False)
        specs = [OutputSpec(dimensions=dimensions)] * len(inputs)
        rows, timings = await self.run(model, inputs, specs, tokenize_seconds, route)
        return Encoded(model, inputs, stack(rows), rows, None, timings)

    async def tokenize(self, request: TokenizeRequest) -> Tokenized:
        """Tokenize the texts of a request."""
        model = self.find_model(request.model)
        texts: Sequence[Text] = [request.texts] if isinstance(request.texts, str) else request.texts
        inputs, seconds = await self.tokenize_texts(model, texts, request, details=True)
        return Tokenized(model, inputs, Timings(seconds))

    def find_model(self, name: str | None) -> ServedModel:
        """Return the model of that name, or the default.

        Raises
        ------
        UnknownModelError
        """
        if name is None:
            return self._default
        if name not in self.models:
            raise UnknownModelError(f"no such model is served; served are {', '.join(self.models)}", param="model")
        return self.models[name]

    async def tokenize_texts(
        self,
        model: ServedModel,
        texts: Sequence[Text | TokenIds],
        options: TextOptions | PlainRequest,
        *,
        details: bool,
        whole: bool = False,
        role: Role | None = None,
    ) -> tuple[list[EncodeInput], float]:
        """Turn texts into ids; returns the seconds it took as well. Their prompt says their role unless it is given."""
        self.check_texts(texts)
        tokenizer = model.embedder.tokenizer
        prompt = tokenizer.prompt(options.prompt_name, options.prompt)
        read_as = role or tokenizer.role(options.prompt_name, options.prompt)
        truncate = options.truncate
        side: Side = options.side if isinstance(options, PlainRequest) else "right"

        def encode() -> list[EncodeInput]:
            return tokenizer.encode(
                texts, prompt=prompt, truncate=truncate, side=side, whole=whole, details=details, role=read_as
            )

        return await self.tokenizing(texts, prompt, encode)

    async def tokenizing(
        self, texts: Sequence[Text | TokenIds], prompt: str, tokenize: Callable[[], T]
    ) -> tuple[T, float]:
        """Tokenize texts, off the event loop when they are long; returns the seconds it took as well."""
        started = self._clock()
        characters = sum(map(num_characters, texts)) + len(prompt) * len(texts)
        if characters <= INLINE_CHARACTERS:
            found = tokenize()
        elif characters <= LONG_CHARACTERS:
            found = await asyncio.to_thread(tokenize)
        else:
            found = await self._tokenize_alone(tokenize)
        ended = self._clock()
        note_stage("tokenize", started, ended)
        return found, ended - started

    async def _tokenize_alone(self, tokenize: Callable[[], T]) -> T:
        """Tokenize on a thread when no other long request is.

        A thread cannot be ended: the turn of a caller who leaves is over when their thread is.
        """
        await self._long_turn.acquire()
        work = asyncio.create_task(asyncio.to_thread(tokenize))
        self._long_work.add(work)  # the event loop alone would not keep it
        work.add_done_callback(self._end_long_turn)
        try:
            await asyncio.wait([work])  # which, when it is cancelled, leaves the work alone
            return work.result()
        finally:
            del work  # or an error would hold, by its traceback, itself and the texts

    def _end_long_turn(self, work: asyncio.Task[object]) -> None:
        self._long_work.discard(work)
        self._long_turn.release()
        if not work.cancelled():
            work.exception()  # has been looked at, though whom it concerns may have left

    async def run(
        self,
        model: ServedModel,
        inputs: list[EncodeInput],
        specs: list[OutputSpec],
        tokenize_seconds: float,
        route: str,
    ) -> tuple[list[Row], Timings]:
        """Wait for the rows, and record once what the request was made of."""
        rows = await self.submit(model, inputs, specs, self.deadline())
        timings = Timings(
            tokenize_seconds,
            max(row.queue_seconds for row in rows),
            max(row.inference_seconds for row in rows),
        )
        record(model, inputs, timings, route, self.caller.key)
        values = sum(
            spec.attention.num_values(item.num_tokens)
            for item, spec in zip(inputs, specs, strict=True)
            if spec.attention is not None
        )
        if values:
            model.metrics.attention_values(values)
        return rows, timings

    async def submit(
        self, model: ServedModel, inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec], deadline: float | None
    ) -> list[Row]:
        """Wait for the rows in the model's queue, and note when the request waited and when it ran."""
        submitted = self._clock()
        rows = await model.batcher.submit(inputs, specs, deadline, self.caller.key)
        first_run = submitted + min(row.queue_seconds for row in rows)
        last_run = submitted + max(row.queue_seconds + row.inference_seconds for row in rows)
        note_stage("queue", submitted, first_run)
        note_stage("inference", first_run, last_run)  # with several batches, what lay between them as well
        return rows

    def deadline(self) -> float | None:
        """Return the reading of the clock after which the caller's request is given up; None without a limit.

        The caller's own limit or the server's, whichever is less, from when the request arrived.
        """
        limits = [limit for limit in (self.timeout_seconds, self.caller.timeout_seconds) if limit is not None]
        if not limits:
            return None
        arrived_at = self.caller.arrived_at
        return (self._clock() if arrived_at is None else arrived_at) + min(limits)

    def check_texts(self, texts: Sequence[Text | TokenIds]) -> None:
        """Refuse too many texts, and texts of too many characters, before any work is done on them."""
        if len(texts) > self.limits.max_texts:
            raise TooManyTextsError(
                f"a request may hold {self.limits.max_texts} texts, this one holds {len(texts)}",
                param="texts",
                limit=self.limits.max_texts,
                actual=len(texts),
            )
        for index, text in enumerate(texts):
            characters = num_characters(text)
            if characters > self.limits.max_text_characters:
                what = "token ids" if isinstance(text, list) else "characters"
                raise TextTooLongError(
                    f"a text may have {self.limits.max_text_characters} {what}, this one has {characters}",
                    param=f"texts[{index}]",
                    limit=self.limits.max_text_characters,
                    actual=characters,
                )


def stack(rows: Sequence[Row]) -> FloatArray:
    """Stack the embeddings of rows: (texts, dimensions), or (texts, 0) where the rows have none."""
    found = [row.embedding for row in rows if row.embedding is not None]
    return np.stack(found) if found else np.empty((len(rows), 0), dtype=np.float32)


def record(
    model: ServedModel, inputs: Sequence[EncodeInput], timings: Timings, route: str, key: str | None = None
) -> None:
    """Record once what a request was made of, and with which key."""
    num_tokens = sum(item.num_tokens for item in inputs)
    truncated = sum(item.is_truncated for item in inputs)
    model.metrics.record_request(
        route,
        num_texts=len(inputs),
        num_tokens=num_tokens,
        truncated=truncated,
        tokenize_seconds=timings.tokenize,
        queue_seconds=timings.queue,
        inference_seconds=timings.inference,
        key=key,
    )
    facts = facts_var.get()
    if facts is not None:
        facts.ran(model.name, len(inputs), num_tokens, truncated)


def num_characters(text: Text | TokenIds) -> int:
    """Code points of a text, or of both texts of a pair; token ids count as one each."""
    return len(text[0]) + len(text[1]) if isinstance(text, tuple) else len(text)


def _asked_items(attention: AttentionOptions | None, num_texts: int) -> frozenset[int]:
    """Return the indices of the texts whose maps are asked for."""
    if attention is None:
        return frozenset()
    if attention.items is None:
        return frozenset(range(num_texts))
    for index, item in enumerate(attention.items):
        if not 0 <= item < num_texts:
            raise InvalidRequestError(
                f"the request has {num_texts} texts: valid items are 0 to {num_texts - 1}, not {item}",
                param=f"attention.items[{index}]",
                limit=num_texts - 1,
                actual=item,
            )
    return frozenset(attention.items)


def _selection(model: ServedModel, attention: AttentionOptions | None) -> AttentionSelection | None:
    """Resolve the layers and heads asked for, and what shall be made of their maps."""
    if attention is None:
        return None
    rollout = attention.rollout
    return model.embedder.select_attention(
        attention.layers,
        attention.heads,
        reduce_heads=attention.reduce_heads,
        unit=attention.unit,
        special=attention.special,
        top_k=attention.top_k,
        min_weight=attention.min_weight,
        maps=attention.maps,
        stats=attention.stats,
        rollout=None
        if rollout is None
        else model.embedder.select_rollout(rollout.residual, rollout.heads, rollout.from_layer),
    )
