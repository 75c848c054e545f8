"""Writes scores: text-embeddings-inference's ``/predict`` and ``/rerank``, Cohere's and Jina's rerank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from app.answers import dumps
from app.service import Encoded
from model.contract import FloatArray


def write_predictions(encoded: Encoded, *, is_batch: bool, raw_scores: bool) -> bytes:
    """Write the answer of ``/predict``: of each text its labels, the best first; of one text, without a list around."""
    names = encoded.model.embedder.info.labels
    logits, scores = logits_and_scores(encoded, raw_scores=raw_scores)
    predictions = [
        [{"score": row[label], "label": names[label]} for label in best_first(row_logits)]
        for row_logits, row in zip(logits, scores, strict=True)
    ]
    return dumps(predictions if is_batch else predictions[0])


def write_ranks(encoded: Encoded, texts: Sequence[str] | None, *, raw_scores: bool) -> bytes:
    """Write text-embeddings-inference's answer of ``/rerank``: the best first, with ``texts`` where they are given."""
    logits, scores = logits_and_scores(encoded, raw_scores=raw_scores)
    ranks = []
    for index in best_first(logits[:, 0]):
        text = {} if texts is None else {"text": texts[index]}
        ranks.append({"index": index, **text, "score": scores[index, 0]})
    return dumps(ranks)


def write_results(
    encoded: Encoded, documents: Sequence[str] | None, top_n: int | None, request_id: str | None
) -> bytes:
    """Write the answer of Cohere's and Jina's rerank: the best ``top_n``, with ``documents`` where they are given.

    Tokens are counted twice, where either family looks for them: those processed, special tokens included.
    """
    logits, scores = logits_and_scores(encoded, raw_scores=False)
    results: list[dict[str, Any]] = []
    for index in best_first(logits[:, 0])[:top_n]:
        document = {} if documents is None else {"document": {"text": documents[index]}}
        results.append({"index": index, "relevance_score": scores[index, 0], **document})
    num_tokens = encoded.num_tokens
    return dumps(
        {
            "id": request_id,
            "model": encoded.model.name,
            "results": results,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
            "meta": {"tokens": {"input_tokens": num_tokens}},
        }
    )


def logits_and_scores(encoded: Encoded, *, raw_scores: bool) -> tuple[FloatArray, FloatArray]:
    """Stack the logits of rows, and make scores of them: each (texts, labels); raw scores are the logits."""
    logits = np.stack([row.logits for row in encoded.rows if row.logits is not None])
    labels = encoded.model.embedder.labels
    return logits, logits if raw_scores or labels is None else labels.scores(logits)


def best_first(logits: FloatArray) -> list[int]:
    """Order by logits, the first among equals first: scores that have run into 1 or 0 are still told apart."""
    order: list[int] = np.argsort(-logits, kind="stable").tolist()
    return order
