"""Searching a file: equal to sorting all of it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from app.bulk.errors import BulkError, BulkUsageError
from app.bulk.search import Found, embed, search_file
from model.embedder import Embedder
from tests.app.bulk.jobs import LIMITS, make_options
from tests.tiny import make_bert_folder

TEXTS = [f"the cat {number} sat " + "a dog " * (5 * number % 7) for number in range(40)]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    """A tiny model."""
    folder = make_bert_folder(tmp_path_factory.mktemp("model") / "tiny", prompts={"query": "query: "})
    return Embedder.load(folder, dtype="float32", device="cpu", threads=1)


def search(embedder: Embedder, path: Path, top: int = 5, **changes: object) -> Found:
    """Search in windows of 8."""
    options = make_options(path, Path("o.npy"), **{"window_texts": 8, **changes})
    return search_file(options, embedder, LIMITS, "a dog", top, io.BytesIO())


@pytest.mark.parametrize("changes", [{}, {"prompt_name": "query"}, {"prompt": "hello "}])
def test_the_best_are_those_of_sorting_everything(embedder: Embedder, tmp_path: Path, changes: dict[str, str]) -> None:
    """Over all windows, with their lines; a prompt stands before the query alone."""
    path = tmp_path / "a.txt"
    path.write_text("\n".join(TEXTS))
    scores = embedder.encode(TEXTS) @ embedder.encode(["a dog"], **changes)[0]  # type: ignore[arg-type]
    order = np.argsort(-scores, kind="stable")[:5]
    found = search(embedder, path, **changes)
    assert [hit.place for hit in found.hits] == [int(place) + 1 for place in order]
    np.testing.assert_allclose([hit.score for hit in found.hits], scores[order], atol=1e-5)
    assert [hit.text for hit in found.hits] == [TEXTS[place] for place in order]
    assert (found.unit, found.num_texts, found.num_truncated) == ("line", 40, 0)
    assert len(search(embedder, path, top=100).hits) == 40


def test_other_formats_and_bad_rows(embedder: Embedder, tmp_path: Path) -> None:
    """A column of a table; a row that is no text stops the search with its place."""
    path = tmp_path / "a.csv"
    path.write_text('id,what\n1,"the cat"\n2,"a dog"\n')
    assert search(embedder, path, top=1, column="what").hits[0].text == "a dog"
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"text": "a"}\n{"text": 3}\n')
    with pytest.raises(BulkError, match=r"a\.jsonl, line 2: field 'text' is a number"):
        search(embedder, lines)


def test_what_the_model_has_not_is_bad_usage(embedder: Embedder) -> None:
    """In its own words."""
    with pytest.raises(BulkUsageError, match="prompt"):
        embed(embedder, ["a"], prompt_name="no")
