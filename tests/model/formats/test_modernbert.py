"""Claims about ModernBERT's configuration."""

from __future__ import annotations

from typing import Any

import pytest

from model.formats.modernbert import MODERNBERT

RAW: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "hidden_activation": "gelu",
    "max_position_embeddings": 64,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
}


def test_layers() -> None:
    """Every third layer is global; the others see half of local_attention on each side, with a base of their own."""
    layers = MODERNBERT.encoder_config(RAW).layers
    assert [layer.window for layer in layers] == [None, 64, 64, None]
    assert [layer.rotary.base for layer in layers if layer.rotary] == [160_000.0, 10_000.0, 10_000.0, 160_000.0]
    assert [layer.attention_norm for layer in layers] == [False, True, True, True]


def test_null_local_base() -> None:
    """An older file's null for the local base means the global one."""
    layers = MODERNBERT.encoder_config({**RAW, "local_rope_theta": None}).layers
    assert {layer.rotary.base for layer in layers if layer.rotary} == {160_000.0}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hidden_activation", "relu", "hidden_activation 'relu'"),
        ("layer_types", ["full_attention", "chunked_attention"] * 2, "layer_types 'chunked_attention'"),
        ("rope_scaling", {"rope_type": "yarn", "factor": 2.0}, "rope_type 'yarn'"),
        ("rope_scaling", {"type": "dynamic", "factor": 2.0}, "rope_type 'dynamic'"),
        ("rope_parameters", {"full_attention": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
    ],
)
def test_refusals(field: str, value: object, message: str) -> None:
    """A value that cannot be served is refused with its field and itself."""
    with pytest.raises(ValueError, match=message):
        MODERNBERT.encoder_config({**RAW, field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("classifier_activation", "gelu_new"), ("classifier_pooling", "max"), ("classifier_pooling", 1)],
)
def test_heads_that_are_not_built_here(field: str, value: object) -> None:
    """Are refused with the field and the value."""
    assert MODERNBERT.classifier is not None
    with pytest.raises(ValueError, match=f"{field} {value!r}"):
        MODERNBERT.classifier({**RAW, field: value})
