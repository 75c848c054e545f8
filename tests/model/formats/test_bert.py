"""Claims about BERT's configuration and tensor names."""

from __future__ import annotations

import re

import pytest

from model.encoder import Encoder
from model.formats.bert import ACTIVATIONS, BERT, activation
from tests.model.folders import CONFIG, bert_tensors


def test_every_field_is_read() -> None:
    """Sizes, norm, activation, positions and dropout are the file's, the rest is BERT's."""
    config = BERT.encoder_config({**CONFIG, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3})
    sizes = (config.vocab_size, config.hidden_size, config.num_hidden_layers, config.num_attention_heads)
    assert sizes == (CONFIG["vocab_size"], 16, 2, 4)
    assert (config.intermediate_size, config.max_positions, config.num_token_types) == (24, 40, 2)
    assert (config.norm, config.norm_placement, config.norm_eps) == ("layer", "post", 1e-12)
    assert (config.activation, config.positions, config.position_offset) == ("gelu", "learned", 0)
    assert (config.embedding_norm, config.final_norm, config.causal) == (True, False, False)
    assert (config.dropout, config.attention_dropout) == (0.2, 0.3)


def test_what_a_file_may_leave_out() -> None:
    """The eps, the token types and the dropout have BERT's values where nothing is said."""
    optional = ("layer_norm_eps", "type_vocab_size", "hidden_dropout_prob", "attention_probs_dropout_prob")
    config = BERT.encoder_config({key: value for key, value in CONFIG.items() if key not in optional})
    assert (config.norm_eps, config.num_token_types) == (1e-12, 2)
    assert (config.dropout, config.attention_dropout) == (0.1, 0.1)


@pytest.mark.parametrize(("theirs", "ours"), ACTIVATIONS.items())
def test_activations_have_other_names(theirs: str, ours: str) -> None:
    """Every spelling of the libraries is one of ours; the tanh kinds are not the exact one."""
    assert BERT.encoder_config({**CONFIG, "hidden_act": theirs}).activation == ours
    assert (ours == "gelu_tanh") == (theirs in {"gelu_new", "gelu_fast", "gelu_pytorch_tanh"})


def test_what_is_not_built_is_refused_by_name() -> None:
    """An unknown activation and relative positions name field and value."""
    with pytest.raises(ValueError, match=r"act 'mish'"):
        activation({"act": "mish"}, "act")
    with pytest.raises(ValueError, match="position_embedding_type 'relative_key'"):
        BERT.encoder_config({**CONFIG, "position_embedding_type": "relative_key"})
    assert BERT.encoder_config({**CONFIG, "position_embedding_type": "absolute"}).positions == "learned"


def test_every_parameter_has_its_tensors() -> None:
    """The names cover the encoder's parameters and a BertModel's tensors, each once."""
    config = BERT.encoder_config(CONFIG)
    sources = BERT.sources(config)
    assert set(sources) == set(Encoder(config).state_dict())
    assert sorted(name for names in sources.values() for name in names) == sorted(bert_tensors())


def test_a_model_without_token_types_has_no_such_tensor() -> None:
    """Where the config says 0 types, none is asked for."""
    assert "embedding.token_types.weight" not in BERT.sources(BERT.encoder_config({**CONFIG, "type_vocab_size": 0}))


@pytest.mark.parametrize("key", ["pooler.dense.weight", "cls.seq_relationship.bias", "classifier.weight"])
def test_heads_are_known(key: str) -> None:
    """Heads beside the encoder are known and not used; nothing of the encoder is."""
    assert any(re.fullmatch(pattern, key) for pattern in BERT.ignored)
    assert not any(re.fullmatch(pattern, key) for key in bert_tensors() for pattern in BERT.ignored)
