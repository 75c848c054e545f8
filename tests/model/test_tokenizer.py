"""Claims about the tokenizer: limits, prompts, pairs, offsets into the caller's own text, typed special tokens."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from model.contract import EncodeInput, TokenTable, WordTable
from model.errors import InputError, PairError, PromptError, TextTooLongError, TokenIdError
from model.tokenizer import SpecialTokens, Text, Tokenizer, TokenizerConfig
from tests.model.answers import MINILM, REPOSITORY
from tests.model.folders import IDS, PIECES, byte_level, wordpiece

steady = settings(deadline=None)  # a busy machine is no failure

CLS, SEP = IDS["[CLS]"], IDS["[SEP]"]
EMOJI_TEXT = "👩‍🚀 Unbelievable café!"
PROMPTS = {"query": "the cat ", "document": ""}


def make(backend: tokenizers.Tokenizer | None = None, *, max_length: int = 12, **config: object) -> Tokenizer:
    """A tokenizer of the tiny BERT, or of what is given."""
    return Tokenizer(backend or wordpiece(), TokenizerConfig(max_length=max_length, **config))  # type: ignore[arg-type]


def tables(tokenizer: Tokenizer, text: Text, prompt: str = "") -> tuple[TokenTable, WordTable]:
    """The two tables of one text."""
    [encoded] = tokenizer.encode([text], prompt=prompt, details=True)
    assert encoded.tokens is not None
    assert encoded.words is not None
    assert encoded.tokens.ids == encoded.input_ids
    return encoded.tokens, encoded.words


def shown(text: str, table: TokenTable) -> list[str]:
    """What each token covers in the caller's text."""
    return [text[start:end] for start, end in zip(table.starts, table.ends, strict=True)]


@pytest.fixture(scope="module")
def real() -> Tokenizer:
    """all-MiniLM-L6-v2's tokenizer, as its file is: padded to 128 and truncated at 128."""
    backend = tokenizers.Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    return Tokenizer(backend, TokenizerConfig(max_length=256))


# --- the file's own settings ---


def test_padding_and_truncation_of_the_file_are_cleared() -> None:
    """A file that pads and cuts to 128 gives 4 tokens for a short text and 256 for a long one."""
    backend = tokenizers.Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    assert len(backend.encode("hello world").ids) == 128
    assert len(backend.encode("word " * 300).ids) == 128
    tokenizer = Tokenizer(backend, TokenizerConfig(max_length=256))
    short, long = tokenizer.encode(["hello world", "word " * 300])
    assert short.input_ids == [101, 7592, 2088, 102]
    assert (long.num_tokens, long.num_tokens_total) == (256, 302)
    assert 0 not in long.input_ids


def test_padding_of_the_file_is_cleared_in_a_batch() -> None:
    """A file that pads to the longest of a batch does not lengthen the others."""
    backend = wordpiece()
    backend.enable_padding()
    texts = make(backend).encode(["cat", "the cat sat", ("dog", "the cat sat")])
    assert [text.num_tokens for text in texts] == [3, 5, 7]


def test_sizes_are_read_from_the_vocabulary() -> None:
    """The size is the largest id plus one, special tokens included."""
    tokenizer = make(max_length=9)
    assert tokenizer.vocab_size == len(PIECES)
    assert tokenizer.num_special_tokens == 2
    assert tokenizer.max_length == 9
    assert make(wordpiece(template=False)).num_special_tokens == 0


# --- the limit ---


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("details", [True, False])
def test_a_text_of_exactly_the_maximum_is_whole(truncate: bool, details: bool) -> None:
    """10 words and two special tokens are 12 tokens, and 12 are read."""
    [text] = make().encode(["cat " * 10], truncate=truncate, details=details)
    assert text.input_ids == [CLS, *[IDS["cat"]] * 10, SEP]
    assert text.num_tokens_total == 12
    assert not text.is_truncated


@pytest.mark.parametrize("num_words", [11, 100, 120])
@pytest.mark.parametrize("details", [True, False])
def test_a_longer_text_is_cut_before_its_last_special_token(num_words: int, details: bool) -> None:
    """One more token or ten times more: 12 are kept, the last is [SEP], and the whole is counted."""
    [text] = make().encode(["dog " + "cat " * (num_words - 1)], details=details)
    assert text.input_ids == [CLS, IDS["dog"], *[IDS["cat"]] * 9, SEP]
    assert text.token_type_ids == [0] * 12
    assert text.num_tokens_total == num_words + 2
    assert text.is_truncated
    if text.tokens is not None:
        assert text.tokens.special == [True, *[False] * 10, True]
        assert text.tokens.ends[-2] == 39  # "dog " and nine times "cat "
    assert (text.tokens is not None) is details


