"""SPLADE: a text as weights of the vocabulary's tokens, nearly all of them 0.

A masked language model gives each token of a text a logit for each token of the vocabulary. ``log(1 + relu(logit))``
makes weights of them, and the largest (or the sum) over the tokens of the text is its vector.

Logits of a whole batch would be its tokens times the vocabulary: 250 MB for 2,048 tokens and 30,522 words. So they are
made for one slice of the vocabulary after another, and of each slice only the weights above 0 are kept.

References: Formal, Piwowarski and Clinchant 2021 (sum); Formal et al. 2021, SPLADE v2 (max); Shen et al. 2025,
arXiv:2504.14839 (the logarithm taken twice); names of modules and files as in sentence-transformers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from model.contract import SparseVector
from model.errors import CheckpointError
from model.files import shown
from model.heads import MaskedLMHead
from model.pooling import Spans, max_pool, sum_pool

log = logging.getLogger("eyeline.model")

Strategy = Literal["max", "sum"]
SpladeActivation = Literal["relu", "log1p_relu"]

DEFAULTS = {"pooling_strategy": "max", "activation_function": "relu"}
"""What sentence-transformers takes where the folder does not say."""

POOLING_MODULE = "SpladePooling"
MASKED_LM_MODULE = "MLMTransformer"
"""Until sentence-transformers 5.4, a Transformer with the head of a masked language model."""

MASKED_LM_TASK = "fill-mask"
"""``transformer_task`` in ``sentence_bert_config.json``: since then, what says that a Transformer has that head."""

SLICE_VALUES = {"cpu": 2**22, "cuda": 2**26}
"""Logits that are held at a time: 16 MB in float32 on a CPU; on a GPU more, as a slice must be worth its launch."""


@dataclass(frozen=True, slots=True)
class SpladePooling:
    """How weights are made of logits.

    Attributes
    ----------
    strategy : "max" or "sum"
        Over the tokens of a text, special tokens included.
    activation : "relu" or "log1p_relu"
        ``log(1 + relu(x))``, or ``log(1 + log(1 + relu(x)))``.
    """

    strategy: Strategy
    activation: SpladeActivation

    def weigh(self, logits: Tensor, spans: Spans) -> Tensor:
        """Make weights of the logits of some tokens of the vocabulary: (T, v) -> (B, v), float32, none below 0."""
        if self.strategy == "max":  # damping keeps the order, so the largest is damped alone
            return self._damp(max_pool(logits, spans))
        return sum_pool(self._damp(logits.float()), spans)

    def _damp(self, logits: Tensor) -> Tensor:
        """Apply the activation; any shape."""
        weights = logits.relu().log1p_()
        return weights.log1p_() if self.activation == "log1p_relu" else weights


def find_splade(modules: Sequence[tuple[str, Path]], sentence: Mapping[str, Any], file: Path) -> Path | None:
    """Find where a folder says how it makes weights; None for one that makes embeddings or scores.

    Parameters
    ----------
    modules : sequence of (kind, sub-folder)
        Of ``modules.json``.
    sentence : mapping
        ``sentence_bert_config.json``.
    file : Path
        ``modules.json``, for errors.

    Raises
    ------
    CheckpointError
        If the head of a masked language model and SPLADE's pooling do not come together, or with other modules.
    """
    kinds = [kind for kind, _ in modules]
    is_masked_lm = sentence.get("transformer_task") == MASKED_LM_TASK or MASKED_LM_MODULE in kinds
    if not is_masked_lm and POOLING_MODULE not in kinds:
        return None
    if not is_masked_lm:
        raise CheckpointError(
            f"{file}: module {POOLING_MODULE!r} reads logits, and no {MASKED_LM_MODULE} stands before it, nor does "
            f"sentence_bert_config.json have transformer_task {MASKED_LM_TASK!r}"
        )
    if len(kinds) != 2 or kinds[0] not in ("Transformer", MASKED_LM_MODULE) or kinds[1] != POOLING_MODULE:
        raise CheckpointError(
            f"{file}: modules {shown(kinds)} are not supported: behind the head of a masked language model only "
            f"{POOLING_MODULE}, and nothing else"
        )
    return modules[1][1]


def read_splade(raw: Mapping[str, Any], file: Path) -> SpladePooling:
    """Read the configuration of the pooling module; the default, with a warning, where it does not say.

    Raises
    ------
    CheckpointError
        If a value is not built here.
    """
    for name, value in DEFAULTS.items():
        if name not in raw:
            log.warning("%s does not state %s: it is %s, the default", file, name, value)
    stated = {**DEFAULTS, **raw}
    for name, choices in (("pooling_strategy", Strategy), ("activation_function", SpladeActivation)):
        if stated[name] not in get_args(choices):
            raise CheckpointError(
                f"{file}: {name} {shown(stated[name])} is not supported, only {list(get_args(choices))}"
            )
    return SpladePooling(stated["pooling_strategy"], stated["activation_function"])


@dataclass(frozen=True, slots=True)
class Splade:
    """What makes sparse vectors of hidden states: the head, and how its logits are pooled."""

    head: MaskedLMHead
    pooling: SpladePooling

    def vectors(self, hidden_states: Tensor, spans: Spans) -> list[SparseVector]:
        """Make a vector of each text.

        Parameters
        ----------
        hidden_states : Tensor, shape (T, D), float
        spans : Spans
            The tokens of B texts.

        Returns
        -------
        list of B SparseVector
        """
        hidden = self.head(hidden_states)  # (T, E)
        num_columns = max(1, SLICE_VALUES[hidden.device.type] // hidden.shape[0])

        def weigh(first: int) -> Tensor:
            return self.pooling.weigh(self.head.logits(hidden, slice(first, first + num_columns)), spans)

        return gather(weigh, range(0, self.head.vocab_size, num_columns), len(spans.starts))


def gather(weigh: Callable[[int], Tensor], firsts: range, num_texts: int) -> list[SparseVector]:
    """Collect the weights above 0 (and those that are not a number, so that they are seen) slice by slice.

    Parameters
    ----------
    weigh : callable
        First column of a slice -> its weights, (B, v).
    firsts : range
    num_texts : int
    """
    parts: list[list[SparseVector]] = [[] for _ in range(num_texts)]
    for first in firsts:
        weights = weigh(first)  # (B, v)
        texts, columns = weights.nonzero(as_tuple=True)
        found = weights[texts, columns].cpu().numpy()
        indices = (columns + first).to(torch.int32).cpu().numpy()
        bounds = np.searchsorted(texts.cpu().numpy(), np.arange(num_texts + 1))
        for text, (start, stop) in enumerate(pairwise(bounds)):
            if start < stop:
                parts[text].append(SparseVector(indices[start:stop], found[start:stop]))
    return [_joined(some) for some in parts]


def _joined(parts: Sequence[SparseVector]) -> SparseVector:
    """Put the slices of one text together, in memory of their own."""
    if not parts:
        return SparseVector(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.float32))
    return SparseVector(np.concatenate([part.index for part in parts]), np.concatenate([part.value for part in parts]))
