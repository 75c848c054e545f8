"""Stored teacher embeddings: resumed, verified, never half-written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model.contract import FloatArray
from tests.training.disks import FullDiskWhileAppending
from training.cache import CacheKey, append_synced, cached_embeddings, teacher_digest, texts_digest
from training.errors import CacheError

TEXTS = [f"text {number}" for number in range(10)]
KEY = CacheKey("t", "float32", texts_digest(TEXTS), len(TEXTS), 3)


class Killed(BaseException):
    """What a test raises where a process would be gone."""


class Teacher:
    """Embeds a text as its number, and counts what it was asked."""

    def __init__(self, calls: int = 99) -> None:
        self.asked: list[str] = []
        self._calls = calls

    def __call__(self, texts: Sequence[str]) -> FloatArray:
        if self._calls == 0:
            raise Killed
        self._calls -= 1
        self.asked += texts
        return np.array([[int(text.split()[1]), 1, 2] for text in texts], dtype=np.float32)


EXPECTED = Teacher()(TEXTS).astype(np.float16)


def test_embeddings_are_computed_once(tmp_path: Path) -> None:
    """The second time nobody asks the teacher."""
    first = cached_embeddings(tmp_path / "c", TEXTS, KEY, Teacher(), chunk_texts=4)
    again = Teacher()
    second = cached_embeddings(tmp_path / "c", TEXTS, KEY, again, chunk_texts=4)
    assert np.array_equal(first, EXPECTED)
    assert np.array_equal(second, EXPECTED)
    assert again.asked == []


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_a_killed_computation_goes_on_where_it_was(tmp_path: Path, calls: int) -> None:
    """Complete chunks are not computed again, and the whole is as if nothing had happened."""
    with pytest.raises(Killed):
        cached_embeddings(tmp_path / "c", TEXTS, KEY, Teacher(calls), chunk_texts=4)
    rest, seen = Teacher(), list[int]()
    array = cached_embeddings(tmp_path / "c", TEXTS, KEY, rest, chunk_texts=4, on_progress=seen.append)
    assert rest.asked == TEXTS[4 * calls :]
    assert (seen[0], seen[-1]) == (4 * calls, 10)
    assert np.array_equal(array, EXPECTED)


def test_rows_that_nobody_counted_are_computed_again(tmp_path: Path) -> None:
    """A kill between the rows and the mark of progress leaves rows that may be broken: they are cut off."""
    with pytest.raises(Killed):
        cached_embeddings(tmp_path / "c", TEXTS, KEY, Teacher(1), chunk_texts=4)
    with (tmp_path / "c" / "embeddings.f16").open("ab") as stream:
        stream.write(b"\x7f" * 9)
    rest = Teacher()
    assert np.array_equal(cached_embeddings(tmp_path / "c", TEXTS, KEY, rest, chunk_texts=4), EXPECTED)
    assert rest.asked == TEXTS[4:]


def test_counted_rows_that_are_gone_are_computed_again(tmp_path: Path) -> None:
    """A file that is shorter than the mark says is believed, not the mark."""
    cached_embeddings(tmp_path / "c", TEXTS, KEY, Teacher(), chunk_texts=4)
    with (tmp_path / "c" / "embeddings.f16").open("r+b") as stream:
        stream.truncate(6 * 3 + 1)
    rest = Teacher()
    assert np.array_equal(cached_embeddings(tmp_path / "c", TEXTS, KEY, rest), EXPECTED)
    assert rest.asked == TEXTS[3:]


@pytest.mark.parametrize("room", [0, 1])
def test_a_full_disk_is_one_sentence_and_costs_one_chunk(tmp_path: Path, room: int) -> None:
    """What was complete is taken up when there is room again."""
    full = FullDiskWhileAppending(room)
    with pytest.raises(CacheError, match=r"c could not be written \(No space left on device\)"):
        cached_embeddings(tmp_path / "c", TEXTS, KEY, Teacher(), append=full, chunk_texts=4)
    rest = Teacher()
    assert np.array_equal(cached_embeddings(tmp_path / "c", TEXTS, KEY, rest, append=append_synced), EXPECTED)
    assert rest.asked == TEXTS[4 * room :]


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (replace(KEY, teacher="u"), "another teacher"),
        (replace(KEY, dtype="bfloat16"), "another dtype"),
        (replace(KEY, corpus="d"), "another text"),
        (replace(KEY, dimensions=4), "another dimensions"),
    ],
)
def test_embeddings_of_something_else_are_refused(tmp_path: Path, other: CacheKey, what: str) -> None:
    """Another teacher's, another text's or another precision's vectors are never taken for these."""
    cached_embeddings(tmp_path / "c", TEXTS, KEY, Teacher())
    with pytest.raises(CacheError, match=f"{what}; delete it or choose another cache folder$"):
        cached_embeddings(tmp_path / "c", TEXTS, other, Teacher())


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"done": 3})])
def test_a_progress_file_of_another_kind_is_refused(tmp_path: Path, content: str) -> None:
    """What this program did not write is not guessed at."""
    (tmp_path / "progress.json").write_text(content)
    with pytest.raises(CacheError, match=r"progress\.json is not what this program writes"):
        cached_embeddings(tmp_path, TEXTS, KEY, Teacher())


def test_a_teacher_that_gives_nonsense_is_refused(tmp_path: Path) -> None:
    """NaN and a wrong shape never reach the disk."""
    with pytest.raises(CacheError, match="not finite"):
        cached_embeddings(tmp_path / "a", TEXTS, KEY, lambda texts: np.full((10, 3), np.nan, dtype=np.float32))
    with pytest.raises(CacheError, match="gave "):
        cached_embeddings(tmp_path / "b", TEXTS, KEY, lambda texts: np.zeros((10, 4), dtype=np.float32))
    assert (tmp_path / "a" / "embeddings.f16").stat().st_size == 0


def test_the_teachers_digest_is_of_what_decides_its_embeddings(teacher: Path) -> None:
    """Weights, tokenizer, pooling, prompts, each by itself: yes; a note beside them: no."""
    before = teacher_digest(teacher)
    (teacher / "README.md").write_text("new")
    assert teacher_digest(teacher) == before
    pooling = teacher / "1_Pooling" / "config.json"
    pooling.write_text(pooling.read_text().replace("mean", "cls"))
    digests = [before, teacher_digest(teacher)]
    for name, field, value in (
        ("config_sentence_transformers.json", "default_prompt_name", "query"),
        ("tokenizer_config.json", "do_lower_case", False),
        ("tokenizer_config.json", "model_max_length", 16),
    ):
        file = teacher / name
        stated = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**stated, field: value}))
        digests.append(teacher_digest(teacher))
    assert len(set(digests)) == len(digests)


def test_the_digest_of_a_teacher_that_states_little_is_what_it_was(tmp_path: Path) -> None:
    """Files that a folder does not have leave no trace: what was stored before they counted is still used."""
    (tmp_path / "config.json").write_text("{}")
    expected = "1511bd8718560e753f7fe706f1fed3eda3a8a8ee2b9fa7f4c69bf732f6637702"
    assert teacher_digest(tmp_path) == expected


def test_the_texts_digest_knows_where_a_text_ends() -> None:
    """The same characters cut elsewhere, or in another order, are other texts."""
    digests = {texts_digest(texts) for texts in (["ab", "c"], ["a", "bc"], ["c", "ab"], ["abc"])}
    assert len(digests) == 4
