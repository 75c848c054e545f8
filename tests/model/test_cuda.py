"""The reference's claims again, on a CUDA device: float32 within 5e-4, half precision by cosine."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.embedder import Embedder
from tests.model.answers import (
    MINILM,
    TOLERANCES,
    MiniLMAnswer,
    check_minilm,
    check_seed,
    seed_answers,
    shuffled,
)
from tests.model.test_reference import convert_seed

pytestmark = pytest.mark.cuda
dtypes = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])


@dtypes
@pytest.mark.parametrize("attention", ["fused", "explicit"])
def test_minilm(answers: list[MiniLMAnswer], dtype: str, attention: str) -> None:
    """all-MiniLM-L6-v2 gives the reference's embeddings and maps, alone and in shuffled batches."""
    embedder = Embedder.load(MINILM, dtype=dtype, device="cuda", special_tokens="parse", attention=attention)
    for size in (1, 7, 30):
        check_minilm(embedder, answers, shuffled(30, size, size), TOLERANCES["cuda", dtype], "some")


@dtypes
@pytest.mark.parametrize("document", ["seed-0", "seed-2"])
def test_seeds(document: str, dtype: str, tmp_path: Path) -> None:
    """A converted document's encoder gives its own token states and maps, alone and mixed."""
    embedder = Embedder.load(convert_seed(document, tmp_path), dtype=dtype, device="cuda")
    for size in (1, 3):
        check_seed(embedder, seed_answers(document), shuffled(3, size, size), TOLERANCES["cuda", dtype])
