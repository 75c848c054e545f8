"""Speed of the server under wrk, next to the library in the same run.

A load client written in Python takes half of a small machine, so wrk sends the load. Run it with ``make bench`` on a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.contender import environment
from bench.text_sets import read_texts
from model.device import available_threads
from model.embedder import Embedder

LUA = """
local bodies = {}
for line in io.lines("%s") do bodies[#bodies + 1] = line end
local turn = 0
request = function()
  turn = turn %% #bodies + 1
  return wrk.format("POST", "%s", {["Content-Type"] = "application/json"}, bodies[turn])
end
"""

START_SECONDS = 600.0
STOP_SECONDS = 30.0
SETTLE_SECONDS = 1.0
"""Before a load: what the last one left behind, batches of callers that are gone, must not count for this one."""


@dataclass(frozen=True, slots=True)
class Wire:
    """How a server is asked.

    Attributes
    ----------
    path : str
        Where texts go.
    field : str
        What they are called in the body.
    ready_path : str
        Answers 200 when the server is ready.
    """

    path: str
    field: str
    ready_path: str


EYELINE = Wire("/encode", "texts", "/health/ready")


@dataclass(frozen=True, slots=True)
class Load:
    """One load: so many clients, each sending so many texts at a time, one request after the other."""

    clients: int
    texts: int
    encoding_format: str = "float"

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.clients} clients x {self.texts} texts, {self.encoding_format}"


LOADS = (
    Load(1, 1),
    Load(8, 1),
    Load(64, 1),
    Load(64, 1, "base64"),
    Load(4, 32),
    Load(4, 32, "base64"),
)


@dataclass(frozen=True, slots=True)
class Answered:
    """What a server did under one load.

    Attributes
    ----------
    texts_per_second : float
        Of the requests that were answered with 200.
    p50_ms, p99_ms : float
        Of all requests, refused ones too.
    failed : int
        Requests that were not answered with 200.
    busy : float or None
        Share of the time in which Eyeline's worker ran a batch; None for other servers, which do not say.
    """

    texts_per_second: float
    p50_ms: float
    p99_ms: float
    failed: int
    busy: float | None = None


class Server:
    """A server that runs, as a process of its own."""

    def __init__(self, address: str, wire: Wire, process: subprocess.Popen[bytes]) -> None:
        self.address = address
        self.wire = wire
        self._process = process

    def pause(self) -> None:
        """Take the processor from it, while another server is measured."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Give it back."""
        self._process.send_signal(signal.SIGCONT)

    def run(self, load: Load, texts: Sequence[str], seconds: int) -> Answered:
        """Send one load with wrk."""
        groups = [texts[start : start + load.texts] for start in range(0, len(texts), load.texts)]
        bodies = [json.dumps({self.wire.field: group, "encoding_format": load.encoding_format}) for group in groups]
        time.sleep(SETTLE_SECONDS)
        busy_before, started = self._busy_seconds(), time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "bodies").write_text("\n".join(bodies), encoding="utf-8")
            script = Path(folder) / "load.lua"
            script.write_text(LUA % (Path(folder) / "bodies", self.wire.path), encoding="utf-8")
            options = ["-t1", f"-c{load.clients}", f"-d{seconds}s", "--timeout", "30s", "--latency", "-s", str(script)]
            finished = subprocess.run(["wrk", *options, self.address], check=True, capture_output=True, text=True)
        wall, busy_after = time.perf_counter() - started, self._busy_seconds()
        busy = None if busy_before is None or busy_after is None else (busy_after - busy_before) / wall
        # the last group of texts may be a shorter one
        return read_report(finished.stdout, texts_per_request=len(texts) / len(groups), busy=busy)

    def _busy_seconds(self) -> float | None:
        """Read how long the worker has run batches; None where the server is not Eyeline."""
        return self.metric("eyeline_batch_duration_seconds_sum") if self.wire is EYELINE else None

    def resident_megabytes(self) -> float:
        """Read its resident memory from its metrics."""
        return self.metric("process_resident_memory_bytes") / 1e6

    def metric(self, name: str) -> float:
        """Read one number, summed over models."""
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return sum(float(number) for number in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))


