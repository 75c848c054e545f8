"""Contrastive training from the command line, on tiny data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model.embedder import Embedder
from tests.training.seeds import make_student
from training.contrastive import ContrastiveTask, main
from training.export import export_student
from training.journal import read_log
from training.pairs import Pair
from training.run import DevSet, Place


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Forty pairs: digits, and the same digits spelled; some with a hard negative."""
    words = ("the", "cat", "sat", "on", "mat", "a", "dog", "barked", "hello", "world")
    lines = []
    for number in range(40):
        spelled = f"{words[number // 10]} {words[number % 10]}"
        lines.append(f"{number // 10} {number % 10}\t{spelled}" + ("\thello hello" if number % 3 == 0 else ""))
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


def options(out: Path, pairs: Path, *more: str) -> list[str]:
    """A short run on one thread."""
    fast = ["--threads", "1", "--dtype", "float32", "--device", "cpu", "--batch-tokens", "150", "--log-every", "1"]
    return [str(out), "--pairs", str(pairs), *fast, *more]


def task(pairs: list[Pair], *, dimensions: tuple[int, ...] = ()) -> ContrastiveTask:
    """A task on a tiny student."""
    student = make_student()
    return ContrastiveTask(
        student, [pairs], [1.0], temperature=0.1, dimensions=dimensions, dev=DevSet([], student),
        place=Place(torch.device("cpu"), torch.float32), batch_tokens=1000, seed=0,
    )  # fmt: skip


def test_pairs_are_told_apart_after_training(pairs: Path, tmp_path: Path) -> None:
    """From a checkpoint: the loss falls well below that of guessing, in the folder's own embeddings too."""
    export_student(make_student(), tmp_path / "init", "", dtype=torch.float32)
    more = ["--init", str(tmp_path / "init"), "--epochs", "40", "--learning-rate", "5e-3", "--matryoshka", "8"]
    assert main(options(tmp_path / "out", pairs, *more, "--dropout", "0")) == 0
    log = [entry for entry in read_log(tmp_path / "out.run" / "log.jsonl") if "loss" in entry]
    assert log[-1]["contrastive"] < log[0]["contrastive"] / 3
    rows = [line.split("\t")[:2] for line in pairs.read_text().splitlines()]
    embedder = Embedder.load(tmp_path / "out", dtype="float32", threads=1)
    anchors, positives = (embedder.encode([row[side] for row in rows]) for side in (0, 1))
    assert ((anchors @ positives.T).argmax(axis=1) == np.arange(40)).mean() > 0.5
    assert "- Began: init\n- Pairs: pairs (40)\n" in (tmp_path / "out" / "README.md").read_text()


def test_training_from_scratch_makes_its_own_tokenizer(pairs: Path, tmp_path: Path) -> None:
    """No folder to begin with is needed."""
    small = ["--layers", "1", "--heads", "2", "--hidden-size", "8", "--intermediate-size", "8", "--max-length", "16"]
    assert main(options(tmp_path / "out", pairs, *small, "--train-vocabulary", "70", "--steps", "3")) == 0
    embedder = Embedder.load(tmp_path / "out", dtype="float32", threads=1)
    assert (embedder.dimensions, embedder.info.format) == (8, "seed 2")


def test_a_batch_of_one_pair_is_left_out_where_it_has_no_hard_negative() -> None:
    """There is nothing to tell it from, nor is there where the negative is one of the pair itself."""
    assert task([Pair("the cat", "a dog")]).plan(0) == []
    assert task([Pair("the cat", "a dog", ("a dog", "the cat"))]).plan(0) == []
    hard = task([Pair("the cat", "a dog", ("the cat sat",))])
    assert [batch.tolist() for batch in hard.plan(0)] == [[0]]
    assert hard.loss(np.array([0])).total.item() > 1e-3
    assert [len(batch) for batch in task([Pair("the cat", "a dog"), Pair("a", "the")]).plan(0)] == [2]


def test_hard_negatives_raise_the_loss_and_equal_texts_do_not() -> None:
    """Another candidate makes the choice harder, unless it is the positive itself."""
    plain = [Pair("the cat", "a dog"), Pair("hello", "world")]
    hard = [Pair("the cat", "a dog", ("the cat sat",)), plain[1]]
    equal = [Pair("the cat", "a dog", ("a dog", "the cat")), plain[1]]
    losses = []
    for pairs in (plain, hard):
        losses.append(task(pairs).loss(np.array([0, 1])).total.item())
    assert losses[1] > losses[0] + 1e-3
    same = task(equal)._same([0, 2], [1, 3, 1, 0])
    assert same.tolist() == [[True, False, True, True], [False, True, False, False]]


def test_an_equal_anchors_positive_is_no_negative() -> None:
    """Two captions of one picture: neither is wrong for the other."""
    same = task([Pair("a", "the"), Pair("a", "dog")])._same([0, 0, 4], [1, 2, 5])
    assert same.tolist() == [[True, True, False], [True, True, False], [False, False, True]]


def test_options_of_a_resumed_run_are_checked_before_a_tokenizer_is_trained(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What would be refused is refused first."""
    small = ["--layers", "1", "--heads", "2", "--hidden-size", "8", "--intermediate-size", "8", "--steps", "1"]
    assert main(options(tmp_path / "out", pairs, *small)) == 0
    capsys.readouterr()
    assert main(options(tmp_path / "out", pairs, *small, "--replace", "--train-vocabulary", "5")) == 1
    assert "was begun with train_vocabulary 16000, not 5" in capsys.readouterr().err


def test_what_is_wrong_is_one_sentence(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No pairs, pairs that shall be joined, a temperature of 0, a tokenizer that is none, no end."""
    (tmp_path / "tokenizer.json").write_text("{}")
    out = tmp_path / "out"
    for arguments, message in (
        (options(out, tmp_path / "none.tsv", "--steps", "1"), "none.tsv is missing"),
        (options(out, Path(f"{pairs},join=3"), "--steps", "1"), "pairs cannot be joined, taken in part or swapped"),
        (options(out, Path(f"{pairs},take=3"), "--steps", "1"), "leave join, take and swap out"),
        (options(out, Path(f"{pairs},swap=0.5"), "--steps", "1"), "leave join, take and swap out"),
        (options(out, pairs, "--steps", "1", "--temperature", "0"), "--temperature must be above 0"),
        (options(out, pairs, "--steps", "1", "--tokenizer", str(tmp_path / "tokenizer.json")), "is not a tokenizer"),
        (options(out, pairs, "--steps", "1", "--matryoshka", "999"), "the student has 512 dimensions"),
        (options(out, pairs, "--hidden-size", "8", "--layers", "1"), "say how long to train"),
    ):
        assert main(arguments) == 1
        error = capsys.readouterr().err
        assert error.startswith("contrastive: ")
        assert message in error
        assert error.count("\n") == 1
        assert not out.exists()
