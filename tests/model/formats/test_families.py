"""Claims about the other families' configurations; tests/oracle compares their numbers with transformers."""

from __future__ import annotations

from typing import Any

import pytest

from model.config import LayerConfig, RotaryConfig
from model.encoder import Encoder
from model.formats import Format
from model.formats.distilbert import DISTILBERT
from model.formats.electra import ELECTRA
from model.formats.modernbert import MODERNBERT
from model.formats.mpnet import MPNET
from model.formats.nomic import NOMIC_BERT
from model.formats.roberta import ROBERTA
from tests.model.folders import CONFIG

Raw = dict[str, Any]

DISTIL: Raw = {
    "vocab_size": 50,
    "dim": 16,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 24,
    "activation": "gelu",
    "max_position_embeddings": 40,
}
MODERN: Raw = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "local_attention": 8,
}
NOMIC: Raw = {
    "vocab_size": 50,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": 256,
    "layer_norm_epsilon": 1e-12,
    "activation_function": "swiglu",
    "n_positions": 40,
    "rotary_emb_fraction": 1.0,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
}
FAMILIES: dict[str, tuple[Format, Raw]] = {
    "roberta": (ROBERTA, {**CONFIG, "type_vocab_size": 1, "pad_token_id": 1}),
    "distilbert": (DISTILBERT, DISTIL),
    "mpnet": (MPNET, CONFIG),
    "electra": (ELECTRA, {**CONFIG, "embedding_size": 8}),
    "electra of one width": (ELECTRA, {**CONFIG, "embedding_size": 16}),
    "modernbert": (MODERNBERT, MODERN),
    "modernbert with biases": (
        MODERNBERT,
        {**MODERN, "attention_bias": True, "mlp_bias": True, "norm_bias": True},
    ),
    "nomic": (NOMIC_BERT, NOMIC),
    "nomic with biases": (
        NOMIC_BERT,
        {**NOMIC, "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "activation_function": "gelu"},
    ),
    "nomic of transformers": (NOMIC_BERT, CONFIG),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_parameter_has_its_tensors(name: str) -> None:
    """The names cover the encoder that the configuration describes; no tensor is used twice."""
    family, raw = FAMILIES[name]
    config = family.encoder_config(raw)
    sources = family.sources(config)
    assert set(sources) == set(Encoder(config).state_dict())
    names = [tensor for tensors in sources.values() for tensor in tensors]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("roberta", "max_position_embeddings"),
        ("distilbert", "dim"),
        ("distilbert", "hidden_dim"),
        ("mpnet", "hidden_act"),
        ("electra", "embedding_size"),
        ("modernbert", "intermediate_size"),
        ("nomic", "n_layer"),
        ("nomic", "activation_function"),
    ],
)
def test_a_missing_field_is_named(name: str, field: str) -> None:
    """What a family needs is never guessed."""
    family, raw = FAMILIES[name]
    with pytest.raises(KeyError, match=field):
        family.encoder_config({key: value for key, value in raw.items() if key != field})


def test_robertas_positions_begin_behind_the_padding_id() -> None:
    """514 rows serve 512 tokens, whose first takes row 2."""
    config = ROBERTA.encoder_config({**CONFIG, "max_position_embeddings": 514, "pad_token_id": 1})
    assert (config.max_positions, config.position_offset) == (512, 2)
    shifted = ROBERTA.encoder_config({**CONFIG, "max_position_embeddings": 514, "pad_token_id": 0})
    assert (shifted.max_positions, shifted.position_offset) == (513, 1)
    with pytest.raises(ValueError, match="pad_token_id None"):
        ROBERTA.encoder_config({**CONFIG, "pad_token_id": None})


def test_mpnet_has_buckets_and_shifted_positions() -> None:
    """32 buckets up to 128, a learned table from row 2 on; another number of buckets is refused."""
    config = MPNET.encoder_config({**CONFIG, "max_position_embeddings": 514, "pad_token_id": 7})
    assert (config.positions, config.max_positions, config.position_offset) == ("relative", 512, 2)
    assert (config.relative_num_buckets, config.relative_max_distance) == (32, 128)
    assert config.num_token_types == 0
    with pytest.raises(ValueError, match="relative_attention_num_buckets 64"):
        MPNET.encoder_config({**CONFIG, "relative_attention_num_buckets": 64})


