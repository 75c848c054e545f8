"""Corpora, weights and batches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from training.data import (
    CorpusSpec,
    choose_texts,
    join_sentences,
    mixed_batches,
    read_corpora,
    read_texts,
    token_batches,
)
from training.errors import CorpusError


def test_a_corpus_is_named_with_its_options() -> None:
    """Weight and join stand behind the file's name."""
    spec = CorpusSpec.parse("data/news.txt.gz,weight=0.25,join=6,take=90,swap=0.3")
    assert spec == CorpusSpec(Path("data/news.txt.gz"), 0.25, 6, 90, 0.3)
    assert (spec.name, CorpusSpec.parse("news.v2.txt").name) == ("news-join6-take90-swap0.3", "news.v2")


@pytest.mark.parametrize(
    "option", ["weight=0", "weight=x", "weight=nan", "join=0", "take=0", "swap=-0.1", "swap=1.1", "swap=nan", "of=3"]
)
def test_options_that_mean_nothing_are_refused(option: str) -> None:
    """A weight is a number above 0, a join or take at least 1, a swap a share, and there is no other option."""
    text = f"a.txt,{option}"
    with pytest.raises(CorpusError, match=r"^corpus 'a\.txt,"):
        CorpusSpec.parse(text)


def test_an_empty_corpus_is_refused(tmp_path: Path) -> None:
    """Blank lines are no text."""
    (tmp_path / "a.txt").write_text("\n \n")
    with pytest.raises(CorpusError, match=r"a\.txt holds no text$"):
        read_corpora([CorpusSpec(tmp_path / "a.txt")])


def test_two_corpora_of_one_name_are_refused(tmp_path: Path) -> None:
    """Their stored embeddings would have one place."""
    specs = [CorpusSpec(tmp_path / "x" / "a.txt"), CorpusSpec(tmp_path / "y" / "a.txt.gz")]
    with pytest.raises(CorpusError, match="two corpora are called 'a'"):
        read_corpora(specs)


def test_pairs_serve_as_texts(tmp_path: Path) -> None:
    """Both sides of a pair are texts of a corpus."""
    (tmp_path / "p.tsv").write_text("a\tb\nc\td\n")
    assert read_corpora([CorpusSpec(tmp_path / "p.tsv")])[0].texts == ["a", "b", "c", "d"]


def test_what_is_taken_is_a_sample_that_stays_the_same(tmp_path: Path) -> None:
    """In the corpus's order, from all over it; more than there is means all."""
    (tmp_path / "a.txt").write_text("\n".join(str(number) for number in range(200)))
    specs = [CorpusSpec.parse(f"{tmp_path}/a.txt,take={take}") for take in (50, 50, 900)]
    first, again, everything = (read_texts(spec) for spec in specs)
    assert first == again
    assert len(set(first)) == 50
    assert [int(text) for text in first] == sorted(int(text) for text in first)
    assert any(int(text) > 150 for text in first)
    assert len(everything) == 200


def test_joined_sentences_are_all_there_once_and_the_same_each_time() -> None:
    """Runs have 2 to N sentences; what is joined depends on the corpus alone."""
    sentences = [str(number) for number in range(100)]
    texts = join_sentences(sentences, 4)
    assert " ".join(texts).split() == sentences
    assert {len(text.split()) for text in texts[:-1]} == {2, 3, 4}
    assert texts == join_sentences(sentences, 4)


def test_a_share_of_the_words_gives_way_to_others_rare_ones_as_often(tmp_path: Path) -> None:
    """Short words, numbers and punctuation stay; one word in a thousand is drawn as often as the common ones."""
    (tmp_path / "a.txt").write_text("the wing, of 4000 feet\n" * 999 + "supersonic\n")
    texts = read_texts(CorpusSpec.parse(f"{tmp_path}/a.txt,swap=0.5"))
    words = [text.replace(",", "").split() for text in texts[:-1]]
    assert {(a, c, d) for a, _, c, d, _ in words} == {("the", "of", "4000")}
    assert all(text.startswith("the ") and ", of" in text for text in texts[:-1])
    counts = Counter(word for _, first, _, _, last in words for word in (first, last))
    assert set(counts) == {"wing", "feet", "supersonic"}
    assert 250 < counts["supersonic"] < 420  # a third of the half of 1,998
    assert texts == read_texts(CorpusSpec.parse(f"{tmp_path}/a.txt,swap=0.5"))


def test_nothing_is_swapped_where_nothing_can_be(tmp_path: Path) -> None:
    """No word is long enough: the texts stay."""
    (tmp_path / "a.txt").write_text("a b\nc d\n")
    assert read_texts(CorpusSpec.parse(f"{tmp_path}/a.txt,swap=1")) == ["a b", "c d"]


def test_a_weight_is_how_often_a_pass_sees_a_corpus() -> None:
    """2.5 = every text twice and half of them once more; 0.5 = another half in each pass."""
    first, second = (choose_texts([10, 8], [0.5, 2.5], np.random.default_rng(seed)) for seed in (0, 1))
    counts = np.bincount(first, minlength=18)
    assert counts[:10].sum() == 5
    assert counts[:10].max() == 1
    assert sorted(set(counts[10:])) == [2, 3]
    assert counts[10:].sum() == 20
    assert set(first[first < 10]) != set(second[second < 10])


def test_batches_hold_each_text_once_within_the_budget_and_of_like_length() -> None:
    """Padding that is not there cannot be wasted, and a text over the budget is a batch of its own."""
    lengths = np.random.default_rng(0).integers(3, 60, 3000)
    lengths[7] = 500
    batches = token_batches(lengths, np.arange(3000), 200, np.random.default_rng(1))
    assert sorted(np.concatenate(batches)) == list(range(3000))
    sums = [lengths[batch].sum() for batch in batches]
    assert max(total for batch, total in zip(batches, sums, strict=True) if 7 not in batch) <= 200
    assert [7] in [batch.tolist() for batch in batches]
    spread = [np.ptp(lengths[batch]) for batch in batches]
    assert np.median(spread) <= 2
    means = [lengths[batch].mean() for batch in batches]
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.2  # short and long ones in no order


def test_batches_follow_the_seed() -> None:
    """One seed makes one plan, another another."""
    lengths = np.arange(1, 101)
    plans = [token_batches(lengths, np.arange(100), 150, np.random.default_rng(seed)) for seed in (3, 3, 4)]
    first, again, other = ([batch.tolist() for batch in plan] for plan in plans)
    assert first == again != other


def test_no_text_makes_no_batch() -> None:
    """A weight so small that a pass sees nothing is not a fault here."""
    assert token_batches(np.ones(3, dtype=np.int64), np.zeros(0, dtype=np.int64), 10, np.random.default_rng(0)) == []


def test_mixed_batches_hold_each_text_once_and_short_beside_long_ones() -> None:
    """Within the budget, but for a text that is over it by itself; most batches have both ends of the lengths."""
    lengths = np.random.default_rng(0).integers(3, 60, 3000)
    lengths[7] = 500
    batches = mixed_batches(lengths, np.arange(3000), 200, np.random.default_rng(1))
    assert sorted(np.concatenate(batches)) == list(range(3000))
    sums = [lengths[batch].sum() for batch in batches]
    assert max(total for batch, total in zip(batches, sums, strict=True) if 7 not in batch) <= 200
    assert np.median([np.ptp(lengths[batch]) for batch in batches]) > 30
    assert mixed_batches(lengths, np.zeros(0, dtype=np.int64), 10, np.random.default_rng(0)) == []
