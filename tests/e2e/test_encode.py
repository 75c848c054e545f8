"""``eyeline encode`` as a process: signals, pipes, memory."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.conftest import TEST_SCALE, run_command
from tests.e2e.encoding import Encode
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.e2e

FLAGS = ("--device", "cpu", "--dtype", "float32", "--threads", 1)
MAX_GROWTH_BYTES = 12 * 1024 * 1024


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return make_bert_folder(tmp_path_factory.mktemp("model") / "tiny")


TEXTS = [f"the cat sat {number}" for number in range(10)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_a_valid_part(model: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end it with 130 and one sentence, even while it waits for a pipe; after any of them the part
    is an array of complete rows, and the same command goes on.
    """
    flags = ("--model", model, "--window", 4, *FLAGS)
    with Encode(TEXTS, tmp_path / "o.npy", *flags) as run:
        run.wait_for_rows(8)
        code, err = run.stop(number)
    part = tmp_path / "o.npy.part"
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == 130
        assert err == f"eyeline: stopped: 8 rows are complete in {part}, and the same command goes on from there\n"
    assert np.load(part).shape == (8, 16)
    (tmp_path / "a.txt").write_text("\n".join(TEXTS))
    done = run_command("encode", tmp_path / "a.txt", tmp_path / "o.npy", *flags)
    assert done.returncode == 0, done.stderr
    assert "10 texts in 16 dimensions, 2 of them now" in done.stdout
    assert run_command("encode", tmp_path / "a.txt", tmp_path / "whole.npy", *flags).returncode == 0
    assert (tmp_path / "o.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_memory_does_not_grow_with_the_file(model: Path, tmp_path: Path) -> None:
    """Twenty times the texts take hardly more memory; held whole they would take twice what is allowed, and more."""
    lines, peaks = "the cat sat on the mat and then a dog barked at it " * 25 + "\n", dict[int, list[int]]()
    for count in (int(1_000 * TEST_SCALE), int(20_000 * TEST_SCALE)):
        source = tmp_path / f"{count}.txt"
        source.write_text(lines * count)
        peaks[count] = []
        for number in range(2):  # which thread allocates where is chance, and moves a peak; a leak is in both
            flags = ("--model", model, "--window", 128, *FLAGS, *(["--overwrite"] if number else []))
            with Encode(source, tmp_path / f"{count}.npy", *flags) as run:
                run.finish()
            peaks[count].append(run.peak_bytes)
        assert np.load(tmp_path / f"{count}.npy", mmap_mode="r").shape == (count, 16)
    few, many = map(min, peaks.values())
    assert many - few < MAX_GROWTH_BYTES
    assert (tmp_path / f"{int(20_000 * TEST_SCALE)}.txt").stat().st_size > 2 * MAX_GROWTH_BYTES * TEST_SCALE
    print(f"peak memory: {few >> 20} MiB, {many >> 20} MiB with 20 times the texts")


def test_parquet_without_pyarrow(model: Path, tmp_path: Path) -> None:
    """The server's environment has none, and says what to install."""
    (tmp_path / "a.txt").write_text("a\n")
    done = run_command("encode", tmp_path / "a.txt", tmp_path / "o.parquet", "--model", model)
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install '.[parquet]'" in done.stderr