@contextmanager
def running(command: Sequence[str], wire: Wire) -> Iterator[Server]:
    """Start a server on a free port, which is added to ``command``, and stop it again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env=environment(available_threads()),
            stdout=log,
            stderr=log,
        )
        server = Server(f"http://127.0.0.1:{port}", wire, process)
        try:
            _wait_until_ready(server, process)
            yield server
        except ChildProcessError as error:
            log.seek(0)
            raise ChildProcessError(f"{error}: {log.read().strip().rpartition(chr(10))[2]}") from error
        finally:
            server.resume()
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def eyeline_command(model: str, dtype: str) -> list[str]:
    """Name what starts our own server."""
    command = [sys.executable, "-m", "app.cli", "serve", "--model", model, "--dtype", dtype]
    return [*command, "--log-level", "warning"]


@contextmanager
def running_server(model: str, dtype: str) -> Iterator[str]:
    """Start our own server, and stop it again; gives its address."""
    with running(eyeline_command(model, dtype), EYELINE) as server:
        yield server.address


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes]) -> None:
    """Ask until the server says it is ready."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ChildProcessError(f"the server ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(server.address + server.wire.ready_path, timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise ChildProcessError(f"the server was not ready within {START_SECONDS:.0f} s")


def read_report(report: str, *, texts_per_request: float, busy: float | None) -> Answered:
    """Read what wrk printed.

    Its rate counts every answer, refusals too; ours counts only texts that were embedded. Its latencies are of all
    answers: where requests failed, they are no measurement of what an embedding takes.
    """
    rate = re.search(r"Requests/sec:\s+([\d.]+)", report)
    total = re.search(r"(\d+) requests in ", report)
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", report)
    if rate is None or total is None:
        raise ValueError(f"this is not what wrk prints:\n{report}")
    num_requests, failed = int(total.group(1)), int(refused.group(1)) if refused else 0
    embedded = 1 - failed / num_requests if num_requests else 0.0
    return Answered(
        texts_per_second=float(rate.group(1)) * embedded * texts_per_request,
        p50_ms=_latency(report, "50%"),
        p99_ms=_latency(report, "99%"),
        failed=failed,
        busy=busy,
    )


def _latency(report: str, percentile: str) -> float:
    """Read one percentile from wrk's report, in milliseconds."""
    number, unit = re.search(rf"{percentile}\s+([\d.]+)(us|ms|s|m)", report).groups()
    return float(number) * {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}[unit]


def library_rate(model: str, dtype: str, texts: list[str]) -> float:
    """Texts per second of the library alone, the median of three."""
    embedder = Embedder.load(model, dtype=dtype, device="cpu")
    embedder.encode(texts)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        embedder.encode(texts)
        seconds.append(time.perf_counter() - started)
    return len(texts) / statistics.median(seconds)


def main() -> None:
    """Print a line per load, with its share of the library's own speed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="weights/all-MiniLM-L6-v2")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    texts = read_texts("25")
    library = library_rate(arguments.model, arguments.dtype, texts)
    print(f"library alone: {library:.0f} texts/s")
    print(f"{'':38}{'texts/s':>9}{'of library':>11}{'busy':>7}{'p50 ms':>9}{'p99 ms':>9}{'failed':>8}")
    figures: dict[str, object] = {"library": library}
    with running(eyeline_command(arguments.model, arguments.dtype), EYELINE) as server:
        server.run(Load(8, 1), texts, 2)
        for load in LOADS:
            answered = server.run(load, texts, arguments.seconds)
            figures[load.name] = asdict(answered)
            share = answered.texts_per_second / library
            print(
                f"{load.name:38}{answered.texts_per_second:9.0f}{share:11.0%}{answered.busy:7.0%}"
                f"{answered.p50_ms:9.1f}{answered.p99_ms:9.1f}{answered.failed:8}"
            )
        print(f"resident memory of the server: {server.resident_megabytes():.0f} MB")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
