"""The texts of the benchmarks."""

from __future__ import annotations

import pytest

from bench.text_sets import FILES, MIXED, NUM_TEXTS, TEXT_SETS, read_texts


@pytest.mark.parametrize("name", TEXT_SETS)
def test_a_set_has_a_thousand_different_texts(name: str) -> None:
    """A text that comes twice would be encoded once by whoever caches, and an empty one is no text of its length."""
    texts = read_texts(name)
    assert len(set(texts)) == len(texts) == NUM_TEXTS
    assert all(text.strip() for text in texts)


def test_the_mix_takes_one_of_each_in_turn() -> None:
    """The first few texts of the mix are a fair sample of it already."""
    firsts = [read_texts(name, 1)[0] for name in FILES]
    assert read_texts(MIXED, len(FILES)) == firsts
