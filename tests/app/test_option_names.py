"""Names of options, and values in messages."""

from __future__ import annotations

from app.option_names import flag_of, label_of, shorten, variable_of


def test_an_option_has_one_name_in_three_spellings() -> None:
    """The field, the flag and the variable are one name."""
    assert (flag_of("max_texts"), variable_of("max_texts")) == ("--max-texts", "EYELINE_MAX_TEXTS")
    assert label_of("max_texts") == "--max-texts (EYELINE_MAX_TEXTS)"


def test_a_shown_value_is_short_and_on_one_line() -> None:
    """What a message repeats of a value can neither fill the screen nor forge a line."""
    assert shorten("a\nb") == r"'a\nb'"
    assert shorten("a\nb", quote=False) == r"a\nb"
    assert len(shorten("x" * 10_000)) < 100
