"""Measure model folders: ``python -m training.evaluate MODEL... DATA...`` prints a table and can write JSON.

A folder with a ``config.json`` or a ``modules.json`` is a model. Everything else is data: an STS file, a retrieval
set, or a folder of such; see :mod:`training.benchmarks` for what is in them. All models go through the same code.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from model.contract import FloatArray
from model.embedder import Embedder
from model.errors import ModelError
from training.benchmarks import (
    Encode,
    Retrieval,
    ScoredPairs,
    is_retrieval,
    read_retrieval,
    read_scored_pairs,
    score_pairs,
    score_retrieval,
)
from training.errors import CorpusError, RunError, TrainingError
from training.files import replace_file


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table.

    Attributes
    ----------
    model : str
    dimensions : int
    scores : dict of str to float
        Column -> score.
    """

    model: str
    dimensions: int
    scores: dict[str, float]


def find_data(paths: Sequence[Path]) -> list[ScoredPairs | Retrieval]:
    """Read all data sets in some files and folders.

    Raises
    ------
    CorpusError
        If a path has none, one cannot be read, or two have one name.
    """
    if not paths:
        raise CorpusError("no STS file and no retrieval set is named")
    found = [item for path in paths for item in _data_in(path)]
    names = [item.name for item in found]
    for name in names:
        if names.count(name) > 1:
            raise CorpusError(f"two data sets are called {name!r}; leave one out, or rename it")
    return found


def _data_in(path: Path) -> list[ScoredPairs | Retrieval]:
    """Read one data set, or all those of a folder, of which there is at least one."""
    if not path.exists():
        raise CorpusError(f"{path} is missing")
    if path.is_file():
        return [read_scored_pairs(path)]
    if is_retrieval(path):
        return [read_retrieval(path)]
    files = [*path.glob("*.tsv"), *path.glob("*.tsv.gz")]
    pairs = [read_scored_pairs(file) for file in sorted(files)]
    sets = [read_retrieval(folder) for folder in sorted(path.glob("*")) if is_retrieval(folder)]
    if not pairs and not sets:
        raise CorpusError(f"{path} holds no STS file and no retrieval set")
    return [*pairs, *sets]


def evaluate(
    name: str, encode: Encode, data: Sequence[ScoredPairs | Retrieval], dimensions: Sequence[int]
) -> list[Result]:
    """Measure one model on every data set, at each number of dimensions."""
    results = [Result(name, width, {}) for width in dimensions]
    for item in data:
        if isinstance(item, ScoredPairs):
            for result, score in zip(results, score_pairs(item, encode, dimensions), strict=True):
                result.scores[item.name] = score
        else:
            for result, (gain, precision) in zip(results, score_retrieval(item, encode, dimensions), strict=True):
                result.scores[f"{item.name} nDCG@10"] = gain
                result.scores[f"{item.name} MAP"] = precision
    return results


def markdown(results: Sequence[Result]) -> str:
    """Lay results out as a table in Markdown, scores times 100 with two digits."""
    columns = list(dict.fromkeys(column for result in results for column in result.scores))
    lines = [["model", "dimensions", *columns], ["---", *["---:"] * (len(columns) + 1)]]
    lines += [
        [result.model, str(result.dimensions), *(f"{result.scores[column]:.2f}" for column in columns)]
        for result in results
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def is_model(path: Path) -> bool:
    """Whether a folder holds a model rather than data."""
    return (path / "config.json").is_file() or (path / "modules.json").is_file()


def load_encode(folder: Path, dtype: str, device: str, threads: int | None) -> tuple[Encode, int]:
    """Load a model folder: its encode function, and how many dimensions it has.

    Raises
    ------
    CheckpointError, ValueError
        If the folder cannot be served so.
    """
    embedder = Embedder.load(folder, dtype=dtype, device=device, threads=threads)

    def encode(texts: Sequence[str]) -> FloatArray:
        batch_tokens = 16384 if embedder.device.type == "cuda" else 2048
        try:
            return embedder.encode(texts, normalize=False, batch_tokens=batch_tokens)
        except FloatingPointError as error:
            raise RunError(f"{folder} gives an embedding that is not finite, in {embedder.info.dtype}") from error

    return encode, embedder.dimensions


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training.evaluate", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="model folders and data, in any order")
    parser.add_argument("--dimensions", default="", help="such as 384,256,128,64; default: all that a model has")
    parser.add_argument("--json", type=Path, help="write the results there as well")
    parser.add_argument("--dtype", default="float32", help="as the server's; default: float32")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=int, help="CPU threads; default: what this process may use")
    return parser


def _dimensions(text: str, width: int, folder: Path) -> list[int]:
    """Read the list of dimensions, or take all that the model has."""
    try:
        asked = [int(part) for part in text.split(",") if part] or [width]
    except ValueError:
        raise RunError(f"--dimensions {text!r} is not a list of numbers") from None
    for number in asked:
        if not 1 <= number <= width:
            raise RunError(f"{folder} has {width} dimensions, so that {number} of them cannot be measured")
    return asked


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    args = _parser().parse_args(arguments)
    models = [path for path in args.paths if is_model(path)]
    try:
        data = find_data([path for path in args.paths if not is_model(path)])
        if not models:
            raise RunError("none of the folders is a model: there is no config.json and no modules.json in them")
        results: list[Result] = []
        for folder in models:
            encode, width = load_encode(folder, args.dtype, args.device, args.threads)
            results += evaluate(folder.resolve().name, encode, data, _dimensions(args.dimensions, width, folder))
        sys.stdout.write(markdown(results))
        if args.json:
            rows = [{"model": r.model, "dimensions": r.dimensions, "scores": r.scores} for r in results]
            replace_file(args.json, (json.dumps(rows, indent=2) + "\n").encode())
    except (TrainingError, ModelError, ValueError, OSError) as error:
        sys.stderr.write(f"evaluate: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
