"""Writes what OpenAI's clients read: embeddings and the list of models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from app.answers import dumps
from app.numbers import to_base64
from app.service import Encoded

OWNER = "eyeline"


def write_embeddings(encoded: Encoded, encoding_format: Literal["float", "base64"] | None) -> bytes:
    """Write the answer of ``/v1/embeddings``; token counts are of what was processed, special tokens included."""
    vectors = np.ascontiguousarray(encoded.embeddings)
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": to_base64(vector, "float32") if encoding_format == "base64" else vector,
        }
        for index, vector in enumerate(vectors)
    ]
    num_tokens = sum(item.num_tokens for item in encoded.inputs)
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return dumps({"object": "list", "data": data, "model": encoded.model.name, "usage": usage})


def describe_models(names: Iterable[str], loaded_at: float) -> list[dict[str, Any]]:
    """Describe models as OpenAI lists them; ``loaded_at`` in seconds since 1970."""
    return [{"id": name, "object": "model", "created": int(loaded_at), "owned_by": OWNER} for name in names]
