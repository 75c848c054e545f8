"""Model folders that training writes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from model.checkpoint import load_encoder
from model.embedder import Embedder
from model.errors import CheckpointError
from model.folder import read_folder
from tests.training.disks import FullDisk
from tests.training.seeds import make_student
from training.errors import ExportError
from training.export import export_student, refuse_taken


@pytest.mark.parametrize(
    ("family", "key"),
    [("seed-0", "layers.1.self_atten.linears.2.weight"), ("seed-2", "layers.1.self_attn.linears.2.weight")],
)
def test_the_folder_loads_under_the_documents_own_names(tmp_path: Path, family: str, key: str) -> None:
    """Strictly, with nothing ignored, and every tensor where it was."""
    student = make_student(family)
    export_student(student, tmp_path / "m", "# made here\n")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    assert tensors[key].dtype == torch.float16
    loaded = load_encoder(read_folder(tmp_path / "m"), torch.float32, torch.device("cpu"), pack=False)
    assert loaded.ignored_keys == ()
    for name, tensor in student.encoder.state_dict().items():
        assert torch.equal(loaded.encoder.state_dict()[name], tensor.half().float()), name
    assert (tmp_path / "m" / "README.md").read_text() == "# made here\n"


def test_every_file_is_in_the_sums_and_a_changed_byte_stops_the_start(tmp_path: Path) -> None:
    """SHA256SUMS lists all files but itself, rightly; the server refuses a folder that differs."""
    folder = tmp_path / "m"
    export_student(make_student(), folder, "text")
    lines = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert set(lines) == files - {"SHA256SUMS"}
    for name, digest in lines.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="does not match its SHA-256"):
        Embedder.load(folder, device="cpu", threads=1)


def test_lower_casing_and_length_are_the_servers_too(tmp_path: Path) -> None:
    """What the tokenizer of the training did, the loaded folder does."""
    student = make_student()
    student.lowercase = True
    export_student(student, tmp_path / "m", "")
    embedder = Embedder.load(tmp_path / "m", device="cpu", threads=1)
    assert embedder.tokenizer.config.lowercase
    assert embedder.tokenizer.max_length == 32


def test_a_weight_that_float16_cannot_hold_is_refused(tmp_path: Path) -> None:
    """An infinite weight would make every embedding NaN."""
    student = make_student()
    with torch.no_grad():
        student.encoder.layers[0].feed_forward.expand.weight[0, 0] = 70_000
    with pytest.raises(ExportError, match=r"'layers\.0\.feed_forward\.w_1\.weight' has a value that is not finite"):
        export_student(student, tmp_path / "m", "")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    """One sentence, and no folder at all."""
    with pytest.raises(ExportError, match=r"m could not be written: No space left on device$"):
        export_student(make_student(), tmp_path / "m", "", write=FullDisk(3))
    assert not list(tmp_path.iterdir())


def test_a_place_that_is_taken_is_found_before_training(tmp_path: Path) -> None:
    """A folder with something in it needs --replace; a file is never replaced."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("x")
    (tmp_path / "empty").mkdir()
    refuse_taken(tmp_path / "new", replace=False)
    refuse_taken(tmp_path / "empty", replace=False)
    refuse_taken(tmp_path / "full", replace=True)
    with pytest.raises(ExportError, match="full is not empty"):
        refuse_taken(tmp_path / "full", replace=False)
    with pytest.raises(ExportError, match="exists and is not a folder"):
        refuse_taken(tmp_path / "full" / "a", replace=True)
