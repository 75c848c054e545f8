"""The flows of the compatible APIs: the service's own steps, in the order that those need."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from app.limits import check_sparse_vectors, check_token_states, check_whole
from app.naming import naming
from app.plain import PlainRequest, check
from app.service import INLINE_CHARACTERS, Encoded, Service, Timings, Tokenized, stack
from model.contract import OutputSpec
from model.labels import ModelKind
from model.output_dtype import check_output_dtype


async def embed(service: Service, request: PlainRequest, *, route: str) -> Encoded:
    """Encode texts and token ids; rows hold token states where they are asked for, and then no embedding.

    Raises
    ------
    ServiceError, InputError
        See ``app/errors.py``; the texts are called what the caller calls them.
    """
    with naming(request.rename):
        check(request)
        model = service.find_model(request.model)
        model.embedder.check_kind("embedding")
        dimensions = model.embedder.check_dimensions(request.dimensions)
        check_output_dtype(request.output_dtype, dimensions or model.embedder.dimensions, normalize=request.normalize)
        inputs, tokenize_seconds = await service.tokenize_texts(model, request.texts, request, details=False)
        states = request.token_states
        if states:
            num_tokens = sum(item.num_tokens for item in inputs)
            check_token_states(num_tokens, model.embedder.info.hidden_size, service.limits)
        spec = OutputSpec(not states, request.normalize, dimensions, token_states=states)
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
        prompt = model.embedder.tokenizer.prompt(request.prompt_name, request.prompt)
        texts = [prompt + text for text in request.texts if isinstance(text, str)]
        check_whole(texts, service.limits)
        bare = replace(request, texts=texts, prompt_name=None, prompt="")
        inputs, seconds = await service.tokenize_texts(model, texts, bare, details=True, whole=True)
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
