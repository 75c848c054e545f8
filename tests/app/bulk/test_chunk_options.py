"""How the command line says that texts are cut, and what is refused."""

from __future__ import annotations

import argparse

import pytest

from app.bulk.chunk_options import add_arguments, read_chunking
from app.bulk.errors import BulkUsageError
from model.chunking import Chunking


def read(argv: str) -> Chunking | None:
    """What a command line says."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return read_chunking(parser.parse_args(argv.split()))


def test_every_option_arrives() -> None:
    """Each in its field; without any, nothing is cut."""
    every = "--chunks sentence --chunk-size 3 --chunk-overlap 1 --chunk-mode late"
    assert read(every) == Chunking("sentence", 3, 1, "late")
    assert read("--chunks token --chunk-size 9") == Chunking("token", 9, 0, "separate")
    assert read("") is None


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--chunk-size 3", "--chunk-size has no meaning without --chunks"),
        ("--chunk-overlap 0", "--chunk-overlap has no meaning without --chunks"),
        ("--chunk-mode late", "--chunk-mode has no meaning without --chunks"),
        ("--chunks token", "--chunks token needs --chunk-size, the tokens of a chunk"),
        ("--chunks token --chunk-size 0", "--chunk-size must be at least 1, not 0"),
        ("--chunks token --chunk-size 3 --chunk-overlap 3", "--chunk-overlap must be from 0 to 2"),
        ("--chunks token --chunk-size 3 --chunk-overlap -1", "not -1"),
    ],
)
def test_what_makes_no_sense_is_refused(argv: str, words: str) -> None:
    """One sentence with the option."""
    with pytest.raises(BulkUsageError) as caught:
        read(argv)
    assert words in str(caught.value)
