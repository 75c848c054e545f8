"""Which kinds of models there are, and what a classification head says: its labels, its scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from model.contract import FloatArray
from model.errors import CheckpointError
from model.files import shown

ModelKind = Literal["embedding", "sparse", "late_interaction", "classifier", "reranker"]
"""What a folder is served as; text-embeddings-inference's words, but for ``sparse``, an embedding model to it, and
``late_interaction``, which it does not know."""

INSTEAD: Mapping[ModelKind, str] = {
    "embedding": "an embedding model, which gives no scores and no sparse vectors: it answers /encode and /embed",
    "sparse": "a sparse model, which gives weights of its vocabulary's tokens: it answers /embed_sparse",
    "late_interaction": "a late interaction model, which gives vectors of tokens: it answers /embed_all and /rerank",
    "classifier": "a classifier, which gives scores of labels: it answers /predict",
    "reranker": "a reranker, which gives scores of pairs: it answers /rerank and /predict",
}
"""What each kind of model is there for."""

ScoreFunction = Literal["sigmoid", "softmax", "identity"]

CLASSIFIER_SUFFIX = "ForSequenceClassification"

MAX_LABELS = 1_000_000
DEFAULT_NUM_LABELS = 2
"""transformers leaves its own default out of ``config.json``."""

FUNCTIONS: Mapping[str | None, ScoreFunction] = {
    None: "softmax",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "identity",
}
"""``problem_type`` -> what makes scores of the logits of two or more labels."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a classification head, in the order of its logits.

    Attributes
    ----------
    names : tuple of str
        At least one.
    function : ScoreFunction
        Makes scores of logits.
    """

    names: tuple[str, ...]
    function: ScoreFunction

    @property
    def kind(self) -> ModelKind:
        """One label is a score of how well two texts go together; more are classes."""
        return "reranker" if len(self.names) == 1 else "classifier"

    def scores(self, logits: FloatArray) -> FloatArray:
        """Make scores of logits: (..., labels) -> (..., labels), float32, finite where the logits are."""
        wide = logits.astype(np.float64)
        if self.function == "sigmoid":
            wide = np.exp(-np.logaddexp(0.0, -wide))
        elif self.function == "softmax":
            powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
            wide = powers / powers.sum(axis=-1, keepdims=True)
        return wide.astype(np.float32)


def read_labels(config: Mapping[str, Any], file: Path) -> Labels | None:
    """Read the labels of a ``...ForSequenceClassification`` model; None for any other.

    Parameters
    ----------
    config : mapping
        ``config.json``.
    file : Path
        Where it stands, for errors.

    Returns
    -------
    Labels or None
        A single label has a sigmoid whatever ``problem_type`` says, as in text-embeddings-inference: a softmax of one
        number is always 1, and transformers itself writes "regression" into every model that was trained with one.

    Raises
    ------
    CheckpointError
        If ``id2label`` does not count 0, 1, ..., or ``num_labels`` or ``problem_type`` cannot be read.
    """
    architectures = config.get("architectures")
    if architectures is not None and not isinstance(architectures, list):
        raise CheckpointError(f"{file}: architectures is {type(architectures).__name__}, not a list of names")
    if not any(str(name).endswith(CLASSIFIER_SUFFIX) for name in architectures or ()):
        return None
    named = config.get("id2label")
    if named is None:
        num_labels = config.get("num_labels", DEFAULT_NUM_LABELS)
        if not isinstance(num_labels, int) or not 1 <= num_labels <= MAX_LABELS:
            raise CheckpointError(f"{file}: num_labels {shown(num_labels)} is not a number of labels")
        named = {str(index): f"LABEL_{index}" for index in range(num_labels)}
    if not isinstance(named, dict) or not named or set(named) != {str(index) for index in range(len(named))}:
        raise CheckpointError(f"{file}: id2label does not name the labels 0, 1, ... one by one")
    problem_type = config.get("problem_type")
    if not isinstance(problem_type, str | None) or problem_type not in FUNCTIONS:
        known = [name for name in FUNCTIONS if name is not None]
        raise CheckpointError(f"{file}: problem_type {shown(problem_type)} is not supported, only {known}")
    names = tuple(str(named[str(index)]) for index in range(len(named)))
    return Labels(names, "sigmoid" if len(names) == 1 else FUNCTIONS[problem_type])
