"""Distillation from the command line, on tiny data: kill, resume, and everything that can be wrong."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import training.distil
from model.embedder import Embedder
from tests.tiny import make_bert_folder
from tests.training.disks import FullDisk
from training.distil import DistilTask, main
from training.journal import read_log
from training.trainer import Trainer


class Killed(BaseException):
    """What a test raises where a process would be gone."""


def options(teacher: Path, out: Path, corpus: Path, *more: str) -> list[str]:
    """A run of 12 steps on one thread."""
    fast = ["--threads", "1", "--dtype", "float32", "--teacher-dtype", "float32", "--device", "cpu"]
    short = [] if {"--minutes", "--epochs"} & set(more) else ["--steps", "12"]
    return [str(teacher), str(out), "--corpus", str(corpus), *fast, *short, "--batch-tokens", "120", *more]


def test_a_student_learns_its_teachers_embeddings(teacher: Path, corpus: Path, dev: Path, tmp_path: Path) -> None:
    """The cosine with the teacher rises; folder, log, plot, settings and notes are there."""
    out = tmp_path / "out"
    more = ["--dev", str(dev), "--matryoshka", "4,8", "--epochs", "20", "--learning-rate", "3e-3"]
    assert main(options(teacher, out, corpus, *more, "--log-every", "1")) == 0
    log = [entry for entry in read_log(tmp_path / "out.run" / "log.jsonl") if "loss" in entry]
    assert log[-1]["cosine"] < log[0]["cosine"] / 2
    assert (tmp_path / "out.run" / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out.run" / "settings.json").read_text())["matryoshka"] == [4, 8]
    texts = ["the cat sat on a mat", "hello dog"]
    rows = [Embedder.load(folder, dtype="float32", threads=1).encode(texts) for folder in (teacher, out)]
    assert (rows[0] * rows[1]).sum(axis=1).min() > 0.5
    readme = (out / "README.md").read_text()
    assert "- Teacher: teacher\n- Texts: corpus (60, weight 1)\n- Result: " in readme


@pytest.mark.parametrize("kill_at", [1, 7])
@pytest.mark.parametrize("kind", [[], ["--ranking", "1", "--queue", "9", "--mixed-lengths"], ["--token", "1"]], ids=str)
def test_a_killed_distillation_is_resumed_bit_for_bit(
    teacher: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_at: int, kind: list[str]
) -> None:
    """The same command once more ends with the weights of a run that nothing happened to."""
    more = ["--dropout", "0.1", "--cache", str(tmp_path / "cache"), "--checkpoint-minutes", "1e-9", *kind]
    assert main(options(teacher, tmp_path / "whole", corpus, *more)) == 0
    loss, calls = DistilTask.loss, []

    def killing(self: DistilTask, batch: Any) -> Any:
        calls.append(batch)
        if len(calls) == kill_at + 1:
            raise Killed
        return loss(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(DistilTask, "loss", killing)
        with pytest.raises(Killed):
            main(options(teacher, tmp_path / "cut", corpus, *more))
    assert not (tmp_path / "cut").exists()
    assert main(options(teacher, tmp_path / "cut", corpus, *more)) == 0
    whole, cut = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert whole.keys() == cut.keys()
    assert all(np.array_equal(whole[name], cut[name]) for name in whole)


def test_a_kill_while_the_teacher_embeds_costs_nothing_that_was_complete(
    teacher: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first corpus is not embedded again, and --cache-only writes no model."""
    second = tmp_path / "second.txt"
    second.write_text("hello world\nthe dog barked\n")
    arguments = options(teacher, tmp_path / "out", corpus, "--corpus", str(second), "--cache-only")
    encode, asked = Embedder.encode, []

    def killing(self: Embedder, texts: list[str], **rest: Any) -> Any:
        if "hello world" in texts:
            raise Killed
        return encode(self, texts, **rest)

    def counting(self: Embedder, texts: list[str], **rest: Any) -> Any:
        asked.extend(texts)
        return encode(self, texts, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(Embedder, "encode", killing)
        with pytest.raises(Killed):
            main(arguments)
    with monkeypatch.context() as patch:
        patch.setattr(Embedder, "encode", counting)
        assert main(arguments) == 0
    assert asked == ["hello world", "the dog barked"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "more",
    [
        ["--family", "seed-0", "--layers", "1", "--intermediate-size", "12", "--teacher-layers", "1"],
        ["--hidden-size", "8", "--heads", "2", "--matryoshka", "4"],
        ["--hidden-size", "24", "--from-scratch", "--mse", "1", "--cosine", "0"],
        ["--train-vocabulary", "60", "--max-length", "12"],
    ],
)
def test_students_of_other_shapes(teacher: Path, corpus: Path, tmp_path: Path, more: list[str]) -> None:
    """Fewer layers, another width (through a map that is not exported), no inheritance, an own tokenizer."""
    assert main(options(teacher, tmp_path / "out", corpus, *more)) == 0
    embedder = Embedder.load(tmp_path / "out", dtype="float32", threads=1)
    wanted = dict(zip(more[::2], more[1::2], strict=False))
    assert embedder.config.hidden_size == int(wanted.get("--hidden-size", 16))
    assert embedder.config.num_hidden_layers == int(wanted.get("--layers", 2))
    assert embedder.config.norm_placement == ("residual" if "seed-0" in more else "pre")
    assert (embedder.tokenizer.vocab_size <= 60) is ("--train-vocabulary" in more)
    assert embedder.tokenizer.max_length == int(wanted.get("--max-length", 32))
    assert np.isfinite(embedder.encode(["the cat"])).all()


@pytest.mark.parametrize("more", [[], ["--hidden-size", "8", "--heads", "2"]], ids=str)
def test_token_states_are_learned_from_a_teacher_that_runs_beside(
    teacher: Path, corpus: Path, tmp_path: Path, more: list[str]
) -> None:
    """The share that is missing falls, also through a map to the teacher's width; no text is embedded ahead."""
    run = ["--token", "1", "--learning-rate", "3e-3", "--epochs", "20", "--log-every", "1", *more]
    assert main(options(teacher, tmp_path / "out", corpus, *run)) == 0
    log = [entry for entry in read_log(tmp_path / "out.run" / "log.jsonl") if "loss" in entry]
    assert log[-1]["token"] < log[0]["token"] / 2
    assert log[-1]["cosine"] < log[0]["cosine"] / 2
    assert not (tmp_path / "out.cache").exists()


def test_rankings_are_learned_and_the_queue_is_not_exported(teacher: Path, corpus: Path, tmp_path: Path) -> None:
    """With the ranking alone the student comes nearer to its teacher's neighbours; the folder is as any other."""
    run = ["--ranking", "1", "--cosine", "0", "--similarity", "0", "--epochs", "20", "--learning-rate", "3e-3"]
    assert main(options(teacher, tmp_path / "out", corpus, *run, "--log-every", "1")) == 0
    log = [entry for entry in read_log(tmp_path / "out.run" / "log.jsonl") if "loss" in entry]
    assert np.mean([entry["ranking"] for entry in log[-5:]]) < np.mean([entry["ranking"] for entry in log[5:10]])
    assert not [name for name in load_file(tmp_path / "out" / "model.safetensors") if "queue" in name]


def test_a_frozen_embedding_stays(teacher: Path, corpus: Path, tmp_path: Path) -> None:
    """The vectors of the vocabulary are those that the run began with; everything else moves."""
    assert main(options(teacher, tmp_path / "a", corpus, "--layers", "1")) == 0
    more = ["--init", str(tmp_path / "a"), "--freeze-embedding"]
    assert main(options(teacher, tmp_path / "b", corpus, *more)) == 0
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    kept = [name for name in one if np.array_equal(one[name], two[name])]
    assert [one[name].shape for name in kept] == [(len(one[kept[0]]), 16)]
    assert len(one[kept[0]]) > 24


def test_a_second_teacher_of_another_width_is_heard(teacher: Path, corpus: Path, tmp_path: Path) -> None:
    """It changes what is learned, through similarities alone."""
    second = make_bert_folder(tmp_path / "second", hidden_size=12, seed=9)
    assert main(options(teacher, tmp_path / "one", corpus)) == 0
    assert main(options(teacher, tmp_path / "two", corpus, "--second-teacher", str(second))) == 0
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert any(not np.array_equal(one[name], two[name]) for name in one)
    assert "- Teacher: teacher, second\n" in (tmp_path / "two" / "README.md").read_text()


def test_training_goes_on_from_a_model_folder(teacher: Path, corpus: Path, tmp_path: Path) -> None:
    """--init takes it up; with a rate that does nothing, it is what comes out."""
    assert main(options(teacher, tmp_path / "a", corpus, "--layers", "1")) == 0
    more = ["--init", str(tmp_path / "a"), "--learning-rate", "1e-30", "--weight-decay", "0"]
    assert main(options(teacher, tmp_path / "b", corpus, *more)) == 0
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(np.array_equal(one[name], two[name]) for name in one)


def fails(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    """A command ends with one line that says what is wrong."""
    assert main(arguments) == 1
    error = capsys.readouterr().err.splitlines()
    assert [line for line in error if line.startswith("distil: ")] == error[-1:]
    assert message in error[-1]


def test_everything_wrong_is_one_sentence_and_nothing_half_written(
    teacher: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong teacher, bad UTF-8, empty corpus, sizes and losses that cannot be, a place that is taken."""
    out, bad, empty = tmp_path / "out", tmp_path / "bad.txt", tmp_path / "empty.txt"
    bad.write_bytes(b"fine\n\xe9t\xe9\n")
    empty.write_text("\n\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "a").write_text("mine")
    reranker = make_bert_folder(tmp_path / "reranker", labels=["relevant"])
    wrong = tmp_path / "no-model"
    wrong.mkdir()
    for arguments, message in (
        (options(tmp_path / "nowhere", out, corpus), "nowhere is not a folder"),
        (options(wrong, out, corpus), "config.json is missing"),
        (options(teacher, out, bad), "bad.txt, line 2: byte 1 of the line is not UTF-8"),
        (options(teacher, out, empty), "empty.txt holds no text"),
        (options(teacher, out, Path(f"{corpus},weight=-1")), "weight must be above 0"),
        (options(teacher, tmp_path / "taken", corpus), "taken is not empty"),
        (options(teacher, out, corpus, "--heads", "3"), "the student cannot be built"),
        (options(teacher, out, corpus, "--matryoshka", "17"), "the student has 16 dimensions"),
        (options(teacher, out, corpus, "--cosine", "0", "--similarity", "0"), "at least one of the losses"),
        (options(teacher, out, corpus, "--ranking", "-1"), "must not be below 0"),
        (options(teacher, out, corpus, "--queue", "-1"), "must not be below 0"),
        (options(teacher, out, corpus, "--token", "1", "--cache-only"), "nothing that --cache-only could fill"),
        (
            options(teacher, out, corpus, "--token", "1", "--train-vocabulary", "60"),
            "must have the teacher's tokenizer",
        ),
        (options(teacher, out, corpus, "--token", "1", "--max-length", "64"), "reads 64 tokens of a text"),
        (options(reranker, out, corpus, "--token", "1"), "cannot show its tokens' states"),
        (options(teacher, out, corpus, "--token", "1", "--teacher-dtype", "int8"), "dtype 'int8' is not supported"),
        (options(teacher, out, corpus, "--teacher-dtype", "int3"), "dtype 'int3' is not supported"),
        (options(teacher, out, corpus, "--teacher-layers", "5,6"), "teacher layers [5, 6]"),
        (options(teacher, out, corpus, "--init", str(teacher)), "is no plain seed-0 or seed-2 encoder"),
        (options(teacher, out, corpus, "--dev", str(tmp_path / "none.tsv")), "none.tsv is missing"),
        (options(teacher, out, corpus, "--device", "tpu"), "device 'tpu' is not supported"),
        (options(teacher, out, corpus, "--readme", str(tmp_path / "none.md")), "none.md is missing"),
    ):
        fails(capsys, arguments, message)
        assert not out.exists()
    assert (tmp_path / "taken" / "a").read_text() == "mine"


def test_embeddings_of_another_teacher_are_never_used(
    teacher: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A teacher whose weights changed under the same name, and texts that changed."""
    cache = ["--cache", str(tmp_path / "cache"), "--cache-only"]
    assert main(options(teacher, tmp_path / "out", corpus, *cache)) == 0
    make_bert_folder(teacher, seed=1)
    fails(capsys, options(teacher, tmp_path / "out", corpus, *cache), "holds embeddings of another teacher")
    make_bert_folder(teacher)
    corpus.write_text(corpus.read_text() + "one more\n")
    fails(capsys, options(teacher, tmp_path / "out", corpus, *cache), "holds embeddings of another text")


def test_a_run_is_resumed_as_it_was_begun(
    teacher: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another rate is another run; more steps are more of the same."""
    assert main(options(teacher, tmp_path / "out", corpus)) == 0
    again = options(teacher, tmp_path / "out", corpus, "--replace")
    fails(capsys, [*again, "--learning-rate", "1"], "was begun with learning_rate 0.0003, not 1.0")
    assert main([*again, "--cache-only", "--learning-rate", "1"]) == 0
    assert main([*again, "--steps", "15"]) == 0
    assert "going on from step 12" in capsys.readouterr().err
    assert "15 steps" in (tmp_path / "out" / "README.md").read_text()


def test_options_of_a_resumed_run_are_checked_before_the_teacher_embeds(
    teacher: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What will be refused is refused before hours of embedding."""
    assert main(options(teacher, tmp_path / "out", corpus)) == 0
    more = ["--replace", "--cache", str(tmp_path / "other"), "--learning-rate", "1"]
    fails(capsys, options(teacher, tmp_path / "out", corpus, *more), "was begun with learning_rate 0.0003, not 1.0")
    assert not (tmp_path / "other").exists()


def test_a_full_disk_while_training_is_one_sentence(
    teacher: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint before it is still there, no model folder is, and with room again the run ends well."""
    arguments = options(teacher, tmp_path / "out", corpus, "--checkpoint-minutes", "1e-9")
    full = FullDisk(5)

    def on_a_full_disk(*given: Any, **named: Any) -> Trainer:
        return Trainer(*given, **named, write=full)

    with monkeypatch.context() as patch:
        patch.setattr("training.run.Trainer", on_a_full_disk)
        fails(capsys, arguments, "No space left on device; step-00000001 is still there")
    assert not (tmp_path / "out").exists()
    assert main(arguments) == 0


def test_the_first_signal_saves_and_stops(
    teacher: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 130, a checkpoint, no folder; the same command goes on."""
    loss, calls = DistilTask.loss, []

    def signalling(self: DistilTask, batch: Any) -> Any:
        calls.append(batch)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGTERM)
        return loss(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(DistilTask, "loss", signalling)
        assert main(options(teacher, tmp_path / "out", corpus)) == 130
    assert "stopped at step 4; the same command goes on from there" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(options(teacher, tmp_path / "out", corpus)) == 0
    assert "going on from step 4" in capsys.readouterr().err


def test_the_module_is_a_command() -> None:
    """`python -m training.distil` has a description that says what it does."""
    assert training.distil.__doc__ is not None
    assert "python -m training.distil TEACHER OUT --corpus FILE" in training.distil.__doc__
