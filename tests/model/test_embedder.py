"""Claims about the Embedder: order, neighbours, what may be asked, and who owns the answer's memory."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.contract import AttentionSelection, EncodeInput, OutputSpec, Row
from model.embedder import Embedder, ModelInfo
from model.errors import (
    AttentionNotSupportedError,
    AttentionSelectionError,
    CheckpointError,
    DimensionsError,
    ExplanationError,
    ModelKindError,
    PromptError,
    TextTooLongError,
)
from model.labels import ModelKind
from tests.model.answers import MINILM, cosines, minilm_answers
from tests.model.folders import CONFIG, bert_tensors, write_bert, write_dense, write_json, write_modules
from tests.tiny import TOKEN_DIMENSIONS, make_bert_folder

TEXTS = ["the cat sat", "dog", "", "the dog sat. the cat sat!", "a b c d e f g", "cat"]

ROOT = Path(__file__).parents[2]
LENGTHS = [3, 32, 64, 128, 129, 256, 3, 4, 5, 31, 33, 63, 65, 127, 130, 255, *range(6, 54, 2)]
"""Tokens of 40 texts, on and around the sizes at which kernels change."""


@pytest.fixture(scope="module")
def long_texts() -> list[EncodeInput]:
    """Texts of MiniLM ids, of these lengths."""
    drawn = random.Random(7)
    return [
        EncodeInput([101, *drawn.choices(range(1000, 30000), k=length - 2), 102], [0] * length, length)
        for length in LENGTHS
    ]


@pytest.fixture(scope="module")
def minilm_bfloat16() -> Embedder:
    """all-MiniLM-L6-v2 in bfloat16."""
    return Embedder.load(MINILM, dtype="bfloat16", device="cpu", threads=1)


@pytest.fixture(scope="module")
def minilm_int8() -> Embedder:
    """all-MiniLM-L6-v2 in int8."""
    return Embedder.load(MINILM, dtype="int8", device="cpu", threads=1)


def embeddings(rows: list[Row]) -> np.ndarray:
    """The embeddings of these rows, one below the other."""
    return np.stack([row.embedding for row in rows if row.embedding is not None])


# --- neighbours ---


def test_a_text_does_not_see_its_neighbours(minilm: Embedder, long_texts: list[EncodeInput]) -> None:
    """In float32 a text alone, in a batch of 40 and in the reversed batch has one embedding, within 1e-5."""
    specs = [OutputSpec()] * 40
    together = embeddings(minilm.run(long_texts, specs))
    backwards = embeddings(minilm.run(long_texts[::-1], specs))[::-1]
    alone = embeddings([minilm.run([text], [OutputSpec()])[0] for text in long_texts])
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)
    np.testing.assert_allclose(backwards, alone, rtol=0, atol=1e-5)
    assert np.abs(together[0] - together[6]).max() > 0.01  # the two of 3 tokens were not exchanged for one another


def test_a_text_does_not_see_its_neighbours_in_bfloat16(
    minilm: Embedder, minilm_bfloat16: Embedder, long_texts: list[EncodeInput]
) -> None:
    """In bfloat16 alone and mixed have a cosine of 0.9999 or more, and of 0.999 or more to float32."""
    together = embeddings(minilm_bfloat16.run(long_texts, [OutputSpec()] * 40))
    alone = embeddings([minilm_bfloat16.run([text], [OutputSpec()])[0] for text in long_texts])
    assert cosines(together, alone).min() >= 0.9999
    assert cosines(together, embeddings(minilm.run(long_texts, [OutputSpec()] * 40))).min() >= 0.999


def test_a_text_does_not_see_its_neighbours_in_int8(
    minilm: Embedder, minilm_int8: Embedder, long_texts: list[EncodeInput]
) -> None:
    """In int8 alone and mixed differ as little as in float32: no scale is taken from the batch, no padding shows.

    Even of random ids, far from any text, the embedding is on average within 0.98 of float32's.
    """
    together = embeddings(minilm_int8.run(long_texts, [OutputSpec()] * 40))
    alone = embeddings([minilm_int8.run([text], [OutputSpec()])[0] for text in long_texts])
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)
    assert cosines(together, embeddings(minilm.run(long_texts, [OutputSpec()] * 40))).mean() >= 0.98


@pytest.mark.parametrize(("dtype", "lowest"), [("float32", 1 - 1e-6), ("bfloat16", 0.9999), ("int8", 1 - 1e-6)])
def test_parts_of_a_batch_give_what_the_whole_gives(
    long_texts: list[EncodeInput], request: pytest.FixtureRequest, dtype: str, lowest: float
) -> None:
    """On two cores, each with its parts, a batch has the rows and maps that it has on one; so have several batches."""
    whole: Embedder = request.getfixturevalue({"float32": "minilm"}.get(dtype, f"minilm_{dtype}"))
    before = torch.get_num_threads()
    try:
        parted = Embedder.load(MINILM, dtype=dtype, device="cpu", threads=2)
        assert len(parted._lanes) == 2
        specs = [
            OutputSpec(attention=whole.select_attention([5], "all") if place % 9 == 0 else None) for place in range(40)
        ]
        rows, expected = parted.run(long_texts, specs), whole.run(long_texts, specs)
        assert cosines(embeddings(rows), embeddings(expected)).min() >= lowest
        for row, one in zip(rows, expected, strict=True):
            assert (row.maps is None) == (one.maps is None)
            if row.maps is not None and one.maps is not None and dtype == "float32":
                np.testing.assert_allclose(row.maps, one.maps, rtol=0, atol=1e-5)
        texts = (ROOT / "bench/texts/sentences-25.txt").read_text(encoding="utf-8").splitlines()[:100]
        assert cosines(parted.encode(texts, batch_tokens=256), whole.encode(texts)).min() >= lowest
    finally:
        torch.set_num_threads(before)


def test_equal_texts_have_equal_rows_whatever_parts_there_are(tmp_path: Path) -> None:
    """Among many others, to the last bit: documents that are equal must rank equal."""
    before = torch.get_num_threads()
    try:
        embedder = Embedder.load(write_bert(tmp_path), dtype="float32", device="cpu", threads=2)
        drawn = random.Random(3)
        texts = [" ".join(drawn.choices(["cat", "dog", "sat"], k=3)) for _ in range(200)]  # of 27 kinds
        rows = embedder.encode(texts)
        for text in set(texts):
            same = rows[[index for index, other in enumerate(texts) if other == text]]
            assert (same == same[0]).all()
    finally:
        torch.set_num_threads(before)


def test_neighbours_of_other_lengths_do_not_show_in_int8(minilm_int8: Embedder) -> None:
    """Sentences of a book, each with neighbours of nearly its length, which in float32 would share a padded group."""
    texts = (ROOT / "bench/texts/sentences-25.txt").read_text(encoding="utf-8").splitlines()[:60]
    alone = np.stack([minilm_int8.encode(text)[0] for text in texts])
    np.testing.assert_allclose(minilm_int8.encode(texts), alone, rtol=0, atol=1e-5)


def test_the_padding_that_is_told_is_the_padding_there_is(
    minilm: Embedder, minilm_bfloat16: Embedder, minilm_int8: Embedder
) -> None:
    """In float32 texts of 19 and 20 tokens share a group, and four of 30 are made 32; in bfloat16 long texts are alone.

    In int8 nothing is padded.
    """
    assert minilm.padding_ratio([20, 19]) == pytest.approx(1 / 40)
    assert minilm_int8.padding_ratio([20, 19]) == 0.0
    assert minilm.padding_ratio([30] * 4) == pytest.approx(1 / 16)
    assert minilm_int8.padding_ratio([30] * 4) == 0.0
    assert minilm_bfloat16.padding_ratio([20, 19]) == pytest.approx(1 / 40)
    assert minilm.padding_ratio([200, 190]) == pytest.approx(1 / 40)
    assert minilm_bfloat16.padding_ratio([200, 190]) == 0.0


def test_the_formula_written_out_is_grouped_as_it_was(minilm_bfloat16: Embedder) -> None:
    """What only fast kernels gain by is not done for the explicit path, whatever the number type is."""
    for dtype in ("float32", "bfloat16"):
        explicit = Embedder.load(MINILM, dtype=dtype, device="cpu", threads=1, attention="explicit")
        assert explicit.padding_ratio([30] * 4) == 0.0
        assert explicit.padding_ratio([20, 19]) == pytest.approx(1 / 40)
        assert cosines(explicit.encode(TEXTS), minilm_bfloat16.encode(TEXTS)).min() >= 0.999
    explicit = Embedder.load(MINILM, dtype="int8", device="cpu", threads=1, attention="explicit")
    assert explicit.padding_ratio([20, 19]) == 0.0


def test_int8_keeps_what_texts_mean(minilm: Embedder, minilm_int8: Embedder) -> None:
    """Embeddings of the reference texts are within 0.99 of float32's on average; no cosine of two texts moves far."""
    texts = [answer.text for answer in minilm_answers()]
    exact, quick = minilm.encode(texts), minilm_int8.encode(texts)
    assert cosines(exact, quick).mean() >= 0.99
    assert np.abs(exact @ exact.T - quick @ quick.T).max() < 0.1


