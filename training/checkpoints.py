"""Checkpoints of a run: weights as safetensors, all else that a run needs to go on, one folder for each.

::

    RUN/checkpoints/step-00001200/model.safetensors    what is trained, float32
                                  state.pt             optimiser, place in the data, generators; no code

A folder appears whole, by a rename, and then the one before it goes; whatever a kill leaves besides is not looked at.
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

_NAME = re.compile(r"step-(\d{8,})")


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
    """Save a checkpoint, then delete those of other steps.

    Raises
    ------
    RunError
        If it cannot be written. The one before it is still there.
    """
    folder = run / "checkpoints" / f"step-{step:08d}"
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    copies = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    files = {"model.safetensors": save(copies), "state.pt": buffer.getvalue()}
    try:
        write_folder(folder, files, replace=True, write=write)
    except OSError as error:
        kept = latest_checkpoint(run)
        what = f"{kept.name} is still there" if kept else "there is no earlier one"
        raise RunError(f"checkpoint {folder} could not be written: {error.strerror or error}; {what}") from error
    for other in folder.parent.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def latest_checkpoint(run: Path) -> Path | None:
    """Find the checkpoint with the most steps, if there is one."""
    folder = run / "checkpoints"
    found = {int(match[1]): path for path in folder.glob("*") if (match := _NAME.fullmatch(path.name))}
    return found[max(found)] if found else None


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
