"""The command ``eyeline``: what it prints, what it exits with, what it does not load."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import cli
from app.metrics import Metrics
from app.settings import Settings
from app.version import VERSION
from model.embedder import Embedder
from tests.tiny import make_bert_folder, make_wordpiece_tokenizer

ROOT = Path(__file__).parents[2]
SEED = ROOT / "tests/reference/seed-2.pt"

Outcome = tuple[int, str, str]
Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command with arguments and an environment; returns exit code, stdout and stderr."""

    def call(*argv: object, environ: Mapping[str, str] | None = None) -> Outcome:
        try:
            code = cli.main([str(argument) for argument in argv], environ or {})
        except SystemExit as error:  # argparse's way
            code = int(error.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def assert_one_sentence(text: str) -> None:
    """A failure is one line that begins with the program's name: no traceback."""
    assert text.startswith("eyeline: ")
    assert text.count("\n") == 1
    assert "Traceback" not in text


# ---- usage


def test_version(run: Run) -> None:
    """The version alone, for scripts."""
    assert run("--version") == (0, f"{VERSION}\n", "")


@pytest.mark.parametrize(
    ("argv", "listed"),
    [
        ([], ["serve", "encode", "info", "weights"]),
        (["weights"], ["fetch", "import"]),
        (["weights", "fetch"], ["--weights-dir"]),
        (
            ["weights", "import"],
            ["--num-heads", "--tokenizer", "--pooling", "--max-length", "--pad-id", "--activation"],
        ),
        (["info"], ["folder"]),
        (["similarity"], ["TEXT", "--json", "--model"]),
        (["search"], ["FILE", "QUERY", "--top", "--json", "--column", "--model"]),
        (["encode"], ["IN", "OUT", "--keep", "--skip-bad", "--attention-stats", "--model", "--weights-dir", "--dtype"]),
    ],
)
def test_help(run: Run, argv: Sequence[str], listed: Sequence[str]) -> None:
    """Each command says what it takes."""
    code, out, _ = run(*argv, "--help")
    assert code == 0
    for word in listed:
        assert word in out


def test_help_lists_every_setting(run: Run) -> None:
    """Each setting with its flag and its variable."""
    code, out, _ = run("serve", "--help")
    assert code == 0
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in out
        assert f"EYELINE_{name.upper()}" in "".join(out.split())


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["serv"],
        ["serve", "--prot", "1"],
        ["serve", "extra"],
        ["info"],
        ["encode"],
        ["encode", "a.txt"],
        ["encode", "a.txt", "o.npy", "--dimensions", "few"],
        ["encode", "a.txt", "o.npy", "--port", "1"],
        ["weights"],
        ["weights", "fetch"],
        ["weights", "import", "x.pt"],
        ["weights", "import", "x.pt", "--num-heads", "eight", "--tokenizer", "t.json"],
        ["weights", "import", "x.pt", "--num-heads", "8", "--tokenizer", "t.json", "--pooling", "median"],
    ],
)
def test_wrong_usage_is_2(run: Run, argv: Sequence[str]) -> None:
    """Unknown commands, flags and values, and missing ones, exit with 2 and say so on stderr."""
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert "error:" in err


