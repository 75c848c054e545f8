"""Claims about app/options.py itself; what flags and variables make of it is in test_settings.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from app.options import ModelSpec, Settings, flag_of, label_of, shorten, variable_of
from app.settings import load_settings


def test_own_environment_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the environment that is passed in counts, for the class itself too."""
    monkeypatch.setenv("EYELINE_PORT", "9999")
    assert os.environ["EYELINE_PORT"] == "9999"
    assert load_settings([], {}).port == 8080
    assert Settings().port == 8080


def test_frozen() -> None:
    """Settings do not change while the server runs."""
    with pytest.raises(ValidationError):
        load_settings([], {}).port = 1  # type: ignore[misc]


def test_an_option_has_one_name_in_three_spellings() -> None:
    """The field, the flag and the variable are one name."""
    assert (flag_of("max_texts"), variable_of("max_texts")) == ("--max-texts", "EYELINE_MAX_TEXTS")
    assert label_of("max_texts") == "--max-texts (EYELINE_MAX_TEXTS)"


def test_a_shown_value_is_short_and_on_one_line() -> None:
    """What a message repeats of a value can neither fill the screen nor forge a line."""
    assert shorten("a\nb") == r"'a\nb'"
    assert shorten("a\nb", quote=False) == r"a\nb"
    assert len(shorten("x" * 10_000)) < 100


def test_a_model_may_be_given_as_a_spec_or_a_text() -> None:
    """What a program passes and what a person types end as the same."""
    assert Settings(model="a=/x").model == Settings(model=(ModelSpec("a", Path("/x")),)).model


def test_no_model_is_refused() -> None:
    """A server without a model has nothing to serve."""
    with pytest.raises(ValidationError, match="at least one model"):
        Settings(model=())
