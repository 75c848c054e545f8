"""What ``eyeline encode`` may be asked, and whether that makes sense, found out before torch is imported."""

from __future__ import annotations

import argparse
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast, get_args

from app.bulk import chunk_options
from app.bulk.errors import BulkError, BulkUsageError
from model.chunking import Chunking
from model.output_types import OutputDtype

InputKind = Literal["text", "csv", "tsv", "jsonl", "parquet"]
OutputKind = Literal["npy", "safetensors", "jsonl", "parquet"]

INPUT_SUFFIXES: dict[str, InputKind] = {
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}

EMBEDDING, STATS, CHUNKS = "embedding", "attention_stats", "chunks"
"""What is in an output, beside the columns that are kept."""

CHUNK_COLUMNS = ("row", "chunk", "start", "end", "num_tokens", "truncated")
"""Of a chunk: number of its text, bad ones counted; its own among the text's; stretch of the text, in code points;
tokens of the text in it; whether the embedding lacks some of them. Numbers are from 0."""

WINDOW_TEXTS = 4_096
"""Texts sorted by length together, and written together: enough that like lengths meet, some ten seconds of a CPU."""


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """One job: which file, into which file, and how.

    Attributes
    ----------
    input : Path or None
        None is standard input.
    input_kind : InputKind
    output : Path
    output_kind : OutputKind
    column : str or None
        Where the text is; None is ``text``, or the only column.
    has_header : bool
        Whether the first line of CSV or TSV names the columns; else they are called 1, 2, ...
    keep : tuple of str
        Columns that are copied into the output.
    normalize : bool
    dimensions : int or None
    output_dtype : OutputDtype
    prompt_name, prompt : str or None
    truncate : bool
    attention_stats : bool
        Write the statistics of every head for every text.
    chunking : Chunking or None
        Cut the texts into chunks, each of which is a row.
    skip_bad : bool
        Leave out what cannot be read or encoded, instead of stopping at it.
    overwrite : bool
        Replace an output that is there, and discard a part that was begun with other options.
    window_texts : int
        Texts between two marks of progress.
    rows : range or None
        Rows of a Parquet input to take, from 0, where it is encoded in pieces; None is all of them.
    """

    input: Path | None
    input_kind: InputKind
    output: Path
    output_kind: OutputKind
    column: str | None = None
    has_header: bool = True
    keep: tuple[str, ...] = ()
    normalize: bool = True
    dimensions: int | None = None
    output_dtype: OutputDtype = "float32"
    prompt_name: str | None = None
    prompt: str | None = None
    truncate: bool = True
    attention_stats: bool = False
    chunking: Chunking | None = None
    skip_bad: bool = False
    overwrite: bool = False
    window_texts: int = WINDOW_TEXTS
    rows: range | None = None

    @property
    def input_name(self) -> str:
        """How messages call the input."""
        return "standard input" if self.input is None else str(self.input)

    @property
    def part(self) -> Path:
        """Where rows gather until all are there."""
        return self.output.with_name(self.output.name + ".part")

    @property
    def state(self) -> Path:
        """What counts the rows of :attr:`part` and says whose they are."""
        return self.output.with_name(self.output.name + ".part.json")

    @property
    def second(self) -> str | None:
        """What stands beside the embeddings, if something does: statistics of heads, or where the chunks are."""
        if self.attention_stats:
            return STATS
        return None if self.chunking is None else CHUNKS

    @property
    def second_output(self) -> Path:
        """Where an npy output, which holds one array, has :attr:`second`."""
        return self.output.with_suffix(f".{self.second}.npy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``eyeline encode`` to ``parser``."""
    toggle = argparse.BooleanOptionalAction
    parser.add_argument("input", metavar="IN", help="file of texts (.txt .csv .tsv .jsonl, also .gz, .parquet), or -")
    parser.add_argument("output", type=Path, metavar="OUT", help="file to make: .npy .safetensors .jsonl .parquet")
    read = parser.add_argument_group("reading")
    read.add_argument("--input-format", choices=get_args(InputKind), help="default: by the name of IN; text for -")
    read.add_argument("--header", action=toggle, default=True, help="the first line of CSV or TSV names the columns")
    add_row_arguments(read)
    add_embedding_arguments(parser)
    chunk_options.add_arguments(parser)
    run = parser.add_argument_group("running")
    run.add_argument("--overwrite", action="store_true", help="replace OUT, and a part begun with other options")
    run.add_argument("--progress", action=toggle, default=None, help="default: where stderr is a terminal")
    run.add_argument(
        "--window",
        type=int,
        default=WINDOW_TEXTS,
        metavar="TEXTS",
        help=f"texts sorted by length together, and written at once; what a kill may cost (default: {WINDOW_TEXTS})",
    )


def add_row_arguments(group: argparse._ArgumentGroup) -> None:
    """Add what says which texts are taken, and what of their rows is copied."""
    group.add_argument("--column", "--field", metavar="NAME", help="where the text is (default: text, or the only one)")
    group.add_argument("--keep", metavar="NAME", action="append", help="copy a column into a .jsonl or .parquet OUT")
    group.add_argument("--skip-bad", action="store_true", help="leave out what cannot be read or encoded, and count it")


def add_embedding_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says how a text is encoded."""
    toggle = argparse.BooleanOptionalAction
    shape = parser.add_argument_group("embeddings")
    shape.add_argument("--normalize", action=toggle, default=True, help="scale to unit length")
    shape.add_argument("--dimensions", type=int, metavar="N", help="keep the first N dimensions")
    shape.add_argument(
        "--output-dtype", choices=get_args(OutputDtype), default="float32", help="number type (default: float32)"
    )
    shape.add_argument("--prompt-name", metavar="NAME", help="prompt of the model folder to put before each text")
    shape.add_argument("--prompt", metavar="TEXT", help="text to put before each text")
    shape.add_argument("--truncate", action=toggle, default=True, help="cut texts over the model's length, and count")
    shape.add_argument("--attention-stats", action="store_true", help="add statistics of every head for every text")


def read_options(arguments: argparse.Namespace) -> BulkOptions:
    """Turn parsed arguments into options.

    Raises
    ------
    BulkUsageError
        If the formats are unknown, or an option has no meaning for them.
    """
    source = None if arguments.input == "-" else Path(arguments.input)
    files = BulkOptions(
        input=source,
        input_kind=arguments.input_format or input_kind(source),
        output=arguments.output,
        output_kind=_output_kind(arguments.output),
    )
    options = replace(
        read_rows_and_embeddings(arguments, files),
        has_header=arguments.header,
        chunking=chunk_options.read_chunking(arguments),
        overwrite=arguments.overwrite,
        window_texts=arguments.window,
    )
    check_together(options)
    return options


def read_rows_and_embeddings(arguments: argparse.Namespace, files: BulkOptions) -> BulkOptions:
    """Read what :func:`add_row_arguments` and :func:`add_embedding_arguments` have added.

    Parameters
    ----------
    arguments : argparse.Namespace
        Parsed.
    files : BulkOptions
        Of which file, into which file.
    """
    return replace(
        files,
        column=arguments.column,
        keep=tuple(arguments.keep or ()),
        skip_bad=arguments.skip_bad,
        normalize=arguments.normalize,
        dimensions=arguments.dimensions,
        output_dtype=arguments.output_dtype,
        prompt_name=arguments.prompt_name,
        prompt=arguments.prompt,
        truncate=arguments.truncate,
        attention_stats=arguments.attention_stats,
    )


def check_files(options: BulkOptions) -> None:
    """Find out what can be known of the files before the model is loaded.

    Raises
    ------
    BulkError
        If the input is missing, the output is there already, its folder is not, or pyarrow is needed and missing.
    """
    check_input(options)
    if not options.output.parent.is_dir():
        raise BulkError(f"{options.output.parent} is not a folder, so {options.output.name} cannot be written there")
    outputs = [options.output]
    if options.second and options.output_kind == "npy":
        outputs.append(options.second_output)
    for path in outputs:
        # With a state beside it, the output may be that of a run which was killed while it tidied up.
        if path.exists() and not options.overwrite and not options.state.exists():
            raise BulkError(f"{path} is there already; choose another name, or --overwrite to replace it")
    if options.output_kind == "parquet":
        _check_pyarrow()


def check_input(options: BulkOptions) -> None:
    """Find out whether there is an input, and what reads it; raises :class:`BulkError`."""
    if options.input is not None and not options.input.exists():
        raise BulkError(f"{options.input} is missing")
    if options.input is not None and options.input.is_dir():
        raise BulkError(f"{options.input} is a folder, not a file of texts")
    if options.input_kind == "parquet":
        _check_pyarrow()


def _check_pyarrow() -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise BulkError(
            "Parquet needs pyarrow, which is not installed here; "
            "pip install '.[parquet]' in the project's folder brings it"
        )


def input_kind(source: Path | None) -> InputKind:
    """Tell a format by a file's name."""
    if source is None:
        return "text"
    suffix = Path(source.name.removesuffix(".gz")).suffix
    if suffix not in INPUT_SUFFIXES:
        known = ", ".join(get_args(InputKind))
        raise BulkUsageError(f"{source}: the name does not tell the format; give --input-format, one of {known}")
    return INPUT_SUFFIXES[suffix]


def _output_kind(output: Path) -> OutputKind:
    """Tell a format by a file's name."""
    kind = output.suffix.removeprefix(".")
    if kind not in get_args(OutputKind):
        raise BulkUsageError(f"{output}: OUT must end in .npy, .safetensors, .jsonl or .parquet, which is its format")
    return cast(OutputKind, kind)


def check_together(options: BulkOptions) -> None:
    """Refuse options that are fine alone and contradict one another."""
    if options.input_kind == "parquet" and (options.input is None or options.input.suffix == ".gz"):
        raise BulkUsageError("Parquet is read from a plain file: neither from standard input nor from gzip")
    if options.input_kind == "text" and options.column is not None:
        raise BulkUsageError("--column has no meaning for plain text: each line is a text")
    if options.input_kind not in {"csv", "tsv"} and not options.has_header:
        raise BulkUsageError(f"--no-header has no meaning for {options.input_kind}: only CSV and TSV have headers")
    if options.keep and options.output_kind in {"npy", "safetensors"}:
        raise BulkUsageError(f"--keep needs columns, and .{options.output_kind} has none; write .jsonl or .parquet")
    for name in options.keep:
        taken = {EMBEDDING, STATS, *(CHUNK_COLUMNS if options.chunking is not None else ())}
        if name in taken or options.keep.count(name) > 1:
            raise BulkUsageError(f"--keep {name}: the output would have two columns of that name")
    if options.attention_stats and options.chunking is not None:
        raise BulkUsageError("--attention-stats are of whole texts: give either them or --chunks, not both")
    if options.prompt is not None and options.prompt_name is not None:
        raise BulkUsageError("give either --prompt or --prompt-name, not both")
    for flag, value in (("--dimensions", options.dimensions), ("--window", options.window_texts)):
        if value is not None and value < 1:
            raise BulkUsageError(f"{flag} must be at least 1, not {value}")
