"""What the tests of the bulk encoder share: options with defaults, limits, a watcher that keeps what it hears."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.bulk.input import open_rows
from app.bulk.options import INPUT_SUFFIXES, BulkOptions
from app.bulk.rows import BadRow, Item
from app.bulk.window import BulkLimits

LIMITS = BulkLimits(
    max_text_characters=200_000,
    batch_tokens=None,
    batch_attention_values=8_000_000,
    max_attention_values_computed=256_000_000,
)


def make_options(source: Path | None, output: Path, **changes: Any) -> BulkOptions:
    """Options as the command line would make them of two names."""
    suffix = ".txt" if source is None else Path(source.name.removesuffix(".gz")).suffix
    kinds: dict[str, Any] = {"input_kind": INPUT_SUFFIXES.get(suffix), "output_kind": output.suffix.removeprefix(".")}
    return BulkOptions(input=source, output=output, **{**kinds, **changes})


def read_items(source: Path, content: bytes, **changes: Any) -> list[Item]:
    """Write a file and read it."""
    source.write_bytes(content)
    with open_rows(make_options(source, source.with_suffix(".npy"), **changes), io.BytesIO()) as rows:
        return list(rows)


def texts(items: Sequence[Item]) -> list[str]:
    """The texts, where nothing is bad."""
    assert not any(isinstance(item, BadRow) for item in items), items
    return [item.text for item in items if not isinstance(item, BadRow)]


class RecordingWatcher:
    """A Watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.begun_at: int | None = None
        self.num_encoded = 0
        self.reads: list[tuple[int, float | None]] = []
        self.messages: list[str] = []

    def resumed(self, num_texts: int) -> None:
        self.begun_at = num_texts

    def read(self, num_texts: int, share: float | None) -> None:
        self.reads.append((num_texts, share))

    def encoded(self, num_texts: int) -> None:
        self.num_encoded += num_texts

    def skipped(self, message: str) -> None:
        self.messages.append(message)
