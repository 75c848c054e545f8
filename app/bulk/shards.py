"""A corpus in pieces that many processes encode: which rows each piece is, which are done, and what is left.

A shard is a range of rows of one Parquet file, and becomes one Parquet file: ``part-00012.parquet``, whole or not at
all, made by :func:`~app.bulk.encode.encode_file` as any other. Numbers follow the names of the input files and the rows
in them, so the outputs, read in the order of their names, are the corpus in its own order, whoever made which and when.

=====================  ==============================================================================================
``_job.json``          what decides the rows: the model, the options, the input files, the cut. A run that differs is
                       refused
``_reports/``          a file for each shard that is done, written when its output is whole
``_SUCCESS``           the sum of them, when all are
=====================  ==============================================================================================

Readers of folders of Parquet pass over names that begin with ``_``.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from app.bulk.encode import Watcher, encode_file
from app.bulk.errors import BulkError, BulkUsageError, write_failure
from app.bulk.options import BulkOptions
from app.bulk.records import as_stored, difference, read_record, write_record
from app.bulk.window import BulkLimits
from model.embedder import Embedder

SHARD_ROWS = 16_384
"""Four windows: minutes of a CPU core, seconds of a GPU. Shorter ones leave no worker idle at the end, longer ones make
fewer files."""

MAX_SHARDS = 100_000
"""Their names have five digits: with more, the order of names would not be that of the corpus."""

JOB_VERSION = 1

_DIGESTS = frozenset({"model", "input files"})


@dataclass(frozen=True, slots=True)
class Shard:
    """A stretch of rows that is encoded in one piece.

    Attributes
    ----------
    number : int
        Its place in the corpus, from 0.
    input : Path
    rows : range
        Of that file, from 0.
    """

    number: int
    input: Path
    rows: range

    @property
    def name(self) -> str:
        """What its output is called."""
        return f"part-{self.number:05}.parquet"


@dataclass(frozen=True, slots=True)
class Counts:
    """What came of a shard, or of all: over every run that worked at it."""

    num_rows: int
    num_skipped: int
    num_truncated: int
    num_clipped: int

    def __add__(self, other: Counts) -> Counts:
        """Return the sum."""
        return Counts(*(mine + theirs for mine, theirs in zip(self.values(), other.values(), strict=True)))

    def values(self) -> tuple[int, ...]:
        """Return the numbers in their order."""
        return self.num_rows, self.num_skipped, self.num_truncated, self.num_clipped

    def sentence(self, name: str, num_files: int) -> str:
        """Say it in one line."""
        clipped = f", {self.num_clipped} numbers clipped" if self.num_clipped else ""
        left_out = f", {self.num_skipped} left out" if self.num_skipped else ""
        files = "1 file" if num_files == 1 else f"{num_files} files"
        return f"{name}: {self.num_rows} texts in {files}; {self.num_truncated} truncated{clipped}{left_out}"


def find_inputs(source: Path) -> list[Path]:
    """List the Parquet files of a corpus: the file itself, or those of a folder, by name.

    Raises
    ------
    BulkUsageError
        If there are none.
    """
    if source.is_dir():
        found = sorted(path for path in source.glob("*.parquet") if not path.name.startswith(("_", ".")))
        if not found:
            raise BulkUsageError(f"{source} has no .parquet files")
        return found
    if not source.exists():
        raise BulkUsageError(f"{source} is missing")
    if source.suffix != ".parquet":
        raise BulkUsageError(f"{source}: a corpus is a .parquet file, or a folder of such")
    return [source]


def cut(files: Mapping[Path, int], shard_rows: int) -> list[Shard]:
    """Cut a corpus into shards, none over the seam of two files.

    Parameters
    ----------
    files : mapping of Path to int
        How many rows each file has, in the order of the corpus.
    shard_rows : int
        Rows of a shard; the last of a file may have fewer.

    Raises
    ------
    BulkUsageError
        If there would be more than :data:`MAX_SHARDS`.
    """
    num_shards = sum(-(-num_rows // shard_rows) for num_rows in files.values())
    if num_shards > MAX_SHARDS:
        raise BulkUsageError(
            f"{shard_rows} rows to a shard make {num_shards} shards, and at most {MAX_SHARDS} can be: "
            "cut the corpus into larger ones, or put its files together"
        )
    stretches = [
        (path, range(start, min(start + shard_rows, num_rows)))
        for path, num_rows in files.items()
        for start in range(0, num_rows, shard_rows)
    ]
    return [Shard(number, path, rows) for number, (path, rows) in enumerate(stretches)]


class ShardedJob:
    """One corpus on its way into one folder, which every process sees under the same name.

    Parameters
    ----------
    folder : Path
    options : BulkOptions
        How texts are encoded; input, output and rows are filled in for each shard.
    """

    def __init__(self, folder: Path, options: BulkOptions) -> None:
        self._folder, self._options = folder, options
        self._job = folder / "_job.json"

    def begin(self, identity: Mapping[str, Any], inputs: Sequence[Path], shard_rows: int) -> None:
        """Note what the job is, or make sure that it is the one that was begun here.

        Parameters
        ----------
        identity : mapping
            See :func:`~app.bulk.encode.identity_of`.
        inputs : sequence of Path
            Digested, each whole: a file that has changed since is refused.
        shard_rows : int

        Raises
        ------
        BulkError
            If the folder holds something else, or cannot be written.
        """
        try:
            files = {path.name: _digest(path) for path in inputs}
            wanted = as_stored({**identity, "input files": files, "shard rows": shard_rows})
            (self._folder / "_reports").mkdir(parents=True, exist_ok=True)
            if self._job.exists():
                self._compare(wanted)
                return
            if any(self._folder.glob("*.parquet")):
                raise BulkError(f"{self._folder} holds Parquet files of something else; name another folder")
            write_record(self._job, {"version": JOB_VERSION, "identity": wanted})
        except OSError as error:
            raise write_failure(self._folder, error) from error

    def _compare(self, wanted: Mapping[str, Any]) -> None:
        """Refuse to mix the rows of two jobs."""
        content = read_record(self._job)
        there = content.get("identity") if content.get("version") == JOB_VERSION else None
        if not isinstance(there, dict):
            raise BulkError(f"{self._job} is not what this program writes; name another folder")
        differs = difference(there, wanted, digests=_DIGESTS)
        if differs is not None:
            raise BulkError(f"{self._folder} was begun with another {differs}; name another folder, or delete this one")

    def is_done(self, shard: Shard) -> bool:
        """Whether a shard's output is whole, and counted."""
        return self._report(shard).exists()

    def encode(self, shard: Shard, embedder: Embedder, limits: BulkLimits, watcher: Watcher) -> Counts:
        """Encode one shard, or what another process has left of it when it was killed.

        While one process is at it, a second is refused.

        Raises
        ------
        BulkError
            As :func:`~app.bulk.encode.encode_file` does.
        """
        # Overwrite: an output without a report is of a process that was killed before it could count it.
        options = replace(
            self._options, input=shard.input, output=self._folder / shard.name, rows=shard.rows, overwrite=True
        )
        done = encode_file(options, embedder, limits, watcher, io.BytesIO())
        counts = Counts(done.num_rows, done.num_skipped, done.num_truncated, done.num_clipped)
        try:
            write_record(self._report(shard), asdict(counts))
        except OSError as error:
            raise write_failure(self._report(shard), error) from error
        return counts

    def finish(self, shards: Sequence[Shard]) -> Counts:
        """Sum up, and mark the folder as whole.

        Raises
        ------
        BulkError
            If an output or its report is missing.
        """
        total = Counts(num_rows=0, num_skipped=0, num_truncated=0, num_clipped=0)
        for shard in shards:
            if not (self._folder / shard.name).exists():
                raise BulkError(f"{self._folder / shard.name} is missing, though {self._report(shard).name} counts it")
            total += self._counts(shard)
        try:
            write_record(self._folder / "_SUCCESS", asdict(total))
        except OSError as error:
            raise write_failure(self._folder / "_SUCCESS", error) from error
        return total

    def _counts(self, shard: Shard) -> Counts:
        """Read a report; a field that is missing is no 0."""
        path = self._report(shard)
        try:
            content = read_record(path)
        except OSError as error:
            raise BulkError(f"{path} cannot be read ({error.strerror or error})") from error
        if set(content) != {field.name for field in fields(Counts)} or not all(
            isinstance(value, int) for value in content.values()
        ):
            raise BulkError(f"{path} is not what this program writes; delete it")
        return Counts(**content)

    def _report(self, shard: Shard) -> Path:
        return self._folder / "_reports" / f"{Path(shard.name).stem}.json"


def num_texts(shards: Sequence[Shard]) -> int:
    """Count the rows of the input."""
    return sum(len(shard.rows) for shard in shards)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
