"""The encoders of the two documents in seeds/, under the names their code gives to its tensors.

Both add sinusoidal positions to scaled token embeddings, norm with the unbiased standard deviation and norm once more
after the last layer. They differ in where the norm of a sublayer stands: seed 0 computes ``x + norm(f(x))``, seed 2
``x + f(norm(x))``. Seed 2's names are also those of The Annotated Transformer.

The two documents are walks through The Annotated Transformer, in Chinese, that the project began with. They are others'
work and not in the repository; what follows them here is written anew.

A state dict in one of these families has no ``config.json``; ``model/convert.py`` writes the folder that has one.

References: seeds/seed-0-encoder-and-multi-head-attention.txt, seeds/seed-2-encoder-structure.txt; Vaswani et al. 2017;
The Annotated Transformer (Rush 2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from model.config import EncoderConfig, NormPlacement
from model.formats import Format, RawConfig, Sources, weight_and_bias
from model.formats.bert import activation

TOKEN_TABLE = "embedding.embedding.weight"
"""Where both families keep the token embedding: seed 2's ``EmbeddingLayer`` as a model's ``embedding``."""

WHOLE_MODEL_KEYS = (r"decoder\..*", r"tgt_embed\..*", r"generator\..*")
"""What stands beside the encoder in a translation model that was saved whole."""

NORM_EPS = 1e-6
"""Both documents' default, added to the standard deviation."""


@dataclass(frozen=True, slots=True)
class SeedNames:
    """How one of the documents spells the parts of a layer.

    Attributes
    ----------
    attention, expand, contract : str
        Modules, seen from the layer.
    sublayer_norm : str
        The norm of a sublayer, seen from the layer; ``{}`` is the sublayer's number.
    gain, shift : str
        The two parameters of a norm.
    """

    attention: str
    expand: str
    contract: str
    sublayer_norm: str
    gain: str
    shift: str

    def norm(self, ours: str, theirs: str) -> Sources:
        """Map the two parameters of one norm."""
        return {f"{ours}.weight": (f"{theirs}.{self.gain}",), f"{ours}.bias": (f"{theirs}.{self.shift}",)}


SEED_0_NAMES = SeedNames(
    attention="self_atten",
    expand="feed_forward.linear1",
    contract="feed_forward.linear2",
    sublayer_norm="sub_layers.{}.layer_norm",
    gain="a",
    shift="b",
)

SEED_2_NAMES = SeedNames(
    attention="self_attn",
    expand="feed_forward.w_1",
    contract="feed_forward.w_2",
    sublayer_norm="sublayer.{}.norm",
    gain="a_2",
    shift="b_2",
)


def embedding_scale(raw: RawConfig, hidden_size: int) -> float:
    """Read what token embeddings are multiplied by: ``"sqrt"`` (of the hidden size, the default) or a number."""
    value: Any = raw.get("embedding_scale", "sqrt")
    if value == "sqrt":
        return math.sqrt(hidden_size)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"embedding_scale {value!r} is not supported, only 'sqrt' or a number")
    return float(value)


def encoder_config(raw: RawConfig, placement: NormPlacement) -> EncoderConfig:
    """Read the ``config.json`` that ``model/convert.py`` writes.

    Raises
    ------
    KeyError
        A size is missing.
    ValueError
        A value that cannot be served, with the field's name.
    """
    hidden_size = raw["hidden_size"]
    return EncoderConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=hidden_size,
        num_hidden_layers=raw["num_hidden_layers"],
        num_attention_heads=raw["num_attention_heads"],
        intermediate_size=raw["intermediate_size"],
        norm="std",
        norm_placement=placement,
        norm_eps=raw.get("norm_eps", NORM_EPS),
        activation=activation({"hidden_act": "relu", **raw}),
        positions="sinusoidal",
        max_positions=raw["max_position_embeddings"],
        embedding_scale=embedding_scale(raw, hidden_size),
        final_norm=True,
    )


def sources(config: EncoderConfig, names: SeedNames) -> Sources:
    """Every parameter of the encoder, in the document's own names."""
    found: Sources = {"embedding.tokens.weight": (TOKEN_TABLE,)}
    for index in range(config.num_hidden_layers):
        layer = f"layers.{index}"
        linears = [f"{layer}.{names.attention}.linears.{number}" for number in range(4)]
        found |= weight_and_bias(f"{layer}.self_attention.qkv", *linears[:3])
        found |= weight_and_bias(f"{layer}.self_attention.out", linears[3])
        found |= weight_and_bias(f"{layer}.feed_forward.expand", f"{layer}.{names.expand}")
        found |= weight_and_bias(f"{layer}.feed_forward.contract", f"{layer}.{names.contract}")
        for number in range(2):
            found |= names.norm(f"{layer}.sublayers.{number}.norm", f"{layer}.{names.sublayer_norm.format(number)}")
    return found | names.norm("norm", "norm")


SEED_0 = Format(
    name="seed 0",
    model_types=("seed-0",),
    prefixes=("encoder.",),
    encoder_config=partial(encoder_config, placement="residual"),
    sources=partial(sources, names=SEED_0_NAMES),
    ignored=WHOLE_MODEL_KEYS,
)

SEED_2 = Format(
    name="seed 2",
    model_types=("seed-2",),
    prefixes=("encoder.",),
    encoder_config=partial(encoder_config, placement="pre"),
    sources=partial(sources, names=SEED_2_NAMES),
    ignored=WHOLE_MODEL_KEYS,
)