@pytest.mark.parametrize(
    ("argv", "environ", "words"),
    [
        (["--port", "99999"], {}, ["--port", "99999"]),
        (["--dtype", "int7"], {}, ["--dtype", "int7"]),
        ([], {"EYELINE_PROT": "1"}, ["EYELINE_PROT", "EYELINE_PORT"]),
        ([], {"EYELINE_PORT": "tcp://1.2.3.4:80"}, ["EYELINE_PORT", "tcp://1.2.3.4:80", "Kubernetes"]),
        (["--max-texts", "9", "--max-queue-texts", "8"], {}, ["--max-texts", "9", "8"]),
    ],
)
def test_bad_settings_are_2(run: Run, argv: Sequence[str], environ: Mapping[str, str], words: Sequence[str]) -> None:
    """One sentence on stderr that names the setting and the value, exit code 2."""
    code, out, err = run("serve", *argv, environ=environ)
    assert (code, out) == (2, "")
    assert_one_sentence(err)
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    "argv",
    [
        ["serve", "--port", "x"],
        ["--version"],
        ["serve", "--help"],
        ["nonsense"],
        ["encode", "a.txt", "o.bin"],
        ["encode", "there/is/none.txt", "o.npy"],
    ],
)
def test_a_mistake_costs_no_import_of_torch(argv: Sequence[str]) -> None:
    """Whoever mistyped learns it at once: neither torch nor FastAPI is loaded for it."""
    script = (
        "import sys, app.cli\n"
        "try: app.cli.main(sys.argv[1:], {})\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'fastapi', 'numpy', 'tokenizers') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *argv], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted command exits as a shell expects, without a traceback."""

    def interrupted(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_info", interrupted)
    assert cli.main(["info", "x"], {}) == 130


# ---- serve


@pytest.fixture
def own_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the process's logging as it is: the server would take it over."""
    monkeypatch.setattr("app.log.configure_logging", lambda level: None)


@pytest.mark.usefixtures("own_logging")
def test_a_folder_that_is_not_there_is_1(run: Run, tmp_path: Path) -> None:
    """One sentence that names the folder, exit code 1."""
    code, out, err = run("serve", "--model", tmp_path / "missing", "--device", "cpu")
    assert (code, out) == (1, "")
    assert_one_sentence(err)
    assert str(tmp_path / "missing") in err


@pytest.mark.usefixtures("own_logging")
def test_a_budget_under_one_text_is_1(run: Run, tmp_path: Path) -> None:
    """What only a loaded model tells is one sentence too."""
    folder = make_bert_folder(tmp_path / "tiny")
    code, _, err = run("serve", "--model", folder, "--device", "cpu", "--batch-tokens", "31")
    assert code == 1
    assert_one_sentence(err)
    assert "--batch-tokens" in err


@pytest.mark.usefixtures("own_logging")
def test_serve_passes_the_settings_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Flags and variables reach the server, and its exit code is the command's."""
    folder = make_bert_folder(tmp_path / "tiny")
    seen: dict[str, object] = {}

    def serve(app: object, **options: object) -> int:
        seen.update(options)
        return 7

    monkeypatch.setattr("app.server.serve", serve)
    argv = ["serve", "--model", str(folder), "--device", "cpu", "--port", "0", "--drain-delay-seconds", "3"]
    assert cli.main(argv, {"EYELINE_HOST": "127.0.0.2", "EYELINE_SHUTDOWN_GRACE_SECONDS": "4"}) == 7
    assert seen == {
        "host": "127.0.0.2",
        "port": 0,
        "drain_delay_seconds": 3.0,
        "shutdown_grace_seconds": 4.0,
        "tls": None,
    }


@pytest.mark.usefixtures("own_logging")
def test_serve_until_a_signal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The whole command: it serves, one signal stops it, the exit code is 0."""
    folder = make_bert_folder(tmp_path / "tiny")

    def stop_when_ready(self: Metrics, *, ready: bool) -> None:
        if ready:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Metrics, "set_ready", stop_when_ready)
    assert cli.main(["serve", "--model", str(folder), "--device", "cpu", "--port", "0"], {}) == 0


@pytest.mark.usefixtures("own_logging")
def test_a_port_in_use_is_1(run: Run, tmp_path: Path) -> None:
    """Exit code 1."""
    folder = make_bert_folder(tmp_path / "tiny")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run("serve", "--model", folder, "--device", "cpu", "--port", port)[0] == 1


# ---- info


def test_info_is_json(run: Run, tmp_path: Path) -> None:
    """What a folder is, for people and for jq."""
    folder = make_bert_folder(tmp_path / "tiny", prompts={"query": "q: "})
    code, out, err = run("info", folder)
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "folder": str(folder),
        "format": "BERT",
        "kind": "embedding",
        "labels": [],
        "num_parameters": 6_736,
        "num_ignored_tensors": 0,
        "dimensions": 16,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 108,
        "max_length": 32,
        "pooling": "mean",
        "dtype": "float32",
        "device": "cpu",
        "threads": json.loads(out)["threads"],
        "special_tokens": "text",
        "prompts": ["query"],
    }


def test_info_of_a_broken_folder_is_1(run: Run, tmp_path: Path) -> None:
    """The file at fault in one sentence."""
    folder = make_bert_folder(tmp_path / "tiny")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    code, out, err = run("info", folder)
    assert (code, out) == (1, "")
    assert_one_sentence(err)
    assert "model.safetensors" in err


# ---- encode


def test_encode_from_file_to_file(run: Run, tmp_path: Path) -> None:
    """What the library gives for each line, and one line about it."""
    folder = make_bert_folder(tmp_path / "models/tiny")
    (tmp_path / "a.txt").write_text("the cat\na dog\n" + "the cat " * 40 + "\n")
    arguments = ("encode", tmp_path / "a.txt", tmp_path / "o.npy", "--dimensions", 4, "--threads", 1)
    # The variables are those of serve, and other settings of a server do no harm.
    environ = {"EYELINE_WEIGHTS_DIR": str(tmp_path / "models"), "EYELINE_MODEL": "tiny", "EYELINE_PORT": "9000"}
    code, out, err = run(*arguments, "--device", "cpu", environ={**environ, "EYELINE_DTYPE": "float32"})
    assert (code, err) == (0, "")
    assert out.startswith("o.npy: 3 texts in 4 dimensions, 3 of them now, in ")
    assert out.endswith("; 1 truncated\n")
    embedder = Embedder.load(folder, dtype="float32", device="cpu", threads=1)
    expected = embedder.encode(["the cat", "a dog", "the cat " * 40], dimensions=4)
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), expected, atol=1e-5)


def test_similarity_and_search(run: Run, tmp_path: Path) -> None:
    """A number, and the line nearest to the query; mistakes are one sentence, and 2 where the usage is at fault."""
    folder = make_bert_folder(tmp_path / "tiny")
    flags = ("--model", folder, "--dtype", "float32", "--device", "cpu", "--threads", 1)
    vectors = Embedder.load(folder, dtype="float32", device="cpu", threads=1).encode(["the cat", "a dog"])
    cosine = float(vectors[0] @ vectors[1])
    assert run("similarity", "the cat", "a dog", *flags) == (0, f"{cosine:.3f}\n", "")
    code, out, _ = run("similarity", "the cat", "a dog", "--json", *flags)
    assert code == 0
    assert json.loads(out)["similarities"][0][1] == pytest.approx(cosine, abs=1e-5)
    (tmp_path / "a.txt").write_text("the cat\na dog\n")
    code, out, err = run("search", tmp_path / "a.txt", "a dog", "--top", 1, *flags)
    assert (code, err) == (0, "")
    assert out == " 1.000  line 2  a dog\nthe best 1 of 2 texts\n"
    for argv, expected in (
        (("similarity", "a", *flags), 2),
        (("similarity", "a", "b", *flags, "--model", "other"), 2),
        (("similarity", "a", "b", "--model", tmp_path / "none"), 1),
        (("search", tmp_path / "none.txt", "q", *flags), 1),
        (("search", tmp_path / "a.txt", "q", "--prompt-name", "no", *flags), 2),
    ):
        code, out, err = run(*argv)
        assert (code, out) == (expected, "")
        assert_one_sentence(err)


def test_encode_draws_a_bar_where_it_is_asked(run: Run, tmp_path: Path) -> None:
    """Not into a log, unless --progress says so."""
    folder = make_bert_folder(tmp_path / "tiny")
    (tmp_path / "a.txt").write_text("the cat\n")
    arguments = ("encode", tmp_path / "a.txt", tmp_path / "o.npy", "--model", folder, "--device", "cpu", "--threads", 1)
    code, _, err = run(*arguments, "--progress")
    assert code == 0
    assert "o.npy: 100%" in err


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"output": "o.bin"}, 2, "must end in .npy"),
        ({"flags": ["--dtype", "int7"]}, 2, "--dtype"),
        ({"flags": ["--model", "again"]}, 2, "runs one model"),
        ({"flags": ["--dimensions", "17"]}, 2, "from 1 to 16, not 17"),
        ({"environ": {"EYELINE_DTPYE": "float32"}}, 2, "EYELINE_DTPYE"),
        ({"input": "none.txt"}, 1, "none.txt is missing"),
        ({"model": "none"}, 1, "eyeline weights fetch"),
        ({"model": "."}, 1, "config.json"),
        ({"flags": ["--device", "cuda:99"]}, 1, "cuda:99"),
        ({"input": "bad.jsonl"}, 1, "bad.jsonl, line 1: the line is not JSON"),
    ],
)
def test_encode_fails_in_one_sentence(
    run: Run, tmp_path: Path, changes: Mapping[str, Any], code: int, words: str
) -> None:
    """2 for what was asked, 1 for what was found; no output is made."""
    make_bert_folder(tmp_path / "tiny")
    (tmp_path / "a.txt").write_text("the cat\n")
    (tmp_path / "bad.jsonl").write_text("{\n")
    case = {"input": "a.txt", "output": "o.npy", "model": "tiny", "flags": [], "environ": {}, **changes}
    found, out, err = run(
        *("encode", tmp_path / case["input"], tmp_path / case["output"], "--model", tmp_path / case["model"]),
        *("--device", "cpu", "--threads", 1, *case["flags"]),
        environ=case["environ"],
    )
    assert (found, out) == (code, "")
    assert_one_sentence(err)
    assert words in err
    assert not (tmp_path / case["output"]).exists()


@pytest.mark.parametrize("shared", ["shared", "none"])
def test_encode_needs_no_folder_for_temporary_files(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: str
) -> None:
    """In a container with a read-only root, what torch wants one for goes to shared memory, or else beside OUT."""

    def none_found() -> str:
        if tempfile.tempdir is None:
            raise FileNotFoundError("No usable temporary directory found")
        return tempfile.tempdir

    folder = make_bert_folder(tmp_path / "tiny")
    (tmp_path / "a.txt").write_text("the cat\n")
    for name in ("data", "shared"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "gettempdir", none_found)
    monkeypatch.setattr(cli, "SHARED_MEMORY", str(tmp_path / shared))
    arguments = (tmp_path / "a.txt", tmp_path / "data/o.npy", "--model", folder, "--device", "cpu", "--threads", 1)
    assert run("encode", *arguments)[0] == 0
    assert tempfile.tempdir == str(tmp_path / ("shared" if shared == "shared" else "data"))
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["o.npy"]


def test_encode_leaves_signals_as_they_were(run: Run, tmp_path: Path) -> None:
    """SIGTERM interrupts an encode, and nothing after it."""
    before = signal.getsignal(signal.SIGTERM)
    assert run("encode", tmp_path / "none.txt", tmp_path / "o.npy")[0] == 1
    assert signal.getsignal(signal.SIGTERM) == before


# ---- weights


def test_fetch_of_an_unknown_model_is_1(run: Run, tmp_path: Path) -> None:
    """Known models are named; nothing is written."""
    code, out, err = run("weights", "fetch", "no-such-model", "--weights-dir", tmp_path / "weights")
    assert (code, out) == (1, "")
    assert_one_sentence(err)
    assert "all-MiniLM-L6-v2" in err
    assert not (tmp_path / "weights").exists()


@pytest.mark.parametrize(
    ("argv", "environ", "expected"),
    [
        ([], {}, "weights"),
        ([], {"EYELINE_WEIGHTS_DIR": ""}, "weights"),
        ([], {"EYELINE_WEIGHTS_DIR": "/elsewhere"}, "/elsewhere"),
        (["--weights-dir", "/flag"], {"EYELINE_WEIGHTS_DIR": "/elsewhere"}, "/flag"),
    ],
)
def test_where_fetched_models_land(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], environ: dict[str, str], expected: str
) -> None:
    """The flag wins over the variable, the variable over ./weights."""
    seen: list[tuple[str, Path]] = []
    monkeypatch.setattr("app.fetch.fetch", lambda name, weights_dir, *, progress: seen.append((name, weights_dir)))
    assert cli.main(["weights", "fetch", "some-model", *argv], environ) == 0
    assert seen == [("some-model", Path(expected))]


def save_tokenizer(path: Path, num_words: int = 97) -> Path:
    """Save a tokenizer of as many words as the state dict's embedding table has rows, or of another number."""
    content = json.loads(make_wordpiece_tokenizer().to_str())
    words = content["model"]["vocab"]
    content["model"]["vocab"] = {word: index for word, index in words.items() if index < num_words}
    path.write_text(json.dumps(content))
    return path


def test_import_end_to_end(run: Run, tmp_path: Path) -> None:
    """A state dict becomes a folder that is served: it can be described, loaded, and encodes to unit vectors."""
    folder = tmp_path / "imported"
    arguments = ("--num-heads", 8, "--tokenizer", save_tokenizer(tmp_path / "t.json"), "--max-length", 40)
    code, out, err = run("weights", "import", SEED, *arguments, "--output", folder)
    assert (code, err) == (0, "")
    assert out == (
        f"{folder}: seed 2, 3 layers, hidden size 64, 0 known tensors left out; "
        f"serve it with: eyeline serve --model {folder}\n"
    )
    code, out, _ = run("info", folder)
    assert code == 0
    expected = {"format": "seed 2", "max_length": 40, "num_attention_heads": 8, "dimensions": 64}
    assert expected.items() <= json.loads(out).items()
    embeddings = Embedder.load(folder, dtype="float32", device="cpu", threads=1).encode(["the cat", "a dog"])
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)
    assert embeddings[0] @ embeddings[1] < 0.999


def test_import_lands_beside_the_file(run: Run, tmp_path: Path) -> None:
    """Without an output folder it is the file's name without its ending."""
    (tmp_path / "mine.pt").write_bytes(SEED.read_bytes())
    tokenizer = save_tokenizer(tmp_path / "t.json")
    assert run("weights", "import", tmp_path / "mine.pt", "--num-heads", 8, "--tokenizer", tokenizer)[0] == 0
    assert (tmp_path / "mine" / "model.safetensors").is_file()


def test_import_with_another_models_tokenizer_is_1(run: Run, tmp_path: Path) -> None:
    """More words than the embedding table has rows: refused in one sentence, and nothing is left behind."""
    tokenizer = save_tokenizer(tmp_path / "t.json", num_words=108)
    arguments = ("--num-heads", 8, "--tokenizer", tokenizer, "--output", tmp_path / "mine")
    code, _, err = run("weights", "import", SEED, *arguments)
    assert code == 1
    assert_one_sentence(err)
    assert "97" in err
    assert not (tmp_path / "mine").exists()


def test_import_of_no_state_dict_is_1(run: Run, tmp_path: Path) -> None:
    """A file that torch cannot read is one sentence with its name."""
    (tmp_path / "x.pt").write_bytes(b"not a state dict")
    make_wordpiece_tokenizer().save(str(tmp_path / "t.json"))
    arguments = ("--num-heads", 8, "--tokenizer", tmp_path / "t.json")
    code, _, err = run("weights", "import", tmp_path / "x.pt", *arguments)
    assert code == 1
    assert_one_sentence(err)
    assert "x.pt" in err


def test_closed_streams_lead_nowhere() -> None:
    """Where stdin or stderr was closed, no socket takes its number: a library in C would write its warnings into it."""
    code = (
        "import os, app.cli as cli\n"
        "os.close(0), os.close(2)\n"
        "cli._open_closed_streams()\n"
        "number = os.open('.', os.O_RDONLY)\n"
        "print(*(os.readlink(f'/proc/self/fd/{fd}') for fd in (0, 2)), number > 2)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["/dev/null", "/dev/null", "True"]
