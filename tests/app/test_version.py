"""The version is one number in one place."""

from __future__ import annotations

import tomllib
from pathlib import Path

from app.version import VERSION


def test_the_version_is_that_of_the_package() -> None:
    """What the server says it is stands in pyproject.toml, and nowhere else."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
