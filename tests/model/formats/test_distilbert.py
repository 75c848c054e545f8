"""Claims about DistilBERT's configuration."""

from __future__ import annotations

from typing import Any

import pytest

from model.formats.distilbert import DISTILBERT

RAW: dict[str, Any] = {
    "vocab_size": 100,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "activation": "gelu",
    "max_position_embeddings": 64,
}


def test_no_token_types() -> None:
    """There is no table of token types, neither in the configuration nor among the tensors."""
    config = DISTILBERT.encoder_config(RAW)
    assert config.num_token_types == 0
    assert not any("token_type" in name for name in DISTILBERT.sources(config))


def test_unknown_activation() -> None:
    """An activation that is not built is refused with its field, as this family spells it, and its name."""
    with pytest.raises(ValueError, match="activation 'mish'"):
        DISTILBERT.encoder_config({**RAW, "activation": "mish"})
