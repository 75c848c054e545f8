"""What a client is told when it is made."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest

from eyeline import AsyncClient, Client, TruncationWarning
from eyeline.settings import ClientSettings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"timeout_seconds": 0}, "timeout_seconds must be more than 0, it is 0"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds must be more than 0, it is nan"),
        ({"max_concurrency": 0}, "max_concurrency must be at least 1, it is 0"),
        ({"max_texts_per_request": -3}, "max_texts_per_request must be at least 1, it is -3"),
    ],
)
def test_what_would_send_nothing_is_refused(values: dict[str, Any], message: str) -> None:
    """With the name and the value."""
    with pytest.raises(ValueError, match=message):
        ClientSettings(**values)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_clients_take_every_setting_with_the_same_default(kind: Any) -> None:
    """What the settings' documentation says holds for both."""
    taken = inspect.signature(kind).parameters
    defaults = ClientSettings()
    for name in ClientSettings.__slots__:
        given = taken[name].default
        assert given == getattr(defaults, name) or (given is None and name in {"retry", "headers"})


@pytest.mark.parametrize(
    ("truncated", "name", "message"),
    [
        ([False, True, True], "texts", r"2 of 3 texts .* first is texts\[1\]"),
        ([[False, False], [False, True]], "pairs", r"1 of 2 pairs .* first is pairs\[1\]"),
    ],
)
def test_the_warning_says_how_many_and_which(truncated: Any, name: str, message: str) -> None:
    """The first of them, as the caller counts."""
    with pytest.warns(TruncationWarning, match=message):
        ClientSettings().report_truncation(truncated, name)


def test_no_warning_without_a_cut_or_when_it_is_off() -> None:
    """Silence is a choice."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ClientSettings().report_truncation([False], "texts")
        ClientSettings().report_truncation([], "texts")
        ClientSettings(warn_on_truncation=False).report_truncation([True], "texts")
