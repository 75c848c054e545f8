"""The model that is served when nobody names one, weights/eyeline-base, and its small sister."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.conftest import DEFAULT_MODEL, Server, command, run_command

MAX_FILE_BYTES = 64_000_000
MAX_MINI_BYTES = 25_000_000

# A sentence, another way to say it, and a sentence on something else that shares words with the first.
TRIPLES = [
    ("How do I reset my password?", "I forgot my login and need a new one.", "How do I bake my bread?"),
    ("A man is playing a guitar on the stage.", "Somebody performs music for an audience.", "A man is parking a car."),
    ("The company lost money last year.", "Profits of the firm were negative.", "The company moved its office."),
    ("Wash your hands before you eat.", "Clean hands matter ahead of a meal.", "Hand me the plates before you go."),
    ("The flight was delayed by snow.", "Winter weather held up the plane.", "The flight attendant smiled."),
    ("Water boils at one hundred degrees.", "Steam forms when a kettle gets hot enough.", "He is a hundred years old."),
    ("The bank raised its interest rates.", "Borrowing became dearer.", "We sat on the bank of the river."),
    ("Plants turn light into energy.", "Photosynthesis feeds green leaves.", "The power plant was switched off."),
]


@pytest.fixture(scope="module")
def default_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that was given no model and no number type."""
    server = Server(tmp_path_factory.mktemp("server") / "log", command("serve", "--port", 0, "--device", "cpu"))
    yield server
    server.close()


def test_the_default_is_our_own_model(default_server: Server) -> None:
    """Without --model, eyeline-base answers, with unit vectors."""
    answer = default_server.encode(["The cat sat."])
    assert (answer["model"], answer["dimensions"]) == ("eyeline-base", 384)
    assert np.linalg.norm(answer["embeddings"][0]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("dimensions", [None, 128])
def test_a_paraphrase_is_nearer_than_shared_words(default_server: Server, dimensions: int | None) -> None:
    """The sentence of the same meaning wins, also with the first 128 dimensions; one hard triple may be lost."""
    pairs = [pair for same, paraphrase, other in TRIPLES for pair in ((same, paraphrase), (same, other))]
    body = {"pairs": pairs, "dimensions": dimensions}
    similarities = default_server.client.post("/similarity", json=body).json()["similarities"]
    scored = zip(TRIPLES, similarities[0::2], similarities[1::2], strict=True)
    lost = [triple for triple, near, far in scored if near <= far]
    assert len(lost) <= 1, lost


def test_its_maps_are_maps(default_server: Server) -> None:
    """Every head of every layer gives rows that sum to 1, and no two heads are the same."""
    attention = {"layers": "all", "dtype": "float32", "digits": 9}
    maps = default_server.encode("The cat sat on the mat.", attention=attention)["attention"][0]["maps"]
    values = np.array(maps["values"])
    np.testing.assert_allclose(values.sum(axis=-1), 1, atol=1e-5)
    heads = values.reshape(-1, values.shape[-1] ** 2)
    assert len(np.unique(heads.round(6), axis=0)) == len(heads)


@pytest.mark.parametrize("name", ["eyeline-base", "eyeline-mini"])
def test_what_is_shipped_is_whole(name: str) -> None:
    """Weights, tokenizer, what is known of them, and checksums of all; nothing a server could not take from git."""
    folder = DEFAULT_MODEL.with_name(name)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    listed = {line.split("  ", 1)[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    assert files == listed | {"SHA256SUMS"}
    assert {"config.json", "tokenizer.json", "model.safetensors", "README.md"} <= files
    assert all((folder / file).stat().st_size < MAX_FILE_BYTES for file in files)


def test_one_changed_byte_stops_the_start(tmp_path: Path) -> None:
    """A weights file of the right size with one other byte is named, and nothing is served."""
    folder = tmp_path / "copied"
    shutil.copytree(DEFAULT_MODEL, folder)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1000, 2)
        byte = file.read(1)
        file.seek(-1000, 2)
        file.write(bytes([byte[0] ^ 1]))
    done = run_command("serve", "--model", folder, "--device", "cpu", "--port", 0)
    assert done.returncode == 1
    assert "model.safetensors" in done.stderr.splitlines()[-1]
    assert "SHA256SUMS" in done.stderr.splitlines()[-1]


def test_the_small_one_is_small_and_loads() -> None:
    """The folder of eyeline-mini is under 25 MB as a whole, its checksums hold, and its vectors have 384 dimensions."""
    folder = DEFAULT_MODEL.with_name("eyeline-mini")
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < MAX_MINI_BYTES
    described = json.loads(run_command("info", folder).stdout)
    assert (described["num_hidden_layers"], described["dimensions"]) == (2, 384)
