"""DistilBERT: BERT with half the layers and no token types.

References: Sanh et al. 2019; tensor names as in the ``DistilBertModel`` checkpoints of the Hub.
"""

from __future__ import annotations

from model.config import EncoderConfig
from model.formats import Format, RawConfig, Sources, is_tied, weight_and_bias
from model.formats.bert import activation, embedding_sources
from model.heads import ClassifierConfig, MaskedLMConfig


def encoder_config(raw: RawConfig) -> EncoderConfig:
    """Read ``config.json`` of a DistilBertModel."""
    return EncoderConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["dim"],
        num_hidden_layers=raw["n_layers"],
        num_attention_heads=raw["n_heads"],
        intermediate_size=raw["hidden_dim"],
        norm="layer",
        norm_placement="post",
        norm_eps=1e-12,  # not in its config.json: the model fixes it
        activation=activation(raw, "activation"),
        # sinusoidal_pos_embds only says how the table was filled before training: the file holds it either way.
        positions="learned",
        max_positions=raw["max_position_embeddings"],
        num_token_types=0,
        embedding_norm=True,
        dropout=raw.get("dropout", 0.1),
        attention_dropout=raw.get("attention_dropout", 0.1),
    )


def sources(config: EncoderConfig) -> Sources:
    """Every parameter of a DistilBertModel."""
    found = embedding_sources(config)
    for index in range(config.num_hidden_layers):
        ours, theirs = f"layers.{index}", f"transformer.layer.{index}"
        attention = f"{theirs}.attention"
        found |= weight_and_bias(
            f"{ours}.self_attention.qkv", f"{attention}.q_lin", f"{attention}.k_lin", f"{attention}.v_lin"
        )
        found |= weight_and_bias(f"{ours}.self_attention.out", f"{attention}.out_lin")
        found |= weight_and_bias(f"{ours}.sublayers.0.norm", f"{theirs}.sa_layer_norm")
        found |= weight_and_bias(f"{ours}.feed_forward.expand", f"{theirs}.ffn.lin1")
        found |= weight_and_bias(f"{ours}.feed_forward.contract", f"{theirs}.ffn.lin2")
        found |= weight_and_bias(f"{ours}.sublayers.1.norm", f"{theirs}.output_layer_norm")
    return found


def masked_lm(raw: RawConfig) -> MaskedLMConfig:
    """Read the head of a DistilBertForMaskedLM."""
    return MaskedLMConfig(
        "vocab_transform",
        "vocab_layer_norm",
        "vocab_projector",
        activation(raw, "activation"),
        bias="vocab_projector.bias",
        norm_eps=1e-12,  # fixed, as in the encoder
        is_tied=is_tied(raw),
    )


DISTILBERT = Format(
    name="DistilBERT",
    model_types=("distilbert",),
    prefixes=("distilbert.",),
    encoder_config=encoder_config,
    sources=sources,
    classifier=lambda _: ClassifierConfig("pre_classifier", "classifier", "relu"),
    masked_lm=masked_lm,
    ignored=(
        r"vocab_transform\..*",
        r"vocab_layer_norm\..*",
        r"vocab_projector\..*",
        r"pre_classifier\..*",
        r"classifier\..*",
        r"qa_outputs\..*",
    ),
    ranges={"embeddings.position_ids": 0},
)
