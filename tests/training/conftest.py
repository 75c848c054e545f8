"""A tiny teacher, a tiny corpus, one thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.tiny import make_bert_folder


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums are bit-equal on one thread; the threads of other tests come back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """A model folder of a two-layer BERT with 16 dimensions."""
    return make_bert_folder(tmp_path / "teacher")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A text file of 60 sentences of 4 to 11 words."""
    words = ("the", "cat", "sat", "on", "mat", "a", "dog", "barked", "hello", "world")
    lines = [" ".join(words[(i * (j + 1) + j) % 10] for j in range(4 + i % 8)) + f" {i}" for i in range(60)]
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """An STS file of 12 pairs."""
    path = tmp_path / "dev.tsv"
    rows = [f"the cat {i}\ta dog sat on {i * 5 % 7}\t{i % 6}" for i in range(12)]
    path.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    return path
