"""What the model's tests share: all-MiniLM-L6-v2 loaded once, and a folder that a test may break."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from model.embedder import Embedder
from tests.model.answers import MINILM, MiniLMAnswer, minilm_answers
from tests.model.folders import write_bert

# Elsewhere `-m cuda` finds no test, which pytest calls a failure.
collect_ignore = [] if torch.cuda.is_available() else ["test_cuda.py"]


@pytest.fixture(scope="session")
def answers() -> list[MiniLMAnswer]:
    """The reference texts of all-MiniLM-L6-v2."""
    return minilm_answers()


@pytest.fixture(scope="session")
def minilm() -> Embedder:
    """all-MiniLM-L6-v2 in float32; ``make weights`` fetches it."""
    return Embedder.load(MINILM, dtype="float32", device="cpu", threads=1)


@pytest.fixture(scope="session")
def minilm_parse() -> Embedder:
    """The same, reading typed special tokens as sentence-transformers does."""
    return Embedder.load(MINILM, dtype="float32", device="cpu", special_tokens="parse", threads=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny BERT folder that loads."""
    return write_bert(tmp_path / "tiny")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    """The tiny BERT, loaded in float32."""
    return Embedder.load(write_bert(tmp_path_factory.mktemp("tiny")), dtype="float32", device="cpu", threads=1)
