"""What every client is asked for, and what it should come to: the answer of ``POST /encode``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.e2e.conftest import ROOT, Server

MODEL_NAME = "all-MiniLM-L6-v2"
PROMPTED = "prompted"
TEXTS = [
    *(ROOT / "bench/texts/sentences-25.txt").read_text(encoding="utf-8").splitlines()[:28],
    "Ein Café in 東京 🙂",
    " two\nlines\t",
    "a",
]
LONG = "word " * 1_000
"""Longer than the model reads."""
TOLERANCE = 1e-6


def assert_encoded(server: Server, found: ArrayLike, texts: Any, **fields: Any) -> None:
    """Check vectors, in the order of the texts, against the server's own API."""
    expected = np.array(server.encode(texts, **fields)["embeddings"])
    assert np.shape(found) == expected.shape
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)
