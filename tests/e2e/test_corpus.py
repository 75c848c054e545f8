"""``eyeline encode`` over a corpus, 200,000 sentences at ``TEST_SCALE`` 100: killed twice, and whole in the end."""

from __future__ import annotations

import filecmp
import json
import re
import signal
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

from tests.e2e.conftest import ROOT, TEST_SCALE, command, environment, wait_for

pytestmark = pytest.mark.e2e

SENTENCES = (ROOT / "bench/texts/sentences-25.txt").read_text(encoding="utf-8").splitlines()
NUM_TEXTS = int(2_000 * TEST_SCALE)
WINDOW = min(NUM_TEXTS // 50, 1_000)
MAX_MEMORY_BYTES = 700 * 1024 * 1024
"""Of one run, of any size: torch takes most of it."""


class Encode:
    """One run of ``eyeline encode`` with weights/eyeline-mini: what it counted, how it ended, what it took."""

    def __init__(self, source: Path, output: Path) -> None:
        self._state = output.with_name(output.name + ".part.json")
        self._began = monotonic()
        self.peak_bytes = 0
        flags = ("--model", ROOT / "weights/eyeline-mini", "--device", "cpu", "--dimensions", 64, "--keep", "id")
        self._process = subprocess.Popen(
            command("encode", source, output, *flags, "--window", WINDOW, "--no-progress"),
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )

    def num_rows(self) -> int:
        """Rows that are safe on the disk."""
        return int(json.loads(self._state.read_text())["progress"]["num_rows"]) if self._state.exists() else 0

    def kill_at(self, count: int) -> None:
        """Kill it as soon as so many rows are counted. The patience is that of one window."""
        try:
            for rows in (*range(0, count, WINDOW), count):
                wait_for(partial(self._has_rows, rows), f"{rows} rows")
        finally:
            self._note_memory()
            self._process.send_signal(signal.SIGKILL)
            assert self._end() == -signal.SIGKILL

    def _has_rows(self, count: int) -> bool:
        return self.num_rows() >= count

    def finish(self) -> str:
        """Wait for a good end, and return what it said."""
        assert self._process.stdout is not None
        while self._process.returncode is None:
            self._note_memory()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=0.2)
        said = self._process.stdout.read().strip()
        assert self._end() == 0
        return said

    def _note_memory(self) -> None:
        """Read the high-water mark of the memory; wait4 would tell the test's own, with which the process began."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        if found := re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE):  # not of one that has just ended
            self.peak_bytes = int(found[1]) * 1024

    def _end(self) -> int:
        assert self._process.stdout is not None
        self._process.stdout.close()
        code = self._process.wait()
        self.seconds = monotonic() - self._began
        return code


def write_corpus(path: Path, numbers: range) -> Path:
    """Write sentences that all differ: the benchmark's, with their number in front."""
    with path.open("w", encoding="utf-8") as file:
        for number in numbers:
            text = f"{number}: {SENTENCES[number % len(SENTENCES)]}"
            file.write(json.dumps({"id": number, "text": text}, ensure_ascii=False) + "\n")
    return path


def test_a_corpus_survives_two_kills(tmp_path: Path) -> None:
    """Killed with SIGKILL after a third and after two thirds, the output is to the byte that of an unbroken run: every
    sentence, in order, with the vector that it has alone; and the memory is bounded.
    """
    corpus = write_corpus(tmp_path / "corpus.jsonl", range(NUM_TEXTS))
    whole = Encode(corpus, tmp_path / "whole.jsonl")
    told = whole.finish()

    broken = tmp_path / "broken.jsonl"
    runs = []
    for count in (NUM_TEXTS // 3, 2 * NUM_TEXTS // 3):
        runs.append(Encode(corpus, broken))
        runs[-1].kill_at(count)
        assert count <= runs[-1].num_rows() < NUM_TEXTS
        assert not broken.exists()
    num_missing = NUM_TEXTS - runs[-1].num_rows()
    runs.append(Encode(corpus, broken))
    assert f"{NUM_TEXTS} texts in 64 dimensions, {num_missing} of them now" in runs[-1].finish()
    assert filecmp.cmp(broken, tmp_path / "whole.jsonl", shallow=False)

    checked = range(0, NUM_TEXTS, NUM_TEXTS // 20)
    found = {}
    with broken.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            row = json.loads(line)
            assert row["id"] == number
            found[number] = row["embedding"] if number in checked else None
    assert len(found) == NUM_TEXTS
    alone = tmp_path / "alone.jsonl"
    Encode(write_corpus(tmp_path / "few.jsonl", checked), alone).finish()
    for row in map(json.loads, alone.read_text(encoding="utf-8").splitlines()):
        assert np.dot(row["embedding"], found[row["id"]]) > 0.999

    peaks = [run.peak_bytes for run in (whole, *runs)]
    assert max(peaks) < MAX_MEMORY_BYTES
    print(told)
    print("memory:", *(f"{peak >> 20} MiB" for peak in peaks))
    print("seconds:", *(f"{run.seconds:.0f}" for run in (whole, *runs)))
