"""Claims about SPLADE: which folders are such, and their weights against loops over every token and every word."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.contract import SparseVector
from model.errors import CheckpointError
from model.heads import MaskedLMConfig, MaskedLMHead
from model.pooling import Spans
from model.sparse import SLICE_VALUES, Splade, SpladePooling, find_splade, gather, read_splade

FILE = Path("folder/modules.json")
FILL_MASK = {"transformer_task": "fill-mask"}
SPANS = Spans.of([0, 4, 5], [4, 1, 6], [0, 0, 0])
POOLINGS = [
    SpladePooling("max", "relu"),
    SpladePooling("max", "log1p_relu"),
    SpladePooling("sum", "relu"),
    SpladePooling("sum", "log1p_relu"),
]


# --- which folders ---


@pytest.mark.parametrize(
    ("kinds", "sentence", "place"),
    [
        ([], {}, None),
        (["Transformer", "Pooling", "Normalize"], {}, None),
        (["Transformer", "Pooling"], {"transformer_task": "feature-extraction"}, None),
        (["MLMTransformer", "SpladePooling"], {}, "1"),
        (["MLMTransformer", "SpladePooling"], FILL_MASK, "1"),
        (["Transformer", "SpladePooling"], FILL_MASK, "1"),
    ],
)
def test_both_halves_make_a_sparse_model(kinds: list[str], sentence: dict[str, Any], place: str | None) -> None:
    """In the spelling of either age; an architecture alone makes none."""
    modules = [(kind, Path(str(index))) for index, kind in enumerate(kinds)]
    assert find_splade(modules, sentence, FILE) == (None if place is None else Path(place))


@pytest.mark.parametrize(
    ("kinds", "sentence", "words"),
    [
        (["Transformer", "SpladePooling"], {}, "reads logits"),
        (["Transformer", "SpladePooling"], {"transformer_task": "feature-extraction"}, "transformer_task 'fill-mask'"),
        (["SpladePooling"], {}, "reads logits"),
        (["MLMTransformer", "Pooling"], {}, "only SpladePooling"),
        (["Transformer", "Pooling"], FILL_MASK, "only SpladePooling"),
        (["MLMTransformer"], {}, "only SpladePooling"),
        ([], FILL_MASK, "only SpladePooling"),
        (["MLMTransformer", "SpladePooling", "Normalize"], {}, "only SpladePooling"),
        (["SpladePooling", "MLMTransformer"], {}, "only SpladePooling"),
        (["MLMTransformer", "MLMTransformer"], {}, "only SpladePooling"),
    ],
)
def test_one_half_is_refused(kinds: list[str], sentence: dict[str, Any], words: str) -> None:
    """Served as an embedding model it would give vectors that nobody trained."""
    with pytest.raises(CheckpointError, match=f"folder/modules.json.*{words}"):
        find_splade([(kind, Path(str(index))) for index, kind in enumerate(kinds)], sentence, FILE)


def test_the_pooling_is_read(caplog: pytest.LogCaptureFixture) -> None:
    """Both choices; the width is the vocabulary's whatever is written; what is not said is warned of."""
    stated = {"pooling_strategy": "sum", "activation_function": "log1p_relu", "embedding_dimension": None}
    assert read_splade(stated, FILE) == SpladePooling("sum", "log1p_relu")
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING, logger="eyeline.model"):
        assert read_splade({"pooling_strategy": "max"}, FILE) == SpladePooling("max", "relu")
    assert "does not state activation_function" in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"pooling_strategy": "mean"},
        {"pooling_strategy": None},
        {"activation_function": "gelu"},
        {"pooling_strategy": []},
    ],
)
def test_a_pooling_that_is_not_built_is_named(changes: dict[str, Any]) -> None:
    """With the file, the field and the value."""
    [(field, value)] = changes.items()
    with pytest.raises(CheckpointError) as caught:
        read_splade({"pooling_strategy": "max", "activation_function": "relu", **changes}, FILE)
    assert f"{FILE}: {field} {value!r}" in str(caught.value)


# --- weights ---


def slow_weight(pooling: SpladePooling, logits: list[float]) -> float:
    """The weight of one word in one text, from its logits."""
    weights = [math.log1p(max(0.0, logit)) for logit in logits]
    if pooling.activation == "log1p_relu":
        weights = [math.log1p(weight) for weight in weights]
    return max(weights) if pooling.strategy == "max" else sum(weights)


