"""What the two training commands have in common: options, the run folder, and the way from a run to a model folder."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from model.contract import FloatArray
from model.device import available_threads, choose_device, choose_dtype
from model.errors import ModelError
from training.benchmarks import ScoredPairs, read_scored_pairs, score_pairs
from training.checkpoints import checkpoint_step, latest_checkpoint
from training.errors import RunError, TrainingError
from training.export import export_student, refuse_taken
from training.files import replace_file
from training.journal import Journal
from training.plot import write_plot
from training.settings import TrainerSettings
from training.student import Student, TokenStore, embed_all
from training.trainer import Task, Trainer

FREE_TO_CHANGE = frozenset(
    {"minutes", "steps", "epochs", "threads", "checkpoint_minutes", "log_every", "dev_every"}
    | {"out", "run", "replace", "cache", "cache_only", "readme"}
)
"""Options that a resumed run may be given anew; the others must be as they were."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how products run.

    Attributes
    ----------
    device : torch.device
    dtype : torch.dtype
        Of the products; weights are float32.
    """

    device: torch.device
    dtype: torch.dtype


def add_run_options(parser: argparse.ArgumentParser, *, learning_rate: float, dropout: float) -> None:
    """Add the options of the trainer and of the run."""
    defaults = TrainerSettings(steps=1)
    length = parser.add_argument_group("how long (at least one; what ends first, ends the run)")
    length.add_argument("--minutes", type=float, help="of training, dev scores and checkpoints, resumptions included")
    length.add_argument("--epochs", type=int, help="passes over the data")
    length.add_argument("--steps", type=int, help="optimiser steps")
    speed = parser.add_argument_group("how")
    speed.add_argument("--batch-tokens", type=int, default=3000, help="tokens in a batch; default: %(default)s")
    speed.add_argument("--accumulation", type=int, default=1, help="batches in a step; default: %(default)s")
    speed.add_argument("--learning-rate", type=float, default=learning_rate, help="its peak; default: %(default)s")
    speed.add_argument("--warmup", type=float, default=defaults.warmup, help="share of the run; default: %(default)s")
    speed.add_argument("--weight-decay", type=float, default=defaults.weight_decay, help="default: %(default)s")
    speed.add_argument("--max-gradient-norm", type=float, default=1.0, help="default: %(default)s")
    speed.add_argument("--dropout", type=float, default=dropout, help="where the seeds have it; default: %(default)s")
    speed.add_argument("--seed", type=int, default=0, help="of weights, order and dropout; default: %(default)s")
    speed.add_argument("--dtype", default="auto", help="of products: auto, float32 or bfloat16; default: %(default)s")
    speed.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N; default: %(default)s")
    speed.add_argument("--threads", type=int, help="CPU threads; default: what this process may use")
    run = parser.add_argument_group("the run")
    run.add_argument("--run", type=Path, help="checkpoints, log and plot go there; default: OUT.run")
    run.add_argument("--dev", type=Path, action="append", default=[], metavar="STS", help="score on this file; repeats")
    run.add_argument("--dev-every", type=int, default=defaults.dev_every, help="steps; default: %(default)s")
    run.add_argument("--log-every", type=int, default=defaults.log_every, help="steps; default: %(default)s")
    run.add_argument("--checkpoint-minutes", type=float, default=5.0, help="default: %(default)s")
    run.add_argument("--readme", type=Path, help="text for the model folder's README.md; default: what was done")
    run.add_argument("--replace", action="store_true", help="take the place of a model folder that is there")


def numbers(text: str) -> list[int]:
    """Read ``1,2,3``, for an option."""
    return [int(part) for part in text.split(",")]


def check_dimensions(dimensions: Sequence[int], width: int) -> None:
    """Refuse Matryoshka dimensions that a student does not have.

    Raises
    ------
    RunError
    """
    if any(not 0 < number <= width for number in dimensions):
        raise RunError(f"--matryoshka {list(dimensions)}: the student has {width} dimensions")


def trainer_settings(args: argparse.Namespace) -> TrainerSettings:
    """Read the trainer's settings from options of the same names.

    Raises
    ------
    RunError
    """
    names = TrainerSettings.__dataclass_fields__
    return TrainerSettings(**{name: getattr(args, name) for name in names})


def choose_place(args: argparse.Namespace) -> Place:
    """Choose device and number format, and set the threads.

    Raises
    ------
    RunError
    """
    torch.set_num_threads(args.threads or available_threads())
    try:
        device = choose_device(args.device)
        return Place(device, choose_dtype(args.dtype, device))
    except ValueError as error:
        raise RunError(str(error)) from error


def open_run(run: Path, options: Mapping[str, Any]) -> int | None:
    """Make the run folder and keep the options in it, or check that a run to be resumed has the same.

    Returns
    -------
    int or None
        Steps of the checkpoint to go on from.

    Raises
    ------
    RunError
        If an option differs that may not, or the folder cannot be written.
    """
    file = run / "settings.json"
    current = {name: _plain(value) for name, value in sorted(options.items())}
    try:
        run.mkdir(parents=True, exist_ok=True)
        latest = latest_checkpoint(run)
        if latest is not None and file.exists():
            before = json.loads(file.read_text(encoding="utf-8"))
            for name, value in current.items():
                if name not in FREE_TO_CHANGE and before.get(name) != value:
                    raise RunError(
                        f"{run} was begun with {name} {before.get(name)!r}, not {value!r}; "
                        "resume it as it was, or choose another --run"
                    )
        replace_file(file, (json.dumps(current, indent=2) + "\n").encode())
    except (OSError, ValueError) as error:
        raise RunError(f"{run} cannot be used: {error}") from error
    return None if latest is None else checkpoint_step(latest)


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever argparse holds
    """Turn an option into what JSON gives back."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


