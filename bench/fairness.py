"""What short requests wait while long ones flood the server: their latency alone, and beside the flood.

The batcher has no timer and no lanes: a batch starts with the oldest text and takes those nearest to it in length. So a
short text waits for the batch that runs, and for the long ones that came before it. Run it with ``make bench`` on a
machine that does nothing else; it needs ``wrk``.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Sequence

from bench.server import EYELINE, Answered, Load, Server, eyeline_command, running
from bench.text_sets import read_texts

SHORT, LONG = "10", "200"
SHORT_LOAD = Load(1, 1, "base64")
FLOODS = (Load(4, 1, "base64"), Load(16, 1, "base64"), Load(4, 8, "base64"))
"""Beside one client of short texts: so many clients of long ones, which never pause."""

LEAD_SECONDS = 2
"""So much longer a flood lasts, on both sides, than what is measured beside it."""


def beside(server: Server, flood: Load, short: Sequence[str], long: Sequence[str], seconds: int) -> Answered:
    """Measure short requests in the middle of a flood."""
    flooding = threading.Thread(target=server.run, args=(flood, long, seconds + 2 * LEAD_SECONDS))
    flooding.start()
    time.sleep(LEAD_SECONDS)
    answered = server.run(SHORT_LOAD, short, seconds)
    flooding.join()
    return answered


def main() -> None:
    """Print a line per flood."""
    parser = argparse.ArgumentParser(prog="bench.fairness", description=__doc__)
    parser.add_argument("--model", default="weights/all-MiniLM-L6-v2")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    short, long = read_texts(SHORT), read_texts(LONG)
    with running(eyeline_command(arguments.model, arguments.dtype), EYELINE) as server:
        server.run(FLOODS[0], long, 2)
        batch_ms = [server.run(Load(1, 8, "base64"), long, arguments.seconds).p50_ms for _ in range(arguments.rounds)]
        print(f"a request of 8 long texts, alone: p50 {statistics.median(batch_ms):.0f} ms")
        print(f"{'one client of short texts':38}{'p50 ms':>9}{'p99 ms':>9}")
        rows: dict[str, list[Answered]] = {}
        for _ in range(arguments.rounds):
            rows.setdefault("alone", []).append(server.run(SHORT_LOAD, short, arguments.seconds))
            for flood in FLOODS:
                name = f"beside {flood.clients} clients x {flood.texts} long"
                rows.setdefault(name, []).append(beside(server, flood, short, long, arguments.seconds))
        for name, rounds in rows.items():
            p50, p99 = (statistics.median(getattr(one, field) for one in rounds) for field in ("p50_ms", "p99_ms"))
            print(f"{name:38}{p50:9.1f}{p99:9.1f}")


if __name__ == "__main__":
    main()
