"""Claims about similarity maps: their terms are those of the formula, and their sum is the cosine of the embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.contract import EncodeInput, FloatArray, OutputSpec, Row, TokenTable
from model.embedder import Embedder
from model.maps import units_among
from model.similarity import Projection, WideArray, merge, similarity_map, strongest_pairs
from tests.model.folders import write_dense, write_json, write_modules

LENGTHS = [(1, 1), (1, 40), (2, 3), (7, 40), (40, 40)]


def draw(*shape: int, seed: int = 0) -> FloatArray:
    """Normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def slow_map(
    first: FloatArray,
    second: FloatArray,
    layers: list[tuple[FloatArray, FloatArray | None]],
    dimensions: int | None,
) -> WideArray:
    """The formula read aloud: every layer on every token, every product by itself."""

    def share(state: FloatArray) -> WideArray:
        vector = state.astype(np.float64)
        for weight, bias in layers:
            vector = np.array([row @ vector for row in weight.astype(np.float64)]) + (0 if bias is None else bias)
        return vector[:dimensions]

    u, v = [share(state) for state in first], [share(state) for state in second]
    length = float(np.linalg.norm(sum(u) / len(u)) * np.linalg.norm(sum(v) / len(v)))
    return np.array([[a @ b / (len(u) * len(v) * length) for b in v] for a in u])


DENSE: dict[str, list[tuple[FloatArray, FloatArray | None]]] = {
    "none": [],
    "one": [(draw(9, 16, seed=1), draw(9, seed=2))],
    "one without bias": [(draw(9, 16, seed=1), None)],
    "two": [(draw(9, 16, seed=1), draw(9, seed=2)), (draw(6, 9, seed=3), draw(6, seed=4))],
    "a bias and then none": [(draw(9, 16, seed=1), draw(9, seed=2)), (draw(6, 9, seed=3), None)],
    "none and then a bias": [(draw(9, 16, seed=1), None), (draw(6, 9, seed=3), draw(6, seed=4))],
}


@pytest.mark.parametrize("layers", DENSE.values(), ids=DENSE.keys())
@pytest.mark.parametrize("dimensions", [None, 4])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_terms_are_those_of_the_formula(
    layers: list[tuple[FloatArray, FloatArray | None]], dimensions: int | None, lengths: tuple[int, int]
) -> None:
    """Each entry is u_i . v_j / (n m |u| |v|), through every linear layer and with fewer dimensions."""
    first, second = draw(lengths[0], 16, seed=5), draw(lengths[1], 16, seed=6)
    values = similarity_map(first, second, Projection.compose(layers), dimensions)
    assert values.shape == lengths
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, slow_map(first, second, layers, dimensions), rtol=0, atol=1e-12)
    assert abs(values.sum()) <= 1 + 1e-9


def test_a_text_and_itself_sum_to_one() -> None:
    """Identical sides give a symmetric map whose sum is 1."""
    states = draw(12, 16)
    values = similarity_map(states, states, Projection())
    np.testing.assert_allclose(values, values.T, rtol=0, atol=1e-15)
    assert values.sum() == pytest.approx(1, abs=1e-12)


def test_tokens_that_cancel_have_cosine_zero() -> None:
    """A pooled vector of length 0 gives finite terms and the sum 0, as the embedding of zeros does."""
    state = draw(1, 16)
    values = similarity_map(np.concatenate([state, -state]), draw(3, 16, seed=1), Projection())
    assert np.isfinite(values).all()
    assert values.sum() == pytest.approx(0, abs=1e-3)
    assert not similarity_map(np.zeros((2, 16), np.float32), state, Projection()).any()


# --- units ---

TABLE = TokenTable(
    ids=[0] * 8,
    texts=["[CLS]", "query", ":", "un", "##believ", "##able", "cats", "[SEP]"],
    starts=[0] * 8,
    ends=[0] * 8,
    special=[True, False, False, False, False, False, False, True],
    segments=[None, None, None, 0, 0, 0, 0, None],
    words=[None, None, None, 0, 0, 0, 1, None],
)


