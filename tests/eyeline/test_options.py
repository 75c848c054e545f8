"""Keyword arguments, and how they stand in a request."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from app.schemas.chunks import ChunkOptions as ServedChunkOptions
from app.schemas.encode import AttentionOptions as ServedAttentionOptions
from app.schemas.encode import EncodeRequest
from app.schemas.similarity import SimilarityRequest
from eyeline.options import (
    AttentionOptions,
    ChunkOptions,
    EncodeOptions,
    TextOptions,
    VectorOptions,
    attention_fields,
    chunk_fields,
    text_fields,
)


def test_every_option_is_a_field_of_the_server() -> None:
    """And every field is an option, but for those that the client sees to itself."""
    assert EncodeOptions.__annotations__.keys() == EncodeRequest.model_fields.keys() - {
        "texts", "attention", "encoding_format", "chunks",
    }  # fmt: skip
    chunks = ChunkOptions.__annotations__.keys() - EncodeOptions.__annotations__.keys()
    assert chunks == ServedChunkOptions.model_fields.keys() - {"unit", "size"}
    served = ServedAttentionOptions.model_fields.keys() - {"items", "encoding", "digits"}
    assert AttentionOptions.__annotations__.keys() - EncodeOptions.__annotations__.keys() == served
    own = {"texts", "pairs", "explain", "unit"}
    assert VectorOptions.__annotations__.keys() == SimilarityRequest.model_fields.keys() - own


def test_what_is_not_set_is_not_sent() -> None:
    """False is set, None is not."""
    assert text_fields({"model": None, "truncate": False}, TextOptions) == {"truncate": False}


def test_a_misspelt_option_is_an_error_before_anything_is_sent() -> None:
    """As any keyword argument."""
    with pytest.raises(TypeError, match="'normalise'; there are dimensions, model, normalize"):
        text_fields({"normalise": True}, EncodeOptions)
    with pytest.raises(TypeError, match="'layer'"):
        attention_fields(cast(Any, {"layer": [1]}))
    with pytest.raises(TypeError, match="'dimensions'"):
        text_fields({"dimensions": 3}, TextOptions)


def test_weights_are_asked_for_whole() -> None:
    """float32 unless the caller says float16."""
    assert attention_fields({}) == ({}, {"dtype": "float32"})
    assert attention_fields({"dtype": "float16"}) == ({}, {"dtype": "float16"})


def test_options_of_the_request_and_of_attention_part() -> None:
    """Numbers may be a range or numpy's; rollout may be yes, no, or its own options."""
    of_request, attention = attention_fields(
        {"dimensions": 4, "truncate": False, "layers": range(2), "heads": cast(Any, np.arange(2)), "rollout": True}
    )
    assert of_request == {"dimensions": 4, "truncate": False}
    assert attention == {"layers": [0, 1], "heads": [0, 1], "rollout": {}, "dtype": "float32"}
    assert type(attention["heads"][0]) is int
    assert attention_fields({"rollout": {"residual": 0.3}})[1]["rollout"] == {"residual": 0.3}
    assert "rollout" not in attention_fields({"rollout": False})[1]
    assert attention_fields({"layers": "all"})[1]["layers"] == "all"


def test_chunks_have_options_of_their_own() -> None:
    """The others are the request's."""
    fields, chunks = chunk_fields({"overlap": 1, "mode": "late", "dimensions": 3, "output_dtype": "int8"})
    assert fields == {"dimensions": 3, "output_dtype": "int8"}
    assert chunks == {"overlap": 1, "mode": "late"}
    with pytest.raises(TypeError, match="'lap'"):
        chunk_fields(cast(Any, {"lap": 1}))
