"""How large a comparison may be. Through HTTP: tests/app/routes/test_explain.py and test_attention.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.comparison_limits import check_heads, explained_units
from app.errors import AttentionTooLargeError, InvalidRequestError
from model.contract import Unit
from model.embedder import Embedder


@pytest.fixture(scope="module")
def embedder(tiny_folder: Path) -> Embedder:
    """The tiny model."""
    return Embedder.load(tiny_folder, dtype="float32", device="cpu", threads=1)


def refusal(embedder: Embedder, texts: list[str], unit: Unit, limit: int) -> AttentionTooLargeError:
    """Check these texts, two by two, expecting a refusal."""
    inputs = embedder.tokenizer.encode(texts, details=True)
    with pytest.raises(AttentionTooLargeError) as refused:
        explained_units(embedder, inputs, unit, limit)
    return refused.value


TEXTS = ["xyz xyz", "xyz", "xyz", "cat"]  # 8 x 5 and 5 x 3 tokens, 4 x 3 and 3 x 3 words


@pytest.mark.parametrize(
    ("unit", "limit", "actual", "ways_out"),
    [
        ("token", 54, 55, "unit=word gives 21; the first 1 pairs give 40"),
        ("token", 39, 55, "unit=word gives 21; send shorter texts"),
        ("token", 20, 55, "send shorter texts"),
        ("word", 20, 21, "the first 1 pairs give 12"),
        ("word", 11, 21, "send shorter texts"),
    ],
)
def test_only_ways_out_that_fit_are_named(
    embedder: Embedder, unit: Unit, limit: int, actual: int, ways_out: str
) -> None:
    """A refusal has limit and value, and names what would be let through, with its size; never what would not."""
    error = refusal(embedder, TEXTS, unit, limit)
    assert (error.param, error.limit, error.actual) == ("explain", limit, actual)
    assert error.message.partition(": ")[2] == ways_out


@pytest.mark.parametrize(("unit", "limit"), [("token", 55), ("word", 21)])
def test_exactly_the_limit_passes(embedder: Embedder, unit: Unit, limit: int) -> None:
    """The limit itself is allowed, and the units are those of each text."""
    inputs = embedder.tokenizer.encode(TEXTS, details=True)
    units = explained_units(embedder, inputs, unit, limit)
    assert units == [embedder.pooled_units(item, unit) for item in inputs]


def test_heads_are_counted_over_all_texts() -> None:
    """Values add up; the texts that would fit are counted from the first."""
    check_heads([None] * 3, [10, 20, 30], 60)
    with pytest.raises(AttentionTooLargeError, match=r": the first 2 texts give 30$") as refused:
        check_heads([None] * 3, [10, 20, 30], 59)
    assert (refused.value.param, refused.value.limit, refused.value.actual) == ("texts", 59, 60)
    with pytest.raises(AttentionTooLargeError, match=r": send shorter texts$"):
        check_heads([None], [10], 9)


def test_heads_need_a_token_to_be_compared_on() -> None:
    """Where every token of every text is left out there is nothing to compare; one that stays is enough."""
    check_heads([[True, True], [True, False]], [4, 4], 100)
    with pytest.raises(InvalidRequestError) as refused:
        check_heads([[True, True], [True]], [4, 1], 100)
    assert refused.value.param == "texts"