def test_tokens_as_units() -> None:
    """With unit token each pooled token is a row, with its word beside it."""
    units = units_among(TABLE, range(8), "token")
    assert units.tokens == list(range(8))
    assert units.words == TABLE.words
    assert units.members == list(range(8))


def test_words_as_units() -> None:
    """Pieces of a word are one unit, at the first of them; special tokens and those of a prompt stay by themselves."""
    units = units_among(TABLE, range(8), "word")
    assert units.tokens == [0, 1, 2, 3, 6, 7]
    assert units.words == [None, None, None, 0, 1, None]
    assert units.members == [0, 1, 2, 3, 3, 3, 4, 5]
    assert units.num_units == 6


@pytest.mark.parametrize(("unit", "tokens"), [("token", [3, 4, 5, 6, 7]), ("word", [3, 6, 7])])
def test_what_is_not_pooled_has_no_unit(unit: str, tokens: list[int]) -> None:
    """Tokens before the pooled ones are left out, and units still name tokens of the whole text."""
    units = units_among(TABLE, range(3, 8), unit)  # type: ignore[arg-type]
    assert units.tokens == tokens
    assert len(units.members) == 5


def test_pooling_may_begin_inside_a_word() -> None:
    """Where the end of a prompt falls into a word, the pieces that are pooled are the word's unit."""
    units = units_among(TABLE, range(4, 8), "word")
    assert (units.tokens, units.words, units.members) == ([4, 6, 7], [0, 1, None], [0, 0, 1, 2])


def test_blocks_are_summed() -> None:
    """A merged entry is the sum of its block; nothing else changes, and the sum of all stays."""
    values = draw(8, 5).astype(np.float64)
    rows, columns = units_among(TABLE, range(8), "word"), units_among(TABLE, range(3, 8), "word")
    merged = merge(values, rows, columns)
    assert merged.shape == (6, 3)
    for row in range(6):
        for column in range(3):
            block = values[np.array(rows.members) == row][:, np.array(columns.members) == column]
            assert merged[row, column] == pytest.approx(block.sum(), abs=1e-12)
    assert merged.sum() == pytest.approx(values.sum(), abs=1e-12)
    tokens = units_among(TABLE, range(8), "token"), units_among(TABLE, range(3, 8), "token")
    np.testing.assert_array_equal(merge(values, *tokens), values)


def test_strongest_pairs_count_both_signs() -> None:
    """What takes most away stands beside what adds most; of equals the first in reading order comes first."""
    values = np.array([[0.1, -0.5, 0.2], [0.5, 0.0, -0.2]])
    assert strongest_pairs(values, 4) == [(0, 1, -0.5), (1, 0, 0.5), (0, 2, 0.2), (1, 2, -0.2)]
    assert len(strongest_pairs(values)) == 6


@given(st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=1, max_size=6), st.integers(1, 30))
def test_strongest_pairs_leave_nothing_stronger_out(rows: list[list[int]], count: int) -> None:
    """None of the pairs left out is stronger than the weakest that is in."""
    values = np.array(rows, dtype=np.float64)
    found = strongest_pairs(values, count)
    sizes = [abs(value) for _, _, value in found]
    assert sizes == sorted(np.abs(values).ravel().tolist(), reverse=True)[:count]
    assert all(values[row, column] == value for row, column, value in found)


# --- with a model ---


def pairs_of_states(
    embedder: Embedder, texts: list[EncodeInput], dimensions: int | None
) -> tuple[list[Row], FloatArray]:
    """Run texts in one batch, for their token states and their unit embeddings."""
    rows = embedder.run(texts, [OutputSpec(dimensions=dimensions, token_states=True)] * len(texts))
    return rows, np.stack([row.embedding for row in rows if row.embedding is not None])


def check_sums(embedder: Embedder, texts: list[EncodeInput], dimensions: int | None = None) -> None:
    """Every pair's map sums to the cosine of the embeddings, within 1e-6, whether run together or without states."""
    rows, embeddings = pairs_of_states(embedder, texts, dimensions)
    plain = embedder.run(texts, [OutputSpec(dimensions=dimensions)] * len(texts))
    states = []
    for text, row in zip(texts, rows, strict=True):
        assert row.token_states is not None
        pooled = embedder.pooled_tokens(text)
        states.append(row.token_states[pooled.start : pooled.stop])
    for i, first in enumerate(states):
        for j, second in enumerate(states):
            total = similarity_map(first, second, embedder.projection, dimensions).sum()
            assert total == pytest.approx(embeddings[i].astype(np.float64) @ embeddings[j], abs=1e-6)
            alone = [plain[k].embedding for k in (i, j)]
            assert alone[0] is not None
            assert alone[1] is not None
            assert total == pytest.approx(alone[0].astype(np.float64) @ alone[1], abs=1e-6)


