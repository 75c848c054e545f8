"""Commands without a server, as processes: chunks and number types of ``eyeline encode``, similarity, search."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from model.chunking import Chunking
from model.chunks import chunk_text
from model.contract import OutputSpec
from model.embedder import Embedder
from model.output_dtype import convert
from tests.e2e.conftest import run_command
from tests.e2e.encoding import Encode
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.e2e

FLAGS = ("--device", "cpu", "--dtype", "float32", "--threads", 1)
LINES = ["the cat sat on the mat", "a dog barked", "hello world", "the cat sat"]
LONG = [" ".join(["The cat sat.", "A dog barked!"] * (1 + number % 9)) for number in range(400)]
CHUNKS = ("--chunks", "token", "--chunk-size", 7, "--chunk-overlap", 2, "--chunk-mode", "late", "--window", 64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return make_bert_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def embedder(model: Path) -> Embedder:
    """The same, in this process."""
    return Embedder.load(model, dtype="float32", device="cpu", threads=1)


def test_chunks_survive_a_kill(model: Path, embedder: Embedder, tmp_path: Path) -> None:
    """Killed with SIGKILL while it works, and run again: a row for each chunk of each text, in order, with its stretch
    and the embedding that the library gives it.
    """
    source, output = tmp_path / "a.jsonl", tmp_path / "o.jsonl"
    lines = [json.dumps({"id": f"n{number}", "text": text}) for number, text in enumerate(LONG)]
    source.write_text("".join(f"{line}\n" for line in lines))
    flags = ("--model", model, "--input-format", "jsonl", "--keep", "id", "--dimensions", 5, *CHUNKS, *FLAGS)
    with Encode(lines[:-1], output, *flags) as run:
        run.wait_for_rows(1)
        assert run.stop(signal.SIGKILL)[0] == -signal.SIGKILL
    assert not output.exists()
    done = run_command("encode", source, output, *flags)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert f"{len(rows)} chunks of 400 texts in 5 dimensions" in done.stdout
    assert f", {len(rows)} of them now" not in done.stdout
    expected = []
    for number, text in enumerate(LONG):
        chunked = chunk_text(text, embedder.tokenizer, Chunking("token", 7, 2, "late"), max_chunks=99)
        for place, chunk in enumerate(chunked.chunks):
            expected.append([f"n{number}", number, place, chunk.start, chunk.end, len(chunk.tokens), False])
    names = ("id", "row", "chunk", "start", "end", "num_tokens", "truncated")
    assert [[row[name] for name in names] for row in rows] == expected
    for number in (0, 8, 399):
        chunked = chunk_text(LONG[number], embedder.tokenizer, Chunking("token", 7, 2, "late"), max_chunks=99)
        specs = [OutputSpec(dimensions=5, chunks=ranges) for ranges in chunked.pooled]
        found = [row.chunks for row in embedder.run(chunked.inputs, specs) if row.chunks is not None]
        written = [row["embedding"] for row in rows if row["row"] == number]
        np.testing.assert_allclose(written, np.vstack(found), atol=1e-5)


def test_wrong_chunks_are_one_sentence(model: Path, tmp_path: Path) -> None:
    """With the option, or the model's own limit."""
    (tmp_path / "a.txt").write_text("a\n")
    arguments = ("encode", tmp_path / "a.txt", tmp_path / "o.npy", "--model", model, *FLAGS, "--chunks", "token")
    done = run_command(*arguments)
    said = "eyeline: --chunks token needs --chunk-size, the tokens of a chunk\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    done = run_command(*arguments, "--chunk-size", 31)
    assert (done.returncode, done.stdout) == (2, "")
    assert "a chunk may have 30, not 31" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_number_type(model: Path, embedder: Embedder, tmp_path: Path) -> None:
    """What is written is what the library's embeddings become, with chunks beside them as well."""
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in LINES))
    flags = ("--model", model, "--output-dtype", "int8", "--chunks", "sentence", "--chunk-size", 1, *FLAGS)
    done = run_command("encode", tmp_path / "a.txt", tmp_path / "o.safetensors", *flags)
    assert done.returncode == 0, done.stderr
    found = load_file(tmp_path / "o.safetensors")
    assert found["embeddings"].dtype == np.int8
    expected = convert(embedder.encode(LINES), "int8").astype(int)
    np.testing.assert_allclose(found["embeddings"].astype(int), expected, atol=1)
    assert found["chunks"].tolist() == [
        [number, 0, 0, len(line), len(line.split()), 0] for number, line in enumerate(LINES)
    ]


def test_similarity(model: Path, embedder: Embedder) -> None:
    """One cosine of two texts; as JSON those of all with all."""
    arguments = ("similarity", *LINES[:2], "--model", model, *FLAGS)
    vectors = embedder.encode(LINES[:2])
    done = run_command(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert float(done.stdout) == pytest.approx(vectors[0] @ vectors[1], abs=1e-3)
    answer = json.loads(run_command(*arguments, "--json").stdout)
    np.testing.assert_allclose(answer["similarities"], vectors @ vectors.T, atol=1e-5)


def test_search(model: Path, embedder: Embedder, tmp_path: Path) -> None:
    """The nearest lines of a file, the best first; a file that is missing is one sentence."""
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in LINES))
    done = run_command("search", tmp_path / "a.txt", "the cat", "--top", 2, "--json", "--model", model, *FLAGS)
    assert (done.returncode, done.stderr) == (0, "")
    scores = embedder.encode(LINES) @ embedder.encode(["the cat"])[0]
    best = np.argsort(-scores)[:2]
    hits = json.loads(done.stdout)["hits"]
    assert [hit["text"] for hit in hits] == [LINES[place] for place in best]
    assert [hit["line"] for hit in hits] == [place + 1 for place in best]
    assert [hit["score"] for hit in hits] == pytest.approx(scores[best].tolist(), abs=1e-5)
    missing = run_command("search", tmp_path / "none.txt", "the cat", "--model", model)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == f"eyeline: {tmp_path / 'none.txt'} is missing\n"
