"""The command that measures model folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model.embedder import Embedder
from tests.training.seeds import spoil
from tests.training.test_benchmarks import write_retrieval
from training.benchmarks import read_scored_pairs, score_pairs
from training.evaluate import Result, find_data, main, markdown


def test_the_table_has_a_line_for_each_model_and_width(
    teacher: Path, dev: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """STS files and retrieval sets of a folder, in order; the JSON holds the same numbers."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "dev.tsv").write_bytes(dev.read_bytes())
    write_retrieval(data / "letters")
    arguments = [str(teacher), str(data), "--dimensions", "16,4", "--threads", "1", "--json", str(tmp_path / "r.json")]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| model | dimensions | dev | letters nDCG@10 | letters MAP |"
    assert [line.split(" | ")[:2] for line in lines[2:]] == [["| teacher", "16"], ["| teacher", "4"]]
    embedder = Embedder.load(teacher, dtype="float32", device="cpu", threads=1)
    expected = score_pairs(read_scored_pairs(dev), embedder.encode, [16])[0]
    rows = json.loads((tmp_path / "r.json").read_text())
    assert rows[0]["scores"]["dev"] == pytest.approx(expected, abs=1e-3)
    assert f"{rows[1]['scores']['letters MAP']:.2f}" in lines[3]


def test_a_file_or_a_set_can_be_named_itself(dev: Path, tmp_path: Path) -> None:
    """Not only folders of them."""
    assert [item.name for item in find_data([write_retrieval(tmp_path / "r"), dev])] == ["r", "dev"]


def test_a_table_is_markdown() -> None:
    """Two digits, in the order of the columns."""
    table = markdown([Result("m", 8, {"a": 1.234, "b": 50.0})])
    assert table == "| model | dimensions | a | b |\n| --- | ---: | ---: | ---: |\n| m | 8 | 1.23 | 50.00 |\n"


def test_an_embedding_that_is_not_finite_is_one_line(
    teacher: Path, dev: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the model, of the several that may be measured."""
    spoil(teacher)
    assert main([str(teacher), str(dev), "--threads", "1"]) == 1
    assert capsys.readouterr().err == f"evaluate: {teacher} gives an embedding that is not finite, in float32\n"


def test_faults_are_one_line_and_exit_code_1(
    teacher: Path, dev: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No model, no data, a path that is not there, two sets of one name, too many dimensions, a broken model."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "dev.tsv").write_bytes(dev.read_bytes())
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    for arguments, message in (
        ([dev], "none of the folders is a model"),
        ([teacher, tmp_path / "empty"], "empty holds no STS file and no retrieval set"),
        ([teacher], "no STS file and no retrieval set is named"),
        ([teacher, dev, tmp_path / "empty"], "empty holds no STS file and no retrieval set"),
        ([teacher, dev, tmp_path / "dve.tsv"], f"{tmp_path / 'dve.tsv'} is missing"),
        ([tmp_path / "taecher", dev], f"{tmp_path / 'taecher'} is missing"),
        ([teacher, tmp_path / "taecher", dev], f"{tmp_path / 'taecher'} is missing"),
        ([teacher, dev, tmp_path / "copy"], "two data sets are called 'dev'"),
        ([teacher, dev, "--dimensions", "17"], "has 16 dimensions, so that 17 of them cannot be measured"),
        ([teacher, dev, "--dimensions", "x"], "is not a list of numbers"),
        ([teacher, dev, "--dtype", "int3"], "dtype 'int3' is not supported"),
        ([broken, dev], "is not valid JSON"),
    ):
        assert main([*map(str, arguments), "--threads", "1"]) == 1
        captured = capsys.readouterr()
        assert captured.err.startswith("evaluate: ")
        assert message in captured.err
        assert captured.err.count("\n") == 1
        assert captured.out == ""
