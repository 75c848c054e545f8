"""Claims about a window of texts in chunks, against texts that are cut one by one."""

from __future__ import annotations

import numpy as np
import pytest

import app.bulk.cutting
from app.bulk.cutting import SENTENCE_CHARACTERS, Cutter
from app.bulk.rows import BadRow, TextRow
from model.chunking import Chunking
from model.chunks import chunk_text
from model.embedder import Embedder
from model.errors import ChunkingError
from tests.tiny import make_bert_folder

TEXTS = ["The cat sat. A dog barked! Hello world.", "", "the cat sat on a mat " * 9, "A dog."]
NUMBERED = [(7 + 2 * place, TextRow(30 + place, text)) for place, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    """A tiny model that reads 32 tokens."""
    return Embedder.load(make_bert_folder(tmp_path_factory.mktemp("m") / "tiny"), dtype="float32", device="cpu")


def make_cutter(embedder: Embedder, chunking: Chunking, *, truncate: bool = True, prompt: str = "") -> Cutter:
    """A cutter of the model."""
    return Cutter(embedder.tokenizer, chunking, "mean", prompt, truncate=truncate)


@pytest.mark.parametrize("mode", ["separate", "late"])
def test_a_window_is_its_texts_one_behind_the_other(embedder: Embedder, mode: str) -> None:
    """What is run and pooled for each, and for each chunk its text's number, its place and its stretch of the text."""
    chunking = Chunking("token", 8, 3, mode)  # type: ignore[arg-type] # both are modes
    found = make_cutter(embedder, chunking, prompt="a ").cut(NUMBERED)
    alone = [chunk_text(text, embedder.tokenizer, chunking, prompt="a ", max_chunks=99) for text in TEXTS]
    assert found.bad == []
    assert found.inputs == [item for text in alone for item in text.inputs]
    assert found.pooled == [ranges for text in alone for ranges in text.pooled]
    assert found.rows == [row for (_, row), text in zip(NUMBERED, alone, strict=True) for _ in text.chunks]
    assert list(found.text_of) == [index for index, text in enumerate(alone) for _ in text.inputs]
    counts = [len(ranges) for ranges in found.pooled or ()]
    assert list(np.diff(found.firsts)) == counts
    assert sum(counts) == len(found.rows)
    assert found.chunks is not None
    assert found.chunks.tolist() == [
        [number, place, chunk.start, chunk.end, len(chunk.tokens), 0]
        for (number, _), text in zip(NUMBERED, alone, strict=True)
        for place, chunk in enumerate(text.chunks)
    ]


def test_a_long_sentence_is_cut_or_bad(embedder: Embedder) -> None:
    """With truncation its chunk says so and is counted; without, its text is told from the others, with the numbers."""
    sentences = Chunking("sentence", 1)
    cut = make_cutter(embedder, sentences).cut(NUMBERED)
    assert cut.num_truncated == 1
    assert cut.chunks is not None
    assert cut.chunks[cut.chunks[:, 5] == 1].tolist() == [[11, 0, 0, 188, 54, 1]]
    refused = make_cutter(embedder, sentences, truncate=False).cut(NUMBERED)
    assert refused.bad == [BadRow(32, "a chunk has 54 tokens, and there is room for 30; --truncate cuts it")]
    assert {row.place for row in refused.rows} == {30, 31, 33}
    assert list(refused.text_of) == [0, 0, 0, 1, 2]


def test_a_text_of_too_many_chunks_is_bad(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found before they are made."""
    monkeypatch.setattr(app.bulk.cutting, "MAX_CHUNKS", 53)
    found = make_cutter(embedder, Chunking("token", 1)).cut(NUMBERED)
    [bad] = found.bad
    assert bad.place == 32
    assert bad.reason.startswith("the text has 54 chunks, and there is room for 53")


def test_what_the_model_has_no_room_for(embedder: Embedder) -> None:
    """Is refused before there is a text; a prompt takes room as well."""
    make_cutter(embedder, Chunking("token", 30))
    with pytest.raises(ChunkingError, match="a chunk may have 30, not 31"):
        make_cutter(embedder, Chunking("token", 31))
    with pytest.raises(ChunkingError, match="a chunk may have 29, not 30"):
        make_cutter(embedder, Chunking("token", 30), prompt="a ")
    with pytest.raises(ChunkingError, match="pools by cls"):
        Cutter(embedder.tokenizer, Chunking("token", 3, mode="late"), "cls", "", truncate=True)


def test_a_window_is_bounded_by_its_chunks(embedder: Embedder) -> None:
    """A token has a character at least, so a window has no more chunks than texts elsewhere; sentences are longer."""
    assert make_cutter(embedder, Chunking("token", 8, 3)).max_characters(100) == 500
    assert make_cutter(embedder, Chunking("sentence", 2)).max_characters(100) == 200 * SENTENCE_CHARACTERS


def test_nothing_is_nothing(embedder: Embedder) -> None:
    """A window whose texts are all bad."""
    found = make_cutter(embedder, Chunking("token", 8)).cut([])
    assert found.chunks is not None
    assert (found.rows, found.inputs, list(found.firsts), found.chunks.shape) == ([], [], [0], (0, 6))
