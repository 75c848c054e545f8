"""ModernBERT: gte-modernbert-base, modernbert-embed and others.

Pre-norm, rotary positions, a gated feed-forward without biases. Most layers look at a local window only and have a
rope base of their own. The first layer has no attention norm, since the embedding norm stands right before it.

References: Warner et al. 2024; tensor names as in the ``ModernBertModel`` checkpoints of the Hub.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model.config import Activation, EncoderConfig, LayerConfig, RotaryConfig
from model.formats import Format, RawConfig, Sources, is_tied, weight_and_bias
from model.formats.bert import activation as plain_activation
from model.heads import HEAD_ACTIVATIONS, ClassifierConfig, MaskedLMConfig

GATED: dict[str, Activation] = {"gelu": "geglu", "silu": "swiglu", "swish": "swiglu"}
"""What the configuration calls the activated half -> what we call the whole."""

GLOBAL, LOCAL = "full_attention", "sliding_attention"
"""The values of ``layer_types``."""


def gated_activation(raw: RawConfig, field: str, default: str) -> Activation:
    """Read the activation of a gated feed-forward, refusing one that is not built here."""
    name = raw.get(field, default)
    if name not in GATED:
        raise ValueError(f"{field} {name!r} is not supported, only {sorted(GATED)}")
    return GATED[name]


def rotary_config(parameters: Mapping[str, Any], base: float) -> RotaryConfig:
    """Read one entry of ``rope_parameters``.

    Parameters
    ----------
    parameters : mapping
        ``rope_theta``, ``rope_type`` (older files: ``type``) and ``factor``; all may be missing.
    base : float
        Taken where ``rope_theta`` is missing.

    Raises
    ------
    ValueError
        For a kind of scaling that depends on the length of the text, and for a rotated share of each head.
    """
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ("default", "linear"):
        raise ValueError(f"rope_type {kind!r} is not supported, only ['default', 'linear']")
    share = parameters.get("partial_rotary_factor", 1.0)
    if share != 1.0:
        raise ValueError(f"partial_rotary_factor {share!r} is not supported, only 1.0")
    scaling = parameters["factor"] if kind == "linear" else 1.0
    return RotaryConfig(base=float(parameters.get("rope_theta") or base), scaling=float(scaling))


def layer_kinds(raw: RawConfig) -> list[str]:
    """Read what each layer sees: ``layer_types``, or in older files every how many layers one is global."""
    every = raw.get("global_attn_every_n_layers", 3)
    kinds = raw.get("layer_types") or [LOCAL if index % every else GLOBAL for index in range(raw["num_hidden_layers"])]
    for kind in kinds:
        if kind not in (GLOBAL, LOCAL):
            raise ValueError(f"layer_types {kind!r} is not supported, only {[GLOBAL, LOCAL]}")
    return list(kinds)


def layer_configs(raw: RawConfig) -> tuple[LayerConfig, ...]:
    """Read window and rope of every layer, in the spelling of today's and of older files."""
    global_base = raw.get("global_rope_theta") or 160_000.0
    # An older file's null means: as in the global layers.
    local_base = raw.get("local_rope_theta", 10_000.0) or global_base
    parameters, scaling = raw.get("rope_parameters") or {}, raw.get("rope_scaling") or {}
    rotary = {
        kind: rotary_config({**(parameters.get(kind) or {}), **scaling}, base)
        for kind, base in ((GLOBAL, global_base), (LOCAL, local_base))
    }
    # local_attention is the whole window, half of it on each side.
    window = {GLOBAL: None, LOCAL: raw.get("local_attention", 128) // 2}
    return tuple(
        LayerConfig(window=window[kind], rotary=rotary[kind], attention_norm=index > 0)
        for index, kind in enumerate(layer_kinds(raw))
    )


def encoder_config(raw: RawConfig) -> EncoderConfig:
    """Read ``config.json`` of a ModernBertModel."""
    attention_bias = raw.get("attention_bias", False)
    return EncoderConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        num_hidden_layers=raw["num_hidden_layers"],
        num_attention_heads=raw["num_attention_heads"],
        intermediate_size=raw["intermediate_size"],
        norm="layer",
        norm_placement="pre",
        norm_eps=raw.get("norm_eps", 1e-5),
        activation=gated_activation(raw, "hidden_activation", "gelu"),
        positions="rotary",
        max_positions=raw["max_position_embeddings"],
        num_token_types=0,
        final_norm=True,
        embedding_norm=True,
        norm_bias=raw.get("norm_bias", False),
        attention_bias=attention_bias,
        attention_out_bias=attention_bias,
        feed_forward_bias=raw.get("mlp_bias", False),
        layers=layer_configs(raw),
        dropout=raw.get("mlp_dropout", 0.0),
        attention_dropout=raw.get("attention_dropout", 0.0),
    )