def test_maps_do_not_see_neighbours(minilm: Embedder, long_texts: list[EncodeInput]) -> None:
    """Maps of the first, a middle and the last layer are those of the text alone: padding never shows."""
    spec = OutputSpec(attention=minilm.select_attention([0, 3, 5], [0, 7]))
    asked = long_texts[:12]
    for text, row in zip(asked, minilm.run(asked, [spec] * 12), strict=True):
        [alone] = minilm.run([text], [spec])
        assert row.maps is not None
        assert alone.maps is not None
        assert row.maps.shape == (3, 2, text.num_tokens, text.num_tokens)
        np.testing.assert_allclose(row.maps, alone.maps, rtol=0, atol=1e-5)
        np.testing.assert_allclose(row.maps.sum(-1, dtype=np.float64), 1, rtol=0, atol=1e-5)


@pytest.mark.parametrize("fixture", ["minilm", "minilm_bfloat16", "minilm_int8"])
def test_maps_do_not_change_an_embedding(
    request: pytest.FixtureRequest, long_texts: list[EncodeInput], fixture: str
) -> None:
    """Embeddings are the same with and without maps, those of texts that ask and those of texts that do not."""
    embedder: Embedder = request.getfixturevalue(fixture)
    asks = OutputSpec(attention=embedder.select_attention("all", "all"))
    asked = long_texts[:12]
    without = embeddings(embedder.run(asked, [OutputSpec()] * 12))
    some = embeddings(embedder.run(asked, [asks if index % 3 == 0 else OutputSpec() for index in range(12)]))
    np.testing.assert_allclose(some, without, rtol=0, atol=1e-6)


