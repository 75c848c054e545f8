"""``eyeline encode`` as a process: signals, pipes, memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.conftest import PATIENCE_SECONDS, ROOT, TEST_SCALE, command, environment, run_command, wait_for
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.e2e

FLAGS = ("--device", "cpu", "--dtype", "float32", "--threads", 1)
MAX_GROWTH_BYTES = 12 * 1024 * 1024


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return make_bert_folder(tmp_path_factory.mktemp("model") / "tiny")


class PipedEncode:
    """An encode that reads what it is given, and waits for more."""

    def __init__(self, model: Path, output: Path) -> None:
        flags = ("--model", model, "--window", 4, *FLAGS)
        self.process = subprocess.Popen(
            command("encode", "-", output, *flags),
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._state = output.with_name(output.name + ".part.json")

    def feed(self, texts: list[str]) -> None:
        """Give lines."""
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{text}\n" for text in texts).encode())
        self.process.stdin.flush()

    def wait_for_rows(self, count: int) -> None:
        """Wait until so many rows are counted."""
        wait_for(lambda: self._rows() >= count, f"{count} rows")

    def _rows(self) -> int:
        assert self.process.poll() is None
        return int(json.loads(self._state.read_text())["progress"]["num_rows"]) if self._state.exists() else -1

    def stop(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal; returns how the process ended, and its last words."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, err.decode()


@pytest.fixture
def piped(model: Path, tmp_path: Path) -> Iterator[PipedEncode]:
    """An encode that waits for its texts."""
    encode = PipedEncode(model, tmp_path / "o.npy")
    yield encode
    encode.process.kill()
    encode.process.communicate()


TEXTS = [f"the cat sat {number}" for number in range(10)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_a_valid_part(piped: PipedEncode, model: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end it with 130 and one sentence, even while it waits for a pipe; after any of them the part
    is an array of complete rows, and the same command goes on.
    """
    piped.feed(TEXTS)
    piped.wait_for_rows(8)
    code, err = piped.stop(number)
    part = tmp_path / "o.npy.part"
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == 130
        assert err == f"eyeline: stopped: 8 rows are complete in {part}, and the same command goes on from there\n"
    assert np.load(part).shape == (8, 16)
    (tmp_path / "a.txt").write_text("\n".join(TEXTS))
    flags = ("--model", model, "--window", 4, *FLAGS)
    done = run_command("encode", tmp_path / "a.txt", tmp_path / "o.npy", *flags)
    assert done.returncode == 0, done.stderr
    assert "10 texts in 16 dimensions, 2 of them now" in done.stdout
    assert run_command("encode", tmp_path / "a.txt", tmp_path / "whole.npy", *flags).returncode == 0
    assert (tmp_path / "o.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def peak_bytes(*arguments: object) -> int:
    """Run ``eyeline`` to its end and return the most memory it had."""
    process = subprocess.Popen(
        command(*arguments), cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


def test_memory_does_not_grow_with_the_file(model: Path, tmp_path: Path) -> None:
    """Twenty times the texts take hardly more memory; held whole they would take twice what is allowed, and more."""
    lines, peaks = "the cat sat on the mat and then a dog barked at it " * 25 + "\n", {}
    for count in (int(1_000 * TEST_SCALE), int(20_000 * TEST_SCALE)):
        source = tmp_path / f"{count}.txt"
        source.write_text(lines * count)
        flags = ("--model", model, "--window", 128, *FLAGS)
        # The lesser of two runs: which thread allocates where is chance, and moves a peak; a leak is in both.
        peaks[count] = min(
            peak_bytes("encode", source, tmp_path / f"{run}{count}.npy", *flags) for run in ("again", "")
        )
        assert np.load(tmp_path / f"{count}.npy", mmap_mode="r").shape == (count, 16)
    few, many = peaks.values()
    assert many - few < MAX_GROWTH_BYTES
    assert (tmp_path / f"{int(20_000 * TEST_SCALE)}.txt").stat().st_size > 2 * MAX_GROWTH_BYTES * TEST_SCALE
    print(f"peak memory: {few >> 20} MiB, {many >> 20} MiB with 20 times the texts")


def test_parquet_without_pyarrow(model: Path, tmp_path: Path) -> None:
    """The server's environment has none, and says what to install."""
    (tmp_path / "a.txt").write_text("a\n")
    done = run_command("encode", tmp_path / "a.txt", tmp_path / "o.parquet", "--model", model)
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install '.[parquet]'" in done.stderr
