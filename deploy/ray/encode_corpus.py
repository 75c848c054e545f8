"""Encodes a corpus of Parquet files on many processes, through Ray Data.

A Dataset of shards runs through ``map_batches`` with a pool of actors, each of which has loaded the model once and
encodes a shard as ``eyeline encode`` would. Embeddings never travel: whoever encodes a shard writes its file. What is
complete, and in which order, is ``app/bulk/shards.py``'s; places, restarts and the pool are Ray's. docs/ray.md says how
to run it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import ray.data

from app import cli
from app.bulk import options as bulk_options
from app.bulk.encode import identity_of
from app.bulk.errors import BulkError, BulkUsageError
from app.bulk.options import BulkOptions
from app.bulk.parquet import count_rows
from app.bulk.progress import ProgressBar
from app.bulk.shards import SHARD_ROWS, Shard, ShardedJob, cut, find_inputs, num_texts
from app.bulk.window import BulkLimits, WindowEncoder
from app.settings import Settings, SettingsError
from model.embedder import Embedder

MISMATCH = "this node would encode with another {name} than the one that the job was begun with"


@dataclass(frozen=True, slots=True)
class Work:
    """What every worker gets: the model's settings, the options of the texts, and where the job lives."""

    settings: Settings
    options: BulkOptions
    limits: BulkLimits
    folder: Path

    def load(self) -> tuple[Embedder, dict[str, Any]]:
        """Load the model, and say what decides the rows that it makes; raises :class:`BulkError`."""
        embedder = cli.load_embedder(self.settings, self.folder.parent)
        encoder = WindowEncoder(embedder, self.options, self.limits)
        return embedder, identity_of(self.options, embedder, encoder.prompt)


class ShardEncoder:
    """A worker of the pool.

    Parameters
    ----------
    work : Work
    shards : sequence of Shard
        Those that a batch may name.
    identity : mapping
        What this worker must agree in with the others, or the corpus would be of two models.
    """

    def __init__(self, work: Work, shards: Sequence[Shard], identity: dict[str, Any]) -> None:
        self._work, self._shards, self._identity = work, shards, identity
        self._embedder: Embedder | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Encode the shards whose places a batch names.

        Returns
        -------
        dict
            ``num_texts`` of each, and its ``error``, a sentence, or "": what Ray Data makes of an exception is a text
            of its own, from which the driver could not tell a bad row from a bug.
        """
        num_texts, errors = [], []
        for place in batch["place"]:
            shard = self._shards[int(place)]
            try:
                self._encode(shard)
                errors.append("")
            except BulkError as error:
                errors.append(str(error))
            num_texts.append(len(shard.rows))
        return {"num_texts": num_texts, "error": errors}

    def _encode(self, shard: Shard) -> None:
        if self._embedder is None:
            self._embedder = self._load()
        job = ShardedJob(self._work.folder, self._work.options)
        with closing(ProgressBar(shard.name, show=False)) as bar:  # says what is left out, and no more
            job.encode(shard, self._embedder, self._work.limits, bar)

    def _load(self) -> Embedder:
        """Load the model, once, and make sure that it is the one of the job."""
        embedder, mine = self._work.load()
        for name, wanted in self._identity.items():
            if mine[name] != wanted:
                raise BulkError(MISMATCH.format(name=name))
        return embedder


def main(argv: Sequence[str] | None = None) -> int:
    """Encode a corpus and return the exit code: as ``eyeline encode`` has them."""
    arguments = make_parser().parse_args(argv)
    try:
        settings = read_settings(arguments)
        options = read_options(arguments)
        inputs = find_inputs(arguments.input)
        shards = cut({path: count_rows(path) for path in inputs}, arguments.shard_rows)
        return _encode(arguments, Work(settings, options, cli.bulk_limits(settings), arguments.output), inputs, shards)
    except (BulkError, SettingsError) as error:
        print(f"encode_corpus: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, BulkError) else cli.BAD_USAGE
    except KeyboardInterrupt:
        print("encode_corpus: stopped; the same command goes on from here", file=sys.stderr)
        return cli.INTERRUPTED


def make_parser() -> argparse.ArgumentParser:
    """Build the parser."""
    parser = argparse.ArgumentParser(prog="encode_corpus", description=__doc__, allow_abbrev=False)
    parser.add_argument("input", type=_absolute, metavar="IN", help="a .parquet file, or a folder of such")
    parser.add_argument("output", type=_absolute, metavar="OUT", help="folder to make, or to go on with")
    bulk_options.add_row_arguments(parser.add_argument_group("reading"))
    bulk_options.add_embedding_arguments(parser)
    cli.add_model_settings(parser)
    pool = parser.add_argument_group("workers", "processes that each load the model; IN and OUT are what all nodes see")
    pool.add_argument("--workers", type=int, default=1, metavar="N", help="at most (default: 1)")
    pool.add_argument("--cpus-per-worker", type=int, default=1, metavar="N", help="also the threads (default: 1)")
    pool.add_argument("--gpus-per-worker", type=float, default=0, metavar="N", help="1, or a share (default: none)")
    pool.add_argument(
        "--shard-rows", type=int, default=SHARD_ROWS, metavar="ROWS", help=f"rows of a file ({SHARD_ROWS})"
    )
    pool.add_argument("--address", help="the cluster; default: RAY_ADDRESS, else one is started here for this run")
    pool.add_argument("--progress", action=argparse.BooleanOptionalAction, default=None, help="default: on a terminal")
    return parser


def _absolute(name: str) -> Path:
    """Return a path as workers find it, whose current folder is another one than this process's."""
    return Path(name).absolute()