def test_maps_in_bfloat16_are_exact_rows(minilm_bfloat16: Embedder, long_texts: list[EncodeInput]) -> None:
    """Whatever the encoder computes in, maps are float32 and their rows sum to 1 within 1e-5."""
    spec = OutputSpec(attention=minilm_bfloat16.select_attention([5], "all"))
    for row in minilm_bfloat16.run(long_texts[:4], [spec] * 4):
        assert row.maps is not None
        assert row.maps.dtype == np.float32
        np.testing.assert_allclose(row.maps.sum(-1, dtype=np.float64), 1, rtol=0, atol=1e-5)


def test_maps_in_bfloat16_are_near_those_of_float32(minilm: Embedder, minilm_bfloat16: Embedder) -> None:
    """What bfloat16 does to the queries and keys of all layers moves a weight as little as docs/api.md says."""
    answers = minilm_answers()
    inputs = minilm.tokenizer.encode([answer.text for answer in answers], details=True)
    spec = OutputSpec(attention=everything(minilm, special="keep", unit="token"))
    largest, moved = 0.0, []
    for item in inputs:
        [exact], [rough] = (embedder.run([item], [spec]) for embedder in (minilm, minilm_bfloat16))
        assert exact.maps is not None
        assert rough.maps is not None
        difference = np.abs(exact.maps - rough.maps)
        largest = max(largest, float(difference.max()))
        moved.append(float(difference.mean()))
        np.testing.assert_allclose(rough.attention.rollout, exact.attention.rollout, rtol=0, atol=0.005)
    assert 1e-4 < largest < 0.05
    assert np.mean(moved) < 1e-3


@pytest.mark.parametrize("length", [1, 40])
def test_the_shortest_and_the_longest_text(tiny: Embedder, length: int) -> None:
    """One token, and as many as there are positions, are finite unit vectors with whole maps."""
    text = EncodeInput([7] * length, [0] * length, length)
    [row] = tiny.run([text], [OutputSpec(attention=tiny.select_attention("all", "all"))])
    assert row.embedding is not None
    assert row.maps is not None
    assert np.linalg.norm(row.embedding) == pytest.approx(1, abs=1e-6)
    assert row.maps.shape == (2, 4, length, length)
    np.testing.assert_allclose(row.maps.sum(-1), 1, atol=1e-6)


# --- encode ---


@pytest.mark.parametrize("batch_tokens", [1, 8, 2048])
def test_encode_keeps_the_order(tiny: Embedder, batch_tokens: int) -> None:
    """Row i is text i, whatever the batches."""
    together = tiny.encode(TEXTS, batch_tokens=batch_tokens)
    assert together.shape == (6, 16)
    assert together.dtype == np.float32
    for text, embedding in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(tiny.encode([text])[0], embedding, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)


def test_one_string_is_one_text(tiny: Embedder) -> None:
    """A string is not a list of its letters; an empty list is no text."""
    np.testing.assert_array_equal(tiny.encode("the cat"), tiny.encode(["the cat"]))
    assert tiny.encode([]).shape == (0, 16)


def test_raw_embeddings_have_a_length(tiny: Embedder) -> None:
    """Without ``normalize`` the direction is the same and the length is the pooled vector's."""
    raw, unit = tiny.encode("the cat", normalize=False), tiny.encode("the cat")
    assert abs(np.linalg.norm(raw) - 1) > 0.01
    np.testing.assert_allclose(raw / np.linalg.norm(raw), unit, rtol=0, atol=1e-6)


def test_fewer_dimensions_are_the_first_ones_scaled(tiny: Embedder) -> None:
    """The first 5 dimensions, made a unit vector."""
    whole, cut = tiny.encode(TEXTS), tiny.encode(TEXTS, dimensions=5)
    assert cut.shape == (6, 5)
    expected = whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True)
    np.testing.assert_allclose(cut, expected, rtol=0, atol=1e-6)
    assert tiny.encode(TEXTS, dimensions=16).shape == (6, 16)


@pytest.mark.parametrize("dimensions", [0, -1, 17, 10**6])
def test_dimensions_that_do_not_exist_are_refused(tiny: Embedder, dimensions: int) -> None:
    """With limit, value and field."""
    with pytest.raises(DimensionsError) as caught:
        tiny.encode("cat", dimensions=dimensions)
    assert (caught.value.param, caught.value.limit, caught.value.actual) == ("dimensions", 16, dimensions)
    assert tiny.check_dimensions(1) == 1
    assert tiny.check_dimensions(16) == 16
    assert tiny.check_dimensions(None) is None


def test_truncation_can_be_refused(tiny: Embedder) -> None:
    """A text of 34 tokens is cut to 32, or refused."""
    text = "cat " * 32
    np.testing.assert_array_equal(tiny.encode(text), tiny.encode("cat " * 30))
    with pytest.raises(TextTooLongError):
        tiny.encode(text, truncate=False)