@pytest.mark.parametrize("num_words", [11, 120])
def test_a_longer_text_is_refused_where_it_may_not_be_cut(num_words: int) -> None:
    """The error names the text, the limit and the tokens it has, and does not repeat it."""
    with pytest.raises(TextTooLongError) as caught:
        make().encode(["cat", "cat " * num_words], truncate=False)
    assert caught.value.param == "texts[1]"
    assert (caught.value.limit, caught.value.actual) == (12, num_words + 2)
    assert "cat cat" not in str(caught.value)


def test_a_cut_leaves_the_next_text_alone() -> None:
    """A long text in a batch changes no other, in this call or the next."""
    tokenizer = make()
    first = tokenizer.encode(["the cat", "cat " * 50, "the cat"])
    assert first[0] == first[2] == tokenizer.encode(["the cat"])[0]


# --- token ids ---


def test_ids_are_taken_as_they_are() -> None:
    """No special token is added to ids, and none is removed."""
    assert make().from_ids([7, 3, 7]) == EncodeInput([7, 3, 7], [0, 0, 0], 3)


def test_ids_are_cut_like_texts() -> None:
    """13 ids keep 12; without truncation they are refused by number."""
    text = make().from_ids(range(13))
    assert (text.input_ids, text.token_type_ids, text.num_tokens_total) == (list(range(12)), [0] * 12, 13)
    assert make().from_ids(range(12), truncate=False).num_tokens == 12
    with pytest.raises(TextTooLongError) as caught:
        make().from_ids(range(13), truncate=False, param="texts[4]")
    assert (caught.value.param, caught.value.limit, caught.value.actual) == ("texts[4]", 12, 13)


@pytest.mark.parametrize("token", [-1, len(PIECES), 10**12])
def test_an_id_outside_the_vocabulary_is_refused(token: int) -> None:
    """Below 0 and from the vocabulary's size on, also where the cut would have removed it."""
    for ids in ([5, token], [5] * 50 + [token]):
        with pytest.raises(TokenIdError) as caught:
            make().from_ids(ids, param="texts[2]")
        assert (caught.value.param, caught.value.limit, caught.value.actual) == ("texts[2]", len(PIECES) - 1, token)


def test_the_first_and_the_last_id_are_taken() -> None:
    """The vocabulary's own ends are in it."""
    assert make().from_ids([0, len(PIECES) - 1]).input_ids == [0, len(PIECES) - 1]


def test_no_ids_are_no_text() -> None:
    """An empty list is refused: there is nothing to encode."""
    with pytest.raises(TokenIdError) as caught:
        make().from_ids([])
    assert (caught.value.limit, caught.value.actual) == (1, 0)


def test_ids_can_be_read_back() -> None:
    """Decoding gives the words, with the special tokens where they are asked for."""
    tokenizer = make(byte_level(), max_length=40)
    [text] = tokenizer.encode(["a b"])
    assert "<s>" in tokenizer.decode(text.input_ids, skip_special_tokens=False)
    assert "<s>" not in tokenizer.decode(text.input_ids)


# --- empty texts ---


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_an_empty_text_is_its_special_tokens(text: str) -> None:
    """Nothing and white space are texts: two tokens, no word."""
    tokens, words = tables(make(), text)
    assert tokens.ids == [CLS, SEP]
    assert tokens.special == [True, True]
    assert words == WordTable([], [], [], [])


def test_a_text_without_any_token_is_refused() -> None:
    """A tokenizer without special tokens makes nothing of an empty text: the error names the text."""
    tokenizer = make(wordpiece(template=False))
    with pytest.raises(TokenIdError) as caught:
        tokenizer.encode(["cat", ""])
    assert (caught.value.param, caught.value.limit, caught.value.actual) == ("texts[1]", 1, 0)


def test_no_texts_are_no_inputs() -> None:
    """An empty list gives an empty list."""
    assert make().encode([]) == []


# --- pairs ---


