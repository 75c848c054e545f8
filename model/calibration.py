"""The texts a model reads once when it is loaded for 8-bit integers: they show the ranges of its activations.

They are of many kinds, since what lies outside those ranges is clipped: prose and questions, one word and many
paragraphs, code and numbers, a dozen scripts. One of them is as long as the model reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from model.batch import PackedBatch, cut_by_tokens, pack
from model.tokenizer import Tokenizer

TEXTS = Path(__file__).with_name("calibration.txt")
"""One text a line; written for this purpose, and sentences from Common Voice (CC0)."""

JOINED_LINES = 6
"""Paragraphs are so many lines, one after the other."""

BATCH_TOKENS = 2048


def calibration_texts(path: Path = TEXTS) -> list[str]:
    """Read the lines, and make paragraphs and one long text of them."""
    lines = path.read_text(encoding="utf-8").splitlines()
    paragraphs = [" ".join(lines[start : start + JOINED_LINES]) for start in range(0, len(lines), JOINED_LINES)]
    return [*lines, *paragraphs[::4], " ".join(lines)]


def calibration_batches(tokenizer: Tokenizer, texts: list[str]) -> Iterator[PackedBatch]:
    """Tokenize texts, cut at what the model reads, and put them into batches."""
    inputs = tokenizer.encode(texts)
    if tokenizer.config.readings:  # queries have tokens that documents have not
        inputs += tokenizer.encode(texts, role="query")
    for batch in cut_by_tokens([item.num_tokens for item in inputs], BATCH_TOKENS):
        yield pack([inputs[index] for index in batch])
