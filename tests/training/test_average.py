"""Averages of model folders, against the numbers that went in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.training.seeds import make_student
from training.average import main
from training.export import export_student


def folders(tmp_path: Path, *seeds: int) -> list[str]:
    """Export a tiny student for each seed."""
    for seed in seeds:
        export_student(make_student(seed=seed), tmp_path / f"seed{seed}", "")
    return [str(tmp_path / f"seed{seed}") for seed in seeds]


@pytest.mark.parametrize(("more", "shares"), [([], (0.5, 0.5)), (["--shares", "1,3"], (0.25, 0.75))])
def test_every_tensor_is_the_average(tmp_path: Path, more: list[str], shares: tuple[float, float]) -> None:
    """Weighted by the shares; the notes say of what, and the other files are the models' own."""
    given = folders(tmp_path, 1, 2)
    assert main([str(tmp_path / "out"), *given, *more]) == 0
    one, two, out = (load_file(Path(name) / "model.safetensors") for name in (*given, str(tmp_path / "out")))
    assert out.keys() == one.keys()
    for name, values in out.items():
        expected = shares[0] * one[name].astype(np.float64) + shares[1] * two[name].astype(np.float64)
        np.testing.assert_allclose(values.astype(np.float64), expected, rtol=1e-3, atol=1e-6)
    assert any(not np.array_equal(out[name], one[name]) for name in out)
    assert "- Average of: seed1 (" in (tmp_path / "out" / "README.md").read_text()
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (tmp_path / "seed1" / "tokenizer.json").read_bytes()


def test_what_cannot_be_averaged_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One folder, other shapes, bad shares, a folder that is taken or missing; nothing is written."""
    given = folders(tmp_path, 1, 2)
    export_student(make_student(hidden_size=8), tmp_path / "narrow", "")
    out = str(tmp_path / "out")
    for arguments, message in (
        ([out, given[0]], "at least two model folders"),
        ([out, given[0], str(tmp_path / "narrow")], "only models of one configuration and one tokenizer"),
        ([out, *given, "--shares", "1"], "each of the 2 folders needs one"),
        ([out, *given, "--shares", "2,-1"], "none is below 0"),
        ([out, *given, "--shares", "0,0"], "shares [0.0, 0.0]"),
        ([out, *given, "--shares", "a,b"], "'a,b' is not a list of numbers"),
        ([out, given[0], str(tmp_path / "none")], "none is not a folder"),
        ([given[0], *given], "seed1 is not empty"),
        ([out, *given, "--readme", str(tmp_path / "none.md")], "none.md is missing"),
    ):
        assert main(arguments) == 1
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not Path(out).exists()