def test_a_pair_is_marked_by_the_template() -> None:
    """[CLS] a [SEP] b [SEP], with type 1 from b on; each token knows its segment."""
    tokens, words = tables(make(), ("the cat", "the dog"))
    assert tokens.texts == ["[CLS]", "the", "cat", "[SEP]", "the", "dog", "[SEP]"]
    assert tokens.segments == [None, 0, 0, None, 1, 1, None]
    assert tokens.words == [None, 0, 1, None, 2, 3, None]
    assert (tokens.starts, tokens.ends) == ([0, 0, 4, 0, 0, 4, 0], [0, 3, 7, 0, 3, 7, 0])
    assert words == WordTable(["the", "cat", "the", "dog"], [0, 4, 0, 4], [3, 7, 3, 7], [0, 0, 1, 1])
    [encoded] = make().encode([("the cat", "the dog")])
    assert encoded.token_type_ids == [0, 0, 0, 0, 1, 1, 1]


def test_pairs_and_texts_share_a_call() -> None:
    """Each text is what it is alone, whether pairs stand before, between or after it."""
    texts: list[Text] = [("cat", "dog"), "sat", ("the", "the cat"), "dog"]
    together = make().encode(texts, details=True)
    assert together == [make().encode([text], details=True)[0] for text in texts]


def test_a_tokenizer_without_a_template_takes_no_pairs() -> None:
    """Where nothing marks the second text, a pair is refused by name; single texts are not."""
    tokenizer = make(wordpiece(template=False))
    with pytest.raises(PairError) as caught:
        tokenizer.encode(["cat", ("the", "dog")])
    assert caught.value.param == "texts[1]"
    assert tokenizer.encode(["cat"])[0].input_ids == [IDS["cat"]]


def test_a_pair_needs_room_for_a_token_of_each() -> None:
    """A model that reads 4 tokens has no room for a pair, cut or not; one that reads 5 has."""
    with pytest.raises(PairError) as caught:
        make(max_length=4).encode([("cat", "dog")])
    assert (caught.value.limit, caught.value.actual) == (4, 5)
    assert make(max_length=5).encode([("cat " * 9, "dog " * 9)])[0].num_tokens == 5


def test_a_pair_that_is_too_long_is_refused_where_it_may_not_be_cut() -> None:
    """Both texts and three special tokens count."""
    with pytest.raises(TextTooLongError) as caught:
        make().encode([("cat " * 5, "dog " * 5)], truncate=False)
    assert (caught.value.limit, caught.value.actual) == (12, 13)
    assert make().encode([("cat " * 5, "dog " * 4)], truncate=False)[0].num_tokens == 12


MEASURE = """
import resource
from tests.model.test_tokenizer import make
tokenizer = make()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
[text] = tokenizer.encode([("cat " * 1500, "dog " * 1500)], details=True)
assert text.num_tokens == 12 and text.num_tokens_total == 3003
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_long_pair_takes_little_memory() -> None:
    """What is cut off two texts is dropped, not joined piece by piece with each other: that would be 90,000 pieces."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) < 20_000  # KiB


@steady
@given(st.integers(0, 30), st.integers(0, 30))
def test_pairs_are_cut_as_the_tokenizers_library_cuts_them(first: int, second: int) -> None:
    """The ids are those of the library's own longest-first truncation."""
    pair = ("cat " * first, "dog " * second)
    theirs = wordpiece()
    theirs.enable_truncation(12)
    [ours] = make().encode([pair])
    assert ours.input_ids == theirs.encode(*pair).ids
    assert ours.token_type_ids == theirs.encode(*pair).type_ids
    assert ours.num_tokens_total == first + second + 3


# --- the other side, and no limit ---


@pytest.mark.parametrize("details", [True, False])
def test_a_text_can_be_cut_at_its_beginning(details: bool) -> None:
    """The last words stay between the special tokens, as the library's own left truncation has it."""
    theirs = wordpiece()
    theirs.enable_truncation(12, direction="left")
    text = "the cat sat " + "dog " * 8 + "cat sat"
    [ours] = make().encode([text], side="left", details=details)
    assert ours.input_ids == theirs.encode(text).ids == [CLS, *[IDS["dog"]] * 8, IDS["cat"], IDS["sat"], SEP]
    assert ours.num_tokens_total == 15
    if details:
        assert ours.tokens is not None
        assert text[ours.tokens.starts[1] : ours.tokens.ends[-2]] == "dog " * 8 + "cat sat"


