"""Writes what OpenAI's clients read: embeddings and the list of models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from app.answers import dumps, json_embeddings
from app.service import Encoded
from model.output_dtype import RANGED, convert, num_clipped
from model.output_types import OutputDtype

OWNER = "eyeline"


def write_embeddings(
    encoded: Encoded, encoding_format: Literal["float", "base64"] | None, output_dtype: OutputDtype
) -> bytes:
    """Write the answer of ``/v1/embeddings``; token counts are of what was processed, special tokens included."""
    vectors = json_embeddings(convert(encoded.embeddings, output_dtype), encoding_format)
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    num_tokens = sum(item.num_tokens for item in encoded.inputs)
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return dumps({"object": "list", "data": data, "model": encoded.model.name, "usage": usage})


def clipping_headers(encoded: Encoded, output_dtype: OutputDtype) -> dict[str, str]:
    """Say how many numbers int8 and uint8 had no room for: ``X-Clipped-Count``, with those types alone."""
    return {"X-Clipped-Count": str(num_clipped(encoded.embeddings).sum())} if output_dtype in RANGED else {}


def describe_models(names: Iterable[str], loaded_at: float) -> list[dict[str, Any]]:
    """Describe models as OpenAI lists them; ``loaded_at`` in seconds since 1970."""
    return [{"id": name, "object": "model", "created": int(loaded_at), "owned_by": OWNER} for name in names]
