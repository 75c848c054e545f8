"""The environments of the peers: one each under ``build/peers/``, made on first use from exact versions.

``NAME.in`` says what a peer is, ``NAME.txt`` (``make lock`` writes it) names every package with its version. torch is
in neither: it is installed first, as in all of this project's environments, and nothing that follows may replace it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.libraries import UnavailableError

FOLDER = Path("build/peers")

PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")


@dataclass(frozen=True, slots=True)
class Torch:
    """Which torch, and from where: an empty address leaves that to pip's own configuration."""

    requirement: str
    index_url: str = ""


def requirements_file(peer: str, suffix: str = ".txt") -> Path:
    """Name the file that pins a peer's packages, or with ``.in`` the one that says which it is about."""
    return Path(__file__).with_name(f"{peer}{suffix}")


def make_environment(peer: str, torch: Torch) -> Path:
    """Make a peer's environment where it is missing or its requirements changed; returns its interpreter.

    Raises
    ------
    UnavailableError
        If it cannot be made, with pip's last line.
    """
    python = FOLDER / peer / "bin" / "python"
    requirements = requirements_file(peer)
    made_from = FOLDER / peer / "made-from.txt"
    wanted = f"{torch.requirement}\n{requirements.read_text(encoding='utf-8')}"
    if made_from.exists() and made_from.read_text(encoding="utf-8") == wanted:
        return python
    print(f"making {FOLDER / peer}", flush=True)
    made_from.unlink(missing_ok=True)
    index = ["--index-url", torch.index_url] if torch.index_url else []
    _run([sys.executable, "-m", "venv", str(FOLDER / peer)])
    _run([str(python), *PIP, "install", *index, torch.requirement])
    _run([str(python), *PIP, "install", "--no-deps", "--requirement", str(requirements)])
    made_from.write_text(wanted, encoding="utf-8")
    return python


def read_versions(peer: str) -> dict[str, str]:
    """Read the versions of the packages that a peer is about: those its ``.in`` names."""
    named = re.findall(r"^[\w.-]+", requirements_file(peer, ".in").read_text(encoding="utf-8"), re.MULTILINE)
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", requirements_file(peer).read_text(encoding="utf-8"), re.MULTILINE))
    return {name: pins[name] for name in named}


def _run(command: list[str]) -> None:
    """Run one step."""
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        said = (finished.stderr or finished.stdout).strip().splitlines() or [f"status {finished.returncode}"]
        raise UnavailableError(next((line for line in said if line.startswith("ERROR")), said[-1]))
