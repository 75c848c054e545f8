"""Claims about ELECTRA's configuration."""

from __future__ import annotations

from typing import Any

import pytest

from model.formats.electra import ELECTRA

RAW: dict[str, Any] = {
    "vocab_size": 100,
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "hidden_act": "gelu",
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize(("embedding_size", "has_projection"), [(16, True), (32, False)])
def test_projection(embedding_size: int, has_projection: bool) -> None:
    """A projection is read where the embedding is narrower than the rest, and only there."""
    config = ELECTRA.encoder_config({**RAW, "embedding_size": embedding_size})
    assert ("embedding.projection.weight" in ELECTRA.sources(config)) is has_projection


def test_missing_embedding_size() -> None:
    """The width of the embedding is never guessed."""
    with pytest.raises(KeyError, match="embedding_size"):
        ELECTRA.encoder_config({key: value for key, value in RAW.items() if key != "embedding_size"})