def test_each_text_of_a_pair_is_cut_at_its_beginning() -> None:
    """As the library has it, too."""
    pair = ("the " + "cat " * 8, "sat " + "dog " * 8)
    theirs = wordpiece()
    theirs.enable_truncation(12, direction="left")
    [ours] = make().encode([pair], side="left")
    assert ours.input_ids == theirs.encode(*pair).ids
    assert ours.token_type_ids == theirs.encode(*pair).type_ids


def test_a_cut_on_the_left_takes_the_prompt_first() -> None:
    """What is left of it is still counted as the prompt's; once it is gone, nothing is."""
    lengths = {}
    for num_words in (8, 9, 10, 11):
        [text] = make().encode(["dog " * num_words], prompt="the cat ", side="left")
        lengths[num_words] = text.prompt_length
        assert text.input_ids.count(IDS["dog"]) == min(num_words, 10)
    assert lengths == {8: 3, 9: 2, 10: 0, 11: 0}


def test_the_side_is_no_matter_where_nothing_is_cut() -> None:
    """A text that fits is the same from both sides."""
    assert make().encode(["the cat"], prompt="the ", side="left") == make().encode(["the cat"], prompt="the ")


def test_a_whole_text_is_never_cut() -> None:
    """However long it is, whatever is said of truncation."""
    for truncate in (True, False):
        [text] = make().encode(["cat " * 50], whole=True, truncate=truncate, details=True)
        assert (text.num_tokens, text.num_tokens_total, text.is_truncated) == (52, 52, False)


def test_texts_and_ids_stand_in_one_list() -> None:
    """Each is what it is alone, in order; errors name the place in the whole list; ids have no prompt."""
    tokenizer = make()
    texts: list[Text | list[int]] = ["the cat", [CLS, 7, SEP], ("dog", "sat"), [5] * 20, "cat"]
    for side in ("left", "right"):
        mixed = tokenizer.encode(texts, prompt="the ", side=side)
        alone = [tokenizer.encode([text], prompt="the ", side=side)[0] for text in texts]
        assert mixed == alone
    assert mixed[1] == EncodeInput([CLS, 7, SEP], [0, 0, 0], 3)
    with pytest.raises(TokenIdError) as caught:
        tokenizer.encode(["a", "b", [-1]])
    assert caught.value.param == "texts[2]"
    with pytest.raises(TextTooLongError) as too_long:
        tokenizer.encode([[5], "cat " * 50], truncate=False)
    assert too_long.value.param == "texts[1]"


def test_ids_are_cut_on_either_side() -> None:
    """The first twelve, or the last."""
    assert make().from_ids(range(15), side="left").input_ids == list(range(3, 15))
    assert make().from_ids(range(15)).input_ids == list(range(12))


# --- prompts ---


def test_a_prompt_is_found_by_name_given_or_the_default() -> None:
    """A text given wins; then a name; then the model's default; then nothing."""
    plain = make(prompts=PROMPTS)
    defaulting = make(prompts=PROMPTS, default_prompt_name="query")
    assert plain.prompt(None, None) == ""
    assert plain.prompt("query", None) == "the cat "
    assert plain.prompt(None, "find: ") == "find: "
    assert defaulting.prompt(None, None) == "the cat "
    assert defaulting.prompt("document", None) == ""
    assert defaulting.prompt(None, "") == ""


def test_an_unknown_prompt_is_refused() -> None:
    """The error names the field and the prompts there are."""
    with pytest.raises(PromptError, match="document, query") as caught:
        make(prompts=PROMPTS).prompt("passage", None)
    assert caught.value.param == "prompt_name"
    with pytest.raises(PromptError, match=r"prompts: \[\]"):
        make().prompt("query", None)


def test_two_prompts_are_refused() -> None:
    """A name and a text at once are a mistake, not a choice."""
    with pytest.raises(PromptError, match="not both"):
        make(prompts=PROMPTS).prompt("query", "find: ")


def test_a_prompt_stands_before_the_text_and_is_counted() -> None:
    """Its tokens come first; ``prompt_length`` counts [CLS] and them, as sentence-transformers does."""
    [text] = make().encode(["dog sat"], prompt="the cat ")
    assert text.input_ids == [CLS, IDS["the"], IDS["cat"], IDS["dog"], IDS["sat"], SEP]
    assert text.prompt_length == 3
    assert make().encode(["dog sat"])[0].prompt_length == 0


