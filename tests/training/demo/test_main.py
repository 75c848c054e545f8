"""The demonstration, on a tiny teacher."""

from __future__ import annotations

from pathlib import Path

import pytest

import training.demo.__main__ as demo
from training.benchmarks import read_scored_pairs
from training.lines import read_lines

HERE = Path(demo.__file__).parent


def test_the_demonstration_says_its_score(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command, one line with the dev score; on a few of its sentences."""
    lines = (HERE / "sentences.txt").read_text().splitlines()[:50]
    (tmp_path / "sentences.txt").write_text("\n".join(lines))
    (tmp_path / "dev.tsv").write_text("\n".join((HERE / "dev.tsv").read_text().splitlines()[:20]))
    monkeypatch.setattr(demo, "HERE", tmp_path)
    distil = demo.distil
    monkeypatch.setattr(demo, "distil", lambda options: distil([*options, "--matryoshka", "8", "--threads", "1"]))
    assert demo.main([str(tmp_path / "out"), "--teacher", str(teacher), "--epochs", "1"]) == 0
    assert "dev score" in capsys.readouterr().out
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_the_data_is_what_its_notes_say() -> None:
    """5,000 different sentences; pairs of other sentences, with cosines of all sizes."""
    sentences = [line for _, line in read_lines(HERE / "sentences.txt")]
    pairs = read_scored_pairs(HERE / "dev.tsv")
    assert len(set(sentences)) == 5000
    assert not set(sentences) & {*pairs.first, *pairs.second}
    assert len({*pairs.first, *pairs.second}) == 1000
    assert min(pairs.scores) < 0 < 0.5 < max(pairs.scores) < 1
