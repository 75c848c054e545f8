"""A corpus in pieces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from app.bulk.encode import identity_of
from app.bulk.errors import BulkError, BulkUsageError
from app.bulk.options import BulkOptions
from app.bulk.shards import MAX_SHARDS, Counts, Shard, ShardedJob, cut, find_inputs, num_texts
from model.embedder import Embedder
from tests.app.bulk.jobs import LIMITS, RecordingWatcher, make_options
from tests.tiny import make_bert_folder

TEXTS = [f"the cat sat on mat {number} " + "a dog " * (7 * number % 11) for number in range(50)]
FILES = {"a": 23, "b": 27}


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    """A tiny model."""
    folder = make_bert_folder(tmp_path_factory.mktemp("model") / "tiny")
    return Embedder.load(folder, dtype="float32", device="cpu", threads=1)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """TEXTS in two files, with a number for each."""
    folder = tmp_path / "in"
    folder.mkdir()
    start = 0
    for name, count in FILES.items():
        stop = start + count
        table = pa.table({"id": list(range(start, stop)), "text": TEXTS[start:stop]})
        parquet.write_table(table, folder / f"{name}.parquet", row_group_size=4)
        start = stop
    return folder


def shards_of(corpus: Path, rows: int = 10) -> list[Shard]:
    """Cut the corpus."""
    return cut({path: parquet.read_metadata(path).num_rows for path in find_inputs(corpus)}, rows)


def options_of(corpus: Path, **changes: Any) -> BulkOptions:
    """Options of a job from Parquet to Parquet."""
    defaults: dict[str, Any] = {"output_kind": "parquet", "keep": ("id",), "column": "text", "window_texts": 4}
    return make_options(corpus / "a.parquet", corpus.parent / "out", **{**defaults, **changes})


class Job:
    """A job as the driver and a worker have it."""

    def __init__(self, corpus: Path, embedder: Embedder, rows: int = 10, **changes: Any) -> None:
        self.folder, self.corpus, self.rows = corpus.parent / "out", corpus, rows
        self.embedder, self.watcher = embedder, RecordingWatcher()
        self.shards = shards_of(corpus, rows)
        self.options = options_of(corpus, **changes)
        self.job = ShardedJob(self.folder, self.options)

    def begin(self) -> None:
        """As a driver does."""
        self.job.begin(identity_of(self.options, self.embedder, ""), find_inputs(self.corpus), self.rows)

    def encode(self, number: int) -> Counts:
        """As a worker does."""
        return self.job.encode(self.shards[number], self.embedder, LIMITS, self.watcher)

    def rest(self) -> list[int]:
        """Numbers of the shards that are not done."""
        return [shard.number for shard in self.shards if not self.job.is_done(shard)]


def counts(rows: int, skipped: int = 0) -> Counts:
    """Nothing truncated, nothing clipped."""
    return Counts(num_rows=rows, num_skipped=skipped, num_truncated=0, num_clipped=0)


def read_folder(folder: Path) -> tuple[list[int], Any]:
    """Ids and embeddings of all files, in the order of their names."""
    tables = [parquet.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    table = pa.concat_tables(tables)
    return table["id"].to_pylist(), np.array(table["embedding"].to_pylist(), np.float32)


def test_shards_cover_every_row_once_and_in_order(corpus: Path) -> None:
    """None reaches over the seam of two files; numbers follow files and rows."""
    shards = shards_of(corpus)
    assert [(shard.input.name, shard.rows) for shard in shards] == [
        ("a.parquet", range(10)),
        ("a.parquet", range(10, 20)),
        ("a.parquet", range(20, 23)),
        ("b.parquet", range(10)),
        ("b.parquet", range(10, 20)),
        ("b.parquet", range(20, 27)),
    ]
    assert [shard.name for shard in shards] == [f"part-0000{number}.parquet" for number in range(6)]
    assert num_texts(shards) == len(TEXTS)


def test_names_of_shards_are_in_the_order_of_the_corpus() -> None:
    """As many as have names of equal length; one more is refused before any is made, by how many there would be."""
    names = [shard.name for shard in cut({Path("a.parquet"): MAX_SHARDS // 2, Path("b.parquet"): MAX_SHARDS}, 2)]
    assert len(names) == MAX_SHARDS * 3 // 4
    assert sorted(names) == names
    assert len(cut({Path("a.parquet"): MAX_SHARDS}, 1)) == MAX_SHARDS
    with pytest.raises(
        BulkUsageError, match=rf"1 rows to a shard make {MAX_SHARDS + 1} shards, and at most {MAX_SHARDS}"
    ):
        cut({Path("a.parquet"): MAX_SHARDS, Path("b.parquet"): 1}, 1)
    with pytest.raises(BulkUsageError, match=r"10 rows to a shard make 100000000000 shards"):
        cut({Path("a.parquet"): 10**12}, 10)


def test_inputs_are_the_parquet_files_of_a_folder(corpus: Path) -> None:
    """By name; what readers of such folders pass over is passed over; a single file is a corpus too."""
    for name in ("_meta.parquet", ".hidden.parquet", "notes.txt"):
        (corpus / name).touch()
    assert [path.name for path in find_inputs(corpus)] == ["a.parquet", "b.parquet"]
    assert find_inputs(corpus / "b.parquet") == [corpus / "b.parquet"]
    for wrong, why in (
        (corpus / "notes.txt", "a corpus is"),
        (corpus / "none", "is missing"),
        (corpus.parent, "has no"),
    ):
        with pytest.raises(BulkUsageError, match=why):
            find_inputs(wrong)


def test_whoever_encodes_what_when_the_folder_is_the_corpus_in_order(corpus: Path, embedder: Embedder) -> None:
    """Shards in any order, each by a process of its own, give what one process gives."""
    Job(corpus, embedder).begin()
    for number in (4, 0, 5, 2, 3, 1):
        Job(corpus, embedder).encode(number)
    job = Job(corpus, embedder)
    assert job.job.finish(job.shards) == counts(50)
    ids, embeddings = read_folder(job.folder)
    assert ids == list(range(50))
    np.testing.assert_allclose(embeddings, embedder.encode(TEXTS), atol=1e-6)
    assert json.loads((job.folder / "_SUCCESS").read_text())["num_rows"] == 50
    assert not list(job.folder.glob("*.part*"))


def test_a_shard_without_a_report_is_made_again(corpus: Path, embedder: Embedder) -> None:
    """A process that was killed between its output and its report has not counted it; the rest is left as it is."""
    job = Job(corpus, embedder)
    job.begin()
    for number in (0, 1):
        job.encode(number)
    (job.folder / "_reports/part-00001.json").unlink()
    stamps = [(job.folder / f"part-0000{number}.parquet").stat().st_ino for number in (0, 1)]
    again = Job(corpus, embedder)
    again.begin()
    assert again.rest() == [1, 2, 3, 4, 5]
    for number in again.rest():
        again.encode(number)
    assert read_folder(job.folder)[0] == list(range(50))
    after = [(job.folder / f"part-0000{number}.parquet").stat().st_ino for number in (0, 1)]
    assert [before == now for before, now in zip(stamps, after, strict=True)] == [True, False]


def test_the_rows_of_a_killed_worker_are_gone_on_with(corpus: Path, embedder: Embedder) -> None:
    """Within a shard, too: its part holds the windows that were whole."""
    job = Job(corpus, embedder)
    job.begin()

    class Killed(RecordingWatcher):
        def read(self, num_texts: int, share: float | None) -> None:
            if num_texts > 4:  # in the second window
                raise MemoryError

    with pytest.raises(MemoryError):
        job.job.encode(job.shards[0], embedder, LIMITS, Killed())
    assert job.rest() == [0, 1, 2, 3, 4, 5]
    again = Job(corpus, embedder)
    assert again.encode(0) == counts(10)
    assert again.watcher.begun_at == 4
    assert again.watcher.num_encoded == 6


def test_what_is_left_out_is_counted_over_all_shards(corpus: Path, embedder: Embedder) -> None:
    """With --skip-bad; without it the first bad row ends the run with its file and row."""
    parquet.write_table(pa.table({"id": [23, 24, 25], "text": ["x", None, "y"]}), corpus / "b.parquet")
    strict = Job(corpus, embedder)
    strict.begin()
    with pytest.raises(BulkError, match=r"b\.parquet, row 2: column 'text' is null"):
        strict.encode(3)
    lenient = Job(corpus, embedder, skip_bad=True)
    lenient.begin()
    for number in lenient.rest():
        lenient.encode(number)
    assert lenient.job.finish(lenient.shards) == counts(25, skipped=1)
    assert read_folder(lenient.folder)[0] == [*range(24), 25]
    assert len(lenient.watcher.messages) == 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"dimensions": 3}, r"dimensions \(null, now 3\)"), ({"rows": 7}, r"shard rows \(10, now 7\)")],
    ids=["option", "cut"],
)
def test_another_job_is_refused(corpus: Path, embedder: Embedder, changes: dict[str, Any], named: str) -> None:
    """Rows of two jobs do not mix."""
    Job(corpus, embedder).begin()
    with pytest.raises(BulkError, match=rf"out was begun with another {named}"):
        Job(corpus, embedder, **changes).begin()


def test_a_changed_input_is_refused(corpus: Path, embedder: Embedder) -> None:
    """Another text in a file, or another file, even where as many rows are there."""
    Job(corpus, embedder).begin()
    table = parquet.read_table(corpus / "b.parquet").to_pydict()
    table["text"][-1] += "!"
    parquet.write_table(pa.table(table), corpus / "b.parquet", row_group_size=4)
    with pytest.raises(BulkError, match="begun with another input files"):
        Job(corpus, embedder).begin()


def test_a_folder_of_something_else_is_refused(corpus: Path, embedder: Embedder) -> None:
    """Files that this job did not make would pass for its rows; a state that is none is told."""
    folder = corpus.parent / "out"
    folder.mkdir()
    (folder / "old.parquet").touch()
    with pytest.raises(BulkError, match="holds Parquet files of something else"):
        Job(corpus, embedder).begin()
    (folder / "_job.json").write_text("[]")
    with pytest.raises(BulkError, match=r"_job\.json is not what this program writes"):
        Job(corpus, embedder).begin()


def test_nothing_is_marked_as_whole_that_is_not(corpus: Path, embedder: Embedder) -> None:
    """A report that is missing, or an output that somebody took away."""
    job = Job(corpus, embedder)
    job.begin()
    for number in range(6):
        job.encode(number)
    report = job.folder / "_reports/part-00003.json"
    content = report.read_bytes()
    report.unlink()
    with pytest.raises(BulkError, match=r"part-00003\.json cannot be read \(No such file"):
        job.job.finish(job.shards)
    for strange in (
        b"",
        b"{}",
        b'{"num_rows": 10}',
        content.replace(b"10", b'"10"'),
        content.replace(b"{", b'{"a": 1,'),
    ):
        report.write_bytes(strange)
        with pytest.raises(BulkError, match=r"part-00003\.json is not what this program writes; delete it"):
            job.job.finish(job.shards)
    report.write_bytes(content)
    (job.folder / "part-00002.parquet").unlink()
    with pytest.raises(BulkError, match=r"part-00002\.parquet is missing"):
        job.job.finish(job.shards)
    assert not (job.folder / "_SUCCESS").exists()


def test_the_sum_is_said_in_one_line() -> None:
    """What was cut, clipped and left out is in it, where there is such."""
    assert Counts(5, 0, 2, 0).sentence("out", 1) == "out: 5 texts in 1 file; 2 truncated"
    whole = Counts(5, 1, 2, 3) + Counts(1, 1, 1, 1)
    assert whole.sentence("out", 4) == "out: 6 texts in 4 files; 3 truncated, 4 numbers clipped, 2 left out"