def test_a_prompt_without_special_tokens_is_counted_whole() -> None:
    """Where nothing closes the prompt, nothing is left out of its count; white space counts nothing."""
    tokenizer = make(wordpiece(template=False))
    assert tokenizer.encode(["dog"], prompt="the cat ")[0].prompt_length == 2
    assert tokenizer.encode(["dog"], prompt=" ")[0].prompt_length == 0


def test_a_prompt_longer_than_the_limit_leaves_the_count() -> None:
    """The text is cut away, the prompt's length is what it was."""
    [text] = make(max_length=4).encode(["dog"], prompt="the cat sat ")
    assert text.input_ids == [CLS, IDS["the"], IDS["cat"], SEP]
    assert (text.prompt_length, text.num_tokens_total) == (4, 6)


def test_offsets_do_not_count_the_prompt() -> None:
    """Offsets, segments and words belong to the caller's text; the prompt's tokens belong to none."""
    tokens, words = tables(make(), "dog sat", prompt="the cat ")
    assert tokens.segments == [None, None, None, 0, 0, None]
    assert tokens.words == [None, None, None, 0, 1, None]
    assert (tokens.starts, tokens.ends) == ([0, 0, 0, 0, 4, 0], [0, 0, 0, 3, 7, 0])
    assert tokens.special == [True, False, False, False, False, True]
    assert words == WordTable(["dog", "sat"], [0, 4], [3, 7], [0, 0])


def test_a_token_across_the_seam_is_the_texts(real: Tokenizer) -> None:
    """``sing`` before ``ing`` makes one token: it starts at the text's start, not before it."""
    tokens, _ = tables(real, "ing world", prompt="sing")
    assert tokens.texts == ["[CLS]", "singing", "world", "[SEP]"]
    assert (tokens.starts, tokens.ends) == ([0, 0, 4, 0], [0, 3, 9, 0])
    assert tokens.segments == [None, 0, 0, None]


def test_a_prompt_goes_before_the_first_of_a_pair_only() -> None:
    """The second text keeps its offsets."""
    tokens, words = tables(make(), ("dog", "sat"), prompt="the ")
    assert tokens.texts == ["[CLS]", "the", "dog", "[SEP]", "sat", "[SEP]"]
    assert tokens.segments == [None, None, 0, None, 1, None]
    assert (tokens.starts, tokens.ends) == ([0, 0, 0, 0, 0, 0], [0, 0, 3, 0, 3, 0])
    assert words.segments == [0, 1]


# --- offsets ---


def test_offsets_count_code_points_of_the_callers_text(real: Tokenizer) -> None:
    """Emoji, capitals and accents before a token do not shift it: 22 code points, ``!`` is the last."""
    assert len(EMOJI_TEXT) == 22
    tokens, words = tables(real, EMOJI_TEXT)
    assert shown(EMOJI_TEXT, tokens) == ["", "👩‍🚀", "Unbelievable", "café", "!", ""]
    assert (tokens.starts[2], tokens.ends[4]) == (4, 22)
    assert words.texts == ["👩‍🚀", "Unbelievable", "café!"]
    assert tokens.words == [None, 0, 1, 2, 2, None]


def test_a_decomposed_accent_belongs_to_its_word(real: Tokenizer) -> None:
    """``cafe`` plus a combining accent is one word of five code points, and nothing after it is shifted."""
    text = "cafe\u0301 hello"
    tokens, words = tables(real, text)
    assert (tokens.starts[2], tokens.ends[2]) == (6, 11)
    assert (words.starts, words.ends) == ([0, 6], [5, 11])
    assert words.texts == ["cafe\u0301", "hello"]


@pytest.mark.parametrize("prompt", ["", "Émile's  "])
@pytest.mark.parametrize("text", [EMOJI_TEXT, "cafe\u0301 hello", "  leading", "Ünïcödé 👍🏽!", "x\u200by", "中文 ok"])
def test_every_offset_lies_in_the_text(real: Tokenizer, text: str, prompt: str) -> None:
    """Whatever the prompt, tokens stand in order inside the caller's text, each inside its own word."""
    tokens, words = tables(real, text, prompt)
    previous = 0
    for start, end, word in zip(tokens.starts, tokens.ends, tokens.words, strict=True):
        assert 0 <= start <= end <= len(text)
        if word is not None:
            assert start >= previous
            assert words.starts[word] <= start <= end <= words.ends[word]
            previous = start
    assert [text[s:e] for s, e in zip(words.starts, words.ends, strict=True)] == words.texts
    assert tables(real, text)[1] == words


