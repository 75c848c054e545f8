"""Teachers: their embeddings of every corpus, from the cache as far as they are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from model.contract import FloatArray
from model.embedder import Embedder
from training.cache import CacheKey, HalfArray, cached_embeddings, teacher_digest, texts_digest
from training.data import Corpus


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
    CacheError
    """
    teacher = Embedder.load(folder, dtype=dtype, device=device, threads=threads)
    digest = teacher_digest(folder)
    batch_tokens = 32768 if teacher.device.type == "cuda" else 2048

    def encode(texts: Sequence[str]) -> FloatArray:
        return teacher.encode(texts, batch_tokens=batch_tokens)

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
