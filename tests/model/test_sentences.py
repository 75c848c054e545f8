"""Claims about where sentences end."""

from __future__ import annotations

import itertools
import time

import pytest

from model.sentences import sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat sat. A dog barked!  Really? Yes.", ["The cat sat.", "A dog barked!", "Really?", "Yes."]),
        ("No end", ["No end"]),
        ("", []),
        (" \n\t ", []),
        ("...", ["..."]),
        ("Wait... what? Well... OK.", ["Wait... what?", "Well...", "OK."]),
        ("Hi!!! There?!", ["Hi!!!", "There?!"]),
        # SB6, SB7, SB8: a number, an abbreviation, a small letter go on
        ("It costs 3.14 dollars, e.g. here. See example.com now.", ["It costs 3.14 dollars, e.g. here.",
                                                                    "See example.com now."]),
        ("The U.S. army left.", ["The U.S. army left."]),
        ("etc., and so on. End.", ["etc., and so on.", "End."]),
        # SB9, SB10: what closes belongs to the sentence
        ('He said "no." Then left (really.) Next.', ['He said "no."', "Then left (really.)", "Next."]),
        ("“What?” “Nothing.” He left.", ["“What?”", "“Nothing.”", "He left."]),
        # our own: hard-wrapped lines, empty lines, initials, titles
        ("A title\n\nA paragraph that goes\non. And ends.\n", ["A title", "A paragraph that goes\non.", "And ends."]),
        ("one.\r\n\r\ntwo", ["one.", "two"]),
        ("J. K. Rowling met Dr. Smith and Mrs. Jones. They spoke.", ["J. K. Rowling met Dr. Smith and Mrs. Jones.",
                                                                      "They spoke."]),
        # scripts with full stops of their own, and without spaces
        ("你好。我是学生！真的吗？是的。", ["你好。", "我是学生！", "真的吗？", "是的。"]),
        ("पहला वाक्य। दूसरा वाक्य।", ["पहला वाक्य।", "दूसरा वाक्य।"]),
        ("ما اسمك؟ اسمي علي.", ["ما اسمك؟", "اسمي علي."]),
    ],
)  # fmt: skip
def test_sentences(text: str, expected: list[str]) -> None:
    """Each with its terminators and without the white space around it."""
    assert [text[start:end] for start, end in sentences(text)] == expected


def test_nothing_is_lost() -> None:
    """Sentences ascend, do not overlap, and hold everything but white space."""
    text = " Dr. A.. b?! \n\n c. D\u2029e. \u200b 5. (X.) “Y”z. é! 好。a" * 20
    spans = sentences(text)
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end <= start
    held = "".join(text[start:end] for start, end in spans)
    assert "".join(held.split()) == "".join(text.split())


@pytest.mark.parametrize(
    "text",
    ["." * 200_000, "1. " * 66_000, "!," * 100_000, "!" * 100_000 + ",", ("." + " " * 50) * 4_000, "Dr. " * 50_000,
     "\n " * 100_000, "a. " + "1" * 200_000, ("\n" + " " * 100) * 2_000, "." * 100_000 + "a"],
    ids=lambda text: repr(text[:4]),
)  # fmt: skip
def test_a_hostile_text_takes_no_longer_than_its_length(text: str) -> None:
    """200,000 characters take some tenths of a second, whatever they are; quadratic, they would take minutes."""
    started = time.process_time()
    sentences(text)
    assert time.process_time() - started < 5
