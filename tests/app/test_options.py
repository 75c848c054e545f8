"""Claims about app/options.py itself; what flags and variables make of it is in test_settings.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from app.options import ModelSpec, Settings
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


def test_a_model_may_be_given_as_a_spec_or_a_text() -> None:
    """What a program passes and what a person types end as the same."""
    assert Settings(model="a=/x").model == Settings(model=(ModelSpec("a", Path("/x")),)).model


def test_no_model_is_refused() -> None:
    """A server without a model has nothing to serve."""
    with pytest.raises(ValidationError, match="at least one model"):
        Settings(model=())
