"""Checkpoints of a run: weights as safetensors, all else that a run needs to go on, one folder for each.

::

    RUN/checkpoints/step-00001200/model.safetensors    what is trained, float32
                                  state.pt             optimiser, place in the data, generators; no code

A folder appears whole, by a rename, and then the one before it goes; whatever a kill leaves besides is not looked at.
None takes the place of another: what is saved again at a step is ``step-00001200.1``, then ``.2``.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from training.errors import RunError
from training.files import WriteBytes, write_folder, write_synced

_NAME = re.compile(r"step-\d{8,}(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was saved.

    Attributes
    ----------
    weights : dict of str to Tensor
    state : dict
        As it was given to :func:`save_checkpoint`.
    """

    weights: dict[str, Tensor]
    state: dict[str, Any]


def save_checkpoint(
    run: Path, step: int, weights: Mapping[str, Tensor], state: Mapping[str, Any], write: WriteBytes = write_synced
) -> Path:
    """Save a checkpoint, then delete those before it.

    Raises
    ------
    RunError
        If it cannot be written. The one before it is still there.
    """
    folder = run / "checkpoints" / f"step-{step:08d}"
    before = latest_checkpoint(run)
    if before is not None and checkpoint_step(before) == step:
        folder = folder.with_name(f"{folder.name}.{_order(before)[1] + 1}")
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    copies = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    files = {"model.safetensors": save(copies), "state.pt": buffer.getvalue()}
    try:
        write_folder(folder, files, write=write)
    except OSError as error:
        kept = latest_checkpoint(run)
        what = f"{kept.name} is still there" if kept else "there is no earlier one"
        raise RunError(f"checkpoint {folder} could not be written: {error.strerror or error}; {what}") from error
    for other in folder.parent.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def latest_checkpoint(run: Path) -> Path | None:
    """Find the checkpoint with the most steps, if there is one; of two with as many, the one that was saved later."""
    found = [path for path in (run / "checkpoints").glob("*") if _NAME.fullmatch(path.name)]
    return max(found, key=_order, default=None)


def checkpoint_step(folder: Path) -> int:
    """Read the steps of a checkpoint from its name."""
    return _order(folder)[0]


def _order(folder: Path) -> tuple[int, int]:
    """Read the steps from a checkpoint's name, and how often that step had been saved before."""
    step, _, again = folder.name.removeprefix("step-").partition(".")
    return int(step), int(again or 0)


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint; nothing in it is executed.

    Raises
    ------
    RunError
        If one of its files is missing or damaged.
    """
    try:
        weights = load_file(folder / "model.safetensors")
        state = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load lets whatever its readers raise through: pickle, zip, struct, runtime
        # torch's own message recommends to switch the safety off, so it is not passed on
        raise RunError(f"checkpoint {folder} is damaged ({type(error).__name__}); delete it") from error
    return Checkpoint(weights, state)
