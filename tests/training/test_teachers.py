"""Teachers' embeddings across corpora."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model.embedder import Embedder
from model.folder import read_folder
from tests.tiny import make_bert_folder
from tests.training.seeds import make_student, spoil
from training.data import Corpus
from training.errors import CacheError, RunError
from training.student import TokenStore
from training.teachers import LiveTeacher, Targets, TeacherQueue, split_places, teach


def test_places_are_split_by_their_owners() -> None:
    """Number of the array, where the places stand, and the array's own rows; empty arrays own nothing."""
    found = split_places(np.array([5, 0, 3, 2]), [3, 0, 3])
    assert [(number, where.tolist(), rows.tolist()) for number, where, rows in found] == [
        (0, [1, 3], [0, 2]),
        (2, [0, 2], [2, 0]),
    ]


def test_targets_are_found_across_corpora() -> None:
    """Places count through all corpora, in any order."""
    first, second = np.arange(6, dtype=np.float16).reshape(3, 2), np.arange(10, 14, dtype=np.float16).reshape(2, 2)
    rows = Targets([first, second]).rows(np.array([4, 0, 3, 2, 4]))
    assert rows.tolist() == [[12, 13], [0, 1], [10, 11], [4, 5], [12, 13]]


def test_a_teachers_rows_are_its_embeddings_to_half_precision(teacher: Path, tmp_path: Path) -> None:
    """Of unit length, in the order of the corpora, as the folder itself embeds."""
    corpora = [Corpus("a", ["the cat", "a dog sat"], 1.0), Corpus("b", ["hello world"], 1.0)]
    targets = teach(teacher, corpora, tmp_path / "cache", dtype="float32", device="cpu", threads=1)
    expected = Embedder.load(teacher, dtype="float32", device="cpu", threads=1).encode(
        ["the cat", "a dog sat", "hello world"]
    )
    assert targets.width == 16
    assert np.abs(targets.rows(np.arange(3)).numpy() - expected).max() < 1e-3
    assert sorted(path.name for path in (tmp_path / "cache" / "teacher").iterdir()) == ["a", "b"]


def test_a_teacher_that_cannot_be_or_gives_nonsense_is_refused(teacher: Path, tmp_path: Path) -> None:
    """An unknown number format; an embedding that is not finite, which never reaches the disk."""
    corpora, place = [Corpus("a", ["the cat"], 1.0)], {"device": "cpu", "threads": 1}
    with pytest.raises(RunError, match="dtype 'int3' is not supported"):
        teach(teacher, corpora, tmp_path / "cache", dtype="int3", **place)
    spoil(teacher)
    with pytest.raises(CacheError, match=r"teacher gives an embedding that is not finite, in float32$"):
        teach(teacher, corpora, tmp_path / "cache", dtype="float32", **place)
    assert (tmp_path / "cache" / "teacher" / "a" / "embeddings.f16").stat().st_size == 0


def test_a_live_teacher_gives_what_its_folder_gives(teacher: Path) -> None:
    """Rows are the folder's embeddings; the states of a text's tokens have its unscaled row as their mean."""
    texts = ["a dog sat on the mat", "the cat", "hello world hello"]
    student = make_student()
    live = LiveTeacher.load(read_folder(teacher), student, dtype="float32", device=torch.device("cpu"))
    store = TokenStore.of(student.tokenizer(), texts)
    given = live.encode(store.inputs(range(3)))
    embedder = Embedder.load(teacher, dtype="float32", device="cpu", threads=1)
    assert np.abs(given.rows.numpy() - embedder.encode(texts)).max() < 1e-5
    assert not given.rows.requires_grad
    shortest = given.states[: int(store.lengths.min())].mean(dim=0)
    expected = embedder.encode(texts[1:2], normalize=False)[0]
    assert given.states.shape == (int(store.lengths.sum()), live.width)
    assert np.abs(shortest.numpy() - expected).max() < 1e-5


def test_a_live_teacher_has_no_default_prompt(tmp_path: Path) -> None:
    """Its folder embeds texts behind the prompt, and beside the student it would read them without."""
    prompts = {"query": "the dog", "none": ""}
    student, options = make_student(), {"dtype": "float32", "device": torch.device("cpu")}
    folder = make_bert_folder(tmp_path / "a", prompts=prompts, default_prompt_name="query")
    with pytest.raises(RunError, match="a puts its prompt 'query' before every text"):
        LiveTeacher.load(read_folder(folder), student, **options)
    make_bert_folder(folder, prompts=prompts, default_prompt_name="none")
    LiveTeacher.load(read_folder(folder), student, **options)


def test_the_queue_holds_the_latest_first() -> None:
    """More than fits pushes the oldest out; what is saved is what was there."""
    queue = TeacherQueue(3, 1)
    assert queue.rows.shape == (0, 1)
    queue.push(torch.tensor([[1.0], [2.0]]))
    queue.push(torch.tensor([[3.0], [4.0]]))
    assert queue.rows.flatten().tolist() == [3, 4, 1]
    other = TeacherQueue(3, 1)
    other.load_state_dict(queue.state_dict())
    assert other.rows.flatten().tolist() == [3, 4, 1]
    queue.push(torch.arange(5.0).unsqueeze(1))
    assert queue.rows.flatten().tolist() == [0, 1, 2]
