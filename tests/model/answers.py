"""The right answers in tests/reference, and how close an answer has to come on each device and in each dtype."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.contract import AttentionSelection, EncodeInput, OutputSpec
from model.embedder import Embedder

REPOSITORY = Path(__file__).parents[2]
REFERENCE = REPOSITORY / "tests" / "reference"
MINILM = REPOSITORY / "weights" / "all-MiniLM-L6-v2"

PARSED_TEXT = 20
"""The text whose answer was made with a typed ``[SEP]`` read as the special token."""

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Tolerance:
    """How far an answer may be off.

    Attributes
    ----------
    max_difference : float or None
        Of any two numbers.
    min_cosine : float or None
        Of any two vectors, or of two whole maps of one head.
    """

    max_difference: float | None = None
    min_cosine: float | None = None

    def check(self, actual: Array, expected: Array, what: str) -> None:
        """Fail with ``what`` where the two are further apart."""
        assert actual.shape == expected.shape, what
        assert np.isfinite(actual).all(), what
        if self.max_difference is not None:
            np.testing.assert_allclose(actual, expected, rtol=0, atol=self.max_difference, err_msg=what)
        if self.min_cosine is not None:
            assert cosines(actual, expected).min() >= self.min_cosine, what


TOLERANCES = {
    ("cpu", "float32"): Tolerance(max_difference=1e-5),
    ("cuda", "float32"): Tolerance(max_difference=5e-4),
    ("cuda", "bfloat16"): Tolerance(min_cosine=0.999),
    ("cuda", "float16"): Tolerance(min_cosine=0.999),
}


def cosines(first: Array, second: Array) -> Array:
    """Cosine of every pair of vectors; of every pair of maps where the arrays hold maps."""
    if first.ndim == 4:
        first, second = first.reshape(-1, first.shape[-1] ** 2), second.reshape(-1, second.shape[-1] ** 2)
    a, b = np.atleast_2d(first).astype(np.float64), np.atleast_2d(second).astype(np.float64)
    return (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))


@dataclass(frozen=True)
class MiniLMAnswer:
    """One text and what all-MiniLM-L6-v2 makes of it; ``attention`` (6, 12, L, L) is there for some texts."""

    text: str
    input_ids: list[int]
    embedding: Array
    attention: Array | None


def minilm_answers() -> list[MiniLMAnswer]:
    """All texts of the reference, in its order."""
    texts = json.loads((REFERENCE / "minilm.json").read_text(encoding="utf-8"))
    arrays = np.load(REFERENCE / "minilm.npz")
    return [
        MiniLMAnswer(
            entry["text"],
            entry["input_ids"],
            arrays["embeddings"][index],
            arrays[f"attention_{index}"] if f"attention_{index}" in arrays.files else None,
        )
        for index, entry in enumerate(texts)
    ]


def shuffled(count: int, size: int, seed: int) -> Iterator[list[int]]:
    """Cut a shuffled ``range(count)`` into pieces of ``size``."""
    order = random.Random(seed).sample(range(count), count)
    return (order[first : first + size] for first in range(0, count, size))


def everything(embedder: Embedder) -> AttentionSelection:
    """Every head of every layer."""
    return embedder.select_attention("all", "all")


def check_minilm(
    embedder: Embedder, answers: Sequence[MiniLMAnswer], batches: Iterator[list[int]], tolerance: Tolerance, maps: str
) -> None:
    """Run the texts in these batches and compare every embedding and every map.

    ``maps`` is "none", "all", or "some": only the texts that stand at even places of their batch ask.
    """
    seen = 0
    for batch in batches:
        asking = [maps == "all" or (maps == "some" and place % 2 == 0) for place in range(len(batch))]
        specs = [OutputSpec(attention=everything(embedder) if asks else None) for asks in asking]
        rows = embedder.run(embedder.tokenizer.encode([answers[index].text for index in batch]), specs)
        for index, asks, row in zip(batch, asking, rows, strict=True):
            answer, seen = answers[index], seen + 1
            assert row.embedding is not None
            tolerance.check(row.embedding, answer.embedding, f"embedding of text {index}")
            assert (row.maps is not None) == asks
            if row.maps is not None:
                np.testing.assert_allclose(row.maps.sum(-1), 1, atol=1e-5)
                if answer.attention is not None:
                    tolerance.check(row.maps, answer.attention, f"maps of text {index}")
    assert seen == len(answers)


@dataclass(frozen=True)
class SeedAnswer:
    """One text of a seed's reference, cut to its real tokens; attentions (3, 8, L, L)."""

    input_ids: list[int]
    embedded: Array
    output: Array
    attentions: Array

    @property
    def text(self) -> EncodeInput:
        """Its ids, ready for the encoder."""
        return EncodeInput(self.input_ids, [0] * len(self.input_ids), len(self.input_ids))


def seed_answers(document: str) -> list[SeedAnswer]:
    """The texts of ``seed-0`` or ``seed-2``."""
    arrays = np.load(REFERENCE / f"{document}.npz")
    return [
        SeedAnswer(
            arrays["input_ids"][text, :length].tolist(),
            arrays["embedded"][text, :length],
            arrays["output"][text, :length],
            arrays["attentions"][:, text, :, :length, :length],
        )
        for text, length in enumerate(arrays["padding_mask"].sum(1).tolist())
    ]


def check_seed(
    embedder: Embedder, answers: Sequence[SeedAnswer], batches: Iterator[list[int]], tolerance: Tolerance
) -> None:
    """Run a seed's texts in these batches and compare token states and maps."""
    spec = OutputSpec(normalize=False, token_states=True, attention=everything(embedder))
    for batch in batches:
        for index, row in zip(batch, embedder.run([answers[i].text for i in batch], [spec] * len(batch)), strict=True):
            answer = answers[index]
            assert row.token_states is not None
            assert row.maps is not None
            assert row.embedding is not None
            tolerance.check(row.token_states, answer.output, f"output of text {index}")
            tolerance.check(row.maps, answer.attentions, f"maps of text {index}")
            tolerance.check(row.embedding, answer.output.mean(0), f"mean of text {index}")
