"""From a student to a model folder: tensors under their family's names, in float16, with a SHA-256 for every file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from model.convert import folder_documents
from training.errors import ExportError
from training.files import WriteBytes, write_folder, write_synced
from training.student import Student


def named_tensors(student: Student, dtype: torch.dtype) -> dict[str, Tensor]:
    """Spell the encoder's tensors as its family does: stacked ones apart, on the CPU.

    Raises
    ------
    ExportError
        If a value does not fit ``dtype``.
    """
    tensors: dict[str, Tensor] = {}
    state = student.encoder.state_dict()
    for ours, theirs in student.family.sources(student.encoder.config).items():
        for name, part in zip(theirs, state[ours].detach().cpu().chunk(len(theirs)), strict=True):
            tensors[name] = part.to(dtype).clone(memory_format=torch.contiguous_format)
            if not bool(torch.isfinite(tensors[name]).all()):
                raise ExportError(f"tensor {name!r} has a value that is not finite in {dtype}")
    return tensors


def export_student(
    student: Student,
    destination: Path,
    readme: str,
    *,
    dtype: torch.dtype = torch.float16,
    replace: bool = False,
    write: WriteBytes = write_synced,
) -> None:
    """Write a folder that loads like one from the Hub, whole or not at all.

    Parameters
    ----------
    student : Student
    destination : Path
    readme : str
        Text of its ``README.md``.
    dtype : torch.dtype
    replace : bool
        Take the place of a folder that is there.
    write : WriteBytes

    Raises
    ------
    ExportError
        If a weight is not finite, or the folder cannot be written.
    """
    documents = folder_documents(student.raw, student.pooling, lowercase=student.lowercase)
    files = {name: (json.dumps(document, indent=2) + "\n").encode() for name, document in documents.items()}
    files["tokenizer.json"] = student.backend.to_str().encode()
    files["model.safetensors"] = save(named_tensors(student, dtype), metadata={"format": "pt"})
    files["README.md"] = readme.encode()
    sums = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(files.items())]
    files["SHA256SUMS"] = "".join(sums).encode()
    try:
        write_folder(destination, files, replace=replace, write=write)
    except OSError as error:
        raise ExportError(f"{destination} could not be written: {error.strerror or error}") from error


def refuse_taken(destination: Path, *, replace: bool) -> None:
    """Refuse a destination that holds something, before hours are spent on what shall go there.

    Raises
    ------
    ExportError
    """
    if destination.exists() and not destination.is_dir():
        raise ExportError(f"{destination} exists and is not a folder")
    if not replace and destination.is_dir() and any(destination.iterdir()):
        raise ExportError(f"{destination} is not empty; choose another folder, or pass --replace")
