"""When a request is sent again, and after how long."""

from __future__ import annotations

import httpx
import pytest

from eyeline.errors import NoAnswerInTimeError, UnreachableError
from eyeline.retry import Attempts, RetryPolicy
from tests.doubles import FakeClock


def attempts(policy: RetryPolicy | None = None, randomness: float = 0.0, clock: FakeClock | None = None) -> Attempts:
    """Attempts whose chance is fixed."""
    return Attempts(policy or RetryPolicy(), clock or FakeClock(), lambda: randomness)


def answer(status: int, retry_after: str | None = None) -> httpx.Response:
    """An answer without a body."""
    return httpx.Response(status, headers={} if retry_after is None else {"Retry-After": retry_after})


@pytest.mark.parametrize("status", [200, 400, 404, 408, 413, 422, 500, 501, 502, 504])
def test_other_statuses_are_final(status: int) -> None:
    """Only 429 and 503 say that nothing was done and that it is worth coming back, whatever else has a Retry-After."""
    assert attempts().after_answer(answer(status, "1")) is None


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("randomness", "expected"), [(0.0, 7.0), (0.5, 7.125), (1.0, 7.25)])
def test_the_server_says_how_long(status: int, randomness: float, expected: float) -> None:
    """Never sooner than Retry-After, and not all at the same moment."""
    assert attempts(randomness=randomness).after_answer(answer(status, "7")) == expected


@pytest.mark.parametrize("retry_after", [None, "", "soon", "-1", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_without_seconds_the_waits_double(retry_after: str | None) -> None:
    """From half a wait to a whole one, up to the longest."""
    for randomness, factor in ((0.0, 0.5), (1.0, 1.0)):
        tries = attempts(RetryPolicy(max_wait_seconds=1.5, deadline_seconds=1_000), randomness)
        waits = [tries.after_answer(answer(503, retry_after)) for _ in range(5)]
        assert waits == [factor * seconds for seconds in (0.25, 0.5, 1.0, 1.5, 1.5)]


def test_a_thousand_waits_are_no_overflow() -> None:
    """A server that is down for hours."""
    tries = attempts(RetryPolicy(deadline_seconds=1e9))
    assert [tries.after_answer(answer(503)) for _ in range(2_000)][-1] == 4.0


def test_no_wait_ends_behind_the_deadline() -> None:
    """An answer that asks for more patience than is left is the last word at once."""
    clock = FakeClock()
    tries = attempts(RetryPolicy(deadline_seconds=10), clock=clock)
    assert tries.after_answer(answer(429, "10")) is None
    assert tries.after_answer(answer(429, "9")) == 9
    clock.advance(9)
    assert tries.after_answer(answer(429, "1")) is None
    assert tries.timeout_seconds(60) == 1
    assert tries.timeout_seconds(0.5) == 0.5
    clock.advance(100)
    assert 0 < tries.timeout_seconds(60) < 0.01


def test_no_deadline_is_one_attempt_with_the_whole_time_out() -> None:
    """``deadline_seconds=0`` turns retrying off."""
    tries = attempts(RetryPolicy(deadline_seconds=0))
    assert tries.timeout_seconds(60) == 60
    assert tries.after_answer(answer(503, "0")) is None
    with pytest.raises(UnreachableError):
        tries.after_error(httpx.ConnectError("refused"))


@pytest.mark.parametrize("kind", [httpx.ConnectError, httpx.ConnectTimeout, httpx.ReadError, httpx.RemoteProtocolError])
def test_lost_connections_are_tried_a_few_times(kind: type[httpx.TransportError]) -> None:
    """Then the error says what happened and how often, and its cause is httpx's own."""
    tries = attempts(RetryPolicy(max_connection_retries=2))
    assert [tries.after_error(kind("gone")), tries.after_error(kind("gone"))] == [0.125, 0.25]
    last = kind("gone")
    with pytest.raises(UnreachableError, match=rf"{kind.__name__}: gone, 3 times") as caught:
        tries.after_error(last)
    assert caught.value.__cause__ is last


@pytest.mark.parametrize("kind", [httpx.ReadTimeout, httpx.WriteTimeout])
def test_a_slow_answer_is_not_asked_for_again(kind: type[httpx.TransportError]) -> None:
    """The server is at work on it: a second request would double the work."""
    with pytest.raises(NoAnswerInTimeError, match=kind.__name__):
        attempts().after_error(kind(""))


def test_what_can_never_work_is_not_tried_again() -> None:
    """An address of another protocol."""
    with pytest.raises(UnreachableError, match="UnsupportedProtocol"):
        attempts().after_error(httpx.UnsupportedProtocol("ftp"))


@pytest.mark.parametrize("name", RetryPolicy.__slots__)
def test_negative_patience_is_refused(name: str) -> None:
    """With the name and the value."""
    with pytest.raises(ValueError, match=rf"{name} must not be negative, it is -1"):
        RetryPolicy(**{name: -1})
