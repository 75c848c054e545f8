"""deploy/ray/encode_corpus.py: a corpus on several processes, killed and gone on with."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import parquet

from model.embedder import Embedder
from tests.e2e.conftest import ROOT, TEST_SCALE
from tests.ray.cluster import PATIENCE_SECONDS, Cluster, last_lines, wait_for

pytestmark = pytest.mark.ray

MODEL = ROOT / "weights/eyeline-mini"
DIMENSIONS = 32
NUM_TEXTS = max(2_000, round(1_000 * TEST_SCALE))
SHARD_ROWS = NUM_TEXTS // 40
NUM_COMPARED = 1_000
WORKER_TITLE = "ray::MapWorker"


@dataclass
class Corpus:
    """Texts in two files, and a folder for their embeddings."""

    cluster: Cluster
    folder: Path
    texts: list[str]

    @property
    def output(self) -> Path:
        return self.folder / "out"

    @property
    def reports(self) -> list[Path]:
        """One for each shard that is done."""
        return sorted((self.output / "_reports").glob("*.json"))

    def start(self, log: str, *flags: object) -> subprocess.Popen[bytes]:
        """Start a run over two workers."""
        fixed = ("--model", MODEL, "--dtype", "float32", "--keep", "id", "--column", "text", "--workers", 2)
        sizes = ("--shard-rows", SHARD_ROWS, "--dimensions", DIMENSIONS)
        arguments = ("-m", "deploy.ray.encode_corpus", self.folder / "in", self.output, *fixed, *sizes, *flags)
        return self.cluster.run(self.folder / log, *arguments)

    def run(self, log: str, *flags: object) -> tuple[int, list[str]]:
        """Run to the end; the exit code, and what the command itself has said."""
        code = self.start(log, *flags).wait(PATIENCE_SECONDS * max(1, TEST_SCALE / 10))
        text = re.sub(r"\x1b\[\d+m", "", (self.folder / log).read_text())
        return code, [line for line in text.splitlines() if line.startswith(("out:", "encode_corpus:"))]

    def read(self) -> tuple[list[int], NDArray[np.float32]]:
        """Ids and embeddings, file after file in the order of their names."""
        table = pa.concat_tables([parquet.read_table(path) for path in sorted(self.output.glob("*.parquet"))])
        flat = table["embedding"].combine_chunks().flatten().to_numpy()
        return table["id"].to_pylist(), flat.reshape(-1, DIMENSIONS)


@pytest.fixture(scope="module")
def corpus(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Sentences, numbered so that all differ."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "in").mkdir()
    lines = (ROOT / "bench/texts/sentences-10.txt").read_text(encoding="utf-8").splitlines()
    texts = [f"{lines[number % len(lines)]} {number}" for number in range(NUM_TEXTS)]
    middle = NUM_TEXTS * 3 // 5
    for name, rows in (("a", range(middle)), ("b", range(middle, NUM_TEXTS))):
        table = pa.table({"id": list(rows), "text": texts[rows.start : rows.stop]})
        parquet.write_table(table, folder / f"in/{name}.parquet", row_group_size=170)
    return Corpus(cluster, folder, texts)


@pytest.fixture(scope="module")
def killed(corpus: Corpus) -> dict[str, int]:
    """A run of which a worker was killed, which Ray replaced, and then the driver; and what it left."""
    process = corpus.start("killed.log")

    def is_begun() -> bool:
        assert process.poll() is None, last_lines(corpus.folder / "killed.log")
        return len(corpus.reports) >= 2

    wait_for(is_begun, "the first shards")
    workers = corpus.cluster.processes(WORKER_TITLE)
    assert workers
    os.kill(workers[0], signal.SIGKILL)
    done = len(corpus.reports)
    wait_for(lambda: process.poll() is not None or len(corpus.reports) >= done + 4, "shards after a worker's death")
    assert process.poll() is None, last_lines(corpus.folder / "killed.log")
    process.kill()
    process.wait()
    wait_for(lambda: not corpus.cluster.processes(WORKER_TITLE), "the end of the workers, whose driver is gone")
    assert not (corpus.output / "_SUCCESS").exists()
    return {path.name: (corpus.output / f"{path.stem}.parquet").stat().st_ino for path in corpus.reports}


@pytest.fixture(scope="module")
def resumed(corpus: Corpus, killed: dict[str, int]) -> tuple[int, list[str]]:
    """The same command again."""
    return corpus.run("resumed.log")


def test_killed_and_resumed_it_is_complete_and_in_order(
    corpus: Corpus, killed: dict[str, int], resumed: tuple[int, list[str]]
) -> None:
    """Every row once, in the order of the corpus, as one process encodes it; what was done stays as it was."""
    num_shards = len(list(corpus.output.glob("*.parquet")))
    assert resumed == (0, [f"out: {NUM_TEXTS} texts in {num_shards} files; 0 truncated"])
    assert 0 < len(killed) < num_shards
    for name, number in killed.items():
        assert (corpus.output / name).with_suffix(".parquet").stat().st_ino == number
    ids, embeddings = corpus.read()
    assert ids == list(range(NUM_TEXTS))
    places = np.linspace(0, NUM_TEXTS - 1, min(NUM_TEXTS, NUM_COMPARED)).astype(int)
    alone = Embedder.load(MODEL, dtype="float32", device="cpu").encode([corpus.texts[place] for place in places])
    cut = alone[:, :DIMENSIONS] / np.linalg.norm(alone[:, :DIMENSIONS], axis=1, keepdims=True)
    np.testing.assert_allclose(embeddings[places], cut, atol=1e-5)
    assert json.loads((corpus.output / "_SUCCESS").read_text())["num_rows"] == NUM_TEXTS
    assert not list(corpus.output.glob("*.part*"))
    print(f"{NUM_TEXTS} texts, {num_shards} shards, {len(killed)} of them before the kill")


@pytest.mark.usefixtures("resumed")
def test_another_job_in_the_same_folder_is_refused(corpus: Corpus) -> None:
    """In one sentence, without what Ray writes around errors; so is what no node can hold."""
    code, said = corpus.run("other.log", "--no-normalize")
    assert code == 1
    assert len(said) == 1
    assert "out was begun with another normalize (true, now false)" in said[0]


@pytest.mark.usefixtures("resumed")
def test_what_no_node_can_hold_is_refused(corpus: Corpus) -> None:
    """Ray itself would wait for such a node without an end."""
    code, said = corpus.run("large.log", "--cpus-per-worker", 64)
    assert code == 2
    assert said[0].startswith("encode_corpus: a worker needs 64 CPUs and 0 GPUs, and no node has both: ")


def test_a_bad_row_ends_the_run_with_its_place(cluster: Cluster, tmp_path: Path) -> None:
    """Or is left out and counted, where that is wanted, by the same command with --skip-bad."""
    (tmp_path / "in").mkdir()
    table = pa.table({"id": [0, 1, 2], "text": ["a cat", None, "a dog"]})
    parquet.write_table(table, tmp_path / "in/a.parquet")
    small = Corpus(cluster, tmp_path, [])
    code, said = small.run("bad.log")
    assert code == 1
    assert said == [f"encode_corpus: {tmp_path}/in/a.parquet, row 2: column 'text' is null, not a string"]
    assert small.run("skipped.log", "--skip-bad") == (0, ["out: 2 texts in 1 file; 0 truncated, 1 left out"])
    assert small.read()[0] == [0, 2]


def test_relative_names_are_those_of_the_driver(cluster: Cluster, tmp_path: Path) -> None:
    """Workers, whose current folder is another one, find the input, the output and the model all the same."""
    (tmp_path / "in").mkdir()
    parquet.write_table(pa.table({"text": ["a cat", "a dog"]}), tmp_path / "in/a.parquet")
    model = os.path.relpath(MODEL, tmp_path)
    driver = cluster.run(
        tmp_path / "log", "-m", "deploy.ray.encode_corpus", "in", "out", "--model", model, folder=tmp_path
    )
    assert driver.wait(PATIENCE_SECONDS) == 0, last_lines(tmp_path / "log")
    assert parquet.read_table(tmp_path / "out/part-00000.parquet").num_rows == 2
    assert (tmp_path / "out/_SUCCESS").exists()
