"""Average trained model folders: ``python -m training.average OUT FOLDER FOLDER ...``.

Runs that began as one model and went apart (other seeds, other losses) lie near each other, and the average of their
weights is often better than each. On a machine whose processors are shared, runs of one thread each also get more done
than one run of several threads, which wait for each other.

References
----------
Wortsman et al. 2022 (model soups).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from training.errors import RunError
from training.export import export_student, refuse_taken
from training.run import make_readme, run_command
from training.student import Student, load_student


def average(students: Sequence[Student], shares: Sequence[float]) -> Student:
    """Average the weights of students of one kind, in float64.

    Parameters
    ----------
    students : sequence of Student
        At least two; the first one becomes the average.
    shares : sequence of float
        How much each counts.

    Returns
    -------
    Student

    Raises
    ------
    RunError
        If they are not of one kind, or the shares say nothing.
    """
    first, total = students[0], sum(shares)
    if len(students) < 2:
        raise RunError("an average takes at least two model folders")
    if len(shares) != len(students) or min(shares) < 0 or not total > 0:
        raise RunError(f"shares {list(shares)}: each of the {len(students)} folders needs one, and none is below 0")
    for other in students[1:]:
        alike = other.raw == first.raw and other.pooling == first.pooling and other.lowercase == first.lowercase
        if not alike or other.backend.to_str() != first.backend.to_str():
            raise RunError("only models of one configuration and one tokenizer can be averaged")
    states = [student.encoder.state_dict() for student in students]
    mixed: dict[str, Tensor] = {}
    for name, own in states[0].items():
        parts = [share / total * state[name].double() for share, state in zip(shares, states, strict=True)]
        mixed[name] = torch.stack(parts).sum(dim=0).to(own.dtype)
    first.encoder.load_state_dict(mixed)
    return first


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training.average", description=__doc__)
    parser.add_argument("out", type=Path, help="model folder to write")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="what is averaged, at least two")
    parser.add_argument("--shares", metavar="1,1,2", help="how much each counts; default: all the same")
    parser.add_argument("--readme", type=Path, help="text for the model folder's README.md; default: what was done")
    parser.add_argument("--replace", action="store_true", help="take the place of a model folder that is there")
    return parser


def _shares(text: str | None, count: int) -> list[float]:
    if text is None:
        return [1.0] * count
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise RunError(f"--shares {text!r} is not a list of numbers") from None


def _run(args: argparse.Namespace) -> int:
    refuse_taken(args.out, replace=args.replace)
    if args.readme is not None and not args.readme.is_file():
        raise RunError(f"{args.readme} is missing")
    shares = _shares(args.shares, len(args.folders))
    mixed = average([load_student(folder) for folder in args.folders], shares)
    names = ", ".join(
        f"{folder.resolve().name} ({share:g})" for folder, share in zip(args.folders, shares, strict=True)
    )
    readme = make_readme(args.out.name, {"Average of": names})
    export_student(
        mixed, args.out, args.readme.read_text(encoding="utf-8") if args.readme else readme, replace=args.replace
    )
    sys.stdout.write(f"{args.out}: the average of {names}\n")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    args = _parser().parse_args(arguments)
    return run_command("average", lambda: _run(args))


if __name__ == "__main__":
    raise SystemExit(main())
