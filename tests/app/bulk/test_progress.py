"""The progress bar."""

from __future__ import annotations

from contextlib import closing

import pytest

from app.bulk.progress import ProgressBar


def test_the_bar_shows_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    """The number of texts is estimated from the share of the file; what was done before counts for no speed."""
    with closing(ProgressBar("o.npy", show=True)) as bar:
        bar.resumed(500)
        bar.read(1_000, 0.25)
        bar.encoded(500)
    err = capsys.readouterr().err.split("\r")[-1]
    assert "o.npy:  25%" in err
    assert "1000/4000" in err
    assert " texts/s" in err
    assert "<" in err  # time taken < time left


def test_without_an_end_there_is_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe tells no share."""
    with closing(ProgressBar("o.npy", show=True)) as bar:
        bar.resumed(0)
        bar.read(10, None)
        bar.encoded(10)
    assert "10 texts [" in capsys.readouterr().err


def test_what_is_left_out_is_told_without_a_bar_too(capsys: pytest.CaptureFixture[str]) -> None:
    """It is the only record of which rows are missing."""
    with closing(ProgressBar("o.npy", show=False)) as bar:
        bar.resumed(0)
        bar.encoded(1)
        bar.skipped("a.txt, line 3: the line is not JSON")
    assert capsys.readouterr().err == "eyeline: left out a.txt, line 3: the line is not JSON\n"
