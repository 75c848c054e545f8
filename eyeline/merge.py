"""Puts the results of a long list's requests together: what one request would have given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TypeVar

import numpy as np

from eyeline.errors import UnexpectedAnswerError
from eyeline.records import ChunkedText, Encoded, Quantization, Similarity

P = TypeVar("P")


def _one_model(names: Iterable[str]) -> str:
    """Refuse to mix models: behind one address there may be several servers, and a new version on its way."""
    different = sorted(set(names))
    if len(different) > 1:
        raise UnexpectedAnswerError(f"different models answered: {', '.join(different)}")
    return different[0]


def merge_encoded(parts: Sequence[Encoded]) -> Encoded:
    """Join embeddings of one model, of one length."""
    lengths = sorted({part.embeddings.shape[1] for part in parts})
    if len(lengths) > 1:
        raise UnexpectedAnswerError(f"embeddings of different lengths were answered: {', '.join(map(str, lengths))}")
    return Encoded(
        model=_one_model(part.model for part in parts),
        embeddings=np.concatenate([part.embeddings for part in parts]),
        num_tokens=np.concatenate([part.num_tokens for part in parts]),
        num_tokens_total=np.concatenate([part.num_tokens_total for part in parts]),
        truncated=np.concatenate([part.truncated for part in parts]),
        quantization=_merge_quantization([part.quantization for part in parts if part.quantization is not None]),
    )


def _merge_quantization(parts: Sequence[Quantization]) -> Quantization | None:
    """Put counts together; the range is that of the dimensions, which are the same."""
    return Quantization(parts[0].range, np.concatenate([part.clipped for part in parts])) if parts else None


def merge_chunks(parts: Sequence[list[ChunkedText]]) -> list[ChunkedText]:
    """Join texts in chunks, of one model."""
    texts = merge_lists(parts)
    if texts:
        _one_model(text.model for text in texts)
    return texts


def merge_lists(parts: Sequence[list[P]]) -> list[P]:
    """Join lists."""
    return list(chain.from_iterable(parts))


def merge_similarities(parts: Sequence[Similarity]) -> Similarity:
    """Join cosines of pairs, of one model."""
    explanations = [part.explanations for part in parts if part.explanations is not None]
    return Similarity(
        model=_one_model(part.model for part in parts),
        similarities=np.concatenate([part.similarities for part in parts]),
        num_tokens=np.concatenate([part.num_tokens for part in parts]),
        truncated=np.concatenate([part.truncated for part in parts]),
        explanations=list(chain.from_iterable(explanations)) if explanations else None,
    )
