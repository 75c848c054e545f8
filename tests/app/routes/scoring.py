"""A server of models that score, and what their scores must be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from app.settings import ModelSpec
from model.contract import FloatArray
from model.embedder import Embedder
from model.tokenizer import Text
from tests.tiny import make_bert_folder

LABELS = {"reranker": ("relevance",), "classifier": ("joy", "anger", "fear")}


def make_models(folder: Path, *kinds: str) -> tuple[ModelSpec, ...]:
    """Write a tiny model of each of these kinds, named by it, all of one seed; the first is the default."""
    return tuple(
        ModelSpec(
            kind,
            make_bert_folder(
                folder / kind,
                labels=LABELS.get(kind, ()),
                splade=kind == "sparse",
                late=kind == "late_interaction",
            ),
        )
        for kind in kinds
    )


def expected_scores(embedder: Embedder, texts: Sequence[Text], *, raw: bool = False) -> FloatArray:
    """The scores of texts and pairs from the library: (texts, labels), logits where they are raw."""
    assert embedder.labels is not None
    rows = embedder.run(embedder.tokenizer.encode(texts), [embedder.own_output] * len(texts))
    logits = np.stack([row.logits for row in rows if row.logits is not None])
    return logits if raw else embedder.labels.scores(logits)
