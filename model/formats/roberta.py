"""RoBERTa, XLM-RoBERTa and CamemBERT: multilingual-e5, paraphrase-multilingual, bge-m3 (its dense part).

BERT with another tokenizer and shifted positions: the first token takes row ``pad_token_id + 1`` of the position
table, so 514 rows serve 512 tokens.

References: Liu et al. 2019; Conneau et al. 2020; Martin et al. 2020; tensor names as in the Hub's checkpoints.
"""

from __future__ import annotations

from dataclasses import replace

from model.config import EncoderConfig
from model.formats import Format, RawConfig, is_tied
from model.formats.bert import HEAD_KEYS, sources
from model.formats.bert import encoder_config as bert_config
from model.heads import ClassifierConfig, MaskedLMConfig


def encoder_config(raw: RawConfig) -> EncoderConfig:
    """Read ``config.json`` of a RobertaModel, an XLMRobertaModel or a CamembertModel."""
    padding = raw.get("pad_token_id", 1)
    if not isinstance(padding, int):
        raise ValueError(f"pad_token_id {padding!r} is not supported: positions are counted from it")
    config = bert_config(raw)
    offset = padding + 1
    return replace(config, max_positions=raw["max_position_embeddings"] - offset, position_offset=offset)


def masked_lm(raw: RawConfig) -> MaskedLMConfig:
    """Read the head of a RobertaForMaskedLM, and of an MPNetForMaskedLM: gelu, whatever the encoder has."""
    return MaskedLMConfig(
        "lm_head.dense",
        "lm_head.layer_norm",
        "lm_head.decoder",
        "gelu",
        bias="lm_head.bias",
        norm_eps=raw.get("layer_norm_eps", 1e-12),
        is_tied=is_tied(raw),
    )


ROBERTA = Format(
    name="RoBERTa",
    model_types=("roberta", "xlm-roberta", "camembert"),
    prefixes=("roberta.",),
    encoder_config=encoder_config,
    sources=sources,
    classifier=lambda _: ClassifierConfig("classifier.dense", "classifier.out_proj", "tanh"),
    masked_lm=masked_lm,
    ignored=(*HEAD_KEYS, r"qa_outputs\..*"),
    ranges={"embeddings.position_ids": 0},
)
