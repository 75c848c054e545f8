"""Measures Eyeline's library and server next to their peers, and next to what the processor allows, in one run.

Every library, number format and server is a process of its own. All take turns, once a round; what counts is the ratio
of medians. A peer that cannot be had is named with the reason, and stops nothing. The models of ``--own-model`` are
read by no other library and stand next to the ceiling alone. ``make bench-peers`` runs it, on a machine that does
nothing else; docs/performance.md explains what is compared.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bench.libraries import UnavailableError
from bench.library import DTYPES, Figure, measure, starting
from bench.peers.environments import Torch, make_environment, read_versions
from bench.peers.report import (
    Served,
    Table,
    format_markdown,
    format_plain,
    library_table,
    read_around_markers,
    server_table,
    write_between_markers,
)
from bench.server import EYELINE, Answered, Load, Server, Wire, eyeline_command, running
from bench.text_sets import NUM_TEXTS, TEXT_SETS, read_texts
from model.device import available_threads

PEERS = {
    "sentence-transformers": ("float32", "bfloat16"),
    "onnxruntime": ("float32", "int8"),
    "openvino": ("float32", "bfloat16", "int8"),
}
"""Library -> the formats it is measured in."""

INFINITY = Wire("/embeddings", "input", "/health")
INFINITY_DTYPES = ("float32", "bfloat16")

LOADS = (Load(64, 1), Load(64, 1, "base64"), Load(4, 32), Load(4, 32, "base64"))

SERVED_SET = "25"
WARMUP_SECONDS = 2


@dataclass(slots=True)
class Run:
    """Everything one run found, as ``--json`` writes it.

    Attributes
    ----------
    machine : dict
        Processor, threads, date, versions of Python and torch.
    rounds : int
    versions : dict
        Peer -> package -> version.
    libraries : list of Figure
    servers : list of Served
    unavailable : dict
        Model -> what could not be measured -> why.
    """

    machine: dict[str, str | int]
    rounds: int
    versions: dict[str, dict[str, str]]
    libraries: list[Figure] = field(default_factory=list)
    servers: list[Served] = field(default_factory=list)
    unavailable: dict[str, dict[str, str]] = field(default_factory=dict)


def measure_libraries(
    run: Run, model: str, environments: dict[str, Path], text_sets: Sequence[str], num_texts: int
) -> None:
    """Measure a model in Eyeline, in the peers that have an environment, and its ceiling."""
    wanted: list[tuple[str, str, str | Path]] = [
        (library, dtype, sys.executable) for library in ("eyeline", "ceiling") for dtype in DTYPES
    ]
    for peer, dtypes in PEERS.items():
        if peer in environments:
            wanted += [(peer, dtype, environments[peer]) for dtype in dtypes]
    unavailable = run.unavailable[model]
    with starting(wanted, model, num_texts, unavailable) as contenders:
        run.libraries += measure(contenders, model, text_sets, num_texts, run.rounds, unavailable)


def measure_servers(run: Run, model: str, infinity: Path | None, num_texts: int, seconds: int) -> None:
    """Measure our own server, and infinity where it has an environment, under the same loads.

    The library alone takes turns with them: a share of what it did at another time would tell how the machine changed.
    """
    texts = read_texts(SERVED_SET, num_texts)
    ours = [("eyeline", dtype, sys.executable) for dtype in DTYPES if f"eyeline {dtype}" not in run.unavailable[model]]
    wanted = [("eyeline", dtype, eyeline_command(model, dtype), EYELINE) for _, dtype, _ in ours]
    if infinity:
        command = [str(infinity.with_name("infinity_emb")), "v2", "--model-id", model, "--engine", "torch"]
        wanted += [
            ("infinity", dtype, [*command, "--device", "cpu", "--dtype", dtype], INFINITY) for dtype in INFINITY_DTYPES
        ]
    answers: dict[tuple[str, str, Load], list[Answered]] = {}
    alone: dict[str, list[float]] = {}
    with ExitStack() as stack:
        libraries = stack.enter_context(starting(ours, model, num_texts, run.unavailable[model]))
        for library in libraries:
            library.prepare(SERVED_SET, Path(stack.enter_context(TemporaryDirectory())) / "unread.npy")
        servers: dict[tuple[str, str], Server] = {}
        for name, dtype, command, wire in wanted:
            try:
                server = servers[name, dtype] = stack.enter_context(running(command, wire))
            except ChildProcessError as error:
                run.unavailable[model][f"{name} {dtype} over HTTP"] = str(error)
                continue
            server.run(LOADS[0], texts, WARMUP_SECONDS)
            server.pause()
        for _ in range(run.rounds):
            for library in libraries:
                alone.setdefault(library.dtype, []).append(library.run(SERVED_SET))
            for load in LOADS:
                for (name, dtype), server in list(servers.items()):
                    server.resume()
                    try:
                        answers.setdefault((name, dtype, load), []).append(server.run(load, texts, seconds))
                    except (OSError, ValueError, subprocess.CalledProcessError) as error:
                        run.unavailable[model][f"{name} {dtype} over HTTP, some of them"] = str(error)
                        del servers[name, dtype]
                    server.pause()
    for (name, dtype, load), rounds in sorted(answers.items(), key=lambda item: LOADS.index(item[0][2])):
        rate = len(texts) / statistics.median(alone[dtype]) if name == "eyeline" else None
        run.servers.append(Served(name, dtype, model, load, median_of(rounds), rate))


def median_of(rounds: Sequence[Answered]) -> Answered:
    """Take the median of each number; failures add up."""
    shares = [answered.busy for answered in rounds if answered.busy is not None]
    return Answered(
        texts_per_second=statistics.median(answered.texts_per_second for answered in rounds),
        p50_ms=statistics.median(answered.p50_ms for answered in rounds),
        p99_ms=statistics.median(answered.p99_ms for answered in rounds),
        failed=sum(answered.failed for answered in rounds),
        busy=statistics.median(shares) if shares else None,
    )


def tables(run: Run) -> list[tuple[str, Table]]:
    """Make a table with a title for each model and set, and one for each model's servers."""
    titled: list[tuple[str, Table]] = []
    for model in run.unavailable:
        name = Path(model).name
        for text_set in TEXT_SETS:
            figures = [figure for figure in run.libraries if (figure.model, figure.text_set) == (model, text_set)]
            if figures:
                mean = figures[0].num_tokens / figures[0].num_texts
                titled.append((f"{name}, {figures[0].num_texts} texts of {mean:.0f} tokens", library_table(figures)))
        served = [one for one in run.servers if one.model == model]
        if served:
            titled.append((f"{name} over HTTP", server_table(served)))
    return titled


