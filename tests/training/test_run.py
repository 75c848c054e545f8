"""What both commands share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.training.seeds import make_student
from training.checkpoints import save_checkpoint
from training.errors import RunError
from training.run import DevSet, make_readme, open_run, run_command


def test_a_run_without_a_checkpoint_may_be_begun_otherwise(tmp_path: Path) -> None:
    """Options bind only once there is something to resume."""
    assert open_run(tmp_path / "r", {"seed": 1, "minutes": 5}) is None
    assert open_run(tmp_path / "r", {"seed": 2, "minutes": 5}) is None
    save_checkpoint(tmp_path / "r", 40, {"a": torch.ones(1)}, {})
    with pytest.raises(RunError, match="was begun with seed 2, not 3"):
        open_run(tmp_path / "r", {"seed": 3, "minutes": 5})
    assert open_run(tmp_path / "r", {"seed": 2, "minutes": 9}) == 40


def test_options_come_back_from_json_as_they_went(tmp_path: Path) -> None:
    """Paths, lists and None are the same run the next day."""
    options = {"teacher": Path("w/t"), "dev": [Path("a.tsv")], "matryoshka": [64, 128], "init": None, "replace": True}
    open_run(tmp_path / "r", options)
    save_checkpoint(tmp_path / "r", 1, {"a": torch.ones(1)}, {})
    assert open_run(tmp_path / "r", options) == 1


def test_a_run_folder_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    """A file stands in its place."""
    (tmp_path / "r").write_text("")
    with pytest.raises(RunError, match="r cannot be used: "):
        open_run(tmp_path / "r", {})


def test_dev_scores_are_the_average_over_files(dev: Path, tmp_path: Path) -> None:
    """Of the student as it is now; no file, no score."""
    student = make_student()
    other = tmp_path / "other.tsv"
    other.write_text("h\th\th\nthe cat\tthe cat\t5\nthe cat\ta dog\t1\nhello\tmat 9\t0\n")
    scores = [DevSet(files, student).score(torch.float32) for files in ([dev], [other], [dev, other])]
    assert scores[2] == pytest.approx((scores[0] + scores[1]) / 2)  # type: ignore[operator]  # both are numbers
    assert DevSet([], student).score(torch.float32) is None


def test_a_readme_says_how_a_model_was_made() -> None:
    """Its name and the facts."""
    assert make_readme("m", {"Teacher": "t", "Texts": "c"}).endswith("\n- Teacher: t\n- Texts: c\n")


def test_only_errors_for_people_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """A bug keeps its traceback."""

    def bug() -> int:
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_command("distil", bug)
    assert capsys.readouterr().err == ""
