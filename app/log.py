"""Logs: one JSON object a line on stderr, each with the id of the request it belongs to.

A line always has ``time``, ``level``, ``logger``, ``message`` and ``request_id`` (null outside a request); then come
the fields passed as ``extra``, and ``exception`` with the whole traceback as one string. No line holds a text that a
caller sent, nor a raw path: neither is ever handed to a logger.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import uuid
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

request_id_var: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that this task works for; set by the middleware, copied into the tasks it starts."""

REQUEST_ID = re.compile(r"[!#-&(-~]{1,128}")
"""Printable ASCII without space and without quotes, so that an id is safe in a header, a log and a shell."""

ATTRIBUTES_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
UVICORN_DUPLICATES = frozenset({"color_message"})
"""Extras of uvicorn's that repeat the message with terminal colours."""


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON, whatever is in it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its newline. An ``extra`` never replaces one of the fixed fields."""
        fixed: dict[str, Any] = {
            "time": _rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": request_id_var.get(),
        }
        if record.exc_info:
            fixed["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fixed["stack"] = self.formatStack(record.stack_info)
        extra = {
            key: value
            for key, value in vars(record).items()
            if key not in ATTRIBUTES_OF_EVERY_RECORD and key not in UVICORN_DUPLICATES and key not in fixed
        }
        try:
            return json.dumps(fixed | extra, default=str, allow_nan=False)
        except (TypeError, ValueError):
            # Not a number, a key that is no string, a list that holds itself: better as text than not at all.
            return json.dumps(fixed | {key: repr(value) for key, value in extra.items()})


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes lines, and counts those that could not be written: a full disk must not fail a request.

    Attributes
    ----------
    num_lost : int
    """

    num_lost = 0

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Count a line that was not written: where the disk is full or stderr closed, only the metrics can say so."""
        self.num_lost += 1
        if not isinstance(sys.exception(), (OSError, ValueError)):
            super().handleError(record)


def num_lost_lines() -> int:
    """Return how many lines of the log could not be written since logging was configured."""
    return sum(handler.num_lost for handler in logging.getLogger().handlers if isinstance(handler, StderrHandler))


def configure_logging(level: str) -> None:
    """Send every logger of the process to stderr as JSON, uvicorn's and Python's warnings included.

    May be called again. uvicorn must run with ``log_config=None``, or it installs its own handlers.

    Parameters
    ----------
    level : str
        The lowest level that is written: debug, info, warning or error.
    """
    handler = StderrHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True
    # A line for a request is app/access_log.py's work; uvicorn's own would also write the raw path.
    access = logging.getLogger("uvicorn.access")
    access.handlers.clear()
    access.propagate = False


def new_request_id() -> str:
    """Return an id that no other request has: 32 hexadecimal digits."""
    return uuid.uuid4().hex


def valid_request_id(text: str) -> bool:
    """Whether a caller's id is taken as it is: 1 to 128 printable ASCII characters, no spaces, no quotes."""
    return REQUEST_ID.fullmatch(text) is not None


def accept_request_id(header: str | None) -> str:
    """Return the caller's ``X-Request-ID`` where it is valid, else a new id."""
    return header if header is not None and valid_request_id(header) else new_request_id()


def _rfc3339(created: float) -> str:
    return datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
