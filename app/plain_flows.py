"""The flows of the compatible APIs: the service's own steps, in the order that those need."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np

from app.errors import NonFiniteError
from app.limits import check_sparse_vectors, check_token_states, check_whole
from app.naming import naming
from app.plain import PlainRequest, check
from app.service import INLINE_CHARACTERS, Encoded, ServedModel, Service, Timings, Tokenized, record, stack
from app.turns import cut_turns, run_in_turns
from model.contract import FloatArray, OutputSpec, Row
from model.labels import ModelKind
from model.late_interaction import max_sim
from model.output_dtype import check_output_dtype

MAX_TURN_NUMBERS = 2**22
"""Of documents' vectors that are held at a time: 16 MB, in which a CPU finds several batches."""


async def embed(service: Service, request: PlainRequest, *, route: str) -> Encoded:
    """Encode texts and token ids; rows hold token states where they are asked for, and then no embedding.

    Of a late interaction model they hold the vectors that it compares.

    Raises
    ------
    ServiceError, InputError
        See ``app/errors.py``; the texts are called what the caller calls them.
    """
    with naming(request.rename):
        check(request)
        model = service.find_model(request.model)
        states, is_late = request.token_states, model.embedder.info.kind == "late_interaction"
        model.embedder.check_kind("embedding", *(("late_interaction",) if states else ()))
        dimensions = model.embedder.check_dimensions(request.dimensions)
        check_output_dtype(request.output_dtype, dimensions or model.embedder.dimensions, normalize=request.normalize)
        inputs, tokenize_seconds = await service.tokenize_texts(model, request.texts, request, details=False)
        if states:
            info = model.embedder.info
            num_vectors = sum(item.num_vectors for item in inputs)
            check_token_states(num_vectors, info.dimensions if is_late else info.hidden_size, service.limits)
        spec = OutputSpec(
            not states, request.normalize, dimensions, token_states=states and not is_late, token_vectors=is_late
        )
        rows, timings = await service.run(model, inputs, [spec] * len(inputs), tokenize_seconds, route)
        return Encoded(model, inputs, stack(rows), rows, None, timings)


async def score(service: Service, request: PlainRequest, *kinds: ModelKind, route: str) -> Encoded:
    """Run texts and pairs through the classification head of a model of these kinds: rows hold logits, no embedding.

    Raises
    ------
    ServiceError, InputError
        See ``app/errors.py``; the texts are called what the caller calls them.
    """
    with naming(request.rename):
        return await _run_own_output(service, request, *kinds, route=route)


async def rank(service: Service, request: PlainRequest, *, route: str) -> Encoded:
    """Score pairs of a query, the same in all, and a text: rows hold one logit each, no embedding.

    A late interaction model reads the query once and each text by itself; its logit is their MaxSim.

    Raises
    ------
    ServiceError, InputError
        See ``app/errors.py``; the texts are called what the caller calls them.
    """
    with naming(request.rename):
        model = service.find_model(request.model)
        if model.embedder.info.kind != "late_interaction":
            return await _run_own_output(service, request, "reranker", route=route)
        check(request)
        pairs = [pair for pair in request.texts if isinstance(pair, tuple)]
        documents = replace(request, texts=[text for _, text in pairs], prompt_name="document")
        service.check_texts(request.texts)
        return await _rank_by_max_sim(service, model, request, documents, pairs[0][0], route)


async def _rank_by_max_sim(
    service: Service, model: ServedModel, request: PlainRequest, documents: PlainRequest, text: str, route: str
) -> Encoded:
    """Compare a query with documents, which run in turns: of each a number is kept, not its vectors."""
    asked = replace(request, texts=[text], prompt_name="query")
    with naming(_name_query):
        [query], query_seconds = await service.tokenize_texts(model, asked.texts, asked, details=False)
    inputs, seconds = await service.tokenize_texts(model, documents.texts, documents, details=False)
    # before anything runs, as no turn by itself would be too large
    model.batcher.check_size(len(inputs), sum(item.num_tokens for item in inputs), service.caller.key)
    deadline, own_output = service.deadline(), model.embedder.own_output
    with naming(_name_query):
        [query_row] = await service.submit(model, [query], [own_output], deadline)
    vectors = query_row.token_vectors
    if vectors is None:
        raise ValueError("late interaction compares token vectors, and the query's row has none")
    scored: list[Row] = []

    def add(turn: slice, rows: list[Row]) -> None:
        for index, row in enumerate(rows, turn.start):
            scored.append(_score(vectors, row, f"texts[{index}]"))

    turns = cut_turns([item.num_vectors * model.embedder.info.dimensions for item in inputs], MAX_TURN_NUMBERS)
    before = Timings(query_seconds + seconds, query_row.queue_seconds, query_row.inference_seconds)
    timings = await run_in_turns(service, model, inputs, [own_output] * len(inputs), turns, add, before, deadline)
    record(model, [query, *inputs], timings, route, service.caller.key)
    return Encoded(model, inputs, stack(scored), scored, None, timings, query)


