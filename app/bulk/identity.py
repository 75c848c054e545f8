"""What tells whether a run goes on with another's work: the model, the options, and the texts read so far."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from app.bulk.options import BulkOptions
from app.bulk.rows import TextRow

_MODEL_SUFFIXES = {".safetensors", ".json", ".txt"}


class Fingerprint:
    """Tells whether two runs have read the same texts, and the same values to keep, so far."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, row: TextRow) -> None:
        """Take in a row."""
        for part in (row.text.encode(), orjson.dumps(row.kept, str) if row.kept else b""):
            self._digest.update(len(part).to_bytes(8, "little") + part)

    def value(self) -> str:
        """Return the digest of all rows so far."""
        return self._digest.hexdigest()


def folder_digest(folder: Path) -> str:
    """Digest whatever decides a model folder's embeddings: weights, tokenizer, configuration."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in _MODEL_SUFFIXES and path.is_file()):
        with path.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def job_identity(options: BulkOptions, *, model: str, dtype: str, special_tokens: str, prompt: str) -> dict[str, Any]:
    """Say what decides the rows of an output, by the words that a refusal uses.

    What only decides how fast they come, or which rows a run stops at, is not in it: a run that stopped at a bad line
    goes on with ``--skip-bad``.

    Parameters
    ----------
    options : BulkOptions
    model : str
        See :func:`folder_digest`.
    dtype : str
        Number type that the model runs in.
    special_tokens : str
    prompt : str
        What is put before each text.
    """
    return {
        "model": model,
        "dtype": dtype,
        "special_tokens": special_tokens,
        "input format": options.input_kind,
        "rows": None if options.rows is None else [options.rows.start, options.rows.stop],
        "column": options.column,
        "header": options.has_header,
        "keep": list(options.keep),
        "prompt": prompt,
        "dimensions": options.dimensions,
        "output_dtype": options.output_dtype,
        "normalize": options.normalize,
        "truncate": options.truncate,
        "attention_stats": options.attention_stats,
        "chunks": None if options.chunking is None else asdict(options.chunking),
    }
