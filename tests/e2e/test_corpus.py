"""``eyeline encode`` over a corpus, 200,000 sentences at ``TEST_SCALE`` 100: killed twice, and whole in the end."""

from __future__ import annotations

import filecmp
import json
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.conftest import ROOT, TEST_SCALE
from tests.e2e.encoding import Encode

pytestmark = pytest.mark.e2e

SENTENCES = (ROOT / "bench/texts/sentences-25.txt").read_text(encoding="utf-8").splitlines()
NUM_TEXTS = int(2_000 * TEST_SCALE)
WINDOW = min(NUM_TEXTS // 50, 1_000)
MAX_MEMORY_BYTES = 700 * 1024 * 1024
"""Of one run, of any size: torch takes most of it."""


FLAGS = ("--model", ROOT / "weights/eyeline-mini", "--device", "cpu", "--dimensions", 64, "--keep", "id")
FLAGS += ("--window", WINDOW, "--input-format", "jsonl", "--no-progress")


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
    with Encode(corpus, tmp_path / "whole.jsonl", *FLAGS) as whole:
        told = whole.finish()

    broken = tmp_path / "broken.jsonl"
    runs = []
    all_but_the_last = corpus.read_text(encoding="utf-8").splitlines()[:-1]
    for count in (NUM_TEXTS // 3, 2 * NUM_TEXTS // 3):
        with Encode(all_but_the_last, broken, *FLAGS) as run:
            for rows in (*range(0, count, WINDOW), count):  # the patience is that of one window
                run.wait_for_rows(rows)
            assert run.stop(signal.SIGKILL)[0] == -signal.SIGKILL
        assert count <= run.num_rows() < NUM_TEXTS
        assert not broken.exists()
        runs.append(run)
    num_missing = NUM_TEXTS - run.num_rows()
    with Encode(corpus, broken, *FLAGS) as run:
        assert f"{NUM_TEXTS} texts in 64 dimensions, {num_missing} of them now" in run.finish()
    runs.append(run)
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
    with Encode(write_corpus(tmp_path / "few.jsonl", checked), alone, *FLAGS) as run:
        run.finish()
    for row in map(json.loads, alone.read_text(encoding="utf-8").splitlines()):
        assert np.dot(row["embedding"], found[row["id"]]) > 0.999

    peaks = [run.peak_bytes for run in (whole, *runs)]
    assert max(peaks) < MAX_MEMORY_BYTES
    print(told)
    print("memory:", *(f"{peak >> 20} MiB" for peak in peaks))
    print("seconds:", *(f"{run.seconds:.0f}" for run in (whole, *runs)))
