"""Tokenizers that are trained here."""

from __future__ import annotations

import string

import pytest
import tokenizers

from tests.tiny import make_wordpiece_tokenizer
from training.errors import RunError
from training.vocabulary import matching_rows, train_wordpiece, trim_wordpiece

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


def test_a_trimmed_vocabulary_keeps_what_is_used() -> None:
    """Words that the texts use stay whole; others fall into pieces; nothing that ASCII can spell is unknown."""
    whole = train_wordpiece(["the cat sat", "a dog ran", *string.ascii_letters, *string.digits] * 9, 300)
    trimmed = trim_wordpiece(whole, ["the cat", "the cat sat"], 110)
    assert trimmed.encode("The cat sat").tokens == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    assert whole.encode("dog").tokens == ["[CLS]", "dog", "[SEP]"]
    assert trimmed.encode("dog").tokens == ["[CLS]", "d", "##o", "##g", "[SEP]"]
    assert trimmed.get_vocab_size() < whole.get_vocab_size()


def test_a_trimmed_vocabulary_is_numbered_without_gaps() -> None:
    """From 0, the special tokens with their new numbers in the template too; the original is as it was."""
    whole = make_wordpiece_tokenizer()
    before = whole.to_str()
    trimmed = trim_wordpiece(whole, ["cat"], whole.get_vocab_size() - 1)
    vocabulary = trimmed.get_vocab(with_added_tokens=True)
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    encoding = trimmed.encode("cat")
    assert [trimmed.id_to_token(index) for index in encoding.ids] == encoding.tokens
    assert whole.to_str() == before


def test_a_trimmed_vocabulary_needs_room() -> None:
    """For special tokens and ASCII."""
    with pytest.raises(RunError, match="a vocabulary of 3 has no room for the 97 tokens"):
        trim_wordpiece(make_wordpiece_tokenizer(), TEXTS, 3)


def test_only_wordpiece_is_trimmed() -> None:
    """Another kind of tokenizer is refused."""
    with pytest.raises(RunError, match="only a WordPiece vocabulary can be trimmed"):
        trim_wordpiece(tokenizers.Tokenizer(tokenizers.models.BPE()), TEXTS, 300)


def test_tokens_beyond_the_vocabulary_are_not_trimmed() -> None:
    """A token that was added later has no place in the numbering anew: it is named, not lost."""
    tokenizer = make_wordpiece_tokenizer()
    tokenizer.add_special_tokens(["[QUERY]"])
    with pytest.raises(RunError, match=r"^token '\[QUERY\]' was added beyond the vocabulary"):
        trim_wordpiece(tokenizer, ["the cat"], 200)