def notes(run: Run) -> list[str]:
    """Say on what machine, with which versions, and what is missing."""
    machine = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    lines = [f"{machine}; medians of {run.rounds} rounds"]
    lines += [
        f"{peer}: {', '.join(f'{package} {version}' for package, version in versions.items())}"
        for peer, versions in run.versions.items()
    ]
    for model, reasons in run.unavailable.items():
        lines += [f"{Path(model).name}: no figures for {name}: {reason}" for name, reason in reasons.items()]
    return lines


def save(run: Run, target: Path | None) -> None:
    """Write what there is so far, where asked: what was measured is not lost with what fails after it."""
    if target:
        target.write_text(json.dumps(asdict(run), indent=2) + "\n", encoding="utf-8")


def processor() -> str:
    """Name the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def has_wrk() -> bool:
    """Whether the load generator is installed."""
    try:
        subprocess.run(["wrk", "--version"], capture_output=True)
    except FileNotFoundError:
        return False
    return True


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.peers", description=__doc__)
    parser.add_argument("--model", default="weights/all-MiniLM-L6-v2", help="what all libraries load")
    parser.add_argument("--own-model", action="append", metavar="FOLDER", help="default: weights/eyeline-base")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=NUM_TEXTS, help="of each set")
    parser.add_argument("--sets", nargs="+", choices=TEXT_SETS, default=TEXT_SETS)
    parser.add_argument("--seconds", type=int, default=5, help="of each load on each server, a round; 0 = no servers")
    parser.add_argument("--torch", default="torch", help="what the peers' environments install first")
    parser.add_argument("--torch-index-url", default="", help="where that comes from; empty = pip's own configuration")
    parser.add_argument("--json", type=Path, help="write all figures here as well")
    parser.add_argument("--markdown", type=Path, help="write the tables here, between the marker comments")
    return parser.parse_args()


def main() -> None:
    """Measure, and print."""
    arguments = parse_arguments()
    if arguments.markdown:
        read_around_markers(arguments.markdown)  # better now than after the run
    pinned = Torch(arguments.torch, arguments.torch_index_url)
    run = Run(
        machine={
            "processor": processor(),
            "threads": available_threads(),
            "date": date.today().isoformat(),
            "Python": platform.python_version(),
            "torch": torch.__version__,
        },
        rounds=arguments.rounds,
        versions={peer: read_versions(peer) for peer in (*PEERS, "infinity")},
    )
    environments: dict[str, Path] = {}
    unavailable = run.unavailable[arguments.model] = {}
    for peer in run.versions:
        try:
            environments[peer] = make_environment(peer, pinned)
        except UnavailableError as error:
            unavailable[peer] = str(error)
    is_serving = arguments.seconds > 0
    if is_serving and not has_wrk():
        unavailable["all servers"] = "wrk, which sends the load, is not installed"
        is_serving = False
    for model in (arguments.model, *(arguments.own_model or ["weights/eyeline-base"])):
        is_own = model != arguments.model
        run.unavailable.setdefault(model, {})
        print(f"measuring {model}", flush=True)
        measure_libraries(run, model, {} if is_own else environments, arguments.sets, arguments.texts)
        save(run, arguments.json)
        if is_serving:
            infinity = None if is_own else environments.get("infinity")
            measure_servers(run, model, infinity, arguments.texts, arguments.seconds)
            save(run, arguments.json)
    for title, table in tables(run):
        print(f"\n{title}\n{format_plain(table)}")
    print("\n" + "\n".join(notes(run)))
    if arguments.markdown:
        parts = [f"{title}:\n\n{format_markdown(table)}" for title, table in tables(run)]
        write_between_markers(arguments.markdown, "\n\n".join([*parts, "\n".join(f"- {note}" for note in notes(run))]))


if __name__ == "__main__":
    main()
