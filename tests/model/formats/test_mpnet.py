"""Claims about MPNet's configuration."""

from __future__ import annotations

from typing import Any

import pytest

from model.formats.mpnet import MPNET

RAW: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "hidden_act": "gelu",
    "max_position_embeddings": 514,
    "relative_attention_num_buckets": 32,
    "pad_token_id": 1,
}


def test_positions_do_not_follow_the_padding_id() -> None:
    """Positions start at row 2 whatever pad_token_id says, as the model itself has it."""
    config = MPNET.encoder_config({**RAW, "pad_token_id": 7})
    assert (config.max_positions, config.position_offset) == (512, 2)


@pytest.mark.parametrize(("field", "value"), [("relative_attention_num_buckets", 64), ("hidden_act", "mish")])
def test_refusals(field: str, value: object) -> None:
    """A value that cannot be served is refused with its field and itself."""
    with pytest.raises(ValueError, match=f"{field} {value!r}"):
        MPNET.encoder_config({**RAW, field: value})
