"""Claims about the RoBERTa family's configuration."""

from __future__ import annotations

from typing import Any

import pytest

from model.formats.roberta import ROBERTA

RAW: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "hidden_act": "gelu",
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}


def test_rows_and_tokens() -> None:
    """514 rows serve 512 tokens, the first of which takes row 2."""
    config = ROBERTA.encoder_config(RAW)
    assert (config.max_positions, config.position_offset) == (512, 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [("pad_token_id", None), ("hidden_act", "mish"), ("position_embedding_type", "relative_key")],
)
def test_refusals(field: str, value: object) -> None:
    """A value that cannot be served is refused with its field and itself."""
    with pytest.raises(ValueError, match=f"{field} {value!r}"):
        ROBERTA.encoder_config({**RAW, field: value})
