"""Encodes a file: texts in, rows out, without a server. What ``eyeline encode`` runs.

One window of texts after another is read, sorted by length, run in batches, put back in order and appended to the part
files; then it is counted. Memory holds one window, whatever the size of the file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Protocol

from app.bulk.encoded import Encoded
from app.bulk.errors import BulkError, BulkStoppedError
from app.bulk.identity import Fingerprint, folder_digest, job_identity
from app.bulk.input import open_rows
from app.bulk.options import BulkOptions
from app.bulk.output import Layout, make_layout
from app.bulk.rows import BadRow, Item, Rows, TextRow
from app.bulk.state import Append, PartFiles, append_all
from app.bulk.window import BulkLimits, WindowEncoder
from model.embedder import Embedder
from model.errors import OutputDtypeError


@dataclass(frozen=True, slots=True)
class Report:
    """What was done.

    Attributes
    ----------
    num_rows, num_skipped, num_truncated, num_clipped : int
        Of the whole output, earlier runs included.
    num_encoded : int
        Rows of this run.
    dimensions : int
    seconds : float
        Of this run, without loading the model.
    num_texts : int or None
        That are in chunks, each of which is a row; None where a row is a text.
    """

    num_rows: int
    num_skipped: int
    num_truncated: int
    num_clipped: int
    num_encoded: int
    dimensions: int
    seconds: float
    num_texts: int | None = None

    def sentence(self, name: str) -> str:
        """Say it in one line."""
        speed = (
            f"{self.num_encoded} of them now, in {self.seconds:.1f} s ({self.num_encoded / self.seconds:.0f} a second)"
        )
        rows = "texts" if self.num_texts is None else f"chunks of {self.num_texts} texts"
        clipped = f", {self.num_clipped} numbers clipped" if self.num_clipped else ""
        left_out = f", {self.num_skipped} left out" if self.num_skipped else ""
        return (
            f"{name}: {self.num_rows} {rows} in {self.dimensions} dimensions, {speed}; "
            f"{self.num_truncated} truncated{clipped}{left_out}"
        )


class Watcher(Protocol):
    """Whoever looks on."""

    def resumed(self, num_texts: int) -> None:
        """Hear that so many texts were dealt with already."""

    def read(self, num_texts: int, share: float | None) -> None:
        """Hear how many texts have been read, and what share of the file, where that is known."""

    def encoded(self, num_texts: int) -> None:
        """Hear that so many more texts are encoded."""

    def skipped(self, message: str) -> None:
        """Hear of a row that was left out, in one sentence."""


def encode_file(
    options: BulkOptions,
    embedder: Embedder,
    limits: BulkLimits,
    watcher: Watcher,
    stdin: BinaryIO,
    append: Append = append_all,
) -> Report:
    """Encode a file, or what an earlier run has left of it.

    Parameters
    ----------
    options : BulkOptions
    embedder : Embedder
    limits : BulkLimits
    watcher : Watcher
    stdin : BinaryIO
        Read where the options name no input.
    append : Append

    Raises
    ------
    BulkUsageError
        If the model cannot do what is asked.
    BulkError
        If the input is bad, an embedding is not finite, or the output cannot be written: in one sentence. What was
        complete stays, and is taken up by the next run.
    BulkStoppedError
        In place of a KeyboardInterrupt.
    """
    started = time.perf_counter()
    encoder = WindowEncoder(embedder, options, limits)
    identity = identity_of(options, embedder, encoder.prompt)
    parts: PartFiles | None = None
    try:
        with open_rows(options, stdin) as rows:
            layout = make_layout(options, encoder.shape, rows.kept_types())
            with PartFiles(options, layout, identity, append) as parts:
                before = parts.progress.num_rows
                watcher.resumed(parts.progress.num_read)
                if not parts.progress.is_whole:
                    _Job(options, rows, encoder, layout, parts, watcher).run()
                parts.finish()
                done = parts.progress
    except KeyboardInterrupt as error:
        raise BulkStoppedError(options.part, parts.progress.num_rows if parts else 0) from error
    return Report(
        num_rows=done.num_rows,
        num_skipped=done.num_skipped,
        num_truncated=done.num_truncated,
        num_clipped=done.num_clipped,
        num_encoded=done.num_rows - before,
        dimensions=encoder.shape.dimensions,
        seconds=time.perf_counter() - started,
        num_texts=None if options.chunking is None else done.num_read - done.num_skipped,
    )


def identity_of(options: BulkOptions, embedder: Embedder, prompt: str) -> dict[str, Any]:
    """Say what decides the rows of an output, see :func:`~app.bulk.identity.job_identity`."""
    return job_identity(
        options,
        model=folder_digest(embedder.info.folder),
        dtype=embedder.info.dtype,
        special_tokens=embedder.info.special_tokens,
        prompt=prompt,
    )


class _Job:
    """One run over a file."""

    def __init__(
        self,
        options: BulkOptions,
        rows: Rows,
        encoder: WindowEncoder,
        layout: Layout,
        parts: PartFiles,
        watcher: Watcher,
    ) -> None:
        self._options, self._rows, self._encoder = options, rows, encoder
        self._layout, self._parts, self._watcher = layout, parts, watcher
        self._fingerprint = Fingerprint()
        self._num_read = 0
        self._num_before = 0 if options.rows is None else options.rows.start  # of the file, where it is in pieces

    def run(self) -> None:
        """Encode what is not complete yet."""
        items = iter(self._rows)
        self._pass_over(items)
        while window := self._next_window(items):
            tokenized = self._encoder.tokenize(window, self._num_before + self._num_read - len(window))
            for item in tokenized.bad:
                self._skip(item)
            encoded = self._encoder.run(tokenized, self._watcher.encoded)
            faulty = encoded.first_not_finite()
            if faulty is not None:
                raise BulkError(f"{self._where(faulty)}: the model's embedding of this text is not finite")
            done, output_dtype = self._parts.progress, self._options.output_dtype
            progress = replace(
                done,
                num_read=self._num_read,
                num_rows=done.num_rows + len(encoded.rows),
                num_skipped=done.num_skipped + len(tokenized.bad),
                num_truncated=done.num_truncated + tokenized.num_truncated,
                num_clipped=done.num_clipped + encoded.num_clipped(output_dtype),
                fingerprint=self._fingerprint.value(),
            )
            self._parts.add(self._layout.bodies(self._converted(encoded)), progress)

    def _converted(self, encoded: Encoded) -> Encoded:
        """Give embeddings the number type that they are written in."""
        try:
            return encoded.converted(self._options.output_dtype)
        except OutputDtypeError as error:
            raise BulkError(f"{self._options.input_name}: {error}") from error

    def _pass_over(self, items: Iterator[Item]) -> None:
        """Read again what an earlier run has dealt with, and make sure that it is the same."""
        done = self._parts.progress
        for item in items if done.num_read else ():
            self._count(item)
            if self._num_read == done.num_read:
                break
        if self._num_read < done.num_read or self._fingerprint.value() != done.fingerprint:
            raise BulkError(
                f"{self._options.input_name} is not what {self._options.part} was begun with: the first "
                f"{done.num_read} texts differ; delete {self._options.part.name} and {self._options.state.name} "
                "to begin again"
            )

    def _next_window(self, items: Iterator[Item]) -> list[Item]:
        """Read on until there are enough texts to sort."""
        window: list[Item] = []
        characters = 0
        for item in items:
            self._count(item)
            window.append(item)
            if isinstance(item, TextRow):
                characters += len(item.text)
            elif not self._options.skip_bad:
                self._skip(item)
            if len(window) >= self._options.window_texts or characters >= self._encoder.window_characters:
                break
        self._watcher.read(self._num_read, self._rows.share())
        return window

    def _count(self, item: Item) -> None:
        """Note that a row was read."""
        self._num_read += 1
        if isinstance(item, TextRow):
            self._fingerprint.add(item)

    def _skip(self, item: BadRow) -> None:
        """Leave a row out, where that is wanted; else stop at it."""
        message = f"{self._where(item)}: {item.reason}"
        if not self._options.skip_bad:
            raise BulkError(message)
        self._watcher.skipped(message)

    def _where(self, item: Item) -> str:
        """Say where a row is."""
        return f"{self._options.input_name}, {self._rows.unit} {item.place}"