TEXTS = ["the cat sat", "dog", "", "the dog sat. the cat sat!", "a b c d e f g", "cat " * 60]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dimensions", [None, 5])
def test_maps_sum_to_the_models_cosine(folder: Path, dtype: str, dimensions: int | None) -> None:
    """For texts of any length the map sums to the cosine of what the model returns, in bfloat16 too."""
    embedder = Embedder.load(folder, dtype=dtype, device="cpu", threads=1)
    embedder.check_explainable()
    check_sums(embedder, embedder.tokenizer.encode(TEXTS), dimensions)


def with_dense(folder: Path, *activations: str, bias: bool = True, widths: Sequence[int] = ()) -> Embedder:
    """The tiny BERT with dense layers of 16 features, each with one of these activations; residuals with widths."""
    write_modules(
        folder,
        ("Transformer", ""),
        ("Pooling", "1_Pooling"),
        *(("Dense", f"{number}_Dense") for number, _ in enumerate(activations, start=2)),
    )
    for number, activation in enumerate(activations, start=2):
        generator = torch.Generator().manual_seed(number)
        width, out = (widths or [16] * 9)[number - 2 : number]
        tensors = {"linear.weight": torch.randn((out, width), generator=generator)}
        if bias:
            tensors["linear.bias"] = torch.randn(out, generator=generator)
        names = {"out_features": out, "bias": bias, "activation_function": f"torch.nn.modules.{activation}"}
        if widths:
            names.update(in_features=width, use_residual=True)
            if out != width:
                tensors["residual.weight"] = torch.randn((out, width), generator=generator)
        write_dense(folder / f"{number}_Dense", tensors, **names)
    return Embedder.load(folder, dtype="float32", device="cpu", threads=1)


@pytest.mark.parametrize("activations", [["linear.Identity"], ["linear.Identity", "linear.Identity"]])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_are_gone_through(folder: Path, activations: list[str], bias: bool) -> None:
    """Behind one or two dense layers without activation the sum is still the cosine, with fewer dimensions too."""
    embedder = with_dense(folder, *activations, bias=bias)
    embedder.check_explainable()
    assert embedder.projection.weight is not None
    texts = embedder.tokenizer.encode(TEXTS)
    check_sums(embedder, texts)
    check_sums(embedder, texts, 3)


@pytest.mark.parametrize("widths", [[16, 16], [16, 8, 8], [16, 16, 24]])
def test_residuals_are_gone_through(folder: Path, widths: list[int]) -> None:
    """What a dense layer adds of what comes in, as it is or projected, is part of each token's share."""
    embedder = with_dense(folder, *["linear.Identity"] * (len(widths) - 1), widths=widths)
    embedder.check_explainable()
    texts = embedder.tokenizer.encode(TEXTS)
    check_sums(embedder, texts)
    check_sums(embedder, texts, 3)


def test_a_prompt_that_is_not_pooled_has_no_rows(folder: Path) -> None:
    """Where pooling leaves the prompt out, so does the map; a text that is all prompt keeps one token."""
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True, "include_prompt": False})
    embedder = Embedder.load(folder, dtype="float32", device="cpu", threads=1)
    texts = [*embedder.tokenizer.encode(["cat sat", "a b c"], prompt="dog "), *embedder.tokenizer.encode(["the cat"])]
    assert [embedder.pooled_tokens(text) for text in texts] == [range(2, 5), range(2, 6), range(4)]
    check_sums(embedder, texts)
    full = EncodeInput([5] * 4, [0] * 4, 4, prompt_length=4)
    assert embedder.pooled_tokens(full) == range(3, 4)
    check_sums(embedder, [full, texts[0]])
