"""Classifiers and rerankers against transformers and sentence-transformers: logits, pairs, scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder

from model.contract import FloatArray, OutputSpec
from model.embedder import Embedder
from model.tokenizer import Text
from tests.oracle.families import BY_NAME, FAMILIES
from tests.oracle.tiny import (
    TOLERANCE,
    WORDS,
    Family,
    edit_json,
    load,
    make_tokenizer,
    random_inputs,
    save,
    save_tokenizer,
)

pytestmark = pytest.mark.oracle

LOGITS = OutputSpec(pooled=False, logits=True)

CLASSIFIERS = [
    pytest.param(family, head, id=head)
    for family in FAMILIES
    for head in family.heads
    if head.endswith("ForSequenceClassification")
]

HEADS_OF_MODERNBERT: dict[str, dict[str, Any]] = {
    "mean": {"classifier_pooling": "mean"},
    "biases": {"classifier_bias": True, "norm_bias": True, "norm_eps": 0.1},
    "relu": {"classifier_activation": "relu"},
}

TEXTS: list[Text] = [
    "word1",
    ("word2 word3", "word4 word5 word6 word7"),
    ("", "word8"),
    ("word9", ""),
    ("word10 word11 word12", "word13"),
]
LONG_PAIRS: list[Text] = [
    (" ".join(WORDS), " ".join(WORDS[5:80])),
    ("word1 word2", " ".join(WORDS * 2)),
    (" ".join(WORDS * 2), "word3"),
    (" ".join(WORDS[:80]), " ".join(WORDS)),
]


def with_labels(family: Family, num_labels: int, **options: Any) -> Family:
    """The family with a head of so many labels."""
    return replace(family, options={**family.options, "num_labels": num_labels, **options})


def save_classifier(built: transformers.PreTrainedModel, folder: Path, family: Family) -> Path:
    """Save a folder as transformers does: it has no modules and no pooling, and says which inputs the model reads."""
    built.save_pretrained(folder)
    save_tokenizer(make_tokenizer(family.specials), folder, family.specials)
    types = ["token_type_ids"] if family.has_token_types else []
    names = {"model_input_names": ["input_ids", *types, "attention_mask"]}
    edit_json(folder / "tokenizer_config.json", lambda config: config.update(names))
    return folder


def logits_of(embedder: Embedder, texts: Sequence[Text], **options: Any) -> FloatArray:
    """Our logits of texts, run as one batch."""
    inputs = embedder.tokenizer.encode(texts, **options)
    rows = embedder.run(inputs, [LOGITS] * len(inputs))
    return np.stack([row.logits for row in rows if row.logits is not None])


@torch.inference_mode()
def reference_logits(
    built: transformers.PreTrainedModel, folder: Path, texts: Sequence[Text], **options: Any
) -> FloatArray:
    """The logits of transformers, each text by itself, through its own tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    answers = []
    for text in texts:
        # in a list, as by itself a pair whose second text is empty would be taken for a text
        encoded = tokenizer([text], truncation="longest_first", max_length=140, return_tensors="pt")
        answers.append(built(**encoded).logits[0].numpy())
    return np.stack(answers)


