"""One connection: uvicorn's protocol, with the limits that uvicorn leaves to a proxy in front of it.

A caller who sends without end, or does not send, or does not read, is let go: each would hold memory or a connection
for as long as he likes. What callers can cause at will is logged at debug only, so that they cannot flood the log.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from app.log import new_request_id, request_id_var

MAX_HEAD_BYTES = 65_536
"""Of a request line with its headers; also of anything else that is no body, such as the extensions of a chunk."""
RECEIVE_SECONDS = 60.0
"""From the first byte of a request to its last: at 4 MB, the speed of a very slow line."""
STALL_SECONDS = 30.0
"""How long a caller may take nothing of an answer that waits for him."""


class HeadTooLargeError(Exception):
    """More than :data:`MAX_HEAD_BYTES`."""


class Connection(HttpToolsProtocol):
    """A connection with bounds on what is received, how long it takes, and how long an answer waits to be read."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = _OfCallers(self.logger)  # type: ignore[assignment]  # has what the protocol uses
        self._head_bytes = 0
        self._unparsed_bytes = 0  # since the parser last found something
        self._is_received = False  # whether the last byte of the newest request is here
        self._running: RequestResponseCycle | None = None  # with pipelining, not the newest one
        self._receiving: asyncio.TimerHandle | None = None
        self._stalling: asyncio.TimerHandle | None = None

    @property
    def has_unsent(self) -> bool:
        """Whether a part of an answer waits for the caller to read."""
        return self.transport.get_write_buffer_size() > 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock: a caller who sends nothing at all is let go, too."""
        super().connection_made(transport)
        self._expect_more()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the running request, which with pipelining is not the one that uvicorn tells."""
        self._stop_receiving()
        self._stop_watching()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and refuse what it makes nothing of for too long."""
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            self._head_bytes = self._unparsed_bytes
            self.send_400_response("")
        elif self._receiving is None and not (self._is_received and self._is_busy()):
            self._expect_more()

    def on_message_begin(self) -> None:
        """Count anew."""
        super().on_message_begin()
        self._head_bytes = self._unparsed_bytes = 0
        self._is_received = False

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, or a trailer."""
        self._count(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Pass a piece of the body on; ``app/requests.py`` limits it."""
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the clock."""
        self._unparsed_bytes = 0
        self._is_received = True
        self._stop_receiving()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP request, or too large a one, and close. It has an id, under which it is logged."""
        status, reason = (400, "Bad Request")
        if self._head_bytes > MAX_HEAD_BYTES:
            status, reason = (431, "Request Header Fields Too Large")
            msg = f"A request's head may have {MAX_HEAD_BYTES} bytes."
        request_id = new_request_id()
        self.transport.write(
            f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(msg)}\r\n"
            f"X-Request-ID: {request_id}\r\nConnection: close\r\n\r\n{msg}".encode("ascii")
        )
        self.transport.close()
        token = request_id_var.set(request_id)
        self.logger.debug("refused: %d %s", status, reason)
        request_id_var.reset(token)

    def shutdown(self) -> None:
        """Close, once nothing is answered any more. Closed twice, TLS of asyncio forgets what it has not sent."""
        if not self.transport.is_closing():
            super().shutdown()

    def pause_writing(self) -> None:
        """Watch an answer that the caller does not read as fast as it is written."""
        super().pause_writing()
        self._watch_progress(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Stop watching."""
        self._stop_watching()
        super().resume_writing()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: the request is answered as one without an upgrade, as HTTP has it."""

    def _count(self, num_bytes: int) -> None:
        self._unparsed_bytes = 0
        self._head_bytes += num_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            raise HeadTooLargeError  # the parser makes an HttpParserError of it, which uvicorn answers and closes

    def _is_busy(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _expect_more(self) -> None:
        self._receiving = self.loop.call_later(RECEIVE_SECONDS, self._give_up_receiving)

    def _stop_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _give_up_receiving(self) -> None:
        """Let a caller go who does not finish his request; unless he still waits for the answer to an earlier one."""
        self._receiving = None
        if self._running is not None and self._is_busy() and not self._running.more_body:
            self._expect_more()
        elif not self.transport.is_closing():
            self.transport.close()

    def _watch_progress(self, waiting_bytes: int) -> None:
        self._stalling = self.loop.call_later(STALL_SECONDS, self._check_progress, waiting_bytes)

    def _stop_watching(self) -> None:
        if self._stalling is not None:
            self._stalling.cancel()
            self._stalling = None

    def _check_progress(self, waiting_bytes: int) -> None:
        """Let a caller go who has taken nothing since the last look."""
        still_waiting = self.transport.get_write_buffer_size()
        if still_waiting >= waiting_bytes:
            self.transport.abort()
        else:
            self._watch_progress(still_waiting)


class _OfCallers(logging.LoggerAdapter[logging.Logger]):
    """uvicorn's logger for a connection: its warnings are about what callers sent."""

    level = logging.DEBUG

    warning = logging.LoggerAdapter.debug
