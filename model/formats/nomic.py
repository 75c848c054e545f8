"""NomicBERT: nomic-embed-text v1 and v1.5.

BERT without biases, with rotary positions and a gated feed-forward. The configuration comes in two spellings: the
model's authors name its fields after GPT-2's, transformers has names of its own. The tensor names in the file are the
authors' in both cases.

References: Nussbaum et al. 2024; tensor names as in the ``NomicBertModel`` checkpoints of the Hub.
"""

from __future__ import annotations

from typing import cast

from model.config import Activation, EncoderConfig, LayerConfig, RotaryConfig
from model.formats import Format, RawConfig, Sources, weight_and_bias
from model.formats.bert import masked_lm as bert_masked_lm
from model.formats.modernbert import gated_activation, rotary_config
from model.heads import ClassifierConfig, MaskedLMConfig

ACTIVATIONS: dict[str, Activation] = {"swiglu": "swiglu", "geglu": "geglu", "gelu": "gelu"}
"""``activation_function`` of the authors' configuration -> what we call it."""

ONLY = {
    "prenorm": False,
    "parallel_block": False,
    "use_rms_norm": False,
    "causal": False,
    "rotary_emb_scale_base": None,
    "scale_attn_by_inverse_layer_idx": False,
}
"""Fields of the authors' configuration that have one supported value, also taken where the field is missing."""


def encoder_config(raw: RawConfig) -> EncoderConfig:
    """Read ``config.json`` of a NomicBertModel, of either kind."""
    return authors_config(raw) if "n_embd" in raw else transformers_config(raw)


def authors_config(raw: RawConfig) -> EncoderConfig:
    """Read the fields that are named after GPT-2's."""
    for field, value in ONLY.items():
        if raw.get(field, value) not in (value, None):
            raise ValueError(f"{field} {raw[field]!r} is not supported, only {value!r}")
    if (raw.get("num_experts") or 0) > 1 or raw.get("moe_every_n_layers"):
        raise ValueError(f"num_experts {raw.get('num_experts')!r} is not supported: no mixture of experts is built")
    activation = raw["activation_function"]
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation_function {activation!r} is not supported, only {sorted(ACTIVATIONS)}")
    bias, other = raw.get("mlp_fc1_bias", True), raw.get("mlp_fc2_bias", True)
    if other != bias:
        raise ValueError(f"mlp_fc2_bias {other!r} is not supported with mlp_fc1_bias {bias!r}, only equal values")
    attention_bias = raw.get("qkv_proj_bias", True)
    return EncoderConfig(
        vocab_size=rounded_up(raw["vocab_size"], raw.get("pad_vocab_size_multiple") or 1),
        hidden_size=raw["n_embd"],
        num_hidden_layers=raw["n_layer"],
        num_attention_heads=raw["n_head"],
        intermediate_size=intermediate_size(raw),
        norm="layer",
        norm_placement="post",
        norm_eps=raw["layer_norm_epsilon"],
        activation=ACTIVATIONS[activation],
        positions="rotary",
        max_positions=max_positions(raw),
        num_token_types=raw.get("type_vocab_size", 0),
        embedding_norm=True,
        attention_bias=attention_bias,
        attention_out_bias=attention_bias,
        feed_forward_bias=bias,
        layers=(LayerConfig(rotary=authors_rotary(raw)),) * raw["n_layer"],
        dropout=raw.get("resid_pdrop", 0.0),
        attention_dropout=raw.get("attn_pdrop", 0.0),
    )


