"""Teachers: their embeddings of every corpus, from the cache, or live beside the student, with every token's state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from model.checkpoint import load_encoder
from model.contract import EncodeInput, FloatArray
from model.device import choose_dtype
from model.embedder import Embedder
from model.encoder import Encoder
from model.folder import ModelFolder, read_tokenizer
from model.pooling import PoolingMode
from training.cache import CacheKey, HalfArray, cached_embeddings, teacher_digest, texts_digest
from training.data import Corpus
from training.errors import CacheError, RunError
from training.student import Encoded, Student, encode


@dataclass(frozen=True, slots=True)
class Targets:
    """One teacher's embeddings of all texts: one array a corpus, in the corpora's order."""

    arrays: list[HalfArray]

    @property
    def width(self) -> int:
        """Dimensions."""
        return int(self.arrays[0].shape[1])

    def rows(self, places: NDArray[np.int64]) -> Tensor:
        """Return the embeddings of some texts: (B, width), float32."""
        found = np.empty((len(places), self.width), dtype=np.float32)
        for number, where, rows in split_places(places, [len(array) for array in self.arrays]):
            found[where] = self.arrays[number][rows]
        return torch.from_numpy(found)


def teach(
    folder: Path, corpora: Sequence[Corpus], cache: Path, *, dtype: str, device: str, threads: int | None
) -> Targets:
    """Return a teacher's embeddings of all corpora, from the cache as far as they are there.

    Raises
    ------
    CheckpointError
        If the folder is no model.
    RunError
        If it cannot run so.
    CacheError
    """
    try:
        teacher = Embedder.load(folder, dtype=dtype, device=device, threads=threads)
    except ValueError as error:
        raise RunError(str(error)) from error
    digest = teacher_digest(folder)
    batch_tokens = 32768 if teacher.device.type == "cuda" else 2048

    def encode(texts: Sequence[str]) -> FloatArray:
        try:
            return teacher.encode(texts, batch_tokens=batch_tokens)
        except FloatingPointError as error:
            raise CacheError(f"{folder} gives an embedding that is not finite, in {teacher.info.dtype}") from error

    arrays = []
    for corpus in corpora:
        key = CacheKey(digest, teacher.info.dtype, texts_digest(corpus.texts), len(corpus.texts), teacher.dimensions)
        where = cache / folder.resolve().name / corpus.name
        with tqdm(total=len(corpus.texts), desc=corpus.name, unit="text", disable=None) as bar:
            show = partial(_move, bar)
            arrays.append(cached_embeddings(where, corpus.texts, key, encode, on_progress=show))
    return Targets(arrays)


def _move(bar: tqdm[NoReturn], done: int) -> None:
    """Let a bar show how much is done."""
    bar.update(done - bar.n)


class LiveTeacher:
    """A teacher that runs beside the student, on the same tokens.

    Parameters
    ----------
    encoder : Encoder
        For inference, on its device.
    pooling : PoolingMode
    """

    def __init__(self, encoder: Encoder, pooling: PoolingMode) -> None:
        self._encoder = encoder
        self._pooling = pooling
        self.width: int = encoder.config.hidden_size

    @classmethod
    def load(cls, folder: ModelFolder, student: Student, *, dtype: str, device: torch.device) -> LiveTeacher:
        """Load a teacher that reads what the student reads.

        Raises
        ------
        RunError
            If it would read other tokens, with a prompt of its own before them, say, or what it makes of them is more
            than pooled.
        CheckpointError
        """
        if folder.kind != "embedding" or folder.dense:
            raise RunError(f"{folder.path} cannot show its tokens' states: it does more than pool them")
        if read_tokenizer(folder).to_str() != student.backend.to_str() or folder.lowercase != student.lowercase:
            raise RunError("token states are learned token by token: the student must have the teacher's tokenizer")
        if folder.default_prompt_name is not None and folder.prompts[folder.default_prompt_name]:
            name = folder.default_prompt_name
            raise RunError(f"{folder.path} puts its prompt {name!r} before every text, and the student has none")
        try:
            number_format = choose_dtype(dtype, device)
        except ValueError as error:
            raise RunError(str(error)) from error
        encoder = load_encoder(folder, number_format, device).encoder
        limit, longest = folder.max_length or encoder.config.max_positions, student.raw["max_position_embeddings"]
        if limit is not None and longest > limit:
            raise RunError(f"the student reads {longest} tokens of a text, and its teacher {limit}: set --max-length")
        return cls(encoder, folder.pooling.mode)

    @torch.no_grad()
    def encode(self, inputs: Sequence[EncodeInput]) -> Encoded:
        """Run one batch; rows are of unit length, as those in the cache are."""
        given = encode(self._encoder, inputs, self._pooling, torch.float32)  # its weights have their number format
        return Encoded(given.states, F.normalize(given.rows, dim=-1))


class TeacherQueue(nn.Module):
    """The teacher's vectors of the latest texts, saved with the weights so that a resumed run has them.

    Parameters
    ----------
    size, width : int
    """

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("_rows", torch.zeros(size, width))
        self.register_buffer("_count", torch.zeros((), dtype=torch.int64))

    @property
    def rows(self) -> Tensor:
        """Those that are there, the latest first: (Q, width)."""
        return self.get_buffer("_rows")[: int(self.get_buffer("_count"))]

    def push(self, rows: Tensor) -> None:
        """Put vectors in front; the oldest fall out at the end."""
        held = self.get_buffer("_rows")
        kept = torch.cat((rows.detach(), self.rows))[: len(held)]
        held[: len(kept)] = kept
        self.get_buffer("_count").fill_(len(kept))


def split_places(
    places: NDArray[np.int64], sizes: Sequence[int]
) -> list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Find whose places these are, of arrays that are counted through one after another.

    Returns
    -------
    list of (int, array, array)
        Number of an array, where its places stand among ``places``, and which of its own rows they are.
    """
    ends = np.cumsum(sizes)
    owner = np.searchsorted(ends, places, side="right")
    starts = ends - np.asarray(sizes)
    return [
        (int(number), np.flatnonzero(owner == number), places[owner == number] - starts[number])
        for number in np.unique(owner)
    ]
