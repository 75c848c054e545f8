"""Checkpoint families: which configuration and which tensor names each of them uses.

A family is one :class:`Format`. It turns the checkpoint's ``config.json`` into an
:class:`~model.config.EncoderConfig` and says where each of our parameters comes from. Loading itself, and every
refusal, is in ``model/checkpoint.py``; ``model/formats/registry.py`` finds the family of a folder.

Our parameter names, the keys of :attr:`Format.sources`::

    embedding.tokens.weight                             (V, E)   E = embedding_size, usually D
    embedding.token_types.weight                        (types, E)
    embedding.positions.weight                          (rows, E)  learned and relative positions
    embedding.norm.weight, .bias                        (E,)
    embedding.projection.weight, .bias                  (D, E)   where E is not D
    relative_bias.weight                                (buckets, H)  relative positions only
    layers.{i}.self_attention.qkv.weight, .bias         (3 D, D) query, key, value stacked
    layers.{i}.self_attention.out.weight, .bias         (D, D)
    layers.{i}.feed_forward.expand.weight, .bias        (F, D), gated: (2 F, D), the activated half first
    layers.{i}.feed_forward.contract.weight, .bias      (D, F)
    layers.{i}.sublayers.{0,1}.norm.weight, .bias       (D,)     0 = attention, 1 = feed-forward
    norm.weight, .bias                                  (D,)     final norm
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from model.config import EncoderConfig
from model.heads import ClassifierConfig, MaskedLMConfig

RawConfig = Mapping[str, Any]
"""A checkpoint's ``config.json``, parsed."""

Sources = dict[str, tuple[str, ...]]
"""Our parameter name -> the checkpoint's names, stacked along the first axis in this order."""


@dataclass(frozen=True, slots=True)
class Format:
    """One checkpoint family.

    Attributes
    ----------
    name : str
        For people: shown by ``eyeline info`` and in errors.
    model_types : tuple of str
        Values of ``model_type`` in ``config.json`` that mean this family.
    prefixes : tuple of str
        The head models of a family store the encoder under one of these; stripped where found.
    encoder_config : callable
        ``config.json`` -> EncoderConfig. Raises KeyError for a missing field, ValueError for a value that
        cannot be served (message: field and value).
    sources : callable
        EncoderConfig -> every parameter of the encoder and where it comes from. All are required.
    ignored : tuple of str
        Regular expressions, matched against the whole stripped key: tensors that are known and not used.
    classifier : callable or None
        ``config.json`` -> the head of the family's ``...ForSequenceClassification`` models, where one can be run here.
        Raises as ``encoder_config`` does.
    masked_lm : callable or None
        ``config.json`` -> the head of the family's ``...ForMaskedLM`` models, likewise; SPLADE reads its logits.
    ranges : mapping
        Stripped key -> first value. Such a buffer may be there, and must then hold ``first, first + 1, ...``.
    """

    name: str
    model_types: tuple[str, ...]
    prefixes: tuple[str, ...]
    encoder_config: Callable[[RawConfig], EncoderConfig]
    sources: Callable[[EncoderConfig], Sources]
    ignored: tuple[str, ...] = ()
    classifier: Callable[[RawConfig], ClassifierConfig] | None = None
    masked_lm: Callable[[RawConfig], MaskedLMConfig] | None = None
    ranges: Mapping[str, int] = field(default_factory=dict)


def is_tied(raw: RawConfig) -> bool:
    """Whether a masked language model's decoder is its table of token embeddings, as it is where nothing is said."""
    value = raw.get("tie_word_embeddings", True)
    if not isinstance(value, bool):
        raise ValueError(f"tie_word_embeddings {value!r} is not supported, only true and false")
    return value


def weight_and_bias(ours: str, *theirs: str, bias: bool = True) -> Sources:
    """Map ``ours.weight`` (and ``ours.bias``) to the same suffixes of each of ``theirs``."""
    suffixes = ("weight", "bias") if bias else ("weight",)
    return {f"{ours}.{suffix}": tuple(f"{name}.{suffix}" for name in theirs) for suffix in suffixes}