def test_several_tokens_may_share_one_character() -> None:
    """An emoji of four bytes is four tokens with one span, and one word."""
    tokens, words = tables(make(byte_level(), max_length=40), "a👍b")
    assert (tokens.starts[1:-1], tokens.ends[1:-1]) == ([0, 1, 1, 1, 1, 2], [1, 2, 2, 2, 2, 3])
    assert tokens.words[1:-1] == [0] * 6
    assert words.texts == ["a👍b"]


def test_lower_casing_keeps_offsets() -> None:
    """A capital that becomes two code points when lowered shifts nothing behind it."""
    text = "İstanbul THE cat"
    tokens, words = tables(make(wordpiece(lowercase=False), max_length=40, lowercase=True), text)
    assert "".join(shown(text, tokens)[1:-3]) == "İstanbul"
    assert tokens.texts[-3:] == ["the", "cat", "[SEP]"]
    assert shown(text, tokens)[-3:] == ["THE", "cat", ""]
    assert words.texts == ["İstanbul", "THE", "cat"]


def test_lower_casing_is_off_unless_the_folder_says_so() -> None:
    """A cased tokenizer stays cased; with the setting it is lowered, with or without a normaliser of its own."""
    cased = wordpiece(lowercase=False)
    assert make(cased).encode(["CAT"])[0].input_ids == [CLS, IDS["[UNK]"], SEP]
    assert make(wordpiece(lowercase=False), lowercase=True).encode(["CAT"])[0].input_ids == [CLS, IDS["cat"], SEP]
    bare = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "cat": 1}, unk_token="[UNK]"))
    bare.pre_tokenizer = pre_tokenizers.Whitespace()
    assert make(bare, lowercase=True).encode(["CAT"])[0].input_ids == [1]


# --- typed special tokens ---


@pytest.mark.parametrize(
    ("setting", "pieces"),
    [
        ("text", ["the", "[", "s", "##e", "##p", "]", "[", "c", "##l", "##s", "]", "[", "p", "##a", "##d", "]", "cat"]),
        ("parse", ["the", "[SEP]", "[CLS]", "[PAD]", "cat"]),
    ],
)
def test_typed_special_tokens(setting: SpecialTokens, pieces: list[str]) -> None:
    """``text`` reads the characters, ``parse`` the tokens; either way they are the user's, words of the text."""
    text = "the [SEP][CLS] [PAD] cat"
    tokens, words = tables(make(max_length=40, special_tokens=setting), text)
    assert tokens.texts == ["[CLS]", *pieces, "[SEP]"]
    assert tokens.special == [True, *[False] * len(pieces), True]
    assert tokens.segments == [None, *[0] * len(pieces), None]
    assert None not in tokens.words[1:-1]
    assert words.texts == ["the", "[SEP][CLS]", "[PAD]", "cat"]
    assert "".join(shown(text, tokens)) == text.replace(" ", "")


@pytest.mark.parametrize("setting", ["text", "parse"])
def test_a_typed_start_token_of_the_byte_level_kind(setting: SpecialTokens) -> None:
    """``<s>`` in a text is three bytes or one token, never special."""
    tokens, words = tables(make(byte_level(), max_length=40, special_tokens=setting), "a <s> b")
    assert (tokens.ids[1:-1].count(0) == 1) is (setting == "parse")
    assert tokens.special == [True, *[False] * (len(tokens.ids) - 2), True]
    assert words.texts == ["a", "<s>", "b"]


# --- threads ---


def test_threads_share_one_tokenizer(real: Tokenizer) -> None:
    """Many threads with long, short, paired and prompted texts get what one thread gets."""
    jobs: list[tuple[list[Text], str]] = [
        (["hello world", "word " * (200 + 10 * number), ("a cat", "word " * (300 - number))], "query: " * (number % 3))
        for number in range(24)
    ]

    def encode(job: tuple[list[Text], str]) -> list[EncodeInput]:
        return real.encode(job[0], prompt=job[1], details=len(job[1]) > 0)

    expected = [encode(job) for job in jobs]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(encode, jobs)) == expected


def test_errors_are_the_callers() -> None:
    """Everything the tokenizer raises on purpose is an InputError with the field at fault."""
    for error in (TextTooLongError, PairError, PromptError, TokenIdError):
        assert issubclass(error, InputError)
    with pytest.raises(InputError) as caught:
        make(max_length=3).encode(["cat dog"], truncate=False)
    assert caught.value.param == "texts[0]"
