"""The flows of the compatible APIs: the service's own steps, in the order that those need."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.limits import check_sparse_vectors, check_token_states, check_whole
from app.naming import naming
from app.plain import PlainRequest, check
from app.service import INLINE_CHARACTERS, Encoded, Service, Timings, Tokenized, stack
from model.contract import OutputSpec, Row
from model.labels import ModelKind
from model.late_interaction import max_sim
from model.output_dtype import check_output_dtype


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
        with naming(lambda param: "query" if param.startswith("texts") else param):
            asked = replace(request, texts=[pairs[0][0]], prompt_name="query")
            [query], query_seconds = await service.tokenize_texts(model, asked.texts, asked, details=False)
        inputs, seconds = await service.tokenize_texts(model, documents.texts, documents, details=False)
        specs = [model.embedder.own_output] * (1 + len(inputs))
        rows, timings = await service.run(model, [query, *inputs], specs, query_seconds + seconds, route)
        scored = await asyncio.to_thread(_score_rows, rows)
        return Encoded(model, inputs, stack(scored), scored, None, timings, query)


def _score_rows(rows: Sequence[Row]) -> list[Row]:
    """Compare the first row's vectors with those of each other one."""
    query, *documents = [row.token_vectors for row in rows if row.token_vectors is not None]
    return [
        Row(
            logits=np.array([max_sim(query, document)], dtype=np.float32),
            queue_seconds=row.queue_seconds,
            inference_seconds=row.inference_seconds,
        )
        for row, document in zip(rows[1:], documents, strict=True)
    ]


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
