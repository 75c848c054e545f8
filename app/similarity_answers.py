"""Writes the answers of ``/similarity``."""

from __future__ import annotations

import numpy as np

from app.answers import dumps
from app.service import Encoded


def write_similarity(encoded: Encoded, *, is_pairs: bool) -> bytes:
    """Write the answer of ``/similarity`` from unit vectors: a matrix, or one number per pair."""
    vectors = encoded.embeddings.astype(np.float64)
    num_tokens = [item.num_tokens for item in encoded.inputs]
    truncated = [item.is_truncated for item in encoded.inputs]
    similarities = np.einsum("ij,ij->i", vectors[0::2], vectors[1::2]) if is_pairs else vectors @ vectors.T
    body = {
        "model": encoded.model.name,
        # float32, as the vectors are; rounding may leave a little more than 1
        "similarities": np.clip(similarities, -1.0, 1.0).astype(np.float32),
        "num_tokens": list(zip(num_tokens[0::2], num_tokens[1::2], strict=True)) if is_pairs else num_tokens,
        "truncated": list(zip(truncated[0::2], truncated[1::2], strict=True)) if is_pairs else truncated,
    }
    return dumps(body)
