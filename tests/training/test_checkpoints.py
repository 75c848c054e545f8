"""Checkpoints: whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.training.disks import FullDisk
from training.checkpoints import checkpoint_step, latest_checkpoint, load_checkpoint, save_checkpoint
from training.errors import RunError

WEIGHTS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(1)}


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    """Weights, tensors and numbers; the newest is found, and the older one is gone."""
    save_checkpoint(tmp_path, 9, WEIGHTS, {"step": 9})
    save_checkpoint(tmp_path, 10, WEIGHTS, {"step": 10, "generator": torch.get_rng_state()})
    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000010"]
    loaded = load_checkpoint(latest)
    assert all(torch.equal(loaded.weights[name], tensor) for name, tensor in WEIGHTS.items())
    assert loaded.state["step"] == 10
    assert torch.equal(loaded.state["generator"], torch.get_rng_state())


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    """A run that has not begun, and leftovers of a kill, are no checkpoint."""
    assert latest_checkpoint(tmp_path) is None
    (tmp_path / "checkpoints" / ".step-00000010.x").mkdir(parents=True)
    assert latest_checkpoint(tmp_path) is None


def test_a_checkpoint_is_never_away_while_another_of_its_step_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each rename there is one to load, so that a kill between any two costs no run."""
    rename, found = os.rename, []

    def look() -> None:
        latest = latest_checkpoint(tmp_path)
        found.append(None if latest is None else load_checkpoint(latest).state["score"])

    def looking(source: Path, destination: Path) -> None:
        look()
        rename(source, destination)
        look()

    save_checkpoint(tmp_path, 7, WEIGHTS, {"score": 1})
    monkeypatch.setattr(os, "rename", looking)
    for score in (2, 3):
        folder = save_checkpoint(tmp_path, 7, WEIGHTS, {"score": score})
        assert list((tmp_path / "checkpoints").iterdir()) == [folder]
        assert checkpoint_step(folder) == 7
    assert found == [1, 2, 2, 3]


def test_of_two_checkpoints_of_a_step_the_later_one_counts(tmp_path: Path) -> None:
    """A kill may come before the earlier one is deleted; more steps count more than more saves."""
    for name in ("step-00000009.3", "step-00000012", "step-00000012.2", "step-00000012.10"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-00000012.10"


@pytest.mark.parametrize("room", [0, 1])
def test_a_full_disk_keeps_the_checkpoint_before(tmp_path: Path, room: int) -> None:
    """One sentence that says what is still there, and nothing half-written."""
    with pytest.raises(RunError, match=r"No space left on device; there is no earlier one$"):
        save_checkpoint(tmp_path, 1, WEIGHTS, {}, FullDisk(room))
    save_checkpoint(tmp_path, 1, WEIGHTS, {})
    with pytest.raises(RunError, match=r"No space left on device; step-00000001 is still there$"):
        save_checkpoint(tmp_path, 2, WEIGHTS, {}, FullDisk(room))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
    assert load_checkpoint(tmp_path / "checkpoints" / "step-00000001").weights.keys() == WEIGHTS.keys()


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt"])
@pytest.mark.parametrize("content", [None, b"", b"half a file"])
def test_a_damaged_checkpoint_is_one_sentence(tmp_path: Path, name: str, content: bytes | None) -> None:
    """Missing, empty or not what it should be."""
    folder = save_checkpoint(tmp_path, 1, WEIGHTS, {"step": 1})
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(RunError, match=r"step-00000001 is damaged \(\w+\); delete it$"):
        load_checkpoint(folder)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    """A state that is more than tensors and numbers is refused, as whatever else is damaged."""
    folder = save_checkpoint(tmp_path, 1, WEIGHTS, {"step": 1})
    torch.save({"step": Path("x")}, folder / "state.pt")
    with pytest.raises(RunError, match="is damaged"):
        load_checkpoint(folder)
