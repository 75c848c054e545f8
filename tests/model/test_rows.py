"""Each text of a batch gets what it asked for, by itself, in packed order; a head is run for those alone who ask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from model.batch import pack
from model.contract import EncodeInput, FloatArray, OutputSpec, Row
from model.heads import Classifier, ClassifierConfig
from model.pooling import Pooling
from model.rows import LACKING, HeadOutput, PackedStates, RowMaker, make_heads

NOTHING = OutputSpec(pooled=False)
WIDTH = 4


def make_states(
    specs: Sequence[OutputSpec], *, prompt_length: int = 0, kept: tuple[int, ...] | None = None
) -> PackedStates:
    """States of texts of 3, 4, ... tokens, so that they are packed in the order given; the last may have more to it."""
    inputs = [EncodeInput([1] * length, [0] * length, length) for length in range(3, 3 + len(specs))]
    inputs[-1] = EncodeInput(
        [1] * len(inputs[-1].input_ids), [0] * len(inputs[-1].input_ids), 9, prompt_length, kept=kept
    )
    batch = pack(inputs, torch.device("cpu"))
    assert batch.order == tuple(range(len(specs)))
    num_rows = len(batch.input_ids)
    states = torch.arange(num_rows * WIDTH, dtype=torch.float32).reshape(num_rows, WIDTH).sin()
    return PackedStates(states, batch, inputs, specs)


def own(states: PackedStates, text: int) -> FloatArray:
    """The states of a text."""
    start = states.batch.starts[text]
    found: FloatArray = states.hidden_states[start : start + states.batch.lengths[text]].numpy()
    return found


def make_rows(states: PackedStates, pooling: Pooling | None = None) -> list[Row]:
    """Rows of a model that only pools."""
    return RowMaker(pooling or Pooling(), [], {}).rows(states)


def test_each_row_is_its_own_texts() -> None:
    """Scaled or not, cut or whole, in chunks, as states, or nothing at all."""
    specs = [
        OutputSpec(normalize=False),
        OutputSpec(dimensions=2),
        OutputSpec(normalize=False, chunks=(range(3), range(2, 5))),
        OutputSpec(pooled=False, token_states=True),
        NOTHING,
    ]
    states = make_states(specs)
    first, second, third, fourth, fifth = make_rows(states)
    np.testing.assert_allclose(first.embedding, own(states, 0).mean(axis=0), atol=1e-6)  # type: ignore[arg-type]
    cut = own(states, 1).mean(axis=0)[:2]
    np.testing.assert_allclose(second.embedding, cut / np.linalg.norm(cut), atol=1e-6)  # type: ignore[arg-type]
    parts = [own(states, 2)[:3].mean(axis=0), own(states, 2)[2:5].mean(axis=0)]
    assert third.embedding is None
    np.testing.assert_allclose(third.chunks, parts, atol=1e-6)  # type: ignore[arg-type]
    np.testing.assert_array_equal(fourth.token_states, own(states, 3))  # type: ignore[arg-type]
    assert (fourth.embedding, fifth) == (None, Row())


def test_a_prompt_may_be_left_out() -> None:
    """Of the whole text, and of the chunk that it reaches into."""
    specs = [OutputSpec(normalize=False), OutputSpec(normalize=False, chunks=(range(4), range(2, 4)))]
    states = make_states(specs, prompt_length=2)
    _, row = make_rows(states, Pooling(include_prompt=False))
    expected = [own(states, 1)[2:].mean(axis=0)] * 2
    np.testing.assert_allclose(row.chunks, expected, atol=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", LACKING)
def test_a_head_is_run_for_those_who_ask(name: HeadOutput) -> None:
    """With their places, and each gets what came of its own."""
    ran: list[list[int]] = []

    def head(states: PackedStates, texts: Sequence[int]) -> list[FloatArray]:
        ran.append(list(texts))
        return [np.full(1, text, dtype=np.float32) for text in texts]

    asking = OutputSpec(pooled=False, **{name: True})  # type: ignore[arg-type]
    maker = RowMaker(Pooling(), [], {name: head})
    rows = maker.rows(make_states([NOTHING, asking, OutputSpec(), asking]))
    assert ran == [[1, 3]]
    assert [None if getattr(row, name) is None else float(getattr(row, name)[0]) for row in rows] == [None, 1, None, 3]
    assert [row.embedding is not None for row in rows] == [False, False, True, False]
    maker.rows(make_states([NOTHING, OutputSpec()]))
    assert len(ran) == 1


@pytest.mark.parametrize("name", LACKING)
def test_a_head_that_is_not_there_is_told(name: HeadOutput) -> None:
    """To whoever asks for it, in words."""
    with pytest.raises(ValueError, match="were asked for, and the model folder"):
        make_rows(make_states([NOTHING, OutputSpec(**{name: True})]))  # type: ignore[arg-type]


def test_logits_are_of_the_text_that_asked() -> None:
    """A classification head reads the first token of each, and gives each memory of its own."""
    torch.manual_seed(0)
    classifier = Classifier(ClassifierConfig("dense", "out", "tanh"), WIDTH, 3)
    asking = OutputSpec(pooled=False, logits=True)
    states = make_states([asking, NOTHING, asking])
    with torch.inference_mode():
        first, second, third = RowMaker(Pooling(), [], make_heads(classifier, None, None)).rows(states)
        expected = classifier(torch.tensor(np.stack([own(states, 0)[0], own(states, 2)[0]]))).numpy()
    assert second.logits is None
    np.testing.assert_allclose([first.logits, third.logits], expected, atol=1e-6)  # type: ignore[arg-type]
    assert first.logits is not None
    assert first.logits.base is None


def test_tokens_that_are_kept_have_a_place() -> None:
    """All of a text, or those that it keeps, counted through the pack."""
    states = make_states([NOTHING, NOTHING], kept=(0, 3))
    start = states.batch.starts[1]
    assert states.kept_places([0, 1]) == [[0, 1, 2], [start, start + 3]]
    assert states.kept_places([1]) == [[start, start + 3]]
