"""What a client is told when it is made."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
from starlette.datastructures import Headers

from app.callers import timeout_of
from eyeline import AsyncClient, Client, TruncationWarning
from eyeline.settings import ClientSettings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"timeout_seconds": 0}, "timeout_seconds must be more than 0 and at most 86400, it is 0"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds must be more than 0 and at most 86400, it is nan"),
        ({"timeout_seconds": float("inf")}, "timeout_seconds must be more than 0 and at most 86400, it is inf"),
        ({"timeout_seconds": 1e300}, r"timeout_seconds must be more than 0 and at most 86400, it is 1e\+300"),
        ({"max_concurrency": 0}, "max_concurrency must be at least 1, it is 0"),
        ({"request_timeout_seconds": -1}, "request_timeout_seconds must be from 0 to 86400, it is -1"),
        ({"request_timeout_seconds": float("inf")}, "request_timeout_seconds must be from 0 to 86400, it is inf"),
        ({"request_timeout_seconds": 1e300}, r"request_timeout_seconds must be from 0 to 86400, it is 1e\+300"),
        ({"request_timeout_seconds": 86_400.1}, "request_timeout_seconds must be from 0 to 86400, it is 86400.1"),
        ({"request_timeout_seconds": float("nan")}, "request_timeout_seconds must be from 0 to 86400, it is nan"),
        ({"api_key": ""}, "api_key must be printable"),
        ({"api_key": "k\u00e9y"}, "api_key must be printable"),
        ({"api_key": "key\n"}, "api_key must be printable"),
        ({"max_texts_per_request": -3}, "max_texts_per_request must be at least 1, it is -3"),
    ],
)
def test_what_would_send_nothing_is_refused(values: dict[str, Any], message: str) -> None:
    """With the name and the value."""
    with pytest.raises(ValueError, match=message):
        ClientSettings(**values)


def test_a_key_is_sent_and_not_shown() -> None:
    """As a bearer's, unless a header of that name is given; no text about the settings has it, nor a refusal of it."""
    settings = ClientSettings(api_key="key77", request_timeout_seconds=2.5, headers={"X-Other": "1"})
    assert settings.sent_headers() == {"Authorization": "Bearer key77", "X-Request-Timeout": "2.5", "X-Other": "1"}
    assert "key77" not in repr(settings)
    own = ClientSettings(api_key="key77", headers={"authorization": "Basic x"})
    assert own.sent_headers() == {"authorization": "Basic x"}
    assert "Basic x" not in repr(own)
    assert ClientSettings().sent_headers() == {}
    with pytest.raises(ValueError, match="api_key") as caught:
        ClientSettings(api_key="key77\n")
    assert "key77" not in str(caught.value)


@pytest.mark.parametrize("seconds", [0, 1e-9, 0.1, 1 / 3, 86_400])
def test_seconds_are_written_as_the_server_reads_them(seconds: float) -> None:
    """A plain decimal number, or one with an exponent, of which the server takes each."""
    sent = ClientSettings(request_timeout_seconds=seconds).sent_headers()["X-Request-Timeout"]
    assert float(sent) == pytest.approx(seconds)
    assert set(sent) <= set("0123456789.e-+")
    assert timeout_of(Headers({"X-Request-Timeout": sent})) == pytest.approx(seconds)


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