def with_prompts(folder: Path, *, include_prompt: bool) -> Embedder:
    """The tiny BERT with prompts, and pooling that reads them or not."""
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": {"query": "dog ", "long": "dog " * 40}, "default_prompt_name": None},
    )
    pooling = {"pooling_mode_mean_tokens": True, "include_prompt": include_prompt}
    write_json(folder / "1_Pooling" / "config.json", pooling)
    return Embedder.load(folder, dtype="float32", device="cpu", threads=1)


def test_a_prompt_is_read_and_pooled(folder: Path) -> None:
    """By default the prompt is part of the text."""
    embedder = with_prompts(folder, include_prompt=True)
    named = embedder.encode("cat sat", prompt_name="query")
    np.testing.assert_array_equal(named, embedder.encode("dog cat sat"))
    np.testing.assert_array_equal(named, embedder.encode("cat sat", prompt="dog "))
    with pytest.raises(PromptError):
        embedder.encode("cat", prompt_name="passage")
    assert embedder.info.prompts == ("query", "long")


def test_a_prompt_is_read_and_not_pooled(folder: Path) -> None:
    """With ``include_prompt`` false the prompt is attended to, and neither it nor [CLS] is pooled."""
    embedder = with_prompts(folder, include_prompt=False)
    [text] = embedder.tokenizer.encode(["cat sat"], prompt="dog ")
    [row] = embedder.run([text], [OutputSpec(normalize=False, token_states=True)])
    assert row.token_states is not None
    assert row.embedding is not None
    np.testing.assert_allclose(row.embedding, row.token_states[2:].mean(0), rtol=0, atol=1e-6)
    without = embedder.tokenizer.encode(["cat sat"])
    [plain] = embedder.run(without, [OutputSpec(normalize=False, token_states=True)])
    assert plain.token_states is not None
    assert plain.embedding is not None
    np.testing.assert_allclose(plain.embedding, plain.token_states.mean(0), rtol=0, atol=1e-6)


def test_a_prompt_that_fills_the_text_leaves_a_vector(folder: Path) -> None:
    """Where nothing but prompt is left after the cut, the embedding is still finite."""
    embedder = with_prompts(folder, include_prompt=False)
    assert np.linalg.norm(embedder.encode("cat", prompt_name="long")) == pytest.approx(1, abs=1e-6)


def test_a_result_that_is_not_finite_is_an_error(folder: Path) -> None:
    """Weights that overflow give an error, never a NaN that looks like an embedding."""
    tensors = bert_tensors()
    tensors["encoder.layer.1.output.LayerNorm.weight"].fill_(3e38)
    tensors["encoder.layer.1.output.LayerNorm.bias"].fill_(3e38)
    embedder = Embedder.load(write_bert(folder, tensors=tensors), dtype="float32", device="cpu", threads=1)
    with pytest.raises(FloatingPointError, match="not finite"):
        embedder.encode(["cat", "the cat sat"], normalize=False)


# --- run ---


def test_every_text_gets_what_it_asked_for(tiny: Embedder) -> None:
    """Specs of one batch may differ in everything; each row has its own wishes and no others."""
    inputs = tiny.tokenizer.encode(["the cat sat", "dog", "cat sat", "the dog"])
    maps = AttentionSelection((1,), (3, 0))
    specs = [
        OutputSpec(dimensions=4),
        OutputSpec(pooled=False, token_states=True),
        OutputSpec(normalize=False, attention=maps),
        OutputSpec(pooled=False),
    ]
    first, second, third, fourth = tiny.run(inputs, specs)
    assert first.embedding is not None
    assert first.embedding.shape == (4,)
    np.testing.assert_allclose(first.embedding, tiny.encode("the cat sat", dimensions=4)[0], rtol=0, atol=1e-6)
    assert (first.maps, first.token_states) == (None, None)
    assert second.embedding is None
    assert second.token_states is not None
    assert second.token_states.shape == (3, 16)
    assert third.embedding is not None
    np.testing.assert_allclose(third.embedding, tiny.encode("cat sat", normalize=False)[0], rtol=0, atol=1e-5)
    assert third.maps is not None
    assert third.maps.shape == (1, 2, 4, 4)
    assert (fourth.embedding, fourth.maps, fourth.token_states) == (None, None, None)


def test_the_mean_of_the_token_states_is_the_embedding(tiny: Embedder) -> None:
    """Token states are those that were pooled, in the order of the tokens."""
    inputs = tiny.tokenizer.encode(TEXTS)
    for row in tiny.run(inputs, [OutputSpec(normalize=False, token_states=True)] * len(inputs)):
        assert row.token_states is not None
        assert row.embedding is not None
        np.testing.assert_allclose(row.token_states.mean(0), row.embedding, rtol=0, atol=1e-5)


def test_rows_own_their_memory(tiny: Embedder) -> None:
    """No array is a piece of a larger one, none is shared with another row, all are float32 and may be written to."""
    inputs = tiny.tokenizer.encode(TEXTS)
    spec = OutputSpec(token_states=True, attention=tiny.select_attention("all", "all"))
    rows = tiny.run(inputs, [spec] * len(inputs))
    arrays = [array for row in rows for array in (row.embedding, row.token_states, row.maps)]
    for array in arrays:
        assert array is not None
        assert array.dtype == np.float32
        assert array.flags.writeable
        assert array.flags.c_contiguous
        if isinstance(array.base, torch.Tensor):
            assert array.base.untyped_storage().nbytes() == array.nbytes
        else:
            assert array.base is None
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


