"""Runs the app under uvicorn, with our own answer to signals.

uvicorn closes its listeners first and raises the signal again once it has stopped. Behind a load balancer the order
must be another: say "not ready", go on serving for a while, then stop accepting, then drain, and exit 0.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import signal
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from app.connection import Connection
from app.state import ServerState

log = logging.getLogger("eyeline")

GIL_SECONDS = 0.00005
"""How long a thread may keep Python's lock while another waits for it. Each lane wants it back after each of its
hundred operations a part, while the event loop writes answers. With the default of 5 ms the worker stalls; 0.05 ms gave
64 callers 1.03 (bfloat16) and 1.07 (int8) times the answers of 0.5 ms, and less than 0.05 ms no more for certain."""

ANSWER_SECONDS = 2.0
"""For the answers to leave that are given when the grace ends; whoever does not read them by then is let go."""

CANCEL_SECONDS = 0.1
"""For whoever waits in a queue to be told by it, when the grace ends, before whatever is left is cancelled."""

KEEP_ALIVE_SECONDS = 75
"""How long a connection stays open without a request: longer than callers keep theirs, or it is closed under a request
that is on its way, which fails. httpx, and so OpenAI's client, keeps one for 5 seconds, which is uvicorn's default as
well; AWS's load balancers for 60."""

YOUNG_OBJECTS = 5_000
"""How many more objects than before make Python look among them for cycles. The default, 700, is what a few requests in
flight hold: it would look at each of them several times, and in vain."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
RELOAD_SIGNAL = signal.SIGHUP

CONTROLLING_TERMINAL = "/dev/tty"


class Server(uvicorn.Server):
    """A uvicorn server that stops in the order that load balancers need.

    Parameters
    ----------
    config : uvicorn.Config
    state : ServerState
        Its ``is_draining`` is set at the first signal to stop, its ``reloader`` told of one to reload.
    drain_delay_seconds : float
        Between "not ready" and the closing of the listeners.
    shutdown_grace_seconds : float
        From there on, for what was let in; whoever still waits then is told that the server stops.
    """

    def __init__(
        self, config: uvicorn.Config, state: ServerState, drain_delay_seconds: float, shutdown_grace_seconds: float
    ) -> None:
        # What is cut off at the end of the grace has a moment to leave, before uvicorn lets connections go.
        config.timeout_graceful_shutdown = math.ceil(shutdown_grace_seconds + ANSWER_SECONDS)
        super().__init__(config)
        self._state = state
        self._drain_delay_seconds = drain_delay_seconds
        self._shutdown_grace_seconds = shutdown_grace_seconds
        self._had_terminal = has_terminal()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Replace uvicorn's signal handling: nothing is raised again, so that a clean stop exits 0."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(RELOAD_SIGNAL, self._reload)
        try:
            yield
        finally:
            for number in (*STOP_SIGNALS, RELOAD_SIGNAL):
                loop.remove_signal_handler(number)

    def _stop(self, number: signal.Signals) -> None:
        """Begin to stop at the first signal; at the second, stop at once."""
        if self._state.is_draining:
            log.warning("second signal: stopping at once", extra={"signal": number.name})
            self.force_exit = True
            self.should_exit = True
            self._cut_off()
            return
        log.info("stopping", extra={"signal": number.name, "drain_delay_seconds": self._drain_delay_seconds})
        self._state.begin_draining()
        asyncio.get_running_loop().call_later(self._drain_delay_seconds, setattr, self, "should_exit", True)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start; then let Python's search for cycles pass over all that lives as long as the process.

        That is 230,000 objects, most of them PyTorch's. To look at them took 0.13 s each time, with every thread
        standing still.
        """
        await super().startup(sockets)
        gc.collect()
        gc.freeze()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listeners, go on with what was let in, and answer what is not done when the grace ends."""
        grace = asyncio.get_running_loop().call_later(self._shutdown_grace_seconds, self._end_grace)
        try:
            await super().shutdown(sockets)
        finally:
            grace.cancel()

    def _end_grace(self) -> None:
        """Wait for nothing any more; where a caller loses by that, it is no clean stop."""
        num_requests = len(self.server_state.tasks)
        num_unread = sum(connection.has_unsent for connection in self._connections())
        if num_requests or num_unread:
            log.error("the grace is over: giving up %d requests and %d unread answers", num_requests, num_unread)
            self._cut_off()
        else:
            self._state.end_grace()

    def _cut_off(self) -> None:
        """Cut off what is still in flight: the queues tell who waits in them, the middleware whoever is cancelled."""
        loop = asyncio.get_running_loop()
        self._state.is_cut_off = True
        self._state.end_grace()
        loop.call_later(CANCEL_SECONDS, self._cancel_requests)
        loop.call_later(ANSWER_SECONDS, self._abort_connections)

    def _cancel_requests(self) -> None:
        for task in self.server_state.tasks:
            task.cancel()

    def _abort_connections(self) -> None:
        for connection in self._connections():
            connection.transport.abort()

    def _connections(self) -> list[Connection]:
        return [connection for connection in self.server_state.connections if isinstance(connection, Connection)]

    def _reload(self) -> None:
        """Reload the models; but the terminal that was closed sends the same signal, and means that all shall end."""
        if self._had_terminal and not has_terminal():
            if not self._state.is_draining:  # it comes more than once, and is nobody's second wish
                self._stop(RELOAD_SIGNAL)
        elif self._state.reloader is None:
            self._state.metrics.reloaded("refused")
            log.warning("reload refused: the models are being loaded", extra={"signal": RELOAD_SIGNAL.name})
        else:
            log.info("reloading", extra={"signal": RELOAD_SIGNAL.name})
            self._state.reloader.begin()


def has_terminal() -> bool:
    """Whether the process belongs to a terminal that is still there."""
    try:
        os.close(os.open(CONTROLLING_TERMINAL, os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def check_address(host: str, port: int) -> None:
    """Find out before the models are loaded whether the address can be listened on.

    Raises
    ------
    OSError
        If it is taken, not this machine's, or not allowed.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