def sources(config: EncoderConfig) -> Sources:
    """Every parameter of a ModernBertModel."""
    norm = {"bias": config.norm_bias}
    found: Sources = {"embedding.tokens.weight": ("embeddings.tok_embeddings.weight",)}
    found |= weight_and_bias("embedding.norm", "embeddings.norm", **norm)
    for index, layer in enumerate(config.layers):
        name = f"layers.{index}"
        if layer.attention_norm:
            found |= weight_and_bias(f"{name}.sublayers.0.norm", f"{name}.attn_norm", **norm)
        found |= weight_and_bias(f"{name}.self_attention.qkv", f"{name}.attn.Wqkv", bias=config.attention_bias)
        found |= weight_and_bias(f"{name}.self_attention.out", f"{name}.attn.Wo", bias=config.attention_out_bias)
        found |= weight_and_bias(f"{name}.sublayers.1.norm", f"{name}.mlp_norm", **norm)
        found |= weight_and_bias(f"{name}.feed_forward.expand", f"{name}.mlp.Wi", bias=config.feed_forward_bias)
        found |= weight_and_bias(f"{name}.feed_forward.contract", f"{name}.mlp.Wo", bias=config.feed_forward_bias)
    return found | weight_and_bias("norm", "final_norm", **norm)


def classifier(raw: RawConfig) -> ClassifierConfig:
    """Read the head of a ModernBertForSequenceClassification."""
    activation = next((known for known in HEAD_ACTIVATIONS if known == raw.get("classifier_activation", "gelu")), None)
    if activation is None:
        raise ValueError(
            f"classifier_activation {raw['classifier_activation']!r} is not supported, only {sorted(HEAD_ACTIVATIONS)}"
        )
    pooling = raw.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise ValueError(f"classifier_pooling {pooling!r} is not supported, only ['cls', 'mean']")
    return ClassifierConfig(
        "head.dense",
        "classifier",
        activation,
        dense_bias=raw.get("classifier_bias", False),
        norm="head.norm",
        norm_eps=raw.get("norm_eps", 1e-5),
        norm_bias=raw.get("norm_bias", False),
        pooling=pooling,
    )


def masked_lm(raw: RawConfig) -> MaskedLMConfig:
    """Read the head of a ModernBertForMaskedLM: its activation is called after the classifier's."""
    return MaskedLMConfig(
        "head.dense",
        "head.norm",
        "decoder",
        plain_activation({"classifier_activation": "gelu", **raw}, "classifier_activation"),
        bias="decoder.bias" if raw.get("decoder_bias", True) else None,
        norm_eps=raw.get("norm_eps", 1e-5),
        dense_bias=raw.get("classifier_bias", False),
        norm_bias=raw.get("norm_bias", False),
        is_tied=is_tied(raw),
    )


MODERNBERT = Format(
    name="ModernBERT",
    model_types=("modernbert",),
    prefixes=("model.",),
    encoder_config=encoder_config,
    sources=sources,
    classifier=classifier,
    masked_lm=masked_lm,
    ignored=(r"head\..*", r"decoder\..*", r"classifier\..*"),
)
