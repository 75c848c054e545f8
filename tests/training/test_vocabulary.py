"""Tokenizers that are trained here."""

from __future__ import annotations

import pytest

from tests.tiny import make_wordpiece_tokenizer
from training.errors import RunError
from training.vocabulary import matching_rows, train_wordpiece

TEXTS = ["the cat sat on the mat", "the dog sat on the cat", "cats and dogs"] * 5


def test_a_trained_tokenizer_reads_its_texts() -> None:
    """Words of its corpus are tokens, in BERT's template, lower-cased."""
    tokenizer = train_wordpiece(TEXTS, 60)
    assert tokenizer.encode("The CAT sat").tokens == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    assert tokenizer.get_vocab_size() <= 60
    assert tokenizer.token_to_id("[PAD]") == 0
    assert tokenizer.encode("the", "cat").type_ids == [0, 0, 0, 1, 1]


def test_a_vocabulary_without_room_is_refused() -> None:
    """Five special tokens need five places, and a word one more."""
    with pytest.raises(RunError, match="a vocabulary of 5 has room for the special tokens only"):
        train_wordpiece(TEXTS, 5)


def test_known_tokens_are_matched_by_their_spelling() -> None:
    """Whatever their ids are."""
    ours, theirs = train_wordpiece(TEXTS, 60), make_wordpiece_tokenizer()
    rows = matching_rows(ours, theirs, 60)
    assert rows[ours.token_to_id("cat")] == theirs.token_to_id("cat")
    assert theirs.token_to_id("and") is None
    assert rows[ours.token_to_id("and")] is None
    assert len(rows) == 60
