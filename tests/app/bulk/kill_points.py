"""Kills a bulk job with SIGKILL before every single thing it does to the disk, and lets another process go on.

``python -m tests.app.bulk.kill_points FOLDER OUT [--chunks]`` prints, as JSON, what came of each. A process of
its own, because each job runs in a fork of it: with one thread, so that no other is lost in the fork, and before the
tokenizer has any.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import app.bulk.parquet  # noqa: F401 - or every fork would load pyarrow
from app.bulk.encode import encode_file
from app.bulk.options import BulkOptions
from model.chunking import Chunking
from model.embedder import Embedder
from tests.app.bulk.jobs import LIMITS, RecordingWatcher, make_options
from tests.tiny import make_bert_folder

TEXTS = [f"the cat sat {number} " + "a dog " * (7 * number % 5) for number in range(10)]

DISK = ("open", "write", "pwrite", "truncate", "fsync", "replace", "unlink")
"""Functions of ``os`` through which a job changes the disk."""


def kill_before(number: int) -> None:
    """Let this process be killed before its ``number``-th change of the disk; a write gets half done."""
    left = number

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                if name in {"write", "pwrite"}:
                    function(arguments[0], arguments[1][: len(arguments[1]) // 2], *arguments[2:])
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **more)

        return call

    for name in DISK:
        setattr(os, name, counted(name, getattr(os, name)))


def run(options: BulkOptions, embedder: Embedder, kill_at: int | None) -> int:
    """Run a job in a process of its own, killed at a point or not, and return how it ended, as ``os.waitpid`` says."""
    child = os.fork()
    if child == 0:
        try:
            if kill_at is not None:
                kill_before(kill_at)
            encode_file(options, embedder, LIMITS, RecordingWatcher(), io.BytesIO())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def rows_complete(options: BulkOptions) -> int:
    """What the state counts."""
    if not options.state.exists():
        return 0
    return int(json.loads(options.state.read_text())["progress"]["num_rows"])


def contents(folder: Path) -> dict[str, str]:
    """Every file of a folder."""
    return {path.name: path.read_bytes().hex() for path in folder.iterdir()}


def main(folder: Path, output: str, changes: dict[str, Any]) -> list[dict[str, Any]]:
    """Kill at the first point, at the second, ..., until a job ends by itself before it comes to that."""
    embedder = Embedder.load(make_bert_folder(folder / "tiny"), dtype="float32", device="cpu", threads=1)
    source = folder / "a.txt"
    source.write_text("".join(f"{text}\n" for text in TEXTS))

    def job(name: str) -> BulkOptions:
        (folder / name).mkdir()
        return make_options(source, folder / name / output, **changes)

    run(job("unbroken"), embedder, None)
    expected = contents(folder / "unbroken")
    outcomes: list[dict[str, Any]] = []
    while True:
        kill_at = len(outcomes) + 1
        options = job(str(kill_at))
        if run(options, embedder, kill_at) == 0:
            return outcomes
        complete = rows_complete(options)
        codes = [run(options, embedder, kill_at)]  # killed once more, unless less than that is left to do
        if codes[0] != 0:
            codes.append(run(options, embedder, None))
        equal = contents(options.output.parent) == expected
        outcomes.append({"complete": complete, "codes": codes, "equal": equal, "files": sorted(expected)})


if __name__ == "__main__":
    in_chunks = sys.argv[3:] == ["--chunks"]
    chunks: dict[str, Any] = {"chunking": Chunking("token", 8), "window_texts": 12}
    how = chunks if in_chunks else {"attention_stats": True, "window_texts": 4}
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), sys.argv[2], how)))
