"""Claims about chunks, against a slow way: the encoder is run once, and slices of its states are pooled by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.chunking import Chunking
from model.chunks import CONTEXT_SHARE, ChunkedText, chunk_text
from model.contract import EncodeInput, FloatArray, OutputSpec
from model.embedder import Embedder
from model.errors import ChunkingError, TextTooLongError, TooManyChunksError
from tests.tiny import make_bert_folder

MAX_LENGTH, ROOM = 32, 30
TEXT = "The cat sat on the mat. A dog barked! Hello world, a cat."
LONG = " ".join(f"The cat {number} sat on a mat, the dog barked." for number in range(12))


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    """A tiny model that reads 32 tokens and pools by the mean."""
    return Embedder.load(make_bert_folder(tmp_path_factory.mktemp("m") / "tiny"), dtype="float32", device="cpu")


def cut(
    embedder: Embedder, text: str, unit: Any, size: int, overlap: int = 0, mode: Any = "separate", **how: Any
) -> ChunkedText:
    """Cut a text of at most 1,000 chunks."""
    return chunk_text(text, embedder.tokenizer, Chunking(unit, size, overlap, mode), **{"max_chunks": 1000, **how})


def encoded(embedder: Embedder, chunked: ChunkedText) -> FloatArray:
    """Run what is to be run, one by one: (chunks, D)."""
    found = []
    for item, ranges in zip(chunked.inputs, chunked.pooled, strict=True):
        [row] = embedder.run([item], [OutputSpec(chunks=ranges)])
        assert row.embedding is None
        assert row.chunks is not None
        found.append(row.chunks)
    return np.vstack(found)


def states(embedder: Embedder, item: EncodeInput) -> FloatArray:
    """The last hidden state of each token: (L, D)."""
    [row] = embedder.run([item], [OutputSpec(pooled=False, token_states=True)])
    assert row.token_states is not None
    return row.token_states


def pooled(tokens: FloatArray) -> FloatArray:
    """The mean, of unit length."""
    mean = tokens.astype(np.float64).mean(axis=0)
    return np.asarray(mean / np.linalg.norm(mean), np.float32)


def spelled(text: str, chunked: ChunkedText) -> list[str]:
    """The chunks' texts."""
    return [text[chunk.start : chunk.end] for chunk in chunked.chunks]


# --- where it is cut ---


@pytest.mark.parametrize("mode", ["separate", "late"])
def test_sentences_are_counted_off(embedder: Embedder, mode: Any) -> None:
    """So many a chunk, the last of them as many as are left; the next one begins with the overlap."""
    assert spelled(TEXT, cut(embedder, TEXT, "sentence", 1, mode=mode)) == [
        "The cat sat on the mat.", "A dog barked!", "Hello world, a cat.",
    ]  # fmt: skip
    assert spelled(TEXT, cut(embedder, TEXT, "sentence", 2, mode=mode)) == [
        "The cat sat on the mat. A dog barked!", "Hello world, a cat.",
    ]  # fmt: skip
    assert spelled(TEXT, cut(embedder, TEXT, "sentence", 2, 1, mode=mode)) == [
        "The cat sat on the mat. A dog barked!", "A dog barked! Hello world, a cat.",
    ]  # fmt: skip
    assert spelled(TEXT, cut(embedder, TEXT, "sentence", 9, 8, mode=mode)) == [TEXT]


@pytest.mark.parametrize(("size", "overlap"), [(1, 0), (4, 0), (5, 2), (5, 4), (16, 15), (30, 0)])
@pytest.mark.parametrize("mode", ["separate", "late"])
def test_tokens_are_counted_off(embedder: Embedder, size: int, overlap: int, mode: Any) -> None:
    """Each chunk but the last has ``size`` tokens and begins ``size - overlap`` behind the one before; all tokens are
    in one; no chunk holds nothing new.
    """
    [whole] = embedder.tokenizer.encode([TEXT], details=True, whole=True)
    assert whole.tokens is not None
    num_tokens = whole.num_tokens - 2
    chunked = cut(embedder, TEXT, "token", size, overlap, mode)
    ranges = [chunk.tokens for chunk in chunked.chunks]
    assert [tokens.start for tokens in ranges] == [number * (size - overlap) for number in range(len(ranges))]
    assert all(len(tokens) == size for tokens in ranges[:-1])
    assert ranges[-1].stop == num_tokens
    assert len(ranges) == 1 or ranges[-2].stop < num_tokens
    for chunk in chunked.chunks:
        assert chunk.start == whole.tokens.starts[1 + chunk.tokens.start]
        assert chunk.end == whole.tokens.ends[chunk.tokens.stop]
    assert chunked.num_tokens_total == whole.num_tokens


