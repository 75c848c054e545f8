"""Claims about words: runs without white space, cut further in scripts that are written without spaces."""

from __future__ import annotations

import pytest
from tokenizers import pre_tokenizers

from model.words import Span, words_of
from tests.model.folders import byte_level


def words(text: str, offsets: list[tuple[int, int]], pieces: list[int | None]) -> tuple[list[str], list[int]]:
    """The words' texts, and each token's word."""
    spans, word_of = words_of(text, offsets, pieces)
    return [text[span.start : span.end] for span in spans], word_of


def bert_pieces(text: str) -> tuple[list[tuple[int, int]], list[int | None]]:
    """One token per piece of BERT's pre-tokenizer, with every Han character by itself."""
    offsets = []
    for _, (start, end) in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text):
        begin = start
        for place in range(start, end):
            if "\u4e00" <= text[place] <= "\u9fff":
                offsets += [(begin, place)] if begin < place else []
                offsets.append((place, place + 1))
                begin = place + 1
        offsets += [(begin, end)] if begin < end else []
    return offsets, list(range(len(offsets)))


def bytes_of(text: str) -> tuple[list[tuple[int, int]], list[int | None]]:
    """The byte-level tokenizer's tokens."""
    encoding = byte_level().encode(text, add_special_tokens=False)
    return encoding.offsets, encoding.word_ids


def test_a_word_is_a_run_without_white_space() -> None:
    """BERT's pre-tokenizer makes three pieces of ``don't``; a reader sees one word."""
    text = "don't  stop,\tnow"
    assert words(text, *bert_pieces(text)) == (["don't", "stop,", "now"], [0, 0, 0, 1, 1, 2])


def test_pieces_of_one_word_share_it() -> None:
    """Sub-words of one run have one word, which covers it whole even where a piece covers less."""
    assert words("unhappily cafe\u0301", [(0, 2), (2, 9), (10, 14)], [0, 0, 1]) == (
        ["unhappily", "cafe\u0301"],
        [0, 0, 1],
    )


@pytest.mark.parametrize("text", ["中文字", "日本", "中"])
def test_han_characters_are_words_by_themselves(text: str) -> None:
    """Where nothing is spaced, a word is what the pre-tokenizer cuts."""
    assert words(text, *bert_pieces(text)) == (list(text), list(range(len(text))))


def test_a_run_of_two_scripts_is_cut() -> None:
    """``Python编程 ok``: the run with Han in it is cut where the pre-tokenizer cuts, the other is whole."""
    text = "Python编程 it's"
    assert words(text, *bert_pieces(text)) == (["Python", "编", "程", "it's"], [0, 1, 2, 3, 3, 3])


@pytest.mark.parametrize(
    ("text", "cut"), [("สวัสดีโลก", 6), ("ສະບາຍດີ", 3), ("မင်္ဂလာပါ", 4), ("សួស្តី", 2), ("カタカナ", 2), ("𠀀𠀁", 1)]
)
def test_spaceless_scripts_are_cut_where_the_pre_tokenizer_cuts(text: str, cut: int) -> None:
    """Thai, Lao, Burmese, Khmer, Japanese and rare Han: two pieces are two words, tokens of one piece are one."""
    end = len(text)
    assert words(text, [(0, cut), (cut, end)], [0, 1]) == ([text[:cut], text[cut:]], [0, 1])
    assert words(text, [(0, cut), (cut, end)], [0, 0]) == ([text], [0, 0])


@pytest.mark.parametrize("text", ["naïve-Привет", "नमस्ते!", "مرحبا,", "한국어.", "Ελλάδα"])
def test_other_scripts_are_not_cut(text: str) -> None:
    """Scripts that are written with spaces are cut at spaces alone, whatever their marks."""
    middle = len(text) // 2
    assert words(text, [(0, middle), (middle, len(text))], [0, 1]) == ([text], [0, 0])


def test_bytes_of_one_emoji_are_one_word() -> None:
    """Four byte tokens of one character, and their neighbours, are one run."""
    assert words("a👍b c", *bytes_of("a👍b c")) == (["a👍b", "c"], [0, 0, 0, 0, 0, 0, 1, 1])


def test_a_space_joined_to_a_token_is_not_the_words() -> None:
    """Byte-level and SentencePiece tokens carry the space before them: they belong to the word behind it."""
    assert words("the cat", [(0, 3), (3, 7)], [0, 1]) == (["the", "cat"], [0, 1])
    assert words("i ⭢ é", *bytes_of("i ⭢ é")) == (["i", "⭢", "é"], [0, 1, 1, 1, 1, 2, 2, 2])


def test_empty_spans_belong_to_the_word_that_begins_there() -> None:
    """A lone space mark before a word is that word's; one behind the last word is the last word's."""
    assert words("a b", [(0, 1), (2, 2), (2, 3), (3, 3)], [0, 1, 1, 1])[1] == [0, 1, 1, 1]
    assert words("a b", [(0, 1), (1, 1), (2, 3)], [0, 1, 1])[1] == [0, 1, 1]
    assert words("a b", [(0, 1), (2, 2)], [0, 1]) == (["a", "b"], [0, 1])
    assert words("  a", [(0, 0)], [0]) == (["a"], [0])


def test_a_cut_word_keeps_its_marks() -> None:
    """Where a voicing mark was stripped, it is of the kana before it; where it has a token, of that token's word."""
    ga_ki = "か\u3099き\u3099"
    assert words(ga_ki, [(0, 1), (2, 3)], [0, 1]) == (["か\u3099", "き\u3099"], [0, 1])
    assert words(ga_ki, [(0, 1), (1, 2), (2, 3)], [0, 1, 2])[0] == ["か", "\u3099", "き\u3099"]
    assert words("日\u3099 cafe\u0301", [(0, 1), (3, 7)], [0, 1])[0] == ["日\u3099", "cafe\u0301"]


def test_a_run_without_a_token_is_no_word() -> None:
    """What truncation cut away, or a tokenizer dropped, is not listed."""
    assert words("the cat sat", [(0, 3), (8, 11)], [0, 1]) == (["the", "sat"], [0, 1])


def test_white_space_alone_has_no_runs() -> None:
    """Tokens of nothing but white space have a span of their own, empty, and no text."""
    spans, word_of = words_of("  ", *bytes_of("  "))
    assert [span.end - span.start for span in spans] == [0, 0]
    assert word_of == [0, 1]
    assert words_of("", [], []) == ([], [])
    assert Span(1, 2) == Span(1, 2)
