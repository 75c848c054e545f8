"""Cuts a window of texts into chunks: what is run for them, and where in its text each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from app.bulk.encoded import Tokenized
from app.bulk.options import CHUNK_COLUMNS
from app.bulk.rows import BadRow, TextRow
from model.chunking import Chunking, check_chunking
from model.chunks import ChunkedText, chunk_text
from model.contract import EncodeInput
from model.errors import InputError, TextTooLongError
from model.pooling import PoolingMode
from model.tokenizer import Tokenizer

MAX_CHUNKS = 16_384
"""Of one text: it is in memory with all of them, some 25 MB of embeddings."""

SENTENCE_CHARACTERS = 64
"""What a sentence is taken to have at least on average, where a window must be bounded before its texts are cut."""


class Cutter:
    """Cuts texts into chunks, all in one way.

    Parameters
    ----------
    tokenizer : Tokenizer
    chunking : Chunking
    pooling : PoolingMode
        The model's.
    prompt : str
        Put before each chunk, or each window of late chunking.
    truncate : bool
        Cut a chunk of sentences that is longer than the model reads; else its text is bad.

    Raises
    ------
    ChunkingError
        If the model has no such chunks.
    """

    def __init__(
        self, tokenizer: Tokenizer, chunking: Chunking, pooling: PoolingMode, prompt: str, *, truncate: bool
    ) -> None:
        check_chunking(chunking, pooling)
        self._tokenizer, self._chunking, self._prompt, self._truncate = tokenizer, chunking, prompt, truncate
        self._cut_text("")  # refuses a chunk that the model has no room for, before there is a text

    def max_characters(self, num_chunks: int) -> int:
        """Return of how many characters a window shall be that has about so many chunks at most."""
        step = self._chunking.size - self._chunking.overlap
        return num_chunks * step * (1 if self._chunking.unit == "token" else SENTENCE_CHARACTERS)

    def cut(self, numbered: Sequence[tuple[int, TextRow]]) -> Tokenized:
        """Cut texts, one after another, since each takes much memory until it is cut.

        Parameters
        ----------
        numbered : sequence of (int, TextRow)
            Texts, each with its number in the file.
        """
        bad: list[BadRow] = []
        rows: list[TextRow] = []
        inputs: list[EncodeInput] = []
        pooled: list[tuple[range, ...]] = []
        text_of: list[int] = []
        columns: list[tuple[int, ...]] = []
        num_texts = 0
        for number, row in numbered:
            try:
                chunked = self._cut_text(row.text)
            except InputError as error:
                bad.append(BadRow(row.place, self._reason(error)))
                continue
            rows += [row] * len(chunked.chunks)
            columns += _columns(number, chunked)
            inputs += chunked.inputs
            pooled += chunked.pooled
            text_of += [num_texts] * len(chunked.inputs)
            num_texts += 1
        chunks = np.array(columns, np.int64).reshape(-1, len(CHUNK_COLUMNS))  # (n, columns)
        firsts = [0, *accumulate(map(len, pooled))]
        return Tokenized(rows, inputs, bad, text_of, firsts, pooled, chunks)

    def _cut_text(self, text: str) -> ChunkedText:
        return chunk_text(
            text,
            self._tokenizer,
            self._chunking,
            prompt=self._prompt,
            truncate=self._truncate,
            max_chunks=MAX_CHUNKS,
        )

    def _reason(self, error: InputError) -> str:
        if isinstance(error, TextTooLongError):
            return f"a chunk has {error.actual} tokens, and there is room for {error.limit}; --truncate cuts it"
        return str(error)


def _columns(number: int, chunked: ChunkedText) -> list[tuple[int, ...]]:
    """Say where each chunk of a text is, in the order of :data:`~app.bulk.options.CHUNK_COLUMNS`."""
    return [
        (number, place, chunk.start, chunk.end, len(chunk.tokens), int(chunk.is_truncated))
        for place, chunk in enumerate(chunked.chunks)
    ]
