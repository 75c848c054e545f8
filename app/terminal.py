"""The commands of the first day, ``eyeline similarity`` and ``eyeline search``: arguments, and what is printed."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from app.bulk.errors import BulkUsageError
from app.bulk.options import BulkOptions, InputKind, check_input, check_together, input_kind

if TYPE_CHECKING:  # torch and numpy take their time, and a mistake shall cost none
    from app.bulk.search import Found
    from model.contract import FloatArray

SHOWN_CHARACTERS = 100
"""Of a text, in a line for people."""


def add_similarity_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``eyeline similarity``."""
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="two texts or more, each compared with all")
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``eyeline search``."""
    parser.add_argument("input", metavar="FILE", help="file of texts (.txt .csv .tsv .jsonl, also .gz, .parquet), or -")
    parser.add_argument("query", metavar="QUERY")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="show the best N (default: 5)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--input-format", choices=get_args(InputKind), help="default: by the name of FILE; text for -")
    parser.add_argument("--column", "--field", metavar="NAME", help="where the text is (default: text or the only one)")
    parser.add_argument("--prompt-name", metavar="NAME", help="prompt of the model folder to put before the query")
    parser.add_argument("--prompt", metavar="TEXT", help="text to put before the query")


def check_similarity(texts: Sequence[str]) -> None:
    """Refuse what cannot be compared; raises :class:`BulkUsageError`."""
    if len(texts) < 2:
        raise BulkUsageError(f"similarity compares two texts or more, not {len(texts)}")
    for number, text in enumerate(texts, start=1):
        check_characters(text, f"text {number}")


def check_characters(text: str, name: str) -> None:
    """Refuse bytes of the command line that are no UTF-8; raises :class:`BulkUsageError`."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BulkUsageError(f"{name} is not UTF-8") from error


def search_options(arguments: argparse.Namespace) -> BulkOptions:
    """Turn parsed arguments into options of the input.

    Raises
    ------
    BulkUsageError
    """
    if arguments.top < 1:
        raise BulkUsageError(f"--top must be at least 1, not {arguments.top}")
    if arguments.prompt is not None and arguments.prompt_name is not None:
        raise BulkUsageError("give either --prompt or --prompt-name, not both")
    check_characters(arguments.query, "the query")
    source = None if arguments.input == "-" else Path(arguments.input)
    options = BulkOptions(
        input=source,
        input_kind=arguments.input_format or input_kind(source),
        output=Path(os.devnull),  # nothing is written
        output_kind="jsonl",
        column=arguments.column,
        prompt_name=arguments.prompt_name,
        prompt=arguments.prompt,
    )
    check_together(options)
    check_input(options)
    return options


def describe_similarity(model: str, texts: Sequence[str], embeddings: FloatArray, *, as_json: bool) -> str:
    """Write cosines: one number for two texts, else a table whose rows are the texts, numbered."""
    wide = embeddings.astype("float64")
    cosines = (wide @ wide.T).clip(-1.0, 1.0)
    if as_json:
        return json.dumps({"model": model, "similarities": cosines.round(6).tolist()})
    if len(texts) == 2:
        return f"{cosines[0, 1]:.3f}"
    width = len(str(len(texts)))
    lines = [" " * width + "".join(f"{number:8}" for number in range(1, len(texts) + 1))]
    for number, (text, row) in enumerate(zip(texts, cosines, strict=True), start=1):
        lines.append(f"{number:{width}}{''.join(f'{cosine:8.3f}' for cosine in row)}  {shortened(text)}")
    return "\n".join(lines)


def describe_found(model: str, found: Found, *, as_json: bool) -> str:
    """Write hits, the best first: score, place, text."""
    if as_json:
        hits = [{found.unit: hit.place, "score": round(hit.score, 6), "text": hit.text} for hit in found.hits]
        counts = {"num_texts": found.num_texts, "num_truncated": found.num_truncated}
        return json.dumps({"model": model, "hits": hits, **counts}, ensure_ascii=False)
    width = max((len(str(hit.place)) for hit in found.hits), default=0)
    lines = [f"{hit.score:6.3f}  {found.unit} {hit.place:{width}}  {shortened(hit.text)}" for hit in found.hits]
    cut = f", {found.num_truncated} truncated" if found.num_truncated else ""
    return "\n".join([*lines, f"the best {len(lines)} of {found.num_texts} texts{cut}"])


def shortened(text: str) -> str:
    """Put a text into one line: white space and control characters become spaces, the end of a long one an ellipsis."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[: SHOWN_CHARACTERS - 1]}…"
