"""What is counted of attention before it is computed, and the ways out: each one, when taken, fits."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.attention_answers import num_attention_values
from app.errors import AnswerTooLargeError, AttentionTooLargeError
from app.limits import SPARSE_WEIGHT_VALUES, Limits, check_attention, check_sparse_vectors, num_sparse_weights
from model.collector import AttentionCollector
from model.contract import (
    AttentionSelection,
    EncodeInput,
    RolloutSelection,
    Row,
    SparseVector,
    TokenTable,
    WordTable,
)
from tests.model.test_maps import make_maps

LAYERS, HEADS = 3, 2
ROLLOUT = RolloutSelection(0.5, "mean", (0, 1, 2), HEADS)
ALL = AttentionSelection(tuple(range(LAYERS)), tuple(range(HEADS)))
PLENTY = 10**12


def make_text(num_words: int, pieces: int = 2) -> EncodeInput:
    """A text of words of so many pieces, between two special tokens."""
    words: list[int | None] = [None, *(word for word in range(num_words) for _ in range(pieces)), None]
    length = len(words)
    special = [word is None for word in words]
    zeros, none = [0] * length, [""] * length
    table = TokenTable(zeros, none, zeros, zeros, special, [None] * length, words)
    names = WordTable([""] * num_words, [0] * num_words, [0] * num_words, [0] * num_words)
    return EncodeInput(zeros, zeros, length, tokens=table, words=names)


TEXT = make_text(4)  # 10 tokens, 8 without the special ones, 4 words


def limits(sent: int = PLENTY, computed: int = PLENTY, binary: int | None = None) -> Limits:
    """Limits on attention alone."""
    return Limits(1, 1, sent, binary or sent, computed)


def refused(selection: AttentionSelection, bounds: Limits, *texts: EncodeInput, as_list: bool = True) -> Any:
    """The error that a request meets."""
    with pytest.raises(AttentionTooLargeError) as caught:
        check_attention(selection, dict(enumerate(texts or (TEXT,))), bounds, as_list=as_list)
    assert caught.value.param == "attention"
    return caught.value


def count(selection: AttentionSelection, *texts: EncodeInput) -> int:
    """The numbers that an answer is said to hold: exactly as many are allowed, and one fewer is not."""
    many = dict(enumerate(texts or (TEXT,)))
    low, high = 0, 10**9
    while low < high:
        middle = (low + high) // 2
        try:
            check_attention(selection, many, limits(middle), as_list=True)
            high = middle
        except AttentionTooLargeError:
            low = middle + 1
    return low


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 6 * 100),
        ({"layers": (2,)}, 2 * 100),
        ({"heads": (1,)}, 3 * 100),
        ({"reduce_heads": "mean"}, 3 * 100),
        ({"unit": "word"}, 6 * 6 * 6),
        ({"unit": "word", "special": "mask"}, 6 * (4 * 4 + 4)),
        ({"special": "renormalize"}, 6 * (8 * 8 + 8)),
        ({"top_k": 3}, 6 * 10 * 7),
        ({"top_k": 100}, 6 * 10 * 21),
        ({"min_weight": 0.5}, 6 * 10 * 5),
        ({"top_k": 3, "special": "mask", "unit": "word", "reduce_heads": "max"}, 3 * 4 * (7 + 1)),
        ({"maps": False}, 0),
        ({"maps": False, "stats": True}, 6 * 10),
        ({"maps": False, "stats": True, "special": "mask"}, 6 * 11),
        ({"stats": True, "reduce_heads": "mean"}, 3 * 100 + 6 * 10),
        ({"maps": False, "rollout": ROLLOUT}, 100),
        ({"maps": False, "rollout": ROLLOUT, "special": "mask", "unit": "word"}, 4 * 4 + 4),
    ],
)
def test_an_answers_real_shape_is_counted(changes: dict[str, Any], expected: int) -> None:
    """Reduced heads, words, hidden special tokens with their kept mass, sparse rows of 2 k + 1, statistics, rollout."""
    assert count(replace(ALL, **changes)) == expected


CHANGES = st.fixed_dictionaries(
    {
        "layers": st.sampled_from([(2,), (0, 1), (0, 1, 2)]),
        "heads": st.sampled_from([(1,), (0, 1)]),
        "reduce_heads": st.sampled_from([None, "mean", "max"]),
        "unit": st.sampled_from(["token", "word"]),
        "special": st.sampled_from(["keep", "mask", "renormalize"]),
        "top_k": st.sampled_from([None, 1, 3, 50]),
        "min_weight": st.sampled_from([0.0, 0.2]),
        "maps": st.booleans(),
        "stats": st.booleans(),
        "rollout": st.sampled_from([None, ROLLOUT]),
    }
)


@given(CHANGES, st.integers(0, 5), st.integers(1, 3))
@settings(deadline=None)
def test_what_is_counted_is_what_is_sent(changes: dict[str, Any], num_words: int, pieces: int) -> None:
    """No answer holds more numbers than were counted; without a smallest weight, exactly as many."""
    selection, text = replace(ALL, **changes), make_text(num_words, pieces)
    maps = make_maps(LAYERS, HEADS, text.num_tokens, text.num_tokens)
    collector = AttentionCollector(selection, 0, text.num_tokens, text.tokens, maps.device)
    computed = 0
    for layer in range(LAYERS):
        heads = list(selection.heads_of(layer))
        computed += maps[layer, heads].numel()
        if heads:
            collector.take(layer, maps[layer, heads])
    found = collector.finish()
    sent = num_attention_values(Row(attention=found))
    counted = count(selection, text)
    assert sent <= counted if selection.maps and selection.min_weight else sent == counted
    assert computed == selection.num_values(text.num_tokens)


def test_the_form_decides_the_limit() -> None:
    """Lists and bytes have limits of their own."""
    bounds = limits(599, binary=600)
    check_attention(ALL, {0: TEXT}, bounds, as_list=False)
    error = refused(ALL, bounds)
    assert (error.limit, error.actual) == (599, 600)
    assert "Accept: application/vnd.safetensors or encoding=base64 (which may hold 600) gives 600" in error.message
    error = refused(ALL, limits(599, binary=599), as_list=False)
    assert "base64" not in error.message


def test_texts_add_up() -> None:
    """The texts asked for, and no others; none asked is nothing."""
    bounds = limits(2 * 600)
    check_attention(ALL, {3: TEXT, 7: TEXT}, bounds, as_list=True)
    error = refused(ALL, bounds, TEXT, TEXT, make_text(0))
    assert (error.limit, error.actual) == (1200, 1200 + 6 * 4)
    check_attention(ALL, {}, limits(0), as_list=True)


def test_what_is_computed_has_a_limit_of_its_own() -> None:
    """Nothing of the maps is sent, and still all layers would be computed; exactly the limit is allowed."""
    selection = replace(ALL, maps=False, stats=True, layers=(2,), rollout=ROLLOUT)
    check_attention(selection, {0: TEXT}, limits(computed=600), as_list=True)
    error = refused(selection, limits(computed=599))
    assert (error.limit, error.actual) == (599, 600)
    assert "computed" in error.message
    assert "rollout=null gives 200" in error.message
    assert "top_k" not in error.message  # sends less, computes as much


def ways_out(message: str) -> list[tuple[list[str], int]]:
    """Read the ways out of a message: what to set, and the count that it gives."""
    found = re.findall(r"(?:: |; )((?:(?!: |; ).|: application)+?) gives (\d+)", message)
    return [(re.sub(r" \(which may hold \d+\)", "", labels).split(", "), int(number)) for labels, number in found]


def take(labels: list[str], selection: AttentionSelection, texts: dict[int, EncodeInput]) -> dict[str, Any]:
    """Follow a way out, as a caller would read it."""
    asked: dict[str, Any] = {"selection": selection, "texts": texts, "as_list": True}
    for label in labels:
        if label.startswith("Accept: application/vnd.safetensors"):
            asked["as_list"] = False
        elif label.startswith("items="):
            item = int(label.removeprefix("items=[").removesuffix("]"))
            asked["texts"] = {item: texts[item]}
        else:
            name, value = label.split("=", 1)
            fields = {
                "layers=[-1]": {"layers": (LAYERS - 1,)},
                "reduce_heads=mean": {"reduce_heads": "mean"},
                "unit=word": {"unit": "word"},
                "maps=false": {"maps": False},
                "maps=false with stats=true": {"maps": False, "stats": True},
                "rollout=null": {"rollout": None},
            }.get(label)
            if name == "top_k":
                fields = {"top_k": int(value)}
            elif name == "heads":
                fields = {"heads": (int(value.strip("[]")),)}
            assert fields is not None, label
            asked["selection"] = replace(asked["selection"], **fields)
    return asked


@given(
    CHANGES,
    st.lists(st.integers(0, 60), min_size=1, max_size=4),
    st.integers(0, 4000),
    st.integers(0, 20_000),
    st.integers(0, 20_000),
)
@settings(deadline=None, max_examples=300)
def test_every_way_out_fits(changes: dict[str, Any], sizes: list[int], sent: int, more: int, computed: int) -> None:
    """Up to three are named, each with the number it gives; whoever takes one is served, and counts that number."""
    selection = replace(ALL, **changes)
    texts = {index + 2: make_text(size) for index, size in enumerate(sizes)}
    bounds = limits(sent, computed, binary=sent + more)
    try:
        check_attention(selection, texts, bounds, as_list=True)
        return
    except AttentionTooLargeError as error:
        refusal = error
    ways = ways_out(refusal.message)
    assert len(ways) == refusal.message.count(" gives ") <= 3
    assert ways or "fewer items, or send shorter texts" in refusal.message
    is_computed = "computed" in refusal.message
    for labels, number in ways:
        asked = take(labels, selection, texts)
        check_attention(asked["selection"], asked["texts"], bounds, as_list=asked["as_list"])
        if is_computed:
            tokens = sum(text.num_tokens**2 for text in asked["texts"].values())
            assert number == asked["selection"].num_values(1) * tokens <= bounds.max_attention_values_computed
        else:
            assert number == count(asked["selection"], *asked["texts"].values())
    assert not any(set(a) < set(b) for a, _ in ways for b, _ in ways)  # nothing is asked in vain


def test_the_ways_out_that_lose_least_come_first() -> None:
    """One change rather than two; another form before fewer layers, fewer layers before fewer weights."""
    error = refused(ALL, limits(300, binary=600))
    assert [labels for labels, _ in ways_out(error.message)] == [
        ["Accept: application/vnd.safetensors or encoding=base64"],
        ["layers=[-1]"],
        ["reduce_heads=mean"],
    ]
    error = refused(ALL, limits(100))
    assert ways_out(error.message)[0] == (["maps=false with stats=true"], 60)
    assert ["layers=[-1]", "reduce_heads=mean"] in [labels for labels, _ in ways_out(error.message)]


def test_very_many_long_texts_are_counted_exactly() -> None:
    """A thousand texts of the longest kind do not overflow the count."""
    text = EncodeInput([0] * 8192, [0] * 8192, 8192)
    wide = AttentionSelection(tuple(range(48)), tuple(range(64)))
    error = refused(wide, limits(computed=1), *[text] * 1024)
    assert error.actual == 48 * 64 * 1024 * 8192**2
    assert np.iinfo(np.int64).max > error.actual


def test_weights_are_counted_over_all_texts() -> None:
    """Exactly as many as may be sent are, three values each; rows without a sparse vector have none. The error says how
    many there are and may be.
    """
    vectors = [SparseVector(np.arange(n, dtype=np.int32), np.ones(n, dtype=np.float32)) for n in (3, 0, 4)]
    rows = [*(Row(sparse_vector=vector) for vector in vectors), Row()]
    assert num_sparse_weights(rows) == 7
    bounds = limits()
    assert SPARSE_WEIGHT_VALUES == 3
    check_sparse_vectors(rows, replace(bounds, max_token_values=21))
    with pytest.raises(AnswerTooLargeError, match="of 4 texts have 7 weights, an answer may hold 6") as caught:
        check_sparse_vectors(rows, replace(bounds, max_token_values=20))
    assert (caught.value.limit, caught.value.actual, caught.value.param) == (6, 7, "texts")
