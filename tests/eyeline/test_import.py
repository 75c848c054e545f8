"""The client stands alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import eyeline

ROOT = Path(__file__).parents[2]


def test_importing_brings_nothing_of_the_server() -> None:
    """No torch, no FastAPI, nothing of app/ and model/: httpx, numpy and what they need."""
    source = "import eyeline, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    printed = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    loaded = set(printed.split())
    assert {"eyeline", "httpx", "numpy"} <= loaded
    assert not loaded & {
        "app",
        "model",
        "training",
        "torch",
        "fastapi",
        "pydantic",
        "tokenizers",
        "safetensors",
        "orjson",
    }


def test_every_exported_name_is_there() -> None:
    """What ``from eyeline import *`` gives, sorted so that a reader finds it; and type checkers are told of types."""
    assert all(hasattr(eyeline, name) for name in eyeline.__all__)
    assert (Path(eyeline.__file__).parent / "py.typed").is_file()
