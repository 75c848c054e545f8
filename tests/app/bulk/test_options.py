"""What ``eyeline encode`` may be asked, and what is refused before anything is read."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import pytest

from app.bulk.errors import BulkError, BulkUsageError
from app.bulk.options import (
    BulkOptions,
    add_arguments,
    add_embedding_arguments,
    add_row_arguments,
    check_files,
    read_options,
    read_rows_and_embeddings,
)
from model.chunking import Chunking
from tests.app.bulk.jobs import make_options


def read(*argv: str) -> BulkOptions:
    """Options of a command line."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return read_options(parser.parse_args(argv))


def test_two_names_are_enough() -> None:
    """The formats follow from the names; the rest are defaults."""
    assert read("a.csv", "o.jsonl") == BulkOptions(Path("a.csv"), "csv", Path("o.jsonl"), "jsonl")
    assert read("-", "o.npy") == BulkOptions(None, "text", Path("o.npy"), "npy")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.txt", "text"),
        ("a.txt.gz", "text"),
        ("b.c.tsv", "tsv"),
        ("a.ndjson", "jsonl"),
        ("a.jsonl.gz", "jsonl"),
        ("a.parquet", "parquet"),
    ],
)
def test_formats_by_name(name: str, kind: str) -> None:
    """What a file's name says of it."""
    assert read(name, "o.npy").input_kind == kind


def test_every_option_arrives() -> None:
    """Each flag reaches its field."""
    flags = "--input-format csv --field body --no-header --keep id --keep n --skip-bad --no-normalize --dimensions 8"
    more = "--prompt x --no-truncate --attention-stats --overwrite --window 7"
    assert read("data", "o.parquet", *flags.split(), *more.split()) == BulkOptions(
        input=Path("data"),
        input_kind="csv",
        output=Path("o.parquet"),
        output_kind="parquet",
        column="body",
        has_header=False,
        keep=("id", "n"),
        normalize=False,
        dimensions=8,
        prompt="x",
        truncate=False,
        attention_stats=True,
        skip_bad=True,
        overwrite=True,
        window_texts=7,
    )
    assert read("a.txt", "o.npy", "--prompt-name", "query").prompt_name == "query"
    chunked = read("a.txt", "o.npy", "--chunks", "token", "--chunk-size", "9", "--output-dtype", "int8")
    assert (chunked.chunking, chunked.output_dtype) == (Chunking("token", 9), "int8")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("data o.npy", "--input-format"),
        ("a.txt o.bin", ".npy, .safetensors, .jsonl or .parquet"),
        ("a.txt -", ".npy, .safetensors, .jsonl or .parquet"),
        ("a.parquet.gz o.npy", "Parquet is read from a plain file"),
        ("- o.npy --input-format parquet", "Parquet is read from a plain file"),
        ("a.txt o.npy --column x", "--column has no meaning"),
        ("a.jsonl o.npy --no-header", "--no-header has no meaning"),
        ("a.csv o.npy --keep id", "--keep needs columns"),
        ("a.csv o.safetensors --keep id", "--keep needs columns"),
        ("a.csv o.jsonl --keep id --keep id", "two columns of that name"),
        ("a.csv o.jsonl --keep embedding", "two columns of that name"),
        ("a.txt o.npy --prompt a --prompt-name b", "not both"),
        ("a.txt o.npy --dimensions 0", "--dimensions must be at least 1, not 0"),
        ("a.txt o.npy --window -3", "--window must be at least 1, not -3"),
        ("a.txt o.npy --chunks token --chunk-size 3 --attention-stats", "--attention-stats are of whole texts"),
        ("a.csv o.jsonl --keep start --chunks token --chunk-size 3", "two columns of that name"),
    ],
)
def test_what_makes_no_sense_is_refused(argv: str, words: str) -> None:
    """One sentence with the option, and exit code 2."""
    with pytest.raises(BulkUsageError) as caught:
        read(*argv.split())
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


def test_names_beside_the_output() -> None:
    """Part, state and statistics stand where the output will."""
    options = make_options(Path("a.txt"), Path("there/o.npy"), attention_stats=True)
    assert [options.part, options.state, options.second_output] == [
        Path("there/o.npy.part"),
        Path("there/o.npy.part.json"),
        Path("there/o.attention_stats.npy"),
    ]
    chunked = make_options(Path("a.txt"), Path("there/o.npy"), chunking=Chunking("token", 8))
    assert chunked.second_output == Path("there/o.chunks.npy")
    assert options.input_name == "a.txt"
    assert make_options(None, Path("o.npy")).input_name == "standard input"


def test_files_are_looked_at_before_the_model_is_loaded(tmp_path: Path) -> None:
    """A missing input, a folder, a missing folder, an output that is there: each is one sentence."""
    source, output = tmp_path / "a.txt", tmp_path / "o.npy"
    with pytest.raises(BulkError, match=r"a\.txt is missing"):
        check_files(make_options(source, output))
    source.write_text("a")
    check_files(make_options(source, output))
    check_files(make_options(None, output))
    with pytest.raises(BulkError, match="is a folder"):
        check_files(make_options(tmp_path, output, input_kind="text"))
    with pytest.raises(BulkError, match="nowhere is not a folder"):
        check_files(make_options(source, tmp_path / "nowhere/o.npy"))


@pytest.mark.parametrize("name", ["o.npy", "o.attention_stats.npy"])
def test_an_output_is_not_replaced_unasked(tmp_path: Path, name: str) -> None:
    """Neither is the file of statistics; where a state lies beside it, that decides."""
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / name).write_text("mine")
    options = make_options(tmp_path / "a.txt", tmp_path / "o.npy", attention_stats=True)
    with pytest.raises(BulkError, match=rf"{name} is there already"):
        check_files(options)
    check_files(make_options(tmp_path / "a.txt", tmp_path / "o.npy", attention_stats=True, overwrite=True))
    options.state.write_text("{}")
    check_files(options)


@pytest.mark.parametrize(("source", "output"), [("a.parquet", "o.npy"), ("a.txt", "o.parquet")])
def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, output: str
) -> None:
    """On either side."""
    (tmp_path / source).write_text("a")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BulkError, match=r"pip install '\.\[parquet\]'"):
        check_files(make_options(tmp_path / source, tmp_path / output))


def test_what_is_asked_of_rows_and_embeddings_is_read_in_one_place() -> None:
    """Every argument of the two groups is a field of the options, and none is left out; the files stay as they were."""
    parser = argparse.ArgumentParser()
    add_row_arguments(parser.add_argument_group())
    add_embedding_arguments(parser)
    files = BulkOptions(Path("a.parquet"), "parquet", Path("out"), "parquet", window_texts=7)
    assert read_rows_and_embeddings(parser.parse_args([]), files) == files
    flags = ["--column=c", "--keep=k", "--skip-bad", "--no-normalize", "--dimensions=3", "--output-dtype=int8"]
    flags += ["--prompt-name=n", "--prompt=p", "--no-truncate", "--attention-stats"]
    arguments = parser.parse_args(flags)
    read = read_rows_and_embeddings(arguments, files)
    assert {name: getattr(read, name) for name in vars(arguments)} == {**vars(arguments), "keep": ("k",)}
    assert (read.input, read.output, read.window_texts) == (files.input, files.output, 7)
