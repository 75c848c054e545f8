"""BERT: MiniLM, BGE, E5, GTE-base, text2vec and every other ``BertModel``.

References: Devlin et al. 2019; tensor names as in the ``BertModel`` checkpoints of the Hub.
"""

from __future__ import annotations

from typing import cast

from model.config import Activation, EncoderConfig
from model.formats import Format, RawConfig, Sources, is_tied, weight_and_bias
from model.heads import ClassifierConfig, MaskedLMConfig

ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""What ``hidden_act`` calls an activation -> what we call it."""

HEAD_KEYS = (
    r"pooler\..*",
    r"cls\..*",
    r"classifier\..*",
    r"lm_head\..*",
)
"""Heads that sit beside the encoder in BERT-like checkpoints."""


def activation(raw: RawConfig, field: str = "hidden_act") -> Activation:
    """Read the activation, refusing one that is not built here."""
    name = raw[field]
    if name not in ACTIVATIONS:
        raise ValueError(f"{field} {name!r} is not supported, only {sorted(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def require_absolute_positions(raw: RawConfig) -> None:
    """Refuse BERT's rare relative position kinds, which no published sentence encoder uses."""
    kind = raw.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise ValueError(f"position_embedding_type {kind!r} is not supported, only 'absolute'")


def encoder_config(raw: RawConfig) -> EncoderConfig:
    """Read ``config.json`` of a BertModel."""
    require_absolute_positions(raw)
    return EncoderConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        num_hidden_layers=raw["num_hidden_layers"],
        num_attention_heads=raw["num_attention_heads"],
        intermediate_size=raw["intermediate_size"],
        norm="layer",
        norm_placement="post",
        norm_eps=cast(float, raw.get("layer_norm_eps", 1e-12)),
        activation=activation(raw),
        positions="learned",
        max_positions=raw["max_position_embeddings"],
        num_token_types=raw.get("type_vocab_size", 2),
        embedding_norm=True,
        dropout=raw.get("hidden_dropout_prob", 0.1),
        attention_dropout=raw.get("attention_probs_dropout_prob", 0.1),
    )


def embedding_sources(config: EncoderConfig) -> Sources:
    """``embeddings.*`` as BERT, RoBERTa and ELECTRA spell it."""
    sources: Sources = {
        "embedding.tokens.weight": ("embeddings.word_embeddings.weight",),
        "embedding.positions.weight": ("embeddings.position_embeddings.weight",),
        **weight_and_bias("embedding.norm", "embeddings.LayerNorm"),
    }
    if config.num_token_types:
        sources["embedding.token_types.weight"] = ("embeddings.token_type_embeddings.weight",)
    return sources


def layer_sources(config: EncoderConfig) -> Sources:
    """``encoder.layer.*`` as BERT, RoBERTa and ELECTRA spell it."""
    sources: Sources = {}
    for index in range(config.num_hidden_layers):
        ours, theirs = f"layers.{index}", f"encoder.layer.{index}"
        attention = f"{theirs}.attention"
        sources |= weight_and_bias(
            f"{ours}.self_attention.qkv",
            f"{attention}.self.query",
            f"{attention}.self.key",
            f"{attention}.self.value",
        )
        sources |= weight_and_bias(f"{ours}.self_attention.out", f"{attention}.output.dense")
        sources |= weight_and_bias(f"{ours}.sublayers.0.norm", f"{attention}.output.LayerNorm")
        sources |= weight_and_bias(f"{ours}.feed_forward.expand", f"{theirs}.intermediate.dense")
        sources |= weight_and_bias(f"{ours}.feed_forward.contract", f"{theirs}.output.dense")
        sources |= weight_and_bias(f"{ours}.sublayers.1.norm", f"{theirs}.output.LayerNorm")
    return sources


def sources(config: EncoderConfig) -> Sources:
    """Every parameter of a BertModel."""
    return embedding_sources(config) | layer_sources(config)


def masked_lm(raw: RawConfig, norm: str = "LayerNorm") -> MaskedLMConfig:
    """Read the head of a BertForMaskedLM; ``norm`` is what its norm is called."""
    head = "cls.predictions"
    return MaskedLMConfig(
        f"{head}.transform.dense",
        f"{head}.transform.{norm}",
        f"{head}.decoder",
        activation(raw),
        bias=f"{head}.bias",
        norm_eps=raw.get("layer_norm_eps", 1e-12),
        is_tied=is_tied(raw),
    )


BERT = Format(
    name="BERT",
    model_types=("bert",),
    prefixes=("bert.",),
    encoder_config=encoder_config,
    sources=sources,
    ignored=HEAD_KEYS,
    classifier=lambda _: ClassifierConfig("pooler.dense", "classifier", "tanh"),
    masked_lm=masked_lm,
    ranges={"embeddings.position_ids": 0},
)
