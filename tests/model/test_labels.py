"""Claims about labels: which folders have them, what they are called, and what becomes of logits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.errors import CheckpointError
from model.labels import Labels, ScoreFunction, read_labels

FILE = Path("folder/config.json")
CLASSIFIER: dict[str, Any] = {"architectures": ["BertForSequenceClassification"]}


def read(**config: Any) -> Labels:
    """Labels of a classifier with this configuration."""
    labels = read_labels({**CLASSIFIER, **config}, FILE)
    assert labels is not None
    return labels


@pytest.mark.parametrize(
    "config", [{}, {"architectures": None}, {"architectures": ["BertModel"]}, {"architectures": ["BertForMaskedLM"]}]
)
def test_other_models_have_none(config: dict[str, Any]) -> None:
    """The architecture alone makes a classifier: every transformers configuration may have an id2label."""
    assert read_labels({**config, "id2label": {"0": "a"}}, FILE) is None


def test_names_stand_in_the_order_of_the_logits() -> None:
    """By their numbers, not as the file lists them."""
    labels = read(id2label={"10": "k", **{str(index): "abcdefghij"[index] for index in range(10)}})
    assert "".join(labels.names) == "abcdefghijk"
    assert labels.kind == "classifier"


def test_without_names_they_are_numbered() -> None:
    """As transformers names them; two labels, its default, are in no file."""
    assert read().names == ("LABEL_0", "LABEL_1")
    assert read(num_labels=3).names == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert read(num_labels=1).kind == "reranker"


@pytest.mark.parametrize(
    ("config", "function"),
    [
        ({}, "softmax"),
        ({"problem_type": None}, "softmax"),
        ({"problem_type": "single_label_classification"}, "softmax"),
        ({"problem_type": "multi_label_classification"}, "sigmoid"),
        ({"problem_type": "regression"}, "identity"),
        ({"num_labels": 1}, "sigmoid"),
        ({"num_labels": 1, "problem_type": "regression"}, "sigmoid"),
        ({"num_labels": 1, "problem_type": "single_label_classification"}, "sigmoid"),
    ],
)
def test_the_function(config: dict[str, Any], function: ScoreFunction) -> None:
    """By problem_type; of one label always the sigmoid."""
    assert read(**config).function == function


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"id2label": {}}, "id2label"),
        ({"id2label": ["a"]}, "id2label"),
        ({"id2label": {"1": "a", "2": "b"}}, "id2label"),
        ({"id2label": {"a": "0"}}, "id2label"),
        ({"num_labels": 0}, "num_labels"),
        ({"num_labels": "2"}, "num_labels"),
        ({"problem_type": "ranking"}, "problem_type"),
    ],
)
def test_what_cannot_be_read_is_refused(config: dict[str, Any], word: str) -> None:
    """With the file and the field."""
    with pytest.raises(CheckpointError, match=f"config.json: {word}"):
        read(**config)


LOGITS = [1.5, -0.25, 3.0]


def test_scores_are_their_formulas() -> None:
    """Softmax over a row's labels, a sigmoid of each, or the logits."""
    logits = np.array([LOGITS, [0.0, 0.0, 0.0]], dtype=np.float32)
    total = sum(map(math.exp, LOGITS))
    expected = {
        "softmax": [[math.exp(x) / total for x in LOGITS], [1 / 3] * 3],
        "sigmoid": [[1 / (1 + math.exp(-x)) for x in LOGITS], [0.5] * 3],
        "identity": logits,
    }
    names = ("a", "b", "c")
    for function, scores in expected.items():
        found = Labels(names, function).scores(logits)  # type: ignore[arg-type]
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, scores, rtol=1e-6)


@pytest.mark.parametrize("function", ["softmax", "sigmoid"])
def test_extreme_logits_have_finite_scores(function: ScoreFunction) -> None:
    """Nothing overflows, whatever a model says."""
    logits = np.array([[1e30, -1e30, 0.0], [-1e30, -1e30, -1e30]], dtype=np.float32)
    with np.errstate(over="raise", invalid="raise"):
        scores = Labels(("a", "b", "c"), function).scores(logits)
    assert np.isfinite(scores).all()
    assert scores.min() >= 0
    assert scores.max() <= 1
