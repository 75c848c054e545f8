"""Starts and stops servers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "weights/all-MiniLM-L6-v2"  # the model of the answers in tests/reference
MAX_LENGTH = 256  # tokens that this model reads
DEFAULT_MODEL = ROOT / "weights/eyeline-base"
SERVER_PYTHON = Path(os.environ.get("SERVER_PYTHON", ROOT / ".venv-runtime/bin/python"))
TEST_SCALE = float(os.environ.get("TEST_SCALE", "1"))
# For what takes seconds: only a server that hangs, or a crushed machine, needs so long.
PATIENCE_SECONDS = float(os.environ.get("TEST_PATIENCE_SECONDS", "120"))

RUNNING = re.compile(r"Uvicorn running on (http://[^ ]+)")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Copy this process's environment, without settings of ours, and with ``extra``."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EYELINE_")}
    return {**clean, "PYTHONDONTWRITEBYTECODE": "1", **(extra or {})}


def command(*arguments: object) -> list[str]:
    """The command ``eyeline`` of the server's environment, run from this checkout."""
    return [str(SERVER_PYTHON), "-m", "app.cli", *map(str, arguments)]


def run_command(*arguments: object, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``eyeline`` to its end."""
    return subprocess.run(
        command(*arguments),
        cwd=ROOT,
        env=environment(environ),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Poll until ``condition`` holds."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what} did not happen in {PATIENCE_SECONDS:g} seconds")
        time.sleep(0.02)


class Server:
    """A server process.

    Parameters
    ----------
    log : Path
        Where its stderr goes.
    arguments : list of str
        The whole command.
    environ : mapping of str to str
        On top of this process's environment.
    """

    def __init__(self, log: Path, arguments: list[str], environ: Mapping[str, str] | None = None) -> None:
        self._log = log
        self._gate, self._reached = log.with_name("gate"), log.with_name("gate.reached")
        whole = environment({"TESTS_GATE": str(self._gate), **(environ or {})})
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                arguments, cwd=ROOT, env=whole, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        try:
            wait_for(self._has_begun, "the start of the server")
        except BaseException:
            self.close()
            raise
        match = RUNNING.search(self.log)
        if match is None:
            code = self.process.returncode
            self.close()
            raise RuntimeError(f"the server ended with {code} instead of starting:\n{self.log}")
        self.url = match[1]
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_SECONDS)

    def _has_begun(self) -> bool:
        return RUNNING.search(self.log) is not None or self.process.poll() is not None

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self._log.read_text()

    def log_entries(self) -> list[dict[str, Any]]:
        """The log, each line parsed: a line that is no JSON fails here."""
        return [json.loads(line) for line in self.log.splitlines()]

    def encode(self, texts: Any, **fields: Any) -> dict[str, Any]:
        """Encode, expecting success."""
        response = self.client.post("/encode", json={"texts": texts, **fields})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def sample(self, name: str, **labels: str) -> float:
        """Read one metric over HTTP."""
        for family in text_string_to_metric_families(self.client.get("/metrics").text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return float(sample.value)
        raise LookupError(f"{name} {labels}")

    @contextmanager
    def gate_shut(self) -> Iterator[None]:
        """Let batches with the text ``wait`` wait on a faulty server, until the block ends or the gate is opened."""
        self._reached.unlink(missing_ok=True)
        self._gate.touch()
        try:
            yield
        finally:
            self.open_gate()

    def open_gate(self) -> None:
        """Let the batch that waits go on."""
        self._gate.unlink(missing_ok=True)

    def is_at_gate(self) -> bool:
        """Whether a batch with such a text has begun."""
        return self._reached.exists()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the worker of a faulty server at the gate with one text, so that whatever comes waits in the queue."""
        with ThreadPoolExecutor(1) as threads, self.gate_shut():
            threads.submit(httpx.post, f"{self.url}/encode", json={"texts": "wait"}, timeout=PATIENCE_SECONDS)
            wait_for(self.is_at_gate, "the batch that waits")
            yield

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        """Wait for the end, and return the exit code."""
        return self.process.wait(timeout)

    def close(self) -> None:
        """End the process however it is doing."""
        if hasattr(self, "client"):
            self.client.close()
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


StartServer = Callable[..., Server]


@pytest.fixture(scope="module")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Start servers with arguments of their own; each is ended with the module, if it still runs."""
    servers: list[Server] = []

    def start(*arguments: object, environ: Mapping[str, str] | None = None, prefix: list[str] | None = None) -> Server:
        log = tmp_path_factory.mktemp("server") / "log"
        flags = ("serve", "--model", MODEL, "--port", 0, "--dtype", "float32", "--device", "cpu", *arguments)
        whole = command(*flags) if prefix is None else [*prefix, *map(str, flags)]
        servers.append(Server(log, whole, environ))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def start_faulty(start_server: StartServer, *arguments: object, environ: Mapping[str, str] | None = None) -> Server:
    """Start the server that fails on cue. Held by a test on a crushed machine, it does not take its worker for hung."""
    prefix = [str(SERVER_PYTHON), "-m", "tests.e2e.faulty_server"]
    return start_server("--no-warmup", "--hang-seconds", 600, *arguments, environ=environ, prefix=prefix)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that most tests share: the reference's model in float32, every other setting at its default."""
    log = tmp_path_factory.mktemp("server") / "log"
    shared = Server(log, command("serve", "--model", MODEL, "--port", 0, "--dtype", "float32", "--device", "cpu"))
    yield shared
    shared.close()