def _name_query(param: str) -> str:
    """Name the query, which is tokenized and run as a text by itself."""
    return "query" if param.startswith("texts") else param


def _score(query: FloatArray, row: Row, name: str) -> Row:
    """Compare a query with a document's row; raises :class:`NonFiniteError` where there is no number for it."""
    document = row.token_vectors
    if document is None:
        raise ValueError("late interaction compares token vectors, and a document's row has none")
    score = max_sim(query, document)
    if not abs(score) <= np.finfo(np.float32).max:  # nor is a NaN
        raise NonFiniteError("the score of this document is not finite", param=name)
    return Row(
        logits=np.array([score], dtype=np.float32),
        queue_seconds=row.queue_seconds,
        inference_seconds=row.inference_seconds,
    )


async def embed_sparse(service: Service, request: PlainRequest, *, route: str) -> Encoded:
    """Weigh the vocabulary of a SPLADE model for texts and token ids: rows hold sparse vectors, no embedding.

    Raises
    ------
    ServiceError, InputError
        See ``app/errors.py``; the texts are called what the caller calls them.
    """
    with naming(request.rename):
        encoded = await _run_own_output(service, request, "sparse", route=route)
        check_sparse_vectors(encoded.rows, service.limits)
        return encoded


async def _run_own_output(service: Service, request: PlainRequest, *kinds: ModelKind, route: str) -> Encoded:
    """Run texts for what a model of these kinds is there for."""
    check(request)
    model = service.find_model(request.model)
    model.embedder.check_kind(*kinds)
    inputs, tokenize_seconds = await service.tokenize_texts(model, request.texts, request, details=False)
    specs = [model.embedder.own_output] * len(inputs)
    rows, timings = await service.run(model, inputs, specs, tokenize_seconds, route)
    return Encoded(model, inputs, stack(rows), rows, None, timings)


async def tokenize_whole(service: Service, request: PlainRequest) -> tuple[Tokenized, list[str]]:
    """Tokenize each text with its prompt, and cut nothing away.

    Returns
    -------
    Tokenized
        With token tables.
    list of str
        What was tokenized: offsets are into these.
    """
    with naming(request.rename):
        check(request)
        model = service.find_model(request.model)
        tokenizer = model.embedder.tokenizer
        asked = (request.prompt_name, request.prompt)
        prompt, role = tokenizer.prompt(*asked), tokenizer.role(*asked)
        texts = [prompt + text for text in request.texts if isinstance(text, str)]
        check_whole(texts, service.limits)
        bare = replace(request, texts=texts, prompt_name=None, prompt="")
        inputs, seconds = await service.tokenize_texts(model, texts, bare, details=True, whole=True, role=role)
        return Tokenized(model, inputs, Timings(seconds)), texts


async def decode(service: Service, request: PlainRequest, *, skip_special_tokens: bool) -> list[str]:
    """Turn the token ids of a request back into texts."""
    with naming(request.rename):
        check(request)
        service.check_texts(request.texts)
        tokenizer = service.find_model(request.model).embedder.tokenizer
        lists = [ids for ids in request.texts if isinstance(ids, list)]

        def read() -> list[str]:
            return [
                tokenizer.decode(ids, skip_special_tokens=skip_special_tokens, param=f"texts[{index}]")
                for index, ids in enumerate(lists)
            ]

        if sum(map(len, lists)) <= INLINE_CHARACTERS:
            return read()
        return await asyncio.to_thread(read)
