"""ELECTRA, discriminators and generators: BERT with a narrower embedding and a projection up to the hidden size.

References: Clark et al. 2020; tensor names as in the ``ElectraModel`` checkpoints of the Hub.
"""

from __future__ import annotations

from dataclasses import replace

from model.config import EncoderConfig
from model.formats import Format, RawConfig, Sources, is_tied, weight_and_bias
from model.formats.bert import encoder_config as bert_config
from model.formats.bert import sources as bert_sources
from model.heads import ClassifierConfig, MaskedLMConfig


def encoder_config(raw: RawConfig) -> EncoderConfig:
    """Read ``config.json`` of an ElectraModel."""
    config = bert_config(raw)
    embedding_size = raw["embedding_size"]
    # Of equal sizes the checkpoint has no projection.
    return config if embedding_size == config.hidden_size else replace(config, embedding_size=embedding_size)


def sources(config: EncoderConfig) -> Sources:
    """Every parameter of an ElectraModel."""
    found = bert_sources(config)
    if config.embedding_size is not None:
        found |= weight_and_bias("embedding.projection", "embeddings_project")
    return found


def masked_lm(raw: RawConfig) -> MaskedLMConfig:
    """Read the head of an ElectraForMaskedLM, which works in the embedding's width: gelu, whatever the encoder has."""
    return MaskedLMConfig(
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head",
        "gelu",
        bias="generator_lm_head.bias",
        norm_eps=raw.get("layer_norm_eps", 1e-12),
        is_tied=is_tied(raw),
    )


ELECTRA = Format(
    name="ELECTRA",
    model_types=("electra",),
    prefixes=("electra.",),
    encoder_config=encoder_config,
    sources=sources,
    classifier=lambda _: ClassifierConfig("classifier.dense", "classifier.out_proj", "gelu"),
    masked_lm=masked_lm,
    ignored=(
        r"discriminator_predictions\..*",
        r"generator_predictions\..*",
        r"generator_lm_head\..*",
        r"classifier\..*",
        r"sequence_summary\..*",
        r"qa_outputs\..*",
    ),
    ranges={"embeddings.position_ids": 0},
)
