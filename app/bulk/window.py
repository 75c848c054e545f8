"""Encodes one window of texts: tokens or chunks, batches of like length, arrays in the order of the texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from app.budget import batch_budget
from app.bulk.cutting import Cutter
from app.bulk.encoded import Encoded, RowShape, Tokenized
from app.bulk.errors import BulkUsageError
from app.bulk.options import BulkOptions
from app.bulk.rows import BadRow, Item, TextRow
from model.batch import cut_by_tokens
from model.contract import AttentionSelection, EncodeInput, FloatArray, OutputSpec, Row
from model.embedder import Embedder
from model.errors import (
    ChunkingError,
    DimensionsError,
    InputError,
    ModelKindError,
    OutputDtypeError,
    PromptError,
    TextTooLongError,
)
from model.head_statistics import STATISTICS
from model.output_dtype import check_output_dtype

WINDOW_CHARACTERS = 1_000_000
"""A window of long texts ends earlier than one of short texts: its tokens take some 50 MB."""


@dataclass(frozen=True, slots=True)
class BulkLimits:
    """What one text, and one batch, may take.

    Attributes
    ----------
    max_text_characters : int
    batch_tokens : int or None
        None is the server's default. One under the longest text that the model reads is raised to it; the
        server refuses to start with such a one.
    batch_attention_values, max_attention_values_computed : int
        Attention weights of one batch and of one text.
    """

    max_text_characters: int
    batch_tokens: int | None
    batch_attention_values: int
    max_attention_values_computed: int


class WindowEncoder:
    """Encodes windows of texts with one model, in one way.

    Parameters
    ----------
    embedder : Embedder
    options : BulkOptions
    limits : BulkLimits

    Attributes
    ----------
    shape : RowShape
    prompt : str
        What is put before each text.
    window_characters : int
        A window of texts ends with the one that reaches so many.

    Raises
    ------
    BulkUsageError
        If the model gives no embeddings, none of so many dimensions or of that number type, or has no such prompt or
        chunks.
    """

    def __init__(self, embedder: Embedder, options: BulkOptions, limits: BulkLimits) -> None:
        self._embedder, self._options, self._limits = embedder, options, limits
        try:
            embedder.check_kind("embedding")
            dimensions = embedder.check_dimensions(options.dimensions)
            all_dimensions = dimensions or embedder.dimensions
            check_output_dtype(options.output_dtype, all_dimensions, normalize=options.normalize)
            self.prompt = embedder.tokenizer.prompt(options.prompt_name, options.prompt)
            self._cutter = self._make_cutter()
        except (ChunkingError, DimensionsError, ModelKindError, OutputDtypeError, PromptError) as error:
            raise BulkUsageError(str(error)) from error
        self.window_characters = WINDOW_CHARACTERS
        if self._cutter is not None:
            self.window_characters = min(WINDOW_CHARACTERS, self._cutter.max_characters(options.window_texts))
        self._selection: AttentionSelection | None = None
        if options.attention_stats:
            self._selection = embedder.select_attention("all", "all", maps=False, stats=True)
        self._spec = OutputSpec(normalize=options.normalize, dimensions=dimensions, attention=self._selection)
        longest = embedder.info.max_length
        self._batch_tokens = max(batch_budget(limits.batch_tokens, embedder.device.type, longest), longest)
        self.shape = RowShape(
            dimensions=all_dimensions,
            output_dtype=options.output_dtype,
            statistics=STATISTICS if options.attention_stats else (),
            layers=embedder.config.num_hidden_layers,
            heads=embedder.config.num_attention_heads,
            is_chunk=options.chunking is not None,
        )

    def _make_cutter(self) -> Cutter | None:
        """Make what cuts texts, where they are cut."""
        if self._options.chunking is None:
            return None
        tokenizer, pooling = self._embedder.tokenizer, self._embedder.pooling.mode
        return Cutter(tokenizer, self._options.chunking, pooling, self.prompt, truncate=self._options.truncate)

    def tokenize(self, items: Sequence[Item], first: int = 0) -> Tokenized:
        """Turn texts into tokens, and tell those from the others that cannot be.

        Parameters
        ----------
        items : sequence of TextRow or BadRow
        first : int
            Number of the first of them in the file, from 0.

        Returns
        -------
        Tokenized
            Bad items are among its bad rows.
        """
        most = self._limits.max_text_characters
        bad: list[BadRow] = []
        left: list[tuple[int, TextRow]] = []
        for number, item in enumerate(items, start=first):
            if isinstance(item, BadRow):
                bad.append(item)
            elif len(item.text) > most:
                reason = f"the text has {len(item.text)} characters, over --max-text-characters {most}"
                bad.append(BadRow(item.place, reason))
            else:
                left.append((number, item))
        found = self._whole([row for _, row in left]) if self._cutter is None else self._cutter.cut(left)
        return replace(found, bad=sorted([*bad, *found.bad], key=lambda row: row.place))

    def _whole(self, rows: Sequence[TextRow]) -> Tokenized:
        """Tokenize texts that are not cut into chunks."""
        try:
            found: list[EncodeInput | InputError] = [*self._encode_texts([row.text for row in rows])]
        except InputError:  # which one it is, and whether there are more, is found out one by one
            found = [self._try_text(row.text) for row in rows]
        good, inputs, bad = [], [], []
        for row, item in zip(rows, found, strict=True):
            reason = self._reason(item)
            if isinstance(item, EncodeInput) and reason is None:
                good.append(row)
                inputs.append(item)
            else:
                bad.append(BadRow(row.place, str(reason)))
        return Tokenized(good, inputs, bad, text_of=range(len(good)), firsts=range(len(good) + 1))

    def run(self, window: Tokenized, on_batch: Callable[[int], None]) -> Encoded:
        """Encode a window.

        Parameters
        ----------
        window : Tokenized
        on_batch : callable
            Told after each batch how many texts are done with it.
        """
        num_rows = len(window.rows)
        embeddings = np.empty((num_rows, self.shape.dimensions), np.float32)
        stats = np.empty((num_rows, *self.shape.stats), np.float32) if self._selection is not None else None
        left = Counter(window.text_of)
        for batch in self._batches([item.num_tokens for item in window.inputs]):
            inputs = [window.inputs[index] for index in batch]
            if self._selection is not None:  # only now, as the token tables of a whole window would be large
                inputs = self._encode_texts([window.rows[index].text for index in batch], details=True)
            for index, row in zip(batch, self._embedder.run(inputs, self._specs(window, batch)), strict=True):
                found = row.embedding if row.chunks is None else row.chunks
                embeddings[window.firsts[index] : window.firsts[index + 1]] = found
                if stats is not None:
                    stats[index] = self._stats_of(row)
            texts = [window.text_of[index] for index in batch]
            left.subtract(texts)
            on_batch(sum(left[text] == 0 for text in set(texts)))
        return Encoded(window.rows, embeddings, stats, window.chunks)

    def _specs(self, window: Tokenized, batch: Sequence[int]) -> list[OutputSpec]:
        """Say what each row of a batch shall hold."""
        if window.pooled is None:
            return [self._spec] * len(batch)
        return [replace(self._spec, chunks=window.pooled[index]) for index in batch]

    def _encode_texts(self, texts: Sequence[str], *, details: bool = False) -> list[EncodeInput]:
        """Tokenize as the options say."""
        truncate = self._options.truncate
        return self._embedder.tokenizer.encode(texts, prompt=self.prompt, truncate=truncate, details=details)

    def _try_text(self, text: str) -> EncodeInput | InputError:
        try:
            return self._encode_texts([text])[0]
        except InputError as error:
            return error

    def _reason(self, item: EncodeInput | InputError) -> str | None:
        """Say why a text cannot be encoded, if so."""
        if isinstance(item, TextTooLongError):
            return f"the text has {item.actual} tokens, the model reads {item.limit}; --truncate cuts it"
        if isinstance(item, InputError):
            return str(item)
        most = self._limits.max_attention_values_computed
        values = 0 if self._selection is None else self._selection.num_values(item.num_tokens)
        if values > most:
            return f"its statistics need {values} attention weights, over --max-attention-values-computed {most}"
        return None

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Cut a window into batches, none over the budgets of tokens and of attention weights."""
        for batch in cut_by_tokens(lengths, self._batch_tokens):
            if self._selection is None:
                yield batch
                continue
            part: list[int] = []
            values = 0
            for index in batch:
                more = self._selection.num_values(lengths[index])
                if part and values + more > self._limits.batch_attention_values:
                    yield part
                    part, values = [], 0
                part.append(index)
                values += more
            yield part

    def _stats_of(self, row: Row) -> FloatArray:
        """Stack a text's statistics: (statistics, layers, heads)."""
        if row.attention is None or row.attention.stats is None:
            raise ValueError("statistics were asked for, and the row has none")
        return np.stack([row.attention.stats[name] for name in self.shape.statistics])
