"""Finds the texts of a file that are nearest to a query, without an index: what ``eyeline search`` runs."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

import numpy as np

from app.bulk.errors import BulkError, BulkUsageError
from app.bulk.input import open_rows
from app.bulk.options import BulkOptions
from app.bulk.window import BulkLimits, WindowEncoder
from model.contract import FloatArray
from model.embedder import Embedder
from model.errors import InputError


@dataclass(frozen=True, slots=True)
class Hit:
    """A text that was found: its line (or row of a Parquet file) from 1, and its cosine with the query."""

    place: int
    score: float
    text: str


@dataclass(frozen=True, slots=True)
class Found:
    """The best hits, the best first; ``unit`` is what a place counts: "line" or "row"."""

    unit: str
    hits: list[Hit]
    num_texts: int
    num_truncated: int


def embed(
    embedder: Embedder, texts: Sequence[str], *, prompt_name: str | None = None, prompt: str | None = None
) -> FloatArray:
    """Encode the texts of a command line: (n, D), of unit length; raises :class:`BulkUsageError`."""
    try:
        embedder.check_kind("embedding")
        return embedder.encode(texts, prompt_name=prompt_name, prompt=prompt)
    except InputError as error:
        raise BulkUsageError(str(error)) from error


def search_file(
    options: BulkOptions, embedder: Embedder, limits: BulkLimits, query: str, top: int, stdin: BinaryIO
) -> Found:
    """Read a file once, a window of texts at a time, and keep the ``top`` that are nearest to the query.

    Parameters
    ----------
    options : BulkOptions
        Of the input; texts take no prompt but the model's default one. ``prompt_name`` and ``prompt`` are the query's.
    embedder : Embedder
    limits : BulkLimits
    query : str
    top : int
    stdin : BinaryIO

    Raises
    ------
    BulkUsageError
        If the model has no such prompt, or gives no embeddings.
    BulkError
        If the file cannot be read, or a row is bad: in one sentence.
    """
    [wanted] = embed(embedder, [query], prompt_name=options.prompt_name, prompt=options.prompt)
    encoder = WindowEncoder(embedder, BulkOptions(options.input, options.input_kind, options.output, "npy"), limits)
    hits: list[Hit] = []
    num_texts = num_truncated = 0
    with open_rows(options, stdin) as rows:
        items = iter(rows)
        while window := list(islice(items, options.window_texts)):
            tokenized = encoder.tokenize(window)
            if tokenized.bad:
                bad = tokenized.bad[0]
                raise BulkError(f"{options.input_name}, {rows.unit} {bad.place}: {bad.reason}")
            encoded = encoder.run(tokenized, lambda _: None)
            faulty = encoded.first_not_finite()
            if faulty is not None:
                raise BulkError(f"{options.input_name}, {rows.unit} {faulty.place}: the embedding is not finite")
            scores = np.clip(encoded.embeddings @ wanted, -1.0, 1.0)
            new = (Hit(row.place, float(score), row.text) for row, score in zip(encoded.rows, scores, strict=True))
            # of equal scores the earlier line first
            hits = heapq.nsmallest(top, (*hits, *new), key=lambda hit: (-hit.score, hit.place))
            num_texts += len(encoded.rows)
            num_truncated += tokenized.num_truncated
        return Found(rows.unit, hits, num_texts, num_truncated)