@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize(("family", "head"), CLASSIFIERS)
def test_logits(family: Family, head: str, num_labels: int, tmp_path: Path) -> None:
    """The logits of a sequence classifier are transformers' own, whether or not an embedding is asked for as well; the
    folder is a reranker where it has one label.
    """
    built = with_labels(family, num_labels).build(head)
    embedder = load(save(built, tmp_path, family.specials))
    assert embedder.info.kind == ("reranker" if num_labels == 1 else "classifier")
    assert embedder.info.num_parameters == sum(parameter.numel() for parameter in built.parameters())
    inputs = random_inputs(family, seed=5)

    rows = embedder.run(inputs, [OutputSpec(logits=True, pooled=index % 2 == 0) for index in range(len(inputs))])

    for row, item in zip(rows, inputs, strict=True):
        types = {"token_type_ids": torch.tensor([item.token_type_ids])} if family.has_token_types else {}
        with torch.inference_mode():
            expected = built(input_ids=torch.tensor([item.input_ids]), **types).logits[0].numpy()
        assert row.logits is not None
        assert row.logits.shape == (num_labels,)
        np.testing.assert_allclose(row.logits, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("options", HEADS_OF_MODERNBERT.values(), ids=HEADS_OF_MODERNBERT)
def test_heads_of_modernbert(options: dict[str, Any], tmp_path: Path) -> None:
    """What its head reads, its biases and its activation are taken from the configuration."""
    family = with_labels(BY_NAME["modernbert"], 3, **options)
    built = family.build("ModernBertForSequenceClassification")
    folder = save_classifier(built, tmp_path, family)
    expected = reference_logits(built, folder, TEXTS)
    np.testing.assert_allclose(logits_of(load(folder), TEXTS), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("family", "head"), CLASSIFIERS)
def test_pairs(family: Family, head: str, tmp_path: Path) -> None:
    """Texts and pairs from characters to logits: segments where the model has them, and of pairs that are too long the
    longer text is cut, as transformers does, at either side.
    """
    built = family.build(head)
    folder = save_classifier(built, tmp_path, family)
    embedder = load(folder)
    expected = reference_logits(built, folder, TEXTS)
    np.testing.assert_allclose(logits_of(embedder, TEXTS), expected, rtol=0, atol=TOLERANCE)
    if embedder.tokenizer.max_length == 140:
        for side in ("right", "left"):
            expected = reference_logits(built, folder, LONG_PAIRS, truncation_side=side)
            np.testing.assert_allclose(logits_of(embedder, LONG_PAIRS, side=side), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("num_labels", "problem_type"),
    [
        (1, None),
        (1, "multi_label_classification"),
        (3, None),
        (3, "single_label_classification"),
        (3, "multi_label_classification"),
        (3, "regression"),
    ],
)
def test_scores(num_labels: int, problem_type: str | None, tmp_path: Path) -> None:
    """Softmax over labels that exclude each other, a sigmoid of each where they do not or there is one, a regression's
    numbers as they are: the scores and the labels of transformers' own pipeline.
    """
    names = {index: f"label {index}" for index in range(num_labels)}
    family = with_labels(BY_NAME["bert"], num_labels, problem_type=problem_type, id2label=names)
    folder = save_classifier(family.build("BertForSequenceClassification"), tmp_path, family)
    embedder = load(folder)
    assert embedder.labels is not None
    scores = embedder.labels.scores(logits_of(embedder, TEXTS))

    pipeline = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    for text, row in zip(TEXTS, scores, strict=True):
        if not all(text):  # the pipeline takes a pair whose second text is empty for a text
            continue
        parts = {"text": text} if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}
        expected = {entry["label"]: entry["score"] for entry in pipeline([parts], top_k=None)[0]}
        assert list(embedder.labels.names) == sorted(expected)
        np.testing.assert_allclose(row, [expected[name] for name in sorted(expected)], rtol=0, atol=TOLERANCE)


def test_a_folder_of_a_cross_encoder(tmp_path: Path) -> None:
    """A folder that sentence-transformers wrote for a CrossEncoder is a reranker with its scores."""
    family = with_labels(BY_NAME["bert"], 1)
    built = family.build("BertForSequenceClassification")
    saved = tmp_path / "saved"
    CrossEncoder(str(save_classifier(built, tmp_path / "plain", family)), device="cpu").save_pretrained(str(saved))
    pairs: list[Text] = [text for text in TEXTS if not isinstance(text, str) and all(text)]

    embedder = load(saved)

    assert embedder.labels is not None
    ours = embedder.labels.scores(logits_of(embedder, pairs))[:, 0]
    theirs = CrossEncoder(str(saved), device="cpu").predict(pairs, activation_fn=torch.nn.Sigmoid())
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)


def test_no_classifier(tmp_path: Path) -> None:
    """Logits of a model without a head are refused in words, not answered with nothing."""
    family = FAMILIES[0]
    embedder = load(save(family.build(), tmp_path, family.specials))

    with pytest.raises(ValueError, match="no classification head"):
        embedder.run(random_inputs(family)[:1], [LOGITS])
