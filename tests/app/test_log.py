"""Claims about app/log.py."""

import contextvars
import errno
import io
import json
import logging
import re
import sys
import warnings
from typing import Any

import pytest

from app.log import (
    StderrHandler,
    accept_request_id,
    configure_logging,
    new_request_id,
    num_lost_lines,
    request_id_var,
    valid_request_id,
)
from tests.app.conftest import restored_logging

pytestmark = pytest.mark.usefixtures("logging_as_before")

UVICORN_LOGGERS = ("uvicorn", "uvicorn.error", "uvicorn.asgi", "uvicorn.access")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What was logged since the last call; each line is JSON by itself, and stdout stays empty."""
    captured = capsys.readouterr()
    assert captured.out == ""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in captured.err.splitlines()]


def test_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A line is one JSON object with time, level, logger, message, request id and the extra fields."""
    configure_logging("info")
    logging.getLogger("app.x").warning("loaded %d", 3, extra={"folder": "weights/a", "seconds": 0.5})
    (line,) = lines(capsys)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "warning",
        "logger": "app.x",
        "message": "loaded 3",
        "request_id": None,
        "folder": "weights/a",
        "seconds": 0.5,
    }


@pytest.mark.parametrize("captured", [False, True])
def test_what_these_tests_configure_is_put_back(captured: bool) -> None:
    """Handlers, levels and the way of warnings, whatever they were: no test logs where another one said."""

    def snapshot() -> list[object]:
        loggers = [logging.getLogger(name) for name in (None, "py.warnings", *UVICORN_LOGGERS)]
        return [warnings.showwarning, *((list(one.handlers), one.level, one.propagate) for one in loggers)]

    logging.captureWarnings(captured)
    logging.getLogger("uvicorn.error").setLevel("ERROR")
    logging.getLogger("uvicorn.error").propagate = False
    logging.getLogger("uvicorn.access").addHandler(logging.StreamHandler())
    before = snapshot()
    with restored_logging():
        configure_logging("debug")
        logging.captureWarnings(not captured)
        assert not any(now == then for now, then in zip(snapshot()[:2], before[:2], strict=True))
    assert snapshot() == before


def test_time_is_utc_with_milliseconds(capsys: pytest.CaptureFixture[str]) -> None:
    """The time is the record's own, in RFC 3339, UTC, milliseconds."""
    configure_logging("info")
    record = logging.makeLogRecord({"created": 1_700_000_000.0425, "msg": "m", "levelname": "INFO", "levelno": 20})
    logging.getLogger().handle(record)
    assert lines(capsys)[0]["time"] == "2023-11-14T22:13:20.042Z"


def test_request_id_is_the_tasks_own(capsys: pytest.CaptureFixture[str]) -> None:
    """A line carries the id of the request in whose context it was logged, and of no other."""
    configure_logging("info")

    def work(request_id: str) -> None:
        request_id_var.set(request_id)
        logging.getLogger("app").info("x")

    contextvars.copy_context().run(work, "one")
    contextvars.copy_context().run(work, "two")
    logging.getLogger("app").info("x")
    assert [line["request_id"] for line in lines(capsys)] == ["one", "two", None]