def rounded_up(number: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is not below ``number``."""
    return -(-number // multiple) * multiple


def intermediate_size(raw: RawConfig) -> int:
    """Read the feed-forward size; the authors round a gated one up to a multiple of 256."""
    size = cast("int | None", raw.get("n_inner"))
    if raw["activation_function"] == "gelu":
        return 4 * int(raw["n_embd"]) if size is None else size
    return rounded_up(int(8 * raw["n_embd"] / 3) if size is None else size, 256)


def max_positions(raw: RawConfig) -> int:
    """Read the longest text that keeps the trained rope base.

    With ``rotary_scaling_factor`` the authors change the base with the length of the longest text of a batch, beyond
    ``max_trained_positions``. A text's row must not depend on its neighbours, so such lengths are not served.
    """
    positions = cast(int, raw["n_positions"])
    if raw.get("rotary_scaling_factor") is None:
        return positions
    return min(positions, cast(int, raw.get("max_trained_positions", 2048)))


def authors_rotary(raw: RawConfig) -> RotaryConfig:
    """Read the rotary fields."""
    fraction = raw.get("rotary_emb_fraction", 0.0)
    rotated = raw["n_embd"] // raw["n_head"] * fraction
    if rotated <= 0 or rotated % 2:
        raise ValueError(
            f"rotary_emb_fraction {fraction!r} is not supported: it rotates {rotated} of each head's "
            f"{raw['n_embd'] // raw['n_head']} dimensions, and only an even number above 0 can be"
        )
    return RotaryConfig(
        base=float(raw.get("rotary_emb_base", 10_000.0)),
        fraction=fraction,
        interleaved=raw.get("rotary_emb_interleaved", False),
    )


def transformers_config(raw: RawConfig) -> EncoderConfig:
    """Read the fields that transformers writes."""
    head_size = raw["hidden_size"] // raw["num_attention_heads"]
    if (raw.get("head_dim") or head_size) != head_size:
        raise ValueError(f"head_dim {raw['head_dim']!r} is not supported, only hidden_size / num_attention_heads")
    rotary = rotary_config(raw.get("rope_parameters") or {}, base=1000.0)
    return EncoderConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        num_hidden_layers=raw["num_hidden_layers"],
        num_attention_heads=raw["num_attention_heads"],
        intermediate_size=raw["intermediate_size"],
        norm="layer",
        norm_placement="post",
        norm_eps=raw.get("layer_norm_eps", 1e-12),
        activation=gated_activation(raw, "hidden_act", "silu"),
        positions="rotary",
        max_positions=raw["max_position_embeddings"],
        num_token_types=raw.get("type_vocab_size", 2),
        embedding_norm=True,
        attention_bias=False,
        attention_out_bias=False,
        feed_forward_bias=False,
        layers=(LayerConfig(rotary=rotary),) * raw["num_hidden_layers"],
        dropout=raw.get("hidden_dropout_prob", 0.0),
        attention_dropout=raw.get("attention_probs_dropout_prob", 0.0),
    )


def sources(config: EncoderConfig) -> Sources:
    """Every parameter of a NomicBertModel."""
    found: Sources = {"embedding.tokens.weight": ("embeddings.word_embeddings.weight",)}
    if config.num_token_types:
        found["embedding.token_types.weight"] = ("embeddings.token_type_embeddings.weight",)
    found |= weight_and_bias("embedding.norm", "emb_ln")
    attention_bias, bias = config.attention_bias, config.feed_forward_bias
    for index in range(config.num_hidden_layers):
        ours, theirs = f"layers.{index}", f"encoder.layers.{index}"
        expand = (f"{theirs}.mlp.fc12", f"{theirs}.mlp.fc11") if config.is_gated else (f"{theirs}.mlp.fc1",)
        found |= weight_and_bias(f"{ours}.self_attention.qkv", f"{theirs}.attn.Wqkv", bias=attention_bias)
        found |= weight_and_bias(f"{ours}.self_attention.out", f"{theirs}.attn.out_proj", bias=attention_bias)
        found |= weight_and_bias(f"{ours}.sublayers.0.norm", f"{theirs}.norm1")
        found |= weight_and_bias(f"{ours}.feed_forward.expand", *expand, bias=bias)
        found |= weight_and_bias(f"{ours}.feed_forward.contract", f"{theirs}.mlp.fc2", bias=bias)
        found |= weight_and_bias(f"{ours}.sublayers.1.norm", f"{theirs}.norm2")
    return found


def masked_lm(raw: RawConfig) -> MaskedLMConfig:
    """Read the head of a NomicBertForMaskedLM, as transformers writes it."""
    if "n_embd" in raw:
        raise ValueError("n_embd is of the authors' own kind, whose masked language model's head is not supported")
    return bert_masked_lm({"hidden_act": "silu", **raw}, norm="layer_norm")


NOMIC_BERT = Format(
    name="NomicBERT",
    model_types=("nomic_bert",),
    prefixes=("bert.", "nomic_bert."),
    encoder_config=encoder_config,
    sources=sources,
    ignored=(r"pooler\..*", r"cls\..*", r"classifier\..*"),
    classifier=lambda _: ClassifierConfig("pooler.dense", "classifier", "tanh"),
    masked_lm=masked_lm,
)