def test_two_runs_give_the_same_bytes(tiny: Embedder) -> None:
    """Nothing random is left in a loaded model."""
    np.testing.assert_array_equal(tiny.encode(TEXTS), tiny.encode(TEXTS))


# --- attention ---


@pytest.mark.parametrize(
    ("layers", "heads", "expected"),
    [
        ("all", "all", ((0, 1), (0, 1, 2, 3))),
        ([-1], [0], ((1,), (0,))),
        ([1, 0], [3, -4, 2], ((1, 0), (3, 0, 2))),
        ([-2, -1], [-1], ((0, 1), (3,))),
    ],
)
def test_layers_and_heads_are_resolved_in_the_asked_order(
    tiny: Embedder, layers: object, heads: object, expected: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    """Negative numbers count from the end; the order is kept."""
    selection = tiny.select_attention(layers, heads)  # type: ignore[arg-type]
    assert (selection.layers, selection.heads) == expected


def test_the_asked_order_is_the_answers(tiny: Embedder) -> None:
    """Layers [-1, 0] and heads [2, 0] stand in that order, each equal to its slice of all."""
    inputs = tiny.tokenizer.encode(["the cat sat", "dog"])
    [some, _] = tiny.run(inputs, [OutputSpec(attention=tiny.select_attention([-1, 0], [2, 0]))] * 2)
    [all_, _] = tiny.run(inputs, [OutputSpec(attention=tiny.select_attention("all", "all"))] * 2)
    assert some.maps is not None
    assert all_.maps is not None
    np.testing.assert_array_equal(some.maps, all_.maps[[1, 0]][:, [2, 0]])


@pytest.mark.parametrize(
    ("layers", "heads", "param", "limit", "actual"),
    [
        ([0, 2], [0], "attention.layers[1]", 1, 2),
        ([-3], [0], "attention.layers[0]", 1, -3),
        ([0], [4], "attention.heads[0]", 3, 4),
        ([0], [0, 1, -5], "attention.heads[2]", 3, -5),
        ([0, 0], [0], "attention.layers", None, None),
        ([1, -1], [0], "attention.layers", None, None),
        ([0], [3, -1], "attention.heads", None, None),
        ([], [0], "attention.layers", None, None),
        ([0], [], "attention.heads", None, None),
    ],
)
def test_a_selection_that_cannot_be_is_refused(
    tiny: Embedder, layers: list[int], heads: list[int], param: str, limit: int | None, actual: int | None
) -> None:
    """Out of range, named twice (also once from each end), or empty: with the place at fault."""
    with pytest.raises(AttentionSelectionError) as caught:
        tiny.select_attention(layers, heads)
    assert (caught.value.param, caught.value.limit, caught.value.actual) == (param, limit, actual)


def everything(embedder: Embedder, **changes: Any) -> AttentionSelection:
    """All that can be made of attention, of all layers and heads."""
    wishes: dict[str, Any] = {
        "stats": True,
        "special": "renormalize",
        "unit": "word",
        "rollout": embedder.select_rollout(0.5, "max", 0),
    }
    return embedder.select_attention("all", "all", **{**wishes, **changes})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_changes_no_bit_of_an_embedding(minilm: Embedder, minilm_bfloat16: Embedder, dtype: str) -> None:
    """In one batch shape embeddings are the same bytes, whatever is asked beside them and by whom."""
    embedder = minilm if dtype == "float32" else minilm_bfloat16
    inputs = embedder.tokenizer.encode(["The cat sat.", ("A dog", "barked!"), "", "unbelievable " * 40], details=True)
    plain = embeddings(embedder.run(inputs, [OutputSpec()] * 4))
    for changes in ({}, {"maps": False}, {"top_k": 4}, {"reduce_heads": "mean", "unit": "token", "special": "keep"}):
        asks = OutputSpec(attention=everything(embedder, **changes))
        for specs in ([asks] * 4, [asks, OutputSpec(), OutputSpec(), asks]):
            np.testing.assert_array_equal(embeddings(embedder.run(inputs, specs)), plain)


def test_tables_reach_the_right_text(tiny: Embedder) -> None:
    """Texts stand in the pack by length, and each is shaped by its own special tokens and words."""
    texts = ["the dog sat the cat sat", "unhappily", ("the cat", "the cat"), ""]
    inputs = tiny.tokenizer.encode(texts, details=True)
    rows = tiny.run(inputs, [OutputSpec(attention=everything(tiny))] * 4)
    for item, row, count in zip(inputs, rows, (6, 1, 4, 0), strict=True):
        [alone] = tiny.run([item], [OutputSpec(attention=everything(tiny))])
        assert row.attention is not None
        assert alone.attention is not None
        assert row.maps is row.attention.maps
        assert row.maps is not None
        assert row.maps.shape == (2, 4, count, count)
        np.testing.assert_allclose(row.maps, alone.maps, rtol=0, atol=1e-5)
        np.testing.assert_allclose(row.attention.rollout, alone.attention.rollout, rtol=0, atol=1e-5)
        np.testing.assert_allclose(row.maps.sum(-1), 1, rtol=0, atol=1e-5)


def test_words_need_details(tiny: Embedder) -> None:
    """A text that was tokenized without its tables cannot be shown by its words."""
    with pytest.raises(ValueError, match="details"):
        tiny.run(tiny.tokenizer.encode(["the cat"]), [OutputSpec(attention=everything(tiny))])


@pytest.mark.parametrize(("from_layer", "layers"), [(0, (0, 1)), (1, (1,)), (-1, (1,)), (-2, (0, 1))])
def test_a_rollout_ends_at_the_last_layer(tiny: Embedder, from_layer: int, layers: tuple[int, ...]) -> None:
    """True numbers, of all heads."""
    rollout = tiny.select_rollout(0.25, "max", from_layer)
    assert (rollout.layers, rollout.residual, rollout.heads, rollout.num_heads) == (layers, 0.25, "max", 4)


@pytest.mark.parametrize("from_layer", [2, -3])
def test_a_rollout_begins_at_a_layer_that_exists(tiny: Embedder, from_layer: int) -> None:
    """Otherwise the place at fault is named."""
    with pytest.raises(AttentionSelectionError) as caught:
        tiny.select_rollout(0.5, "mean", from_layer)
    assert (caught.value.param, caught.value.actual) == ("attention.rollout.from_layer", from_layer)


class WithoutMaps(Embedder):
    """A model whose attention has no maps, such as none that is served today."""

    gives_attention = False


def test_a_model_without_maps_says_so(folder: Path) -> None:
    """It refuses to select what it could not give, and encodes all the same."""
    embedder = WithoutMaps.load(folder, dtype="float32", device="cpu", threads=1)
    with pytest.raises(AttentionNotSupportedError) as caught:
        embedder.select_attention("all", "all")
    assert caught.value.param == "attention"
    assert embedder.encode("the cat").shape == (1, 16)


# --- classification heads ---


def test_a_classifier_gives_logits_and_no_embedding(tmp_path: Path) -> None:
    """Its own output is logits, one per label, the same alone and in a batch; asked for an embedding it says what it
    is, and what it is there for.
    """
    embedder = Embedder.load(make_bert_folder(tmp_path / "model", labels=("a", "b", "c")), dtype="float32", threads=1)
    info = embedder.info
    assert (info.kind, info.labels, info.dimensions, info.pooling) == ("classifier", ("a", "b", "c"), 0, "cls")
    inputs = embedder.tokenizer.encode(["the cat", ("the cat", "a dog barked"), "a"])
    together = embedder.run(inputs, [embedder.own_output] * len(inputs))
    for item, row in zip(inputs, together, strict=True):
        assert row.embedding is None
        assert row.logits is not None
        assert row.logits.shape == (3,)
        [alone] = embedder.run([item], [embedder.own_output])
        assert alone.logits is not None
        np.testing.assert_allclose(row.logits, alone.logits, rtol=0, atol=1e-5)
    with pytest.raises(ModelKindError, match=r"a classifier.*/predict") as caught:
        embedder.encode("the cat")
    assert caught.value.param == "model"


@pytest.mark.parametrize(("labels", "kind"), [((), "embedding"), (("a",), "reranker"), (("a", "b"), "classifier")])
def test_each_kind_refuses_what_is_of_another(tmp_path: Path, labels: tuple[str, ...], kind: ModelKind) -> None:
    """And takes what is its own, whatever else would be taken."""
    embedder = Embedder.load(make_bert_folder(tmp_path / "model", labels=labels), dtype="float32", threads=1)
    kinds: set[ModelKind] = {"embedding", "sparse", "late_interaction", "classifier", "reranker"}
    embedder.check_kind(kind)
    embedder.check_kind(*sorted(kinds))
    others = sorted(kinds - {kind})
    with pytest.raises(ModelKindError, match=kind):
        embedder.check_kind(*others, param="dimensions")


def test_a_classifier_gives_the_attention_of_a_pair(tmp_path: Path) -> None:
    """Beside its logits, and without changing a bit of them."""
    embedder = Embedder.load(make_bert_folder(tmp_path / "model", labels=("a",)), dtype="float32", threads=1)
    inputs = embedder.tokenizer.encode([("the cat", "a dog")])
    spec = replace(embedder.own_output, attention=embedder.select_attention("all", "all"))
    [asked], [plain] = embedder.run(inputs, [spec]), embedder.run(inputs, [embedder.own_output])
    assert asked.maps is not None
    assert asked.maps.shape == (2, 2, 7, 7)
    np.testing.assert_allclose(asked.maps.sum(-1), 1, atol=1e-5)
    np.testing.assert_array_equal(asked.logits, plain.logits)  # type: ignore[arg-type]


# --- sparse models ---


def test_a_sparse_model_gives_weights_and_no_embedding(tmp_path: Path) -> None:
    """Its own output is a sparse vector, the same alone and in a batch, with attention beside it or for a neighbour."""
    embedder = Embedder.load(make_bert_folder(tmp_path / "model", splade=True), dtype="float32", threads=1)
    info = embedder.info
    assert (info.kind, info.labels, info.dimensions, info.pooling) == ("sparse", (), 0, "splade")
    inputs = embedder.tokenizer.encode(["the cat", ("the cat", "a dog barked"), "a", "the cat"])
    maps = replace(embedder.own_output, attention=embedder.select_attention("all", "all"))
    others = replace(maps, sparse_vector=False)
    together = embedder.run(inputs, [embedder.own_output, maps, others, embedder.own_output])
    assert together[2].sparse_vector is None
    assert together[1].maps is not None
    for item, row in zip(inputs, together, strict=True):
        assert (row.embedding, row.logits) == (None, None)
        if row.sparse_vector is not None:
            [alone] = embedder.run([item], [embedder.own_output])
            assert alone.sparse_vector is not None
            assert 0 < alone.sparse_vector.index.size < info.vocab_size
            np.testing.assert_array_equal(row.sparse_vector.index, alone.sparse_vector.index)
            np.testing.assert_allclose(row.sparse_vector.value, alone.sparse_vector.value, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(together[0].sparse_vector.value, together[3].sparse_vector.value)  # type: ignore[union-attr]
    with pytest.raises(ModelKindError, match=r"a sparse model.*/embed_sparse"):
        embedder.encode("the cat")


def test_sparse_vectors_of_another_model_are_refused(folder: Path) -> None:
    """In words, not answered with nothing."""
    embedder = Embedder.load(folder, dtype="float32", threads=1)
    with pytest.raises(ValueError, match="no SPLADE model"):
        embedder.run(embedder.tokenizer.encode(["a"]), [OutputSpec(pooled=False, sparse_vector=True)])


def test_a_sparse_model_in_bytes(tmp_path: Path) -> None:
    """With --dtype int8 the head stays in float32, and its weights stay near."""
    path = make_bert_folder(tmp_path / "model", splade=True)
    exact, near = (Embedder.load(path, dtype=dtype, threads=1) for dtype in ("float32", "int8"))
    vectors = []
    for embedder in (exact, near):
        [row] = embedder.run(embedder.tokenizer.encode(["the cat sat"]), [embedder.own_output])
        assert row.sparse_vector is not None
        vectors.append(np.zeros(embedder.info.vocab_size))
        vectors[-1][row.sparse_vector.index] = row.sparse_vector.value
    first, second = vectors
    assert first @ second > 0.98 * np.linalg.norm(first) * np.linalg.norm(second)


# --- late interaction ---


def test_a_late_interaction_model_gives_vectors_of_tokens(tmp_path: Path) -> None:
    """Its own output are unit vectors of the tokens that are kept, the same alone and in a batch of both roles, with
    attention beside them or for a neighbour.
    """
    embedder = Embedder.load(make_bert_folder(tmp_path / "model", late=True), dtype="float32", threads=1)
    info = embedder.info
    assert (info.kind, info.labels, info.dimensions, info.pooling) == ("late_interaction", (), TOKEN_DIMENSIONS, "none")
    assert (embedder.dimensions, info.max_length, info.prompts) == (0, 20, ("query", "document"))
    documents = embedder.tokenizer.encode(["the cat, sat!", "a dog barked on the mat", "the cat"])
    inputs = [*documents, *embedder.tokenizer.encode(["the cat", "a dog barked on the mat"], role="query")]
    maps = replace(embedder.own_output, attention=embedder.select_attention("all", "all"))
    others = replace(maps, token_vectors=False)
    specs = [embedder.own_output, maps, others, maps, embedder.own_output]
    together = embedder.run(inputs, specs)
    assert [None if row.token_vectors is None else len(row.token_vectors) for row in together] == [6, 9, None, 10, 10]
    for item, spec, row in zip(inputs, specs, together, strict=True):
        assert (row.embedding, row.logits, row.sparse_vector, row.token_states) == (None, None, None, None)
        [alone] = embedder.run([item], [spec])
        if row.token_vectors is not None and alone.token_vectors is not None:
            np.testing.assert_allclose(np.linalg.norm(row.token_vectors, axis=1), 1, atol=1e-6)
            np.testing.assert_allclose(row.token_vectors, alone.token_vectors, rtol=0, atol=1e-5)
        if row.maps is not None and alone.maps is not None:
            np.testing.assert_allclose(row.maps, alone.maps, rtol=0, atol=1e-5)
            np.testing.assert_array_equal(row.maps[..., item.num_seen or item.num_tokens :], 0)
    with pytest.raises(ModelKindError, match=r"a late interaction model.*/embed_all and /rerank"):
        embedder.encode("the cat")


def test_token_vectors_of_another_model_are_refused(folder: Path) -> None:
    """In words, not answered with nothing."""
    embedder = Embedder.load(folder, dtype="float32", threads=1)
    with pytest.raises(ValueError, match="no late interaction model"):
        embedder.run(embedder.tokenizer.encode(["a"]), [OutputSpec(pooled=False, token_vectors=True)])


@pytest.mark.parametrize(("dtype", "lowest"), [("bfloat16", 0.999), ("int8", 0.98)])
def test_late_interaction_in_fewer_bits(tmp_path: Path, dtype: str, lowest: float) -> None:
    """Vectors of both roles stay near, and a text's stay its own whoever its neighbours are."""
    path = make_bert_folder(tmp_path / "model", late=True)
    exact, near = (Embedder.load(path, dtype=each, threads=1) for each in ("float32", dtype))
    texts = ["the cat sat", "a dog barked on the mat", "hello"]
    inputs = [*exact.tokenizer.encode(texts), *exact.tokenizer.encode(texts, role="query")]
    specs = [exact.own_output] * len(inputs)
    for item, first, second in zip(inputs, exact.run(inputs, specs), near.run(inputs, specs), strict=True):
        [alone] = near.run([item], specs[:1])
        assert first.token_vectors is not None
        assert second.token_vectors is not None
        assert alone.token_vectors is not None
        assert (first.token_vectors * second.token_vectors).sum(axis=1).min() > lowest
        assert (second.token_vectors * alone.token_vectors).sum(axis=1).min() > 0.9999


def test_a_projection_of_another_width_is_refused(tmp_path: Path) -> None:
    """By the file."""
    path = make_bert_folder(tmp_path / "model", late=True, hidden_size=24)
    sizes = json.loads((path / "1_Dense/config.json").read_text())
    (path / "1_Dense/config.json").write_text(json.dumps({**sizes, "in_features": 16}))
    with pytest.raises(CheckpointError, match=r"1_Dense/config.json: in_features is 16, and what comes in has 24"):
        Embedder.load(path, threads=1)


# --- loading ---


def test_info_says_what_was_loaded(folder: Path) -> None:
    """Every field of the information is the model's own."""
    info = Embedder.load(folder, dtype="float32", device="cpu", threads=1, special_tokens="parse").info
    assert info == ModelInfo(
        folder=folder,
        format="BERT",
        kind="embedding",
        labels=(),
        num_parameters=sum(tensor.numel() for tensor in bert_tensors().values()),
        num_ignored_tensors=0,
        dimensions=16,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=CONFIG["vocab_size"],
        max_length=32,
        pooling="mean",
        dtype="float32",
        device="cpu",
        threads=1,
        special_tokens="parse",
        prompts=(),
    )


def test_a_folder_may_be_a_string(folder: Path) -> None:
    """As in a script."""
    assert Embedder.load(str(folder), threads=1).dimensions == 16


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs_on_the_cpu(folder: Path, tiny: Embedder, dtype: str) -> None:
    """Both give float32 unit vectors close to those of float32."""
    embedder = Embedder.load(folder, dtype=dtype, device="cpu", threads=1)
    assert embedder.info.dtype == dtype
    actual = embedder.encode(TEXTS)
    assert actual.dtype == np.float32
    assert cosines(actual, tiny.encode(TEXTS)).min() > 0.999


@pytest.mark.parametrize(("option", "value"), [("dtype", "int7"), ("device", "tpu")])
def test_an_unknown_option_is_refused(folder: Path, option: str, value: str) -> None:
    """Before anything is read."""
    with pytest.raises(ValueError, match=value):
        Embedder.load(folder, **{option: value})  # type: ignore[arg-type]


def test_threads_follow_the_setting_and_else_the_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number given is used; without one, what affinity and quota allow."""
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr("model.embedder.available_threads", lambda: 5)
    Embedder.load(folder, threads=3)
    Embedder.load(folder)
    assert asked == [3, 5]


# --- explanations (what is explained: test_similarity.py) ---


@pytest.mark.parametrize(
    ("flag", "mode"),
    [("pooling_mode_cls_token", "cls"), ("pooling_mode_max_tokens", "max"), ("pooling_mode_lasttoken", "lasttoken")],
)
def test_only_the_mean_is_explained(folder: Path, flag: str, mode: str) -> None:
    """Whatever else pools is refused with its name; the mean passes."""
    Embedder.load(folder, dtype="float32", device="cpu", threads=1).check_explainable()
    write_json(folder / "1_Pooling" / "config.json", {flag: True})
    embedder = Embedder.load(folder, dtype="float32", device="cpu", threads=1)
    with pytest.raises(ExplanationError, match=f"pools by {mode}:") as caught:
        embedder.check_explainable()
    assert caught.value.param == "explain"


def test_an_explanation_needs_states_and_tables(tiny: Embedder) -> None:
    """A row without token states, and units of a text without its token table, are errors and no empty maps."""
    text, detailed = tiny.tokenizer.encode(["cat"])[0], tiny.tokenizer.encode(["cat"], details=True)[0]
    [bare], [full] = tiny.run([text], [OutputSpec()]), tiny.run([text], [OutputSpec(token_states=True)])
    assert tiny.similarity_map([text, text], [full, full], None).shape == (3, 3)
    with pytest.raises(ValueError, match="token states"):
        tiny.similarity_map([text, text], [full, bare], None)
    assert tiny.pooled_units(detailed, "token").num_units == 3
    with pytest.raises(ValueError, match="details"):
        tiny.pooled_units(text, "token")


@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu", "sigmoid", "silu"])
def test_only_linear_layers_are_explained(folder: Path, activation: str) -> None:
    """A dense layer with an activation is refused by its number and the activation, wherever it stands."""
    write_modules(folder, ("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Dense", "3_Dense"))
    tensors = {"linear.weight": torch.eye(16), "linear.bias": torch.zeros(16)}
    for number, name in ((2, "identity"), (3, activation)):
        write_dense(folder / f"{number}_Dense", tensors, out_features=16, activation_function=f"torch.nn.{name}")
    embedder = Embedder.load(folder, dtype="float32", device="cpu", threads=1)
    with pytest.raises(ExplanationError, match=f"dense layer 2 of this model applies {activation} "):
        embedder.check_explainable()
