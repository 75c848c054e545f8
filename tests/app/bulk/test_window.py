"""One window of texts: equal to the library's embeddings, in order, within budgets, with reasons for what fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.bulk.errors import BulkUsageError
from app.bulk.rows import BadRow, TextRow
from app.bulk.window import WINDOW_CHARACTERS, WindowEncoder
from model.chunking import Chunking
from model.chunks import chunk_text
from model.contract import EncodeInput, OutputSpec, Row
from model.embedder import Embedder
from model.head_statistics import STATISTICS
from tests.app.bulk.jobs import LIMITS, make_options
from tests.tiny import make_bert_folder

WORDS = ("the", "cat", "sat", "on", "mat", "a", "dog", "barked")
TEXTS = [" ".join(WORDS[index % 8] for index in range(start, start + 1 + 5 * start % 13)) for start in range(40)]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    """A tiny model."""
    folder = make_bert_folder(tmp_path_factory.mktemp("model") / "tiny", prompts={"query": "query: "})
    return Embedder.load(folder, dtype="float32", device="cpu", threads=1)


def rows_of(texts: Sequence[str]) -> list[TextRow]:
    """Texts on lines from 1."""
    return [TextRow(line, text) for line, text in enumerate(texts, start=1)]


def make_encoder(embedder: Embedder, limits: dict[str, Any] | None = None, **options: Any) -> WindowEncoder:
    """An encoder with options."""
    return WindowEncoder(
        embedder, make_options(Path("a.txt"), Path("o.npy"), **options), replace(LIMITS, **(limits or {}))
    )


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"normalize": False},
        {"dimensions": 5},
        {"dimensions": 5, "normalize": False},
        {"prompt": "a dog "},
        {"prompt_name": "query"},
    ],
    ids=str,
)
def test_embeddings_are_the_librarys(embedder: Embedder, how: dict[str, Any]) -> None:
    """In the order of the texts, whatever was sorted on the way."""
    encoder = make_encoder(embedder, {"batch_tokens": 64}, **how)
    counts: list[int] = []
    encoded = encoder.run(encoder.tokenize(rows_of(TEXTS)), counts.append)
    assert encoded.rows == rows_of(TEXTS)
    np.testing.assert_allclose(encoded.embeddings, embedder.encode(TEXTS, **how), atol=1e-5)
    assert encoder.shape.dimensions == encoded.embeddings.shape[1] == how.get("dimensions", 16)
    assert sum(counts) == len(TEXTS)
    assert len(counts) > 3


def test_statistics_are_those_of_each_text_alone(embedder: Embedder) -> None:
    """Whatever their neighbours, in the order of STATISTICS."""
    encoder = make_encoder(embedder, attention_stats=True)
    assert encoder.shape.stats == (len(STATISTICS), 2, 2)
    encoded = encoder.run(encoder.tokenize(rows_of(TEXTS)), lambda count: None)
    assert encoded.stats is not None
    selection = embedder.select_attention("all", "all", maps=False, stats=True)
    for text, found in zip(TEXTS, encoded.stats, strict=True):
        [row] = embedder.run(embedder.tokenizer.encode([text], details=True), [OutputSpec(attention=selection)])
        assert row.attention is not None
        assert row.attention.stats is not None
        for name, values in zip(STATISTICS, found, strict=True):
            np.testing.assert_allclose(values, row.attention.stats[name], atol=1e-5)


@pytest.mark.parametrize("mode", ["separate", "late"])
def test_chunks_are_those_of_each_text_alone(embedder: Embedder, mode: Any) -> None:
    """Whatever their neighbours, in the order of the texts; a text is done with the last of its chunks."""
    long = [" ".join(WORDS[(index * start) % 8] for index in range(20 * start)) + "." for start in range(6)]
    chunking = Chunking("token", 7, 2, mode)
    encoder = make_encoder(embedder, {"batch_tokens": 64}, chunking=chunking, dimensions=5, prompt_name="query")
    counts: list[int] = []
    window = encoder.tokenize(rows_of(long), first=4)
    encoded = encoder.run(window, counts.append)
    expected, numbers = [], []
    for number, text in enumerate(long, start=4):
        cut = chunk_text(text, embedder.tokenizer, chunking, prompt="query: ", max_chunks=99)
        numbers += [number] * len(cut.chunks)
        for item, ranges in zip(cut.inputs, cut.pooled, strict=True):
            [row] = embedder.run([item], [OutputSpec(dimensions=5, chunks=ranges)])
            expected.append(row.chunks)
    np.testing.assert_allclose(encoded.embeddings, np.vstack([row for row in expected if row is not None]), atol=1e-5)
    assert encoded.chunks is not None
    assert encoded.chunks[:, 0].tolist() == numbers
    assert encoded.rows == [rows_of(long)[number - 4] for number in numbers]
    assert sum(counts) == len(long)
    assert len(counts) > 3


def test_a_window_of_chunks_ends_earlier(embedder: Embedder) -> None:
    """So that it holds about as many rows as one of texts."""
    assert make_encoder(embedder).window_characters == WINDOW_CHARACTERS
    assert make_encoder(embedder, chunking=Chunking("token", 8), window_texts=10).window_characters == 80
    assert make_encoder(embedder, chunking=Chunking("sentence", 30)).window_characters == WINDOW_CHARACTERS


def test_bad_items_are_among_the_bad_rows(embedder: Embedder) -> None:
    """In order, whoever found them; a text's number counts them."""
    encoder = make_encoder(embedder, {"max_text_characters": 5}, chunking=Chunking("token", 8))
    items = [BadRow(1, "no"), TextRow(2, "a dog barked"), TextRow(3, "a"), BadRow(4, "no"), TextRow(5, "the")]
    window = encoder.tokenize(items, first=10)
    assert [row.place for row in window.bad] == [1, 2, 4]
    assert window.chunks is not None
    assert window.chunks[:, 0].tolist() == [12, 14]