def random_head(vocab_size: int = 23, bias: str | None = "b") -> MaskedLMHead:
    """A head from 6 to a vocabulary, through an embedding of 4."""
    torch.manual_seed(0)
    head = MaskedLMHead(MaskedLMConfig("d", "n", "o", "gelu", bias, norm_eps=1e-5), 6, 4, vocab_size)
    return head.requires_grad_(requires_grad=False)


def random_states(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Hidden states of the three texts."""
    return torch.randn(11, 6, generator=torch.Generator().manual_seed(1)).to(dtype)


def dense(vectors: list[SparseVector], vocab_size: int = 23) -> np.ndarray[Any, Any]:
    """Write vectors out: (texts, vocabulary)."""
    written = np.zeros((len(vectors), vocab_size), dtype=np.float32)
    for row, vector in zip(written, vectors, strict=True):
        assert (vector.index.dtype, vector.value.dtype) == (np.int32, np.float32)
        assert (np.diff(vector.index) > 0).all()
        assert (vector.value > 0).all()
        row[vector.index] = vector.value
    return written


@pytest.mark.parametrize("bias", ["b", None])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_weights_are_their_formula(pooling: SpladePooling, bias: str | None) -> None:
    """log(1 + relu(logit)) over the tokens of a text, with no token of its neighbour's; what is 0 is left out."""
    head, states = random_head(bias=bias), random_states()
    vectors = Splade(head, pooling).vectors(states, SPANS)
    logits = head.decoder(head.norm(head.dense(states)))
    expected = [
        [slow_weight(pooling, logits[start:stop, word].tolist()) for word in range(23)]
        for start, stop in zip(SPANS.starts, SPANS.stops, strict=True)
    ]
    np.testing.assert_allclose(dense(vectors), expected, rtol=0, atol=1e-5)
    assert 0 < np.count_nonzero(expected) < np.size(expected)


@pytest.mark.parametrize("values", [1, 11, 40, 11 * 22, 10**6])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_slices_do_not_show(pooling: SpladePooling, values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few logits are held at a time, even fewer than a column, the vectors are the same."""
    splade, states = Splade(random_head(), pooling), random_states()
    whole = splade.vectors(states, SPANS)
    widths: list[int] = []
    plain = MaskedLMHead.logits

    def watch(head: MaskedLMHead, hidden: torch.Tensor, columns: slice) -> torch.Tensor:
        found = plain(head, hidden, columns)
        widths.append(found.shape[1])
        return found

    monkeypatch.setitem(SLICE_VALUES, "cpu", values)
    monkeypatch.setattr(MaskedLMHead, "logits", watch)
    np.testing.assert_allclose(dense(splade.vectors(states, SPANS)), dense(whole), rtol=0, atol=1e-6)
    assert max(widths) * 11 <= max(values, 11)
    assert sum(widths) == 23


@pytest.mark.parametrize("pooling", POOLINGS)
def test_half_precision_is_pooled_in_float32(pooling: SpladePooling) -> None:
    """300 tokens of bfloat16 have the sum of their weights; the values come out in float32."""
    logits = torch.full((300, 1), 1.5, dtype=torch.bfloat16)
    weights = pooling.weigh(logits, Spans.of([0], [300], [0]))
    assert weights.dtype == torch.float32
    assert weights.item() == pytest.approx(slow_weight(pooling, [1.5] * 300), rel=1e-5)


def test_what_is_no_number_is_not_lost() -> None:
    """A NaN or an infinity among the weights is handed on, so that the row is found out."""
    weights = torch.tensor([[0.0, math.nan, 1.0], [0.0, 0.0, math.inf]])
    first, second = gather(lambda column: weights[:, column : column + 2], range(0, 3, 2), 2)
    assert first.index.tolist() == [1, 2]
    assert math.isnan(first.value[0])
    assert (second.index.tolist(), second.value.tolist()) == ([2], [math.inf])


def test_a_text_may_have_no_weight_at_all() -> None:
    """Its vector is empty, in the types of any other, and its neighbours keep their own."""
    weights = torch.tensor([[0.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    vectors = gather(lambda column: weights[:, column : column + 1], range(2), 3)
    assert [vector.index.tolist() for vector in vectors] == [[], [1], []]
    assert dense(vectors, 2).sum() == 2.0


def test_vectors_own_their_memory() -> None:
    """A row that is kept does not keep the batch it came from."""
    for vector in Splade(random_head(), POOLINGS[0]).vectors(random_states(), SPANS):
        assert vector.index.base is None
        assert vector.value.base is None
