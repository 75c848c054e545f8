"""What tells whether a run goes on with another's work."""

from __future__ import annotations

from dataclasses import fields
from datetime import date
from pathlib import Path

import pytest

from app.bulk.identity import Fingerprint, folder_digest, job_identity
from app.bulk.options import BulkOptions
from app.bulk.rows import TextRow
from model.chunking import Chunking
from tests.app.bulk.jobs import make_options
from tests.tiny import make_bert_folder


def fingerprint(*rows: TextRow) -> str:
    """Of rows."""
    taken = Fingerprint()
    for row in rows:
        taken.add(row)
    return taken.value()


def test_a_fingerprint_is_of_texts_and_kept_values_in_order() -> None:
    """Another text, another order, another border between texts, another kept value: another fingerprint."""
    day = date(2026, 11, 30)
    many = [
        (TextRow(1, "a"), TextRow(2, "b")),
        (TextRow(1, "b"), TextRow(2, "a")),
        (TextRow(1, "ab"), TextRow(2, "")),
        (TextRow(1, "a"),),
        (TextRow(1, "a", (1,)), TextRow(2, "b", (2,))),
        (TextRow(1, "a", (1,)), TextRow(2, "b", (day,))),
    ]
    assert len({fingerprint(*rows) for rows in many}) == len(many)


def test_a_fingerprint_does_not_depend_on_places() -> None:
    """A blank line more in a JSONL file is no other text."""
    assert fingerprint(TextRow(1, "a")) == fingerprint(TextRow(2, "a"))


def test_a_model_is_known_by_what_decides_its_embeddings(tmp_path: Path) -> None:
    """Weights, tokenizer and configuration count; the folder's name and a page about the model do not."""
    digest = folder_digest(make_bert_folder(tmp_path / "one"))
    other = make_bert_folder(tmp_path / "two")
    (other / "README.md").write_text("about it")
    assert folder_digest(other) == digest
    assert folder_digest(make_bert_folder(tmp_path / "three", seed=1)) != digest
    for name in ("tokenizer.json", "1_Pooling/config.json"):
        content = (other / name).read_bytes()
        (other / name).write_bytes(content + b" ")
        assert folder_digest(other) != digest
        (other / name).write_bytes(content)


FREE = {"input", "output", "output_kind", "prompt_name", "skip_bad", "overwrite", "window_texts"}
"""Options that do not decide a row, or (the format, the prompt's name) do it through something that is compared."""


@pytest.mark.parametrize("name", sorted({field.name for field in fields(BulkOptions)} - FREE - {"prompt"}))
def test_every_option_that_decides_a_row_is_compared(tmp_path: Path, name: str) -> None:
    """An option that is added later must be put on one side or the other."""
    changes = {
        "input_kind": "csv",
        "column": "c",
        "has_header": False,
        "keep": ("id",),
        "normalize": False,
        "dimensions": 3,
        "output_dtype": "int8",
        "truncate": False,
        "attention_stats": True,
        "rows": range(3),
        "chunking": Chunking("token", 8),
    }
    facts = {"model": "m", "dtype": "float32", "special_tokens": "text", "prompt": ""}
    plain = make_options(tmp_path / "a.txt", tmp_path / "o.npy")
    changed = make_options(tmp_path / "a.txt", tmp_path / "o.npy", **{name: changes[name]})
    assert job_identity(plain, **facts) != job_identity(changed, **facts)


@pytest.mark.parametrize("fact", ["model", "dtype", "special_tokens", "prompt"])
def test_the_model_and_how_it_runs_are_compared(tmp_path: Path, fact: str) -> None:
    """So are the weights, the number type, what [SEP] means, and the prompt that a name stands for."""
    facts = {"model": "m", "dtype": "float32", "special_tokens": "text", "prompt": ""}
    options = make_options(tmp_path / "a.txt", tmp_path / "o.npy")
    assert job_identity(options, **facts) != job_identity(options, **{**facts, fact: "other"})