def test_electra_projects_a_narrower_embedding() -> None:
    """Only where the widths differ."""
    assert ELECTRA.encoder_config(FAMILIES["electra"][1]).embedding_size == 8
    assert ELECTRA.encoder_config(FAMILIES["electra of one width"][1]).embedding_size is None


def test_distilbert_has_names_of_its_own() -> None:
    """dim, n_layers, n_heads, hidden_dim and activation; no token types."""
    config = DISTILBERT.encoder_config({**DISTIL, "activation": "relu"})
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (16, 2, 4)
    assert (config.intermediate_size, config.activation, config.num_token_types) == (24, "relu", 0)


def test_modernbert_alternates_global_and_local_layers() -> None:
    """Every third layer sees all, the others half the window on each side; each kind has its rope; no first norm."""
    config = MODERNBERT.encoder_config({**MODERN, "global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0})
    everything, local = RotaryConfig(base=160_000.0), RotaryConfig(base=10_000.0)
    assert config.layers == (
        LayerConfig(None, everything, attention_norm=False),
        LayerConfig(4, local),
        LayerConfig(4, local),
        LayerConfig(None, everything),
    )
    assert (config.norm_placement, config.final_norm, config.activation) == ("pre", True, "geglu")


def test_modernberts_layers_may_be_listed() -> None:
    """``layer_types`` wins; a kind nobody knows is refused."""
    kinds = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    config = MODERNBERT.encoder_config({**MODERN, "layer_types": kinds})
    assert [layer.window for layer in config.layers] == [4, None, None, 4]
    with pytest.raises(ValueError, match="layer_types 'chunked'"):
        MODERNBERT.encoder_config({**MODERN, "layer_types": ["chunked"] * 4})


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("modernbert", {"hidden_activation": "relu"}, "hidden_activation 'relu'"),
        ("modernbert", {"rope_scaling": {"rope_type": "yarn"}}, "rope_type 'yarn'"),
        ("nomic", {"activation_function": "relu"}, "activation_function 'relu'"),
        ("nomic", {"prenorm": True}, "prenorm True"),
        ("nomic", {"use_rms_norm": True}, "use_rms_norm True"),
        ("nomic", {"num_experts": 8}, "num_experts 8"),
        ("nomic", {"mlp_fc2_bias": True}, "mlp_fc2_bias True"),
        ("nomic", {"rotary_emb_fraction": 0.0}, "rotary_emb_fraction 0.0"),
        ("nomic", {"rotary_emb_fraction": 0.75}, "rotary_emb_fraction 0.75"),
        ("nomic of transformers", {"head_dim": 8}, "head_dim 8"),
        ("distilbert", {"activation": "mish"}, "activation 'mish'"),
    ],
)
def test_what_is_not_built_is_refused_by_name(name: str, changes: Raw, field: str) -> None:
    """Field and value, and never a model that computes something else."""
    family, raw = FAMILIES[name]
    with pytest.raises(ValueError, match=field):
        family.encoder_config({**raw, **changes})


def test_nomics_sizes_are_rounded_as_its_authors_do() -> None:
    """The vocabulary to its multiple, a gated feed-forward to 256; without a size, 8/3 or 4 times the width."""
    config = NOMIC_BERT.encoder_config({**NOMIC, "pad_vocab_size_multiple": 64, "n_inner": None})
    assert (config.vocab_size, config.intermediate_size) == (64, 256)
    plain = {"activation_function": "gelu", "n_inner": None}
    assert NOMIC_BERT.encoder_config({**NOMIC, **plain}).intermediate_size == 64


def test_nomics_length_stays_in_what_it_was_trained_on() -> None:
    """Where the rope's base would change with the longest text of a batch, such lengths are not served."""
    assert NOMIC_BERT.encoder_config({**NOMIC, "n_positions": 8192}).max_positions == 8192
    scaled = {"n_positions": 8192, "rotary_scaling_factor": 2, "max_trained_positions": 2048}
    assert NOMIC_BERT.encoder_config({**NOMIC, **scaled}).max_positions == 2048
