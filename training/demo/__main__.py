"""Train a small encoder from the sentences beside this file: ``python -m training.demo OUT``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from training.distil import main as distil

HERE = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.demo", description=__doc__)
    parser.add_argument("out", type=Path, help="model folder to write")
    parser.add_argument("--teacher", default="weights/all-MiniLM-L6-v2", help="model folder; default: %(default)s")
    parser.add_argument("--epochs", default="12", help="passes over the sentences; default: %(default)s")
    args = parser.parse_args(arguments)
    return distil(
        [
            args.teacher,
            str(args.out),
            *("--corpus", str(HERE / "sentences.txt"), "--dev", str(HERE / "dev.tsv")),
            *("--layers", "2", "--matryoshka", "128", "--epochs", args.epochs, "--batch-tokens", "1000"),
            *("--minutes", "9", "--learning-rate", "5e-4", "--dev-every", "200", "--log-every", "10", "--replace"),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
