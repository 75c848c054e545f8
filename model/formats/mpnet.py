"""MPNet: all-mpnet-base-v2 and its relatives.

BERT without token types, with RoBERTa's shifted positions, and with one table of relative position buckets whose
entries are added to the attention scores of every layer.

References: Song et al. 2020; tensor names as in the ``MPNetModel`` checkpoints of the Hub.
"""

from __future__ import annotations

from typing import cast

from model.config import EncoderConfig
from model.formats import Format, RawConfig, Sources, weight_and_bias
from model.formats.bert import HEAD_KEYS, activation, embedding_sources
from model.formats.roberta import masked_lm
from model.heads import ClassifierConfig

PADDING_ID = 1
"""The padding id that positions are counted from. The model fixes it, whatever ``pad_token_id`` says."""

NUM_BUCKETS = 32
"""Buckets the model computes, whatever ``relative_attention_num_buckets`` says, so no other number is accepted."""

MAX_DISTANCE = 128


def encoder_config(raw: RawConfig) -> EncoderConfig:
    """Read ``config.json`` of an MPNetModel."""
    buckets = raw.get("relative_attention_num_buckets", NUM_BUCKETS)
    if buckets != NUM_BUCKETS:
        raise ValueError(f"relative_attention_num_buckets {buckets!r} is not supported, only {NUM_BUCKETS}")
    offset = PADDING_ID + 1
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
        positions="relative",
        max_positions=raw["max_position_embeddings"] - offset,
        num_token_types=0,
        position_offset=offset,
        embedding_norm=True,
        relative_num_buckets=NUM_BUCKETS,
        relative_max_distance=MAX_DISTANCE,
        dropout=raw.get("hidden_dropout_prob", 0.1),
        attention_dropout=raw.get("attention_probs_dropout_prob", 0.1),
    )


def sources(config: EncoderConfig) -> Sources:
    """Every parameter of an MPNetModel."""
    found = embedding_sources(config)
    found["relative_bias.weight"] = ("encoder.relative_attention_bias.weight",)
    for index in range(config.num_hidden_layers):
        ours, theirs = f"layers.{index}", f"encoder.layer.{index}"
        attention = f"{theirs}.attention.attn"
        found |= weight_and_bias(f"{ours}.self_attention.qkv", f"{attention}.q", f"{attention}.k", f"{attention}.v")
        found |= weight_and_bias(f"{ours}.self_attention.out", f"{attention}.o")
        found |= weight_and_bias(f"{ours}.sublayers.0.norm", f"{theirs}.attention.LayerNorm")
        found |= weight_and_bias(f"{ours}.feed_forward.expand", f"{theirs}.intermediate.dense")
        found |= weight_and_bias(f"{ours}.feed_forward.contract", f"{theirs}.output.dense")
        found |= weight_and_bias(f"{ours}.sublayers.1.norm", f"{theirs}.output.LayerNorm")
    return found


MPNET = Format(
    name="MPNet",
    model_types=("mpnet",),
    prefixes=("mpnet.",),
    encoder_config=encoder_config,
    sources=sources,
    classifier=lambda _: ClassifierConfig("classifier.dense", "classifier.out_proj", "tanh"),
    masked_lm=masked_lm,
    ignored=(*HEAD_KEYS, r"qa_outputs\..*"),
    ranges={"embeddings.position_ids": 0},
)
