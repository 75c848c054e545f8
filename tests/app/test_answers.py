"""Which form an answer takes, and how numbers are written. Whole answers: tests/app/routes/test_encode.py."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from app.answers import CONTENT_TYPES, MEDIA_TYPES, TABLE_COLUMNS, negotiate, num_values, text_tables
from app.errors import NotAcceptableError
from app.service import Encoded, Timings
from model.contract import EncodeInput, Row, TextAttention
from tests.app.test_limits import make_text

SAFETENSORS, NPZ = "application/vnd.safetensors", "application/x-npz"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (None, "json"),
        ("", "json"),
        ("*/*", "json"),
        ("application/*", "json"),
        ("application/json", "json"),
        ("Application/JSON; charset=utf-8", "json"),
        ("application/octet-stream", "safetensors"),
        (SAFETENSORS, "safetensors"),
        (NPZ, "npz"),
        (f"{NPZ}, application/json", "npz"),
        (f"application/json, {NPZ}", "json"),
        (f"{NPZ};q=0.2, application/json;q=0.5", "json"),
        (f"{NPZ};q=0.5,application/json;q=0.2", "npz"),
        (f"{NPZ} ; q=0.5 , application/json ; Q=0.6", "json"),
        (f"{NPZ};v=1;q=0.1, */*;q=0.3", "json"),
        (f"{NPZ};q=0, {SAFETENSORS};q=0.001", "safetensors"),
        (f"{NPZ};q=high, {SAFETENSORS}", "safetensors"),
        ("text/html, application/xhtml+xml, */*;q=0.8", "json"),
        (f"text/html, {NPZ};q=0.1", "npz"),
    ],
)
def test_the_form_with_the_highest_quality(accept: str | None, form: str) -> None:
    """Of the forms we write, the caller's favourite; the first named among equals; JSON when it does not care."""
    assert negotiate(accept) == form


@pytest.mark.parametrize(
    "accept",
    ["text/html", "application/xml, text/*", "application/json;q=0", f"{NPZ};q=0.0", "json", ";", f"{NPZ};q=nan"],
)
def test_no_form_that_we_write(accept: str) -> None:
    """A header that names none of them, or only with quality 0, is refused with what there is, and not repeated."""
    with pytest.raises(NotAcceptableError) as refused:
        negotiate(accept)
    for content_type in CONTENT_TYPES.values():
        assert content_type in refused.value.message


def test_every_form_can_be_asked_for_by_its_own_name() -> None:
    """The content type of an answer, sent as Accept, gives that very answer."""
    assert set(MEDIA_TYPES.values()) == set(CONTENT_TYPES)
    for form, content_type in CONTENT_TYPES.items():
        assert negotiate(content_type) == form


def encoded(embeddings: np.ndarray, rows: list[Row]) -> Encoded:
    """An answer of one token a text, by a model of which only the name is looked at."""
    inputs = [EncodeInput([1], [0], 1) for _ in embeddings]
    return Encoded(SimpleNamespace(name="m"), inputs, embeddings, rows, None, Timings(0.0))  # type: ignore[arg-type]


def test_cost_of_writing_counts_every_number() -> None:
    """Embeddings and maps add up; a text without maps adds none."""
    rows = [Row(attention=TextAttention(maps=np.zeros((1, 2, 3, 3), np.float32))), Row()]
    assert num_values(encoded(np.zeros((2, 4), np.float32), rows)) == 8 + 18


def test_cost_of_writing_counts_token_tables() -> None:
    """A text's table counts, though there may be no map beside it: a thousand tables are no work for the event loop."""
    text = make_text(300)
    assert len(text_tables(text)["tokens"]) == TABLE_COLUMNS
    answer = replace(
        encoded(np.zeros((2, 1), np.float32), [Row(attention=TextAttention()), Row()]), inputs=[text, text]
    )
    assert num_values(answer) == 2 + TABLE_COLUMNS * text.num_tokens