class TLSError(Exception):
    """A certificate or key that cannot be served with; one sentence, which holds nothing of the key."""


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Load a certificate and its key, with Python's own choice of versions (from 1.2 on) and ciphers.

    Raises
    ------
    TLSError
        If a file cannot be read or is not PEM, the key has a password, or the two do not belong together.
    """
    for file in (certificate, key):
        try:
            with file.open("rb"):
                pass
        except OSError as error:
            raise TLSError(f"{file} cannot be read: {error.strerror}") from None

    def password() -> str:
        raise TLSError(f"{key} has a password, and there is nobody to ask for it")

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password)
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or "not in PEM form"
        raise TLSError(f"{certificate} and {key} cannot be served with: {reason}") from None
    return context


def serve(
    app: FastAPI,
    *,
    host: str,
    port: int,
    drain_delay_seconds: float,
    shutdown_grace_seconds: float,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Serve until a signal comes.

    Returns
    -------
    int
        Exit code: 0 after a clean stop; 1 if the server did not start, or gave requests up as it stopped.
    """
    state: ServerState = app.state.server
    state.end_process = lambda: _end_now(1)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        http=Connection,
        ws="none",
        server_header=False,
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        ssl_context_factory=None if tls is None else lambda *_: tls,
    )
    server = Server(config, state, drain_delay_seconds, shutdown_grace_seconds)
    sys.setswitchinterval(GIL_SECONDS)
    gc.set_threshold(YOUNG_OBJECTS)
    try:
        server.run()
    except SystemExit as error:  # uvicorn ends the process itself when the port is taken
        return 1 if error.code else 0
    if state.worker is not None and state.worker.is_busy:
        log.error("stopped while a batch was running")
        _end_now(1)
    code = 0 if server.started and not state.is_cut_off else 1
    if state.reloader is not None and state.reloader.is_loading:
        log.warning("stopped while a reload was reading a model")
        _end_now(code)
    return code


def _end_now(code: int) -> None:
    """End the process without waiting for its threads, of which one may never end. Log lines are written already."""
    os._exit(code)
