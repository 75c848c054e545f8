"""How throughput grows with replicas of one thread each, and what a text costs of a core, at three lengths.

The library first; then one server, and several at once, each with a load of its own, in turn. Beside what the clock
says stands what the work took of the processor, which others on the same machine falsify far less: what a text costs,
and whether it costs more with a neighbour. It wants at least as many cores as replicas, and ``wrk``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.server import EYELINE, Load, Server, eyeline_command, running
from bench.text_sets import FILES, NUM_TEXTS, read_texts
from model.embedder import Embedder

LOAD = Load(4, 32, "base64")
"""For each replica: enough that a batch is full when the last one ends, and little work for the load's own process."""

QUEUE_TOKENS = "100000"
"""Room for the whole load, however slow the machine was when a server measured it at its start."""

CPU_SECONDS = "process_cpu_seconds_total"
TEXTS = "eyeline_texts_total"


@dataclass(frozen=True, slots=True)
class Run:
    """What so many replicas did together.

    Attributes
    ----------
    text_set : str
    num_replicas : int
        0 is the library.
    texts_per_second : float
        By the clock, all replicas together.
    texts_per_core_second : float
        By the processor's time that the servers used.
    failed : int
    """

    text_set: str
    num_replicas: int
    texts_per_second: float
    texts_per_core_second: float
    failed: int


def measure_library(embedder: Embedder, text_set: str, num_texts: int) -> Run:
    """Encode a set once."""
    texts = read_texts(text_set, num_texts)
    started, cpu_started = time.perf_counter(), time.process_time()
    embedder.encode(texts)
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu_started
    return Run(text_set, 0, len(texts) / wall, len(texts) / cpu, 0)


def measure(servers: Sequence[Server], text_set: str, seconds: int) -> Run:
    """Load every server at once."""
    texts = read_texts(text_set)
    before = [(server.metric(TEXTS), server.metric(CPU_SECONDS)) for server in servers]
    with ThreadPoolExecutor(len(servers)) as pool:
        answered = list(pool.map(lambda server: server.run(LOAD, texts, seconds), servers))
    after = [(server.metric(TEXTS), server.metric(CPU_SECONDS)) for server in servers]
    num_texts, cpu_seconds = (
        sum(now[place] - then[place] for then, now in zip(before, after, strict=True)) for place in (0, 1)
    )
    return Run(
        text_set,
        len(servers),
        sum(one.texts_per_second for one in answered),
        num_texts / cpu_seconds,
        sum(one.failed for one in answered),
    )


def median(runs: Sequence[Run], text_set: str, num_replicas: int) -> Run:
    """Take the middle of the rounds, number by number."""
    same = [run for run in runs if (run.text_set, run.num_replicas) == (text_set, num_replicas)]
    return Run(
        text_set,
        num_replicas,
        statistics.median(run.texts_per_second for run in same),
        statistics.median(run.texts_per_core_second for run in same),
        sum(run.failed for run in same),
    )


def main() -> None:
    """Print a line for each length and number of replicas."""
    parser = argparse.ArgumentParser(prog="bench.replicas", description=__doc__)
    parser.add_argument("--model", default="weights/eyeline-base")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--replicas", type=int, default=2, help="the most at a time; 0: the library alone")
    parser.add_argument("--texts", type=int, default=NUM_TEXTS, help="of each set, for the library")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    command = [*eyeline_command(arguments.model, arguments.dtype), "--threads", "1", "--max-queue-tokens", QUEUE_TOKENS]
    counts = sorted({1, arguments.replicas}) if arguments.replicas else []
    embedder = Embedder.load(arguments.model, dtype=arguments.dtype, device="cpu", threads=1)
    for text_set in FILES:
        embedder.encode(read_texts(text_set, 100))
    runs = [measure_library(embedder, text_set, arguments.texts) for _ in range(arguments.rounds) for text_set in FILES]
    with ExitStack() as stack:
        servers = [stack.enter_context(running(command, EYELINE)) for _ in range(arguments.replicas)]
        for text_set in FILES if servers else ():
            measure(servers, text_set, 2)  # kernels for the sizes of these batches
        for _ in range(arguments.rounds):
            runs += [measure(servers[:count], text_set, arguments.seconds) for text_set in FILES for count in counts]
        memory = [round(server.resident_megabytes()) for server in servers]
    print(f"{'tokens':>8}{'replicas':>10}{'texts/s':>10}{'growth':>9}{'texts/core-s':>15}{'failed':>8}")
    figures = [median(runs, text_set, count) for text_set in FILES for count in (0, *counts)]
    for figure in figures:
        alone = next(
            one for one in figures if (one.text_set, one.num_replicas) == (figure.text_set, min(1, figure.num_replicas))
        )
        growth = figure.texts_per_second / alone.texts_per_second
        replicas = figure.num_replicas or "library"
        print(
            f"{figure.text_set:>8}{replicas:>10}{figure.texts_per_second:10.0f}{growth:9.2f}"
            f"{figure.texts_per_core_second:15.0f}{figure.failed:8}"
        )
    if memory:
        print(f"resident memory of the replicas: {memory} MB")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