class DevSet:
    """Scored pairs that a run is measured on.

    Parameters
    ----------
    files : sequence of Path
        STS files; the average over them counts.
    student : Student

    Raises
    ------
    CorpusError
    """

    def __init__(self, files: Sequence[Path], student: Student) -> None:
        self._student = student
        self._tokenizer = student.tokenizer()
        self._sets: list[ScoredPairs] = [read_scored_pairs(file) for file in files]

    def score(self, dtype: torch.dtype) -> float | None:
        """Average Spearman times 100 of the student as it is; None without files."""
        if not self._sets:
            return None

        def encode(texts: Sequence[str]) -> FloatArray:
            store = TokenStore.of(self._tokenizer, texts)
            return embed_all(self._student.encoder, store, self._student.pooling, dtype)

        return float(np.mean([score_pairs(item, encode, [None])[0] for item in self._sets]))


def train_and_export(args: argparse.Namespace, task: Task, student: Student, facts: Mapping[str, str]) -> int:
    """Train to the end, then write the model folder; when stopped by a signal, save and stay resumable.

    Parameters
    ----------
    args : argparse.Namespace
        With the options of :func:`add_run_options` and ``out``.
    task : Task
    student : Student
        What ``task`` trains.
    facts : mapping of str to str
        What to say of the run in the folder's README.

    Returns
    -------
    int
        Exit code: 0 = the folder is there, 130 = stopped and resumable.
    """
    run: Path = args.run
    stopped = _StopSignal()
    with Journal(run / "log.jsonl", bar=True) as journal, stopped:
        trainer = Trainer(task, trainer_settings(args), run, journal, should_stop=stopped.was_sent)
        progress = trainer.train()
    if not write_plot(run / "log.jsonl", run / "plot.png"):
        sys.stderr.write("no plot: matplotlib is not installed (the training extra has it)\n")
    if stopped.was_sent():
        sys.stderr.write(f"stopped at step {progress.step}; the same command goes on from there\n")
        return 130
    score = "" if progress.last_score is None else f", dev score {progress.last_score:.2f}"
    facts = {**facts, "Result": f"{progress.step} steps, {progress.tokens} tokens{score}"}
    readme = args.readme.read_text(encoding="utf-8") if args.readme else make_readme(args.out.name, facts)
    export_student(student, args.out, readme, replace=args.replace)
    sys.stdout.write(f"{args.out}: {facts['Result']}, {progress.elapsed_seconds / 60:.1f} minutes\n")
    return 0


def make_readme(title: str, facts: Mapping[str, str]) -> str:
    """Write down how a model was made."""
    lines = "".join(f"- {name}: {value}\n" for name, value in facts.items())
    return f"# {title}\n\nMade with Eyeline's `training` package.\n\n{lines}"


def prepare_out(args: argparse.Namespace) -> None:
    """Fill in the run folder, and refuse an output folder that is taken, before anything is computed."""
    if args.run is None:
        args.run = args.out.with_name(f"{args.out.name}.run")
    refuse_taken(args.out, replace=args.replace)
    if args.readme is not None and not args.readme.is_file():
        raise RunError(f"{args.readme} is missing")


class _StopSignal:
    """While entered, the first Ctrl-C or TERM asks the run to stop; the second one ends it at once."""

    def __init__(self) -> None:
        self._sent = False
        self._before: dict[int, Any] = {}

    def was_sent(self) -> bool:
        """Whether a signal has come."""
        return self._sent

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._receive)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._sent = True
        signal.signal(number, self._before[number])


def run_command(name: str, command: Callable[[], int]) -> int:
    """Run a command; an error that was meant for people is one line on standard error and exit code 1."""
    try:
        return command()
    except (TrainingError, ModelError, OSError) as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 1
