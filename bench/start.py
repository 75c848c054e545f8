"""How long a server takes to its first answer: process start to ready, and the first request next to later ones.

Run it with ``make bench`` on a machine that does nothing else. Files are in the page cache from the first round on, as
they are for a container that is started again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.request
from dataclasses import dataclass

from bench.server import EYELINE, eyeline_command, running

TEXT = "The captain on the bridge shouted, and all the passengers on the stern shouted back."
LATER_REQUESTS = 50


@dataclass(frozen=True, slots=True)
class Start:
    """What one start was like.

    Attributes
    ----------
    ready_seconds : float
        From the start of the process to the first 200 of ``/health/ready``, to a tenth of a second.
    first_ms, later_ms : float
        Of the first request, and the median of those behind it, one at a time.
    resident_megabytes : float
    """

    ready_seconds: float
    first_ms: float
    later_ms: float
    resident_megabytes: float


def measure_start(model: str, dtype: str) -> Start:
    """Start a server, ask it, and stop it."""
    started = time.perf_counter()
    with running(eyeline_command(model, dtype), EYELINE) as server:
        ready_seconds = time.perf_counter() - started
        first, *later = (request_ms(server.address) for _ in range(1 + LATER_REQUESTS))
        return Start(ready_seconds, first, statistics.median(later), server.resident_megabytes())


def request_ms(address: str) -> float:
    """Send one text, and say how long its answer took."""
    body = json.dumps({"texts": TEXT}).encode()
    request = urllib.request.Request(f"{address}/encode", body, {"Content-Type": "application/json"})
    started = time.perf_counter()
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
    return (time.perf_counter() - started) * 1e3


def main() -> None:
    """Print a line per start, and the medians."""
    parser = argparse.ArgumentParser(prog="bench.start", description=__doc__)
    parser.add_argument("--model", default="weights/eyeline-base")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{'':8}{'ready s':>9}{'first ms':>10}{'later ms':>10}{'ratio':>7}{'RSS MB':>8}")
    starts = []
    for number in range(arguments.rounds):
        starts.append(measure_start(arguments.model, arguments.dtype))
        print_line(str(number + 1), starts[-1])
    fields = ("ready_seconds", "first_ms", "later_ms", "resident_megabytes")
    print_line("median", Start(*(statistics.median(getattr(start, name) for start in starts) for name in fields)))


def print_line(name: str, start: Start) -> None:
    """Print one row of the table."""
    print(
        f"{name:8}{start.ready_seconds:9.1f}{start.first_ms:10.1f}{start.later_ms:10.1f}"
        f"{start.first_ms / start.later_ms:7.1f}{start.resident_megabytes:8.0f}"
    )


if __name__ == "__main__":
    main()