def test_a_sentence_without_tokens_is_none(embedder: Embedder) -> None:
    """What the tokenizer drops has nothing to pool; what it reads is in a chunk all the same."""
    text = "The cat. \u200b\n\n\u200b\n\nA dog."
    chunked = cut(embedder, text, "sentence", 1)
    assert spelled(text, chunked) == ["The cat.", "A dog."]
    assert [chunk.tokens for chunk in chunked.chunks] == [range(3), range(3, 6)]


@pytest.mark.parametrize("text", ["", "   ", "\u200b"])
@pytest.mark.parametrize("unit", ["token", "sentence"])
@pytest.mark.parametrize("mode", ["separate", "late"])
def test_a_text_without_tokens_is_one_chunk(embedder: Embedder, text: str, unit: Any, mode: Any) -> None:
    """An empty text is a text, and has the embedding of one."""
    chunked = cut(embedder, text, unit, 3, mode=mode)
    assert [(chunk.start, chunk.end) for chunk in chunked.chunks] == [(0, len(text))]
    np.testing.assert_allclose(encoded(embedder, chunked), embedder.encode([text]), atol=1e-6)


# --- what an embedding is ---


@pytest.mark.parametrize("prompt", ["", "query: "])
@pytest.mark.parametrize("mode", ["separate", "late"])
def test_one_chunk_is_the_whole_text(embedder: Embedder, mode: Any, prompt: str) -> None:
    """With special tokens and prompt, as without chunks."""
    [whole] = embedder.encode([TEXT[:40]], prompt=prompt)
    for unit in ("token", "sentence"):
        chunked = cut(embedder, TEXT[:40], unit, 20, mode=mode, prompt=prompt)
        np.testing.assert_allclose(encoded(embedder, chunked), [whole], atol=1e-6)


def test_a_chunk_by_itself_is_a_text(embedder: Embedder) -> None:
    """The embedding that its text has alone, with the prompt."""
    for size in (1, 2):
        chunked = cut(embedder, TEXT, "sentence", size, prompt="query: ")
        expected = embedder.encode(spelled(TEXT, chunked), prompt="query: ")
        np.testing.assert_allclose(encoded(embedder, chunked), expected, atol=1e-6)


@pytest.mark.parametrize(("unit", "size", "overlap"), [("sentence", 1, 0), ("token", 4, 0), ("token", 5, 3)])
@pytest.mark.parametrize("prompt", ["", "query: "])
def test_late_chunks_are_slices_of_one_pass(
    embedder: Embedder, unit: Any, size: int, overlap: int, prompt: str
) -> None:
    """The text is run once; each chunk is the mean of its tokens' states. What stands before the text counts to the
    first chunk, what stands behind it to the last.
    """
    chunked = cut(embedder, TEXT, unit, size, overlap, "late", prompt=prompt)
    [whole] = embedder.tokenizer.encode([TEXT], prompt=prompt)
    assert [item.input_ids for item in chunked.inputs] == [whole.input_ids]
    found, before = states(embedder, whole), whole.prompt_length or 1
    assert len(chunked.chunks) > 2
    expected = []
    for chunk in chunked.chunks:
        start = 0 if chunk is chunked.chunks[0] else before + chunk.tokens.start
        stop = len(found) if chunk is chunked.chunks[-1] else before + chunk.tokens.stop
        expected.append(pooled(found[start:stop]))
    np.testing.assert_allclose(encoded(embedder, chunked), expected, atol=1e-6)
    alone = encoded(embedder, cut(embedder, TEXT, unit, size, overlap, prompt=prompt))
    assert np.abs(alone - expected).max() > 0.01  # the text around a chunk does count


@pytest.mark.parametrize(
    ("unit", "size", "overlap"), [("sentence", 1, 0), ("token", 7, 0), ("token", 8, 5), ("token", 30, 10)]
)
def test_a_long_text_is_read_in_windows(embedder: Embedder, unit: Any, size: int, overlap: int) -> None:
    """Each is as long as the model reads; each chunk is whole in one, behind a quarter of it where there is room, and
    is the mean of its tokens' states there.
    """
    chunked = cut(embedder, LONG, unit, size, overlap, "late")
    [whole] = embedder.tokenizer.encode([LONG], whole=True, details=True)
    own = whole.input_ids[1:-1]
    assert len(chunked.inputs) > 3
    assert sum(map(len, chunked.pooled)) == len(chunked.chunks)
    found, chunks, expected = encoded(embedder, chunked), iter(enumerate(chunked.chunks)), []
    for item, ranges in zip(chunked.inputs, chunked.pooled, strict=True):
        assert item.num_tokens == MAX_LENGTH
        assert (item.input_ids[0], item.input_ids[-1]) == (whole.input_ids[0], whole.input_ids[-1])
        token_states = states(embedder, item)
        for number, tokens in enumerate(ranges):
            place, chunk = next(chunks)
            at = tokens.start if place else 1
            start = chunk.tokens.start - (at - 1)  # of the window among the text's tokens
            assert item.input_ids[1:-1] == own[start : start + ROOM]
            if number == 0:
                context = chunk.tokens.start - start
                assert context >= min(int(CONTEXT_SHARE * ROOM), ROOM - len(chunk.tokens), chunk.tokens.start)
            first = 0 if place == 0 else at
            last = MAX_LENGTH if place == len(chunked.chunks) - 1 else at + len(chunk.tokens)
            assert tokens == range(first, last)
            expected.append(pooled(token_states[first:last]))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("mode", ["separate", "late"])