def test_exception_is_one_string(capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback stays on the line of its message."""
    configure_logging("info")
    try:
        raise KeyError("layer.0")
    except KeyError:
        logging.getLogger("app").exception("failed", stack_info=True)
    (line,) = lines(capsys)
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert "KeyError: 'layer.0'" in line["exception"]
    assert line["stack"].startswith("Stack")


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\u2028b\x85c\x1b[31m", 'say "hi"\\', "\ud800", "naïve 日本"])
def test_any_message_stays_on_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No message can break a line, forge one, or reach the terminal as control characters."""
    configure_logging("info")
    logging.getLogger("app").info("%s", text, extra={"field": text})
    (line,) = lines(capsys)
    assert (line["message"], line["field"]) == (text, text)


def test_extra_of_any_kind_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Extra fields that JSON cannot hold are written as text; the line is not lost and is JSON."""
    configure_logging("info")
    circle: list[object] = []
    circle.append(circle)
    for value in (float("nan"), {("a", 1): 2}, circle, {1}, b"x"):
        logging.getLogger("app").info("x", extra={"value": value})
    assert [line["value"] for line in lines(capsys)] == ["nan", "{('a', 1): 2}", "[[...]]", "{1}", "b'x'"]


def test_extra_cannot_replace_fixed_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """An extra field called level or request_id does not hide the line's own."""
    configure_logging("info")
    logging.getLogger("app").info("x", extra={"level": "fatal", "request_id": "forged", "time": 0})
    (line,) = lines(capsys)
    assert (line["level"], line["request_id"]) == ("info", None)
    assert line["time"] != 0


def test_level(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines under the level are not written."""
    configure_logging("warning")
    logging.getLogger("app").info("x")
    logging.getLogger("app").warning("y")
    assert [line["message"] for line in lines(capsys)] == ["y"]


def test_configured_twice_logs_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Configuring again replaces the handler."""
    configure_logging("info")
    configure_logging("info")
    logging.getLogger("app").info("x")
    assert len(lines(capsys)) == 1


def test_uvicorn_goes_through(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of uvicorn's are JSON too, whatever it had set up before, and its access log is off."""
    for name in UVICORN_LOGGERS:
        logging.getLogger(name).addHandler(logging.StreamHandler())
        logging.getLogger(name).propagate = False
    configure_logging("info")
    logging.getLogger("uvicorn.error").info("Started", extra={"color_message": "\x1b[36mStarted\x1b[0m"})
    logging.getLogger("uvicorn.access").info("GET /secret")
    (line,) = lines(capsys)
    assert line["logger"] == "uvicorn.error"
    assert "color_message" not in line


def test_warnings_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """Python's warnings are JSON lines, not loose text."""
    configure_logging("info")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    (line,) = lines(capsys)
    assert line["logger"] == "py.warnings"
    assert "old" in line["message"]


@pytest.mark.parametrize("text", ["a", "x" * 128, "3f2a-77/1:2;=", "~!#$%&()*+,-./"])
def test_valid_request_ids(text: str) -> None:
    """Up to 128 printable ASCII characters are taken as they are."""
    assert valid_request_id(text)
    assert accept_request_id(text) == text


def test_our_own_request_ids_are_valid() -> None:
    """What one server makes up the next one behind it takes."""
    assert valid_request_id(new_request_id())


@pytest.mark.parametrize("text", ["", "x" * 129, "a b", 'a"b', "a'b", "a\nb", "a\n", "\ta", "a\x7f", "é", "a\x00"])
def test_invalid_request_ids_are_replaced(text: str) -> None:
    """Spaces, quotes, control characters, other scripts and long ids are replaced by an id of ours."""
    assert not valid_request_id(text)
    assert re.fullmatch(r"[0-9a-f]{32}", accept_request_id(text))


def test_new_request_ids_differ() -> None:
    """A request without an id gets one of its own."""
    ids = {accept_request_id(None) for _ in range(100)}
    assert len(ids) == 100
    assert all(valid_request_id(text) for text in ids)


class FullDisk(io.StringIO):
    """A file that takes nothing."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_line_that_cannot_be_written_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, or a stderr that was closed, fails no request: the lines are counted, and later ones are written."""
    monkeypatch.setattr(sys, "stderr", FullDisk())
    configure_logging("info")
    assert num_lost_lines() == 0
    log = logging.getLogger("test")
    log.error("lost")
    log.error("lost, too", extra={"number": 3})
    assert num_lost_lines() == 2
    closed = io.StringIO()
    closed.close()
    [handler] = logging.getLogger().handlers
    assert isinstance(handler, StderrHandler)
    handler.setStream(closed)
    log.error("lost")
    assert num_lost_lines() == 3
    written = io.StringIO()
    handler.setStream(written)
    log.error("kept")
    assert num_lost_lines() == 3
    assert json.loads(written.getvalue())["message"] == "kept"


def test_a_line_that_is_a_bug_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A message that does not fit its arguments is counted as lost and reported as Python reports it."""
    configure_logging("info")
    logging.getLogger("test").error("%d", "no number")
    assert num_lost_lines() == 1
    assert "TypeError" in capsys.readouterr().err
