"""Claims about NomicBERT's configuration, in its authors' spelling and in transformers'."""

from __future__ import annotations

from typing import Any

import pytest

from model.formats.nomic import NOMIC_BERT

AUTHORS: dict[str, Any] = {
    "activation_function": "swiglu",
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 48,
    "n_head": 4,
    "n_inner": 300,
    "n_layer": 2,
    "n_positions": 8192,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 0.5,
    "rotary_emb_interleaved": True,
    "rotary_scaling_factor": None,
    "type_vocab_size": 2,
    "vocab_size": 100,
}

TRANSFORMERS: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
}


def test_rotary() -> None:
    """Base, share and pairing of the rotation are read from the authors' fields."""
    rotary = NOMIC_BERT.encoder_config(AUTHORS).layers[1].rotary
    assert rotary is not None
    assert (rotary.base, rotary.fraction, rotary.interleaved, rotary.scaling) == (1000.0, 0.5, True, 1.0)


@pytest.mark.parametrize(
    ("activation", "inner", "size"),
    [("swiglu", 300, 512), ("swiglu", 512, 512), ("geglu", None, 256), ("gelu", 300, 300), ("gelu", None, 192)],
)
def test_feed_forward_size(activation: str, inner: int | None, size: int) -> None:
    """A gated size is rounded up to a multiple of 256, a plain one is not; both have the authors' defaults."""
    raw = {**AUTHORS, "activation_function": activation, "n_inner": inner}
    assert NOMIC_BERT.encoder_config(raw).intermediate_size == size


@pytest.mark.parametrize(("factor", "positions"), [(None, 8192), (2.0, 2048)])
def test_lengths_of_the_trained_base(factor: float | None, positions: int) -> None:
    """Texts for which the authors' code would change the base with the batch's length are not read."""
    assert NOMIC_BERT.encoder_config({**AUTHORS, "rotary_scaling_factor": factor}).max_positions == positions


def test_padded_vocabulary() -> None:
    """The table has as many rows as the authors' code pads it to."""
    assert NOMIC_BERT.encoder_config({**AUTHORS, "pad_vocab_size_multiple": 64}).vocab_size == 128


def test_biases() -> None:
    """Biases of either kind are read where the configuration has them."""
    names = {
        (attention, feed_forward): NOMIC_BERT.sources(
            NOMIC_BERT.encoder_config(
                {**AUTHORS, "qkv_proj_bias": attention, "mlp_fc1_bias": feed_forward, "mlp_fc2_bias": feed_forward}
            )
        )
        for attention in (False, True)
        for feed_forward in (False, True)
    }
    for (attention, feed_forward), sources in names.items():
        assert ("layers.0.self_attention.qkv.bias" in sources) is attention
        assert ("layers.0.self_attention.out.bias" in sources) is attention
        assert ("layers.0.feed_forward.expand.bias" in sources) is feed_forward
        assert ("layers.0.feed_forward.contract.bias" in sources) is feed_forward


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prenorm", True),
        ("parallel_block", True),
        ("use_rms_norm", True),
        ("causal", True),
        ("rotary_emb_scale_base", 512),
        ("num_experts", 8),
        ("activation_function", "glu"),
        ("mlp_fc2_bias", True),
        ("rotary_emb_fraction", 0.0),
        ("rotary_emb_fraction", 0.25),
    ],
)
def test_authors_refusals(field: str, value: object) -> None:
    """A value that cannot be served is refused with its field and itself, in the authors' spelling."""
    with pytest.raises(ValueError, match=f"{field} {value!r}"):
        NOMIC_BERT.encoder_config({**AUTHORS, field: value})


@pytest.mark.parametrize(("field", "value"), [("hidden_act", "relu"), ("head_dim", 16)])
def test_refusals(field: str, value: object) -> None:
    """A value that cannot be served is refused with its field and itself, in transformers' spelling."""
    with pytest.raises(ValueError, match=f"{field} {value!r}"):
        NOMIC_BERT.encoder_config({**TRANSFORMERS, field: value})