def test_a_prompt_that_pooling_leaves_out(tmp_path: Path, mode: Any) -> None:
    """Is left out of chunks, too, but read by all of them."""
    folder = make_bert_folder(tmp_path / "tiny")
    config = folder / "1_Pooling" / "config.json"
    config.write_text(config.read_text().replace("{", '{"include_prompt": false, ', 1))
    embedder = Embedder.load(folder, dtype="float32", device="cpu")
    assert not embedder.pooling.include_prompt
    chunked = cut(embedder, TEXT[:40], "sentence", 5, mode=mode, prompt="query: ")
    np.testing.assert_allclose(encoded(embedder, chunked), embedder.encode([TEXT[:40]], prompt="query: "), atol=1e-6)
    several = cut(embedder, TEXT, "sentence", 1, mode=mode, prompt="query: ")
    [first, *_] = several.inputs
    tokens = states(embedder, first)[first.prompt_length : several.pooled[0][0].stop]
    np.testing.assert_allclose(encoded(embedder, several)[0], pooled(tokens), atol=1e-6)


def test_rows_with_and_without_chunks_share_a_batch(embedder: Embedder) -> None:
    """Each as alone: chunks, whole texts, other dimensions, no length."""
    chunked = cut(embedder, TEXT, "sentence", 1, mode="late")
    [item], [ranges] = chunked.inputs, chunked.pooled
    specs = [OutputSpec(), OutputSpec(chunks=ranges), OutputSpec(chunks=ranges, dimensions=5, normalize=False)]
    plain, chunks, cut_short = embedder.run([item] * 3, specs)
    [alone] = embedder.run([item], [OutputSpec()])
    assert plain.embedding is not None
    assert plain.chunks is None
    assert alone.embedding is not None
    np.testing.assert_allclose(plain.embedding, alone.embedding, atol=1e-6)
    assert chunks.chunks is not None
    assert cut_short.chunks is not None
    np.testing.assert_allclose(chunks.chunks, encoded(embedder, chunked), atol=1e-6)
    assert cut_short.chunks.shape == (3, 5)


# --- what is refused ---


@pytest.mark.parametrize("mode", ["separate", "late"])
def test_a_chunk_that_is_too_long_is_cut_and_said(embedder: Embedder, mode: Any) -> None:
    """Sentences alone can be; without truncation they are refused with the numbers."""
    text = f"A dog. The cat {'the cat ' * 19}sat. Hello world."
    chunked = cut(embedder, text, "sentence", 1, mode=mode)
    assert [chunk.is_truncated for chunk in chunked.chunks] == [False, True, False]
    assert [len(chunk.tokens) for chunk in chunked.chunks] == [3, 42, 3]
    assert any(item.is_truncated for item in chunked.inputs)
    assert all(item.num_tokens <= MAX_LENGTH for item in chunked.inputs)
    assert len(encoded(embedder, chunked)) == 3
    with pytest.raises(TextTooLongError, match="has 42 tokens, and there is room for 30") as caught:
        cut(embedder, text, "sentence", 1, mode=mode, truncate=False, param="texts[4]")
    assert (caught.value.param, caught.value.limit, caught.value.actual) == ("texts[4]", 30, 42)


def test_tokens_that_never_fit_are_refused(embedder: Embedder) -> None:
    """The prompt takes room, too, and may take all of it."""
    cut(embedder, TEXT, "token", ROOM)
    with pytest.raises(ChunkingError, match="a chunk may have 30, not 31") as caught:
        cut(embedder, TEXT, "token", 31)
    assert (caught.value.param, caught.value.limit, caught.value.actual) == ("chunks.size", 30, 31)
    with pytest.raises(ChunkingError, match="a chunk may have 28, not 30"):
        cut(embedder, TEXT, "token", 30, prompt="query: ")
    with pytest.raises(ChunkingError, match="a chunk may have 0, not 1"):
        cut(embedder, TEXT, "sentence", 1, prompt="cat " * 40)


def test_too_many_chunks_are_counted_not_made(embedder: Embedder) -> None:
    """A long text with an overlap of nearly all would be the text a thousand times."""
    with pytest.raises(TooManyChunksError, match="has 59971 chunks, and there is room for 10") as caught:
        cut(embedder, "cat " * 60_000, "token", 30, 29, max_chunks=10)
    assert (caught.value.limit, caught.value.actual) == (10, 59_971)
    assert len(cut(embedder, "cat " * 300, "token", 30, max_chunks=10).chunks) == 10
