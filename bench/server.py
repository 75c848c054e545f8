"""Speed of the server under wrk, next to the library in the same run.

A load client written in Python takes half of a small machine, so wrk sends the load. Run it with ``make bench`` on a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from model.embedder import Embedder

TEXTS = Path(__file__).parent / "texts" / "sentences-25.txt"

LUA = """
local bodies = {}
for line in io.lines("%s") do bodies[#bodies + 1] = line end
local turn = 0
request = function()
  turn = turn %% #bodies + 1
  return wrk.format("POST", "/encode", {["Content-Type"] = "application/json"}, bodies[turn])
end
"""


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


@contextmanager
def running_server(model: str, dtype: str) -> Iterator[str]:
    """Start the server on a free port and stop it again; gives its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "app.cli", "serve", "--model", model, "--dtype", dtype, "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EYELINE_")}
    process = subprocess.Popen([*command, "--log-level", "warning"], env=environment)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(address, process)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def wait_until_ready(address: str, process: subprocess.Popen[bytes]) -> None:
    """Ask until the server says it is ready."""
    for _ in range(600):
        if process.poll() is not None:
            raise SystemExit("the server did not start")
        try:
            with urllib.request.urlopen(f"{address}/health/ready", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server was not ready within a minute")


def run_wrk(address: str, load: Load, texts: list[str], seconds: int) -> dict[str, float]:
    """Send one load with wrk; returns texts per second, latencies in milliseconds, and answers that were not 200."""
    requests = [texts[start : start + load.texts] for start in range(0, len(texts), load.texts)]
    bodies = [json.dumps({"texts": group, "encoding_format": load.encoding_format}) for group in requests]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bodies").write_text("\n".join(bodies), encoding="utf-8")
        script = Path(folder) / "load.lua"
        script.write_text(LUA % (Path(folder) / "bodies"), encoding="utf-8")
        command = [
            "wrk",
            "-t1",
            f"-c{load.clients}",
            f"-d{seconds}s",
            "--timeout",
            "30s",
            "--latency",
            "-s",
            str(script),
        ]
        output = subprocess.run([*command, address], check=True, capture_output=True, text=True).stdout
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", output).group(1))
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    return {
        "texts_per_s": rate * load.texts,
        "p50_ms": latency(output, "50%"),
        "p99_ms": latency(output, "99%"),
        "failed": float(failed.group(1)) if failed else 0.0,
    }


def latency(output: str, percentile: str) -> float:
    """Read one percentile from wrk's report, in milliseconds."""
    number, unit = re.search(rf"{percentile}\s+([\d.]+)(us|ms|s)", output).groups()
    return float(number) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit]


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


def resident_megabytes(address: str) -> float:
    """Read the server's resident memory from its metrics."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return float(re.search(r"^process_resident_memory_bytes ([\d.e+]+)$", text, re.MULTILINE).group(1)) / 1e6


def main() -> None:
    """Print a line per load, with its share of the library's own speed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="weights/all-MiniLM-L6-v2")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    texts = TEXTS.read_text(encoding="utf-8").splitlines()
    library = library_rate(arguments.model, arguments.dtype, texts)
    print(f"library alone: {library:.0f} texts/s")
    print(f"{'':38}{'texts/s':>9}{'of library':>11}{'p50 ms':>9}{'p99 ms':>9}{'failed':>8}")
    figures: dict[str, object] = {"library": library}
    with running_server(arguments.model, arguments.dtype) as address:
        run_wrk(address, Load(8, 1), texts, 2)
        for load in LOADS:
            figure = run_wrk(address, load, texts, arguments.seconds)
            figures[load.name] = figure
            share = figure["texts_per_s"] / library
            print(
                f"{load.name:38}{figure['texts_per_s']:9.0f}{share:11.0%}{figure['p50_ms']:9.1f}"
                f"{figure['p99_ms']:9.1f}{figure['failed']:8.0f}"
            )
        print(f"resident memory of the server: {resident_megabytes(address):.0f} MB")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
