"""The picture of a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from training.plot import write_plot


def write_log(path: Path, *, scores: bool) -> Path:
    """Write a log of ten steps."""
    entries = [{"step": step, "loss": 1 / (step + 1)} for step in range(10)]
    if scores:
        entries.append({"step": 9, "dev": 80.0})
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_a_log_becomes_a_picture(tmp_path: Path) -> None:
    """A PNG; with dev scores it is another one than without."""
    pictures = []
    for scores in (False, True):
        log = write_log(tmp_path / "log.jsonl", scores=scores)
        assert write_plot(log, tmp_path / "plot.png")
        pictures.append((tmp_path / "plot.png").read_bytes())
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert pictures[0] != pictures[1]


def test_a_run_without_a_step_has_a_picture(tmp_path: Path) -> None:
    """An empty log is no fault."""
    (tmp_path / "log.jsonl").write_text("")
    assert write_plot(tmp_path / "log.jsonl", tmp_path / "plot.png")


def test_without_matplotlib_there_is_no_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The run does not need it."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not write_plot(write_log(tmp_path / "log.jsonl", scores=True), tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()