def read_settings(arguments: argparse.Namespace) -> Settings:
    """Read the model's settings; raises :class:`~app.settings.SettingsError`."""
    if arguments.threads is None and "EYELINE_THREADS" not in os.environ and not arguments.gpus_per_worker:
        arguments.threads = str(arguments.cpus_per_worker)  # a worker sees all cores of its node, and owns these
    settings = cli.settings_of_one_model(arguments, os.environ)
    models = tuple(replace(spec, folder=spec.folder.absolute()) for spec in settings.model)
    return settings.model_copy(update={"model": models})


def read_options(arguments: argparse.Namespace) -> BulkOptions:
    """Say how texts are encoded; raises :class:`~app.bulk.errors.BulkUsageError`."""
    files = BulkOptions(arguments.input, "parquet", arguments.output, "parquet")
    options = bulk_options.read_rows_and_embeddings(arguments, files)
    bulk_options.check_together(options)
    for flag, value in (
        ("--workers", arguments.workers),
        ("--cpus-per-worker", arguments.cpus_per_worker),
        ("--shard-rows", arguments.shard_rows),
    ):
        if value < 1:
            raise BulkUsageError(f"{flag} must be at least 1, not {value}")
    if arguments.gpus_per_worker < 0:
        raise BulkUsageError(f"--gpus-per-worker must be at least 0, not {arguments.gpus_per_worker:g}")
    return options


def _encode(arguments: argparse.Namespace, work: Work, inputs: Sequence[Path], shards: Sequence[Shard]) -> int:
    """Run what is left of the job."""
    pool = Pool(arguments.workers, arguments.cpus_per_worker, arguments.gpus_per_worker)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # where the cluster is started here: nothing of it leaves the machine
    ray.init(address=arguments.address, log_to_driver=True)  # what workers leave out is told here
    try:
        pool.check_room(ray.nodes())
        identity = pool.ask(work)
        job = ShardedJob(work.folder, work.options)
        job.begin(identity, inputs, arguments.shard_rows)
        left = [shard for shard in shards if not job.is_done(shard)]
        with closing(ProgressBar(work.folder.name, show=cli.is_shown(arguments.progress))) as bar:
            bar.resumed(num_texts(shards) - num_texts(left))
            bar.read(num_texts(shards), 1.0)
            for count in pool.run(work, identity, left):
                bar.encoded(count)
        counts = job.finish(shards)
    finally:
        ray.shutdown()
    print(counts.sentence(work.folder.name, len(shards)))
    return 0


@dataclass(frozen=True, slots=True)
class Pool:
    """So many processes, of that size, somewhere in the cluster."""

    workers: int
    cpus: int
    gpus: float

    def check_room(self, nodes: Sequence[dict[str, Any]]) -> None:
        """Refuse what no node of the cluster can hold: Ray would wait for such a node without an end."""
        alive = [node["Resources"] for node in nodes if node["Alive"]]
        if not any(found.get("CPU", 0) >= self.cpus and found.get("GPU", 0) >= self.gpus for found in alive):
            largest = [f"{found.get('CPU', 0):g} CPUs and {found.get('GPU', 0):g} GPUs" for found in alive]
            raise BulkUsageError(
                f"a worker needs {self.cpus} CPUs and {self.gpus:g} GPUs, and no node has both: {'; '.join(largest)}"
            )

    def ask(self, work: Work) -> dict[str, Any]:
        """Load the model once where workers run, so that what cannot be encoded is told before anything is begun.

        Returns
        -------
        dict
            What decides the rows, see :func:`~app.bulk.encode.identity_of`.
        """
        remote = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0)(lambda: work.load()[1])
        try:
            identity: dict[str, Any] = ray.get(remote.remote())
        except BulkError as error:  # as Ray raises it: of both kinds, with a traceback for a message
            raise getattr(error, "cause", error) from None
        return identity

    def run(self, work: Work, identity: dict[str, Any], shards: Sequence[Shard]) -> Iterator[int]:
        """Encode shards, and tell after each how many texts it had.

        Raises
        ------
        BulkError
            The first that a worker meets; what the others have finished stays.
        """
        if not shards:
            return
        ray.data.DataContext.get_current().enable_progress_bars = False  # eyeline's own counts texts
        places = ray.data.from_items(
            [{"place": place} for place in range(len(shards))], override_num_blocks=len(shards)
        )
        done = places.map_batches(
            ShardEncoder,
            fn_constructor_args=(work, shards, identity),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(
                # Not a fixed size: in a cluster with room for fewer, those that fit are enough.
                min_size=1,
                max_size=self.workers,
                initial_size=self.workers,
            ),
            num_cpus=self.cpus,
            num_gpus=self.gpus,
        )
        for row in done.iter_rows():
            if row["error"]:
                raise BulkError(row["error"])
            yield int(row["num_texts"])


if __name__ == "__main__":
    sys.exit(main())
