"""A bulk job that is really killed, at every point where it changes the disk."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("output", "flags"),
    [("o.npy", []), ("o.safetensors", []), ("o.jsonl", []), ("o.parquet", []), ("o.safetensors", ["--chunks"])],
)
def test_no_kill_loses_or_repeats_a_row(tmp_path: Path, output: str, flags: list[str]) -> None:
    """Killed by SIGKILL before each write, sync, rename and removal, once and again: the next run's files are to the
    byte those of a run that nobody disturbed, and nothing else is left beside them.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.app.bulk.kill_points", str(tmp_path), output, *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert done.stderr == ""
    assert [number for number, outcome in enumerate(outcomes, start=1) if not outcome["equal"]] == []
    assert {tuple(outcome["codes"]) for outcome in outcomes} == {(0,), (-signal.SIGKILL, 0)}
    # The points lie before, between and behind the windows of 4, 4 and 2 texts, which have 5, 6 and 3 chunks.
    assert {outcome["complete"] for outcome in outcomes} == ({0, 5, 11, 14} if flags else {0, 4, 8, 10})
    assert len(outcomes) > 25
    assert outcomes[0]["files"] == ([output] if output != "o.npy" else ["o.attention_stats.npy", "o.npy"])