class WatchedEmbedder:
    """An Embedder that notes its batches."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.batches: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._embedder, name)

    def run(self, inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        self.batches.append([item.num_tokens for item in inputs])
        return self._embedder.run(inputs, specs)


@pytest.mark.parametrize("stats", [False, True])
def test_no_batch_is_over_its_budgets(embedder: Embedder, stats: bool) -> None:
    """Tokens always, attention weights with statistics; one text alone may be over the second."""
    watched: Any = WatchedEmbedder(embedder)
    limits = {"batch_tokens": 64, "batch_attention_values": 2_000}
    encoder = make_encoder(watched, limits, attention_stats=stats)
    encoder.run(encoder.tokenize(rows_of(TEXTS)), lambda count: None)
    assert sorted(length for batch in watched.batches for length in batch) == sorted(
        item.num_tokens for item in embedder.tokenizer.encode(TEXTS)
    )
    values = [sum(2 * 2 * length**2 for length in batch) for batch in watched.batches]
    assert max(sum(batch) for batch in watched.batches) <= 64
    assert (max(values) > 2_000) != stats
    assert all(value <= 2_000 or len(batch) == 1 for value, batch in zip(values, watched.batches, strict=True)) == stats


def test_a_budget_under_one_text_is_raised(embedder: Embedder) -> None:
    """The longest text that the model reads always fits."""
    encoder = make_encoder(embedder, {"batch_tokens": 1})
    assert encoder.run(encoder.tokenize(rows_of(["the cat " * 50])), lambda count: None).embeddings.shape == (1, 16)


def test_truncated_texts_are_counted(embedder: Embedder) -> None:
    """Those that lost tokens, not those that just fit."""
    just = " ".join(["cat"] * 30)
    window = make_encoder(embedder).tokenize(rows_of(["a", just, just + " cat", just * 2]))
    assert [item.num_tokens for item in window.inputs] == [3, 32, 32, 32]
    assert window.num_truncated == 2
    assert window.bad == []


def test_what_cannot_be_encoded_is_told_from_the_rest(embedder: Embedder) -> None:
    """Each with its place and its numbers; the others are ready to run, in order."""
    encoder = make_encoder(embedder, {"max_text_characters": 150}, truncate=False)
    rows = rows_of(["a", "x" * 151, "cat " * 31, "a dog"])
    window = encoder.tokenize(rows)
    assert window.rows == [rows[0], rows[3]]
    assert [item.num_tokens for item in window.inputs] == [3, 4]
    assert window.bad == [
        BadRow(2, "the text has 151 characters, over --max-text-characters 150"),
        BadRow(3, "the text has 33 tokens, the model reads 32; --truncate cuts it"),
    ]


def test_statistics_that_need_too_much_are_refused(embedder: Embedder) -> None:
    """Known from the number of tokens, before anything is computed."""
    encoder = make_encoder(embedder, {"max_attention_values_computed": 100}, attention_stats=True)
    window = encoder.tokenize(rows_of(["a dog barked", "a dog barked a"]))
    assert [row.place for row in window.rows] == [1]
    assert window.bad == [
        BadRow(2, "its statistics need 144 attention weights, over --max-attention-values-computed 100")
    ]


def test_an_empty_window(embedder: Embedder) -> None:
    """Nothing in, nothing out, of the right shapes."""
    encoder = make_encoder(embedder, attention_stats=True)
    encoded = encoder.run(encoder.tokenize([]), lambda count: None)
    assert encoded.embeddings.shape == (0, 16)
    assert encoded.stats is not None
    assert encoded.stats.shape == (0, len(STATISTICS), 2, 2)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"dimensions": 17}, "dimensions must be from 1 to 16, not 17"),
        ({"prompt_name": "q"}, "Available prompts: .query."),
        ({"chunking": Chunking("token", 31)}, "a chunk may have 30, not 31"),
    ],
)
def test_what_the_model_has_not_is_wrong_usage(embedder: Embedder, how: dict[str, Any], words: str) -> None:
    """More dimensions, another prompt, longer chunks: found before anything is read."""
    with pytest.raises(BulkUsageError, match=words):
        make_encoder(embedder, **how)


def test_a_model_without_embeddings_is_wrong_usage(tmp_path: Path) -> None:
    """Found before anything is read."""
    reranker = Embedder.load(make_bert_folder(tmp_path / "model", labels=("a",)), dtype="float32", threads=1)
    with pytest.raises(BulkUsageError, match="this model is a reranker"):
        make_encoder(reranker)
