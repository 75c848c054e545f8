"""The flow of a request for chunks: texts in, and for each of them a list of stretches with an embedding each.

What is run, a chunk each or windows over several, is decided in ``model/chunks.py``; it waits and runs as texts do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from app.errors import InvalidRequestError
from app.naming import naming
from app.schemas.chunks import ChunkOptions
from app.schemas.encode import EncodeRequest
from app.service import ServedModel, Service, Timings
from model.chunking import Chunking, check_chunking
from model.chunks import ChunkedText, chunk_text
from model.contract import FloatArray, OutputSpec
from model.errors import TooManyChunksError
from model.output_dtype import check_output_dtype
from model.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EncodedChunks:
    """Texts in chunks.

    Attributes
    ----------
    model : ServedModel
    texts : list of str
    chunked : list of ChunkedText
    embeddings : list of array, shape (chunks, dimensions), float32
        One per text.
    timings : Timings
    """

    model: ServedModel
    texts: list[str]
    chunked: list[ChunkedText]
    embeddings: list[FloatArray]
    timings: Timings


async def encode_chunks(
    service: Service, request: EncodeRequest, options: ChunkOptions, *, route: str
) -> EncodedChunks:
    """Encode the chunks of a request's texts.

    Raises
    ------
    ServiceError, InputError
        See ``app/errors.py``.
    """
    model = service.find_model(request.model)
    embedder, chunking = model.embedder, options.chunking()
    embedder.check_kind("embedding")
    texts = _plain_texts(request)
    dimensions = embedder.check_dimensions(request.dimensions)
    check_output_dtype(request.output_dtype, dimensions or embedder.dimensions, normalize=request.normalize)
    check_chunking(chunking, embedder.pooling.mode)
    service.check_texts(texts)
    prompt = embedder.tokenizer.prompt(request.prompt_name, request.prompt)
    cut = partial(
        _cut, texts, embedder.tokenizer, chunking, prompt, truncate=request.truncate, limit=service.limits.max_texts
    )
    chunked, tokenize_seconds = await service.tokenizing(texts, prompt, cut)
    inputs = [item for text in chunked for item in text.inputs]
    specs = [
        OutputSpec(normalize=request.normalize, dimensions=dimensions, chunks=ranges)
        for text in chunked
        for ranges in text.pooled
    ]
    text_of_input = [index for index, text in enumerate(chunked) for _ in text.inputs]
    names = {f"texts[{place}]": f"texts[{index}]" for place, index in enumerate(text_of_input)}
    with naming(lambda param: names.get(param, param)):
        rows, timings = await service.run(model, inputs, specs, tokenize_seconds, route)
    all_chunks = np.vstack([row.chunks for row in rows if row.chunks is not None])
    embeddings = np.split(all_chunks, np.cumsum([len(text.chunks) for text in chunked[:-1]], dtype=np.int64))
    return EncodedChunks(model, texts, chunked, embeddings, timings)


def _plain_texts(request: EncodeRequest) -> list[str]:
    """Refuse what has no chunks."""
    if request.attention is not None:
        raise InvalidRequestError(
            "attention is that of a whole text: ask for it without chunks, or send a chunk as a text", param="attention"
        )
    texts = [request.texts] if isinstance(request.texts, str) else request.texts
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidRequestError("a pair is encoded together and has no chunks", param=f"texts[{index}]")
    return [text for text in texts if isinstance(text, str)]


def _cut(
    texts: Sequence[str], tokenizer: Tokenizer, chunking: Chunking, prompt: str, *, truncate: bool, limit: int
) -> list[ChunkedText]:
    """Cut texts one by one, as each takes much memory until it is cut; all together may have ``limit`` chunks."""
    chunked: list[ChunkedText] = []
    num_chunks = 0
    for index, text in enumerate(texts):
        try:
            chunked.append(
                chunk_text(
                    text,
                    tokenizer,
                    chunking,
                    prompt=prompt,
                    truncate=truncate,
                    max_chunks=limit - num_chunks,
                    param=f"texts[{index}]",
                )
            )
        except TooManyChunksError as error:
            actual = num_chunks + (error.actual or 0)
            raise TooManyChunksError(
                f"a request may hold {limit} chunks, and its texts up to this one have {actual}: make chunks larger, "
                "let them overlap less, or send fewer texts",
                param=f"texts[{index}]",
                limit=limit,
                actual=actual,
            ) from error
        num_chunks += len(chunked[-1].chunks)
    return chunked
