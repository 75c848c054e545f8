"""Teacher embeddings, computed once and kept on disk: float16, resumable, and never taken for another teacher's.

One folder a corpus::

    embeddings.f16    n rows of D little-endian float16 numbers, unit length, no header
    progress.json     what they belong to, and how many rows are complete

Rows reach the disk before ``progress.json`` counts them, so after a kill the counted rows are whole; what lies behind
them is cut off and computed again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from model.contract import FloatArray
from training.errors import CacheError
from training.files import replace_file

HalfArray = NDArray[np.float16]

Append = Callable[[BinaryIO, bytes], None]
"""Adds bytes to an open file and waits for the disk. Passed in, so that a test can have a full disk."""

CHUNK_TEXTS = 4096
"""Texts between two marks of progress: a few seconds of work that a kill may cost."""

_IDENTITY = (
    *("config.json", "modules.json", "tokenizer.json", "vocab.txt", "sentence_bert_config.json"),
    *("config_sentence_transformers.json", "tokenizer_config.json"),
)


@dataclass(frozen=True, slots=True)
class CacheKey:
    """What stored embeddings belong to.

    Attributes
    ----------
    teacher : str
        SHA-256, see :func:`teacher_digest`.
    dtype : str
        Number format the teacher ran in.
    corpus : str
        SHA-256, see :func:`texts_digest`.
    num_texts, dimensions : int
    """

    teacher: str
    dtype: str
    corpus: str
    num_texts: int
    dimensions: int


def teacher_digest(folder: Path) -> str:
    """Digest whatever decides a folder's embeddings: weights, tokenizer, configuration, modules, prompts."""
    files = [path for path in folder.rglob("*") if path.suffix == ".safetensors" or path.name in _IDENTITY]
    digest = hashlib.sha256()
    for path in sorted(files):
        with path.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def texts_digest(texts: Sequence[str]) -> str:
    """Digest texts and their order."""
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def append_synced(stream: BinaryIO, content: bytes) -> None:
    """Add bytes and wait until the disk has them.

    Raises
    ------
    OSError
        If the disk is full, say.
    """
    stream.write(content)
    stream.flush()
    os.fsync(stream.fileno())


def cached_embeddings(
    folder: Path,
    texts: Sequence[str],
    key: CacheKey,
    encode: Callable[[Sequence[str]], FloatArray],
    *,
    on_progress: Callable[[int], None] = lambda done: None,
    append: Append = append_synced,
    chunk_texts: int = CHUNK_TEXTS,
) -> HalfArray:
    """Return the embeddings of ``texts``, computing those that are not stored yet.

    Parameters
    ----------
    folder : Path
        Made where it is missing.
    texts : sequence of n str
    key : CacheKey
    encode : callable
        Texts -> array (texts, D), float32, unit length.
    on_progress : callable
        Told how many rows are complete, once at the start and after each chunk.
    append : Append
    chunk_texts : int

    Returns
    -------
    array, shape (n, D), float16
        Mapped from the file, not in memory.

    Raises
    ------
    CacheError
        If what is stored belongs to another teacher or corpus, or cannot be written, or an embedding is not finite.
    """
    file, progress = folder / "embeddings.f16", folder / "progress.json"
    row_bytes = 2 * key.dimensions
    try:
        folder.mkdir(parents=True, exist_ok=True)
        done = _completed(file, progress, key)
        on_progress(done)
        with file.open("r+b" if file.exists() else "w+b") as stream:
            stream.truncate(done * row_bytes)
            stream.seek(done * row_bytes)
            while done < len(texts):
                part = texts[done : done + chunk_texts]
                append(stream, _rows(encode(part), key, len(part)))
                done += len(part)
                replace_file(progress, json.dumps({**asdict(key), "done": done}, indent=2).encode())
                on_progress(done)
    except OSError as error:
        raise CacheError(
            f"{folder} could not be written ({error.strerror or error}); what is complete stays and is taken up again"
        ) from error
    return np.memmap(file, dtype="<f2", mode="r", shape=(key.num_texts, key.dimensions))


def _completed(file: Path, progress: Path, key: CacheKey) -> int:
    """Count the stored rows that may be used, after checking whose they are."""
    if not progress.exists():
        return 0
    try:
        stored = json.loads(progress.read_text(encoding="utf-8"))
        done = int(stored["done"])
        owner = CacheKey(**{name: stored[name] for name in asdict(key)})
    except (ValueError, KeyError, TypeError) as error:
        raise CacheError(f"{progress} is not what this program writes; delete {progress.parent}") from error
    for name, expected in asdict(key).items():
        if getattr(owner, name) != expected:
            what = {"teacher": "teacher", "corpus": "text", "num_texts": "text"}.get(name, name)
            raise CacheError(
                f"{progress.parent} holds embeddings of another {what}; delete it or choose another cache folder"
            )
    rows = file.stat().st_size // (2 * key.dimensions) if file.exists() else 0
    return min(done, rows)


def _rows(embeddings: FloatArray, key: CacheKey, num_texts: int) -> bytes:
    """Turn embeddings into the bytes of their rows."""
    if embeddings.shape != (num_texts, key.dimensions):
        raise CacheError(f"the teacher gave {embeddings.shape}, not {(num_texts, key.dimensions)}")
    if not np.isfinite(embeddings).all():
        raise CacheError("the teacher gave an embedding that is not finite")
    return embeddings.astype("<f2").tobytes()
