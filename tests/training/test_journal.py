"""The log and the bar."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from training.errors import RunError
from training.journal import Journal, read_log
from training.trainer import Progress


def test_a_resumed_run_forgets_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    """No step is in the log twice."""
    with Journal(tmp_path / "log.jsonl") as journal:
        for step in range(5):
            journal.write({"step": step})
        journal.rewind(2)
        journal.write({"step": 3})
    assert [entry["step"] for entry in read_log(tmp_path / "log.jsonl")] == [0, 1, 2, 3]


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    """The log before it can be read, and written on."""
    file = tmp_path / "log.jsonl"
    file.write_text('{"step": 1}\n{"step": 2, "lo')
    assert read_log(file) == [{"step": 1}]
    with Journal(file) as journal:
        journal.rewind(1)
        journal.write({"step": 2})
    assert [entry["step"] for entry in read_log(file)] == [1, 2]


def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    """The file is named."""
    with Journal(tmp_path / "none" / "log.jsonl") as journal, pytest.raises(RunError, match=r"log\.jsonl could not be"):
        journal.write({"step": 1})


def test_the_bar_shows_loss_rate_score_and_time_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a terminal."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with Journal(tmp_path / "log.jsonl", bar=True) as journal:
        progress = Progress(step=7, tokens=5000, elapsed_seconds=2.5, last_score=81.257)
        journal.show(progress, {"loss": 0.12345}, 0.25)
    shown = screen.getvalue().rsplit("\r", 1)[-1]
    assert "25.0%" in shown
    assert "step 7, loss 0.1235, 2,000 tokens/s, dev 81.26" in shown
    assert "<00:" in shown


def test_no_bar_where_nobody_watches(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A file of carriage returns helps nobody."""
    with Journal(tmp_path / "log.jsonl", bar=True) as journal:
        journal.show(Progress(step=1), {"loss": 1.0}, 0.5)
    assert capsys.readouterr().err == ""
