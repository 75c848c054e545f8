"""What comes over the wire is right, for one caller and for many at once."""

from __future__ import annotations

import base64
import http.client
import io
import itertools
import json
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from tests.e2e.conftest import MAX_LENGTH, PATIENCE_SECONDS, TEST_SCALE, Server, StartServer
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.e2e

REFERENCE = Path(__file__).parents[1] / "reference"
ROWS: list[dict[str, Any]] = json.loads((REFERENCE / "minilm.json").read_text())
TEXTS = [row["text"] for row in ROWS]
TYPED_SPECIAL = 20
"""The row whose text holds special tokens: the reference read them as such."""
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """The right answers."""
    with np.load(REFERENCE / "minilm.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def parsing_server(start_server: StartServer) -> Server:
    """A server that reads typed special tokens as such; started as a pod whose Service is called eyeline."""
    injected = {
        "EYELINE_SERVICE_HOST": "10.0.0.7",
        "EYELINE_SERVICE_PORT": "8080",
        "EYELINE_SERVICE_PORT_HTTP": "8080",
        "EYELINE_PORT_8080_TCP": "tcp://10.0.0.7:8080",
        "EYELINE_PORT_8080_TCP_ADDR": "10.0.0.7",
    }
    return start_server("--special-tokens", "parse", "--no-warmup", environ=injected)


@pytest.mark.parametrize("together", [True, False])
def test_embeddings_are_the_references(server: Server, reference: dict[str, Any], together: bool) -> None:
    """Texts sent one by one, and all in one request, give what sentence-transformers gives for each alone."""
    if together:
        embeddings = np.array(server.encode(TEXTS)["embeddings"])
    else:
        embeddings = np.concatenate([server.encode(text)["embeddings"] for text in TEXTS])
    others = [index for index in range(len(TEXTS)) if index != TYPED_SPECIAL]
    np.testing.assert_allclose(embeddings[others], reference["embeddings"][others], atol=TOLERANCE, rtol=0)


def test_ids_are_the_references(server: Server) -> None:
    """The tokens are those of the reference, text by text."""
    texts = server.client.post("/tokenize", json={"texts": TEXTS}).json()["texts"]
    for index, (text, row) in enumerate(zip(texts, ROWS, strict=True)):
        assert (text["tokens"]["id"] == row["input_ids"]) == (index != TYPED_SPECIAL)


def test_attention_is_the_references(server: Server, reference: dict[str, Any]) -> None:
    """All maps of all layers are those of eager attention, and asking for them changes no embedding."""
    asked = [int(name.removeprefix("attention_")) for name in reference if name.startswith("attention_")]
    asked.remove(TYPED_SPECIAL)
    assert len(asked) >= 3
    attention = {"layers": "all", "encoding": "base64", "dtype": "float32"}
    body = server.encode([TEXTS[index] for index in asked], attention=attention)
    plain = server.encode([TEXTS[index] for index in asked])
    np.testing.assert_allclose(body["embeddings"], plain["embeddings"], atol=1e-6)
    for entry, index in zip(body["attention"], asked, strict=True):
        maps = np.frombuffer(base64.b64decode(entry["maps"]["data"]), "<f4").reshape(entry["maps"]["shape"])
        np.testing.assert_allclose(maps, reference[f"attention_{index}"], atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=TOLERANCE)


def test_what_is_made_of_maps_is_made_of_the_references(server: Server, reference: dict[str, Any]) -> None:
    """Rollout, statistics, sparse rows and maps without special tokens agree with those of eager attention's maps."""
    asked = [int(name.removeprefix("attention_")) for name in reference if name.startswith("attention_")]
    asked.remove(TYPED_SPECIAL)
    attention = {"layers": "all", "stats": True, "rollout": {}, "special": "renormalize", "top_k": 3, "digits": 7}
    body = server.encode([TEXTS[index] for index in asked], attention=attention)
    for entry, index in zip(body["attention"], asked, strict=True):
        maps = reference[f"attention_{index}"].astype(np.float64)
        n = maps.shape[-1] - 2
        inner = maps[..., 1:-1, 1:-1]
        mass = inner.sum(-1, keepdims=True)
        rows = inner / mass
        np.testing.assert_allclose(entry["maps"]["kept_mass"], mass[..., 0], atol=TOLERANCE, rtol=0)
        weights = [row for layer in entry["maps"]["sparse"]["weight"] for head in layer for row in head]
        expected = -np.sort(-rows, axis=-1)[..., :3].reshape(72 * n, min(3, n))
        np.testing.assert_allclose(np.reshape(weights, expected.shape), expected, atol=5 * TOLERANCE, rtol=1e-3)
        joint = np.eye(n + 2)
        for layer in maps:
            joint = (np.eye(n + 2) + layer.mean(0)) / 2 @ joint
        kept = joint[1:-1, 1:-1]
        rollout = entry["rollout"]
        np.testing.assert_allclose(rollout["kept_mass"], kept.sum(-1), atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(np.reshape(rollout["values"], (n, n)), kept / kept.sum(-1, keepdims=True), atol=1e-4)
        if not n:
            assert entry["stats"]["to_sep"][0][0] is None
            continue
        stats = {name: np.array(entry["stats"][name]) for name in ("entropy", "confidence", "to_cls", "to_sep")}
        entropy = -np.where(rows > 0, rows * np.log(np.where(rows > 0, rows, 1)), 0).sum(-1)
        np.testing.assert_allclose(stats["entropy"], entropy.mean(-1), atol=1e-3)
        np.testing.assert_allclose(stats["confidence"], rows.max(-1).mean(-1), atol=1e-3)
        np.testing.assert_allclose(stats["to_cls"], maps[..., 1:-1, 0].mean(-1), atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(stats["to_sep"], maps[..., 1:-1, -1].mean(-1), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("unit", "long", "mark", "word"),
    [
        ("codepoint", (4, 16), (21, 22), (17, 22)),
        ("utf16", (6, 18), (23, 24), (19, 24)),
        ("byte", (12, 24), (30, 31), (25, 31)),
    ],
)
def test_offsets_behind_an_emoji(
    server: Server, unit: str, long: tuple[int, int], mark: tuple[int, int], word: tuple[int, int]
) -> None:
    """22 code points are 24 UTF-16 units and 31 bytes: tokens and words stand where their text does."""
    [entry] = server.encode("👩\u200d🚀 Unbelievable café!", attention={"maps": False, "offset_unit": unit})[
        "attention"
    ]
    tokens = entry["tokens"]
    spans = dict(zip(tokens["text"], zip(tokens["start"], tokens["end"], strict=True), strict=True))
    assert (spans["unbelievable"], spans["!"]) == (long, mark)
    assert (entry["words"]["start"][-1], entry["words"]["end"][-1]) == word
    assert entry["words"]["text"] == ["👩\u200d🚀", "Unbelievable", "café!"]


def test_memory_of_maps_comes_back(server: Server) -> None:
    """Long texts with whole maps of all layers, statistics and rollout: once warm, more of them add next to nothing."""
    texts = ["unbelievable " * MAX_LENGTH] * 4
    attention = {"layers": "all", "stats": True, "rollout": {}}
    body = {"texts": texts, "attention": attention}

    def some() -> float:
        for _ in range(int(8 * TEST_SCALE)):
            response = server.client.post("/encode", json=body, headers={"Accept": "application/vnd.safetensors"})
            assert response.status_code == 200
            assert len(response.content) > 2 * 4 * 72 * MAX_LENGTH**2
        return server.sample("process_resident_memory_bytes")

    first, second, third = some(), some(), some()
    assert min(second, third) < first + 80e6  # one request holds 75 MB of maps, and its answer 38 MB


def test_memory_is_flat_over_requests_of_eight_long_texts(start_server: StartServer, tmp_path: Path) -> None:
    """8 texts of 512 tokens with 12 heads' maps, 50 MB an answer, and now and then a caller that leaves: no growth.

    A tiny model, as what could stay behind are maps and answers. ``TEST_SCALE=42`` makes 1,000 requests.
    """
    sizes = {"hidden_size": 48, "num_attention_heads": 12, "max_position_embeddings": 512}
    folder = make_bert_folder(tmp_path / "long", max_length=512, **sizes)
    server = start_server("--model", f"long={folder}", "--no-warmup")
    body = {"texts": ["cat " * 600] * 8, "model": "long", "attention": {"layers": [-1]}}
    headers = {"Accept": "application/vnd.safetensors"}

    def leave_early() -> None:
        with closing(
            http.client.HTTPConnection(server.client.base_url.host, server.client.base_url.port)
        ) as connection:
            connection.request("POST", "/encode", json.dumps(body), {"Content-Type": "application/json", **headers})

    def third() -> float:
        for number in range(int(8 * TEST_SCALE)):
            response = server.client.post("/encode", json=body, headers=headers)
            assert response.status_code == 200
            assert len(response.content) > 2 * 8 * 12 * 512**2
            if number % 4 == 0:
                leave_early()
        return server.sample("process_resident_memory_bytes")

    first, second, last = third(), third(), third()
    print(f"MB after each third of {3 * int(8 * TEST_SCALE)}: {first / 1e6:.0f}, {second / 1e6:.0f}, {last / 1e6:.0f}")
    # One request's maps, 100 MB in float32, and its answer, 50 MB, are there at one look and not at another.
    assert min(second, last) < first + 150e6


def test_typed_special_tokens_are_text(server: Server, reference: dict[str, Any]) -> None:
    """By default what a user types is text: no token of it is special, and the sentence keeps its structure."""
    body = server.encode(TEXTS[TYPED_SPECIAL], attention={})
    tokens = body["attention"][0]["tokens"]
    assert tokens["special"] == [True, *[False] * (len(tokens["id"]) - 2), True]
    assert tokens["id"].count(101) == tokens["id"].count(102) == 1
    assert np.abs(np.array(body["embeddings"][0]) - reference["embeddings"][TYPED_SPECIAL]).max() > 1e-3


def test_typed_special_tokens_can_be_parsed(parsing_server: Server, reference: dict[str, Any]) -> None:
    """With the other setting they are what sentence-transformers makes of them, maps included."""
    attention = {"layers": "all", "encoding": "base64", "dtype": "float32"}
    body = parsing_server.encode(TEXTS[TYPED_SPECIAL], attention=attention)
    [entry] = body["attention"]
    assert entry["tokens"]["id"] == ROWS[TYPED_SPECIAL]["input_ids"]
    np.testing.assert_allclose(body["embeddings"][0], reference["embeddings"][TYPED_SPECIAL], atol=TOLERANCE, rtol=0)
    maps = np.frombuffer(base64.b64decode(entry["maps"]["data"]), "<f4").reshape(entry["maps"]["shape"])
    np.testing.assert_allclose(maps, reference[f"attention_{TYPED_SPECIAL}"], atol=TOLERANCE, rtol=0)
    # what the template added is special, what was typed is not, and stays where special tokens leave
    assert entry["tokens"]["special"] == [True, *[False] * (len(maps[0, 0]) - 2), True]
    [hidden] = parsing_server.encode(TEXTS[TYPED_SPECIAL], attention={**attention, "special": "mask"})["attention"]
    assert hidden["maps"]["units"]["token"] == list(range(1, len(maps[0, 0]) - 1))


def test_variables_of_kubernetes_are_ignored(parsing_server: Server) -> None:
    """A Service called eyeline injects variables that look like ours: the server started, on its own port."""
    assert parsing_server.client.get("/health").status_code == 200
    assert "10.0.0.7" not in parsing_server.url


@pytest.mark.parametrize(
    ("words", "num_tokens", "total", "truncated"),
    [
        (MAX_LENGTH - 2, MAX_LENGTH, MAX_LENGTH, False),
        (MAX_LENGTH - 1, MAX_LENGTH, MAX_LENGTH + 1, True),
        (10 * MAX_LENGTH - 2, MAX_LENGTH, 10 * MAX_LENGTH, True),
    ],
)
def test_at_and_over_the_maximum(server: Server, words: int, num_tokens: int, total: int, truncated: bool) -> None:
    """Exactly the maximum is whole; one token more, and ten times as many, are cut, and say so, or are refused."""
    text = "cat " * words
    body = server.encode([text, "cat"])
    assert body["num_tokens"] == [num_tokens, 3]
    assert body["num_tokens_total"] == [total, 3]
    assert body["truncated"] == [truncated, False]
    whole = server.encode("cat " * (MAX_LENGTH - 2))
    np.testing.assert_allclose(body["embeddings"][0], whole["embeddings"][0], atol=TOLERANCE)
    response = server.client.post("/encode", json={"texts": ["cat", text], "truncate": False})
    if truncated:
        assert response.status_code == 413
        problem = response.json()
        assert (problem["code"], problem["param"]) == ("text_too_long", "texts[1]")
        assert (problem["limit"], problem["actual"]) == (MAX_LENGTH, total)
    else:
        assert response.status_code == 200


def test_binary_answers(server: Server) -> None:
    """Safetensors and npz hold the numbers of JSON's base64, bit for bit."""
    texts = TEXTS[:4]
    encoded = server.encode(texts, encoding_format="base64")["embeddings"]
    expected = np.stack([np.frombuffer(base64.b64decode(text), "<f4") for text in encoded])
    body = {"texts": texts}
    response = server.client.post("/encode", json=body, headers={"Accept": "application/vnd.safetensors"})
    np.testing.assert_array_equal(safetensors.numpy.load(response.content)["embeddings"], expected)
    response = server.client.post("/encode", json=body, headers={"Accept": "application/x-npz"})
    with np.load(io.BytesIO(response.content), allow_pickle=False) as file:
        np.testing.assert_array_equal(file["embeddings"], expected)


# ---- comparisons, explained


def write_dense(folder: Path, activation: str) -> None:
    """Add a dense layer to a tiny model folder, as sentence-transformers writes it."""
    modules = json.loads((folder / "modules.json").read_text())
    kind = "sentence_transformers.models.Dense"
    modules.append({"idx": len(modules), "name": str(len(modules)), "path": "2_Dense", "type": kind})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "2_Dense").mkdir()
    config = {"in_features": 16, "out_features": 12, "bias": True, "activation_function": f"torch.nn.{activation}"}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(config))
    draw = np.random.default_rng(0)
    tensors = {"linear.weight": draw.standard_normal((12, 16)), "linear.bias": draw.standard_normal(12)}
    safetensors.numpy.save_file(
        {name: array.astype(np.float32) for name, array in tensors.items()}, folder / "2_Dense" / "model.safetensors"
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models: one with a linear layer behind pooling, one with tanh there, one that pools by its first token."""
    folder = tmp_path_factory.mktemp("models")
    write_dense(make_bert_folder(folder / "linear"), "Identity")
    write_dense(make_bert_folder(folder / "tanh"), "Tanh")
    make_bert_folder(folder / "cls", pooling="cls_token")
    return {name: folder / name for name in ("linear", "tanh", "cls")}


@pytest.fixture(scope="module")
def explaining_server(start_server: StartServer, models: dict[str, Path]) -> Server:
    """A server of the default model and of the tiny ones."""
    others = [part for name, folder in models.items() for part in ("--model", f"{name}={folder}")]
    return start_server(*others, "--no-warmup")


@pytest.fixture(scope="module")
def bfloat16_server(start_server: StartServer) -> Server:
    """A server that runs the default model in bfloat16."""
    return start_server("--dtype", "bfloat16", "--no-warmup")


def pairs_of_many_lengths() -> list[list[str]]:
    """Texts of the reference, each with the next; each length of text from a few to the maximum with another."""
    words = ("the", "quick", "fox", "doesn't", "jump", "over", "unbelievably", "lazy", "dogs", "in", "Zürich", "東京")
    long = [" ".join(words[index % len(words)] for index in range(length)) for length in (1, 2, 5, 17, 60, 150, 400)]
    others = [index for index in range(len(TEXTS)) if index != TYPED_SPECIAL]
    return [
        *([TEXTS[a], TEXTS[b]] for a, b in itertools.pairwise(others)),
        *([a, b] for a, b in zip(long, reversed(long), strict=True)),
        ["", ""],
        [TEXTS[0], TEXTS[0]],
    ]


def check_explanations(server: Server, pairs: list[list[str]], **fields: Any) -> list[dict[str, Any]]:
    """Explain pairs; every map must sum to the cosine that is answered with it, and without it, within 1e-6."""
    response = server.client.post("/similarity", json={"pairs": pairs, "explain": True, **fields})
    assert response.status_code == 200, response.text
    body = response.json()
    plain_fields = {name: value for name, value in fields.items() if name != "unit"}
    plain = server.client.post("/similarity", json={"pairs": pairs, **plain_fields}).json()
    explanations: list[dict[str, Any]] = body["explanations"]
    for explanation, answered, alone in zip(explanations, body["similarities"], plain["similarities"], strict=True):
        values = np.array(explanation["values"])
        assert values.shape == (len(explanation["rows"]["token"]), len(explanation["columns"]["token"]))
        for cosine in (explanation["sum"], answered, alone):
            assert values.sum() == pytest.approx(cosine, abs=1e-6)
    return explanations


@pytest.mark.parametrize("fields", [{}, {"unit": "word"}, {"dimensions": 64}, {"dimensions": 7, "unit": "word"}])
def test_explanations_sum_to_the_cosine(explaining_server: Server, fields: dict[str, Any]) -> None:
    """For pairs of texts of many lengths, tokens and words, with fewer dimensions too."""
    pairs = pairs_of_many_lengths()
    explanations = check_explanations(explaining_server, pairs, **fields)
    lengths = {len(explanation["a"]["tokens"]["id"]) for explanation in explanations}
    assert len(lengths) > 10
    assert {2, MAX_LENGTH} <= lengths
    assert explanations[-1]["sum"] == pytest.approx(1, abs=1e-6)


def test_explanations_sum_to_the_references_cosine(explaining_server: Server, reference: dict[str, Any]) -> None:
    """The sums are the cosines of the embeddings that sentence-transformers gives."""
    others = [index for index in range(len(TEXTS)) if index != TYPED_SPECIAL]
    pairs = [[TEXTS[a], TEXTS[b]] for a, b in itertools.pairwise(others)]
    vectors = reference["embeddings"][others].astype(np.float64)
    expected = (vectors[:-1] * vectors[1:]).sum(axis=1)
    sums = [explanation["sum"] for explanation in check_explanations(explaining_server, pairs)]
    np.testing.assert_allclose(sums, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("unit", ["token", "word"])
def test_explanations_in_bfloat16(bfloat16_server: Server, unit: str) -> None:
    """A model that runs in bfloat16 is explained as exactly: the sum is that model's own cosine."""
    assert bfloat16_server.client.get("/info").json()["model_dtype"] == "bfloat16"
    check_explanations(bfloat16_server, pairs_of_many_lengths(), unit=unit)


@pytest.mark.parametrize("fields", [{}, {"unit": "word"}, {"dimensions": 5}])
def test_explanations_behind_a_linear_layer(explaining_server: Server, fields: dict[str, Any]) -> None:
    """A dense layer without activation is part of the sum."""
    pairs = [["the cat sat", "a dog barked"], ["xyz", ""], ["cat " * 50, "hello world, hello!"]]
    check_explanations(explaining_server, pairs, model="linear", **fields)


@pytest.mark.parametrize(("model", "reason"), [("tanh", "tanh"), ("cls", "pools by cls")])
def test_what_cannot_be_explained(explaining_server: Server, model: str, reason: str) -> None:
    """Models whose embedding is no sum over tokens say so, with the reason, and still compare."""
    body = {"pairs": [["the cat", "a dog"]], "model": model}
    assert explaining_server.client.post("/similarity", json=body).status_code == 200
    response = explaining_server.client.post("/similarity", json={**body, "explain": True})
    assert response.status_code == 501
    problem = response.json()
    assert (problem["code"], problem["param"]) == ("explanation_not_supported", "explain")
    assert reason in problem["detail"]


@pytest.mark.parametrize("special", ["keep", "renormalize"])
def test_heads_are_compared_by_their_maps(server: Server, special: str) -> None:
    """Distances over HTTP are those of the maps over HTTP; the layout holds the share that it says."""
    texts = [text for index, text in enumerate(TEXTS) if index != TYPED_SPECIAL][:8]
    response = server.client.post("/attention/heads", json={"texts": texts, "special": special})
    assert response.status_code == 200, response.text
    body = response.json()
    squared, rows = 0.0, 0
    answer = server.encode(texts, attention={"layers": "all", "encoding": "base64", "dtype": "float32"})
    for entry in answer["attention"]:
        maps = np.frombuffer(base64.b64decode(entry["maps"]["data"]), "<f4").reshape(entry["maps"]["shape"])
        kept = [
            index for index, is_special in enumerate(entry["tokens"]["special"]) if special == "keep" or not is_special
        ]
        if not kept:
            continue
        heads = maps.reshape(-1, *maps.shape[2:]).astype(np.float64)[:, kept][:, :, kept]
        roots = np.sqrt(heads / heads.sum(axis=-1, keepdims=True))
        shared = np.einsum("aqk,bqk->ab", roots, roots)
        squared, rows = squared + len(kept) - shared, rows + len(kept)
    expected = np.sqrt(np.clip(squared / rows, 0, None))
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(body["distances"], expected, atol=2e-5, rtol=0)
    places = np.array(body["layout"])
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    assert (apart**2).sum() / (expected**2).sum() == pytest.approx(body["explained"], abs=1e-3)
    # along the order, neighbours are much nearer than heads are on average, which is what any other order gives
    order = body["order"]
    along = [expected[a, b] for a, b in itertools.pairwise(order)]
    assert sorted(order) == list(range(len(body["heads"]))) == list(range(72))
    assert np.mean(along) < 0.8 * expected[np.triu_indices(72, 1)].mean()


def curl(*arguments: str) -> str:
    """Run curl as a user would, failing on an HTTP error."""
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--fail", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return done.stdout


def test_curl_checks_health(server: Server) -> None:
    """The health check of a compose file: one line, exit code 0; HEAD works as well."""
    assert curl(f"{server.url}/health") == '{"status":"ready"}\n'
    assert "200 OK" in curl("--head", f"{server.url}/health/ready")


def test_curl_encodes(server: Server) -> None:
    """One command, and the embedding is there."""
    body = json.loads(curl(f"{server.url}/encode", "--json", '{"texts": "hello world"}'))
    np.testing.assert_allclose(body["embeddings"], server.encode("hello world")["embeddings"], atol=TOLERANCE)


NUM_CLIENTS = 64
NUM_TEXTS = int(50 * TEST_SCALE)
WORDS = ("the", "a", "cat", "dog", "sat", "ran", "on", "under", "quick", "brown", "fox", "zürich", "42", "don't")


def make_pool(draw: random.Random, size: int) -> list[str]:
    """Draw distinct texts, most of them short, some long, as callers send them."""
    pool: dict[str, None] = {}
    while len(pool) < size:
        length = min(int(draw.lognormvariate(1.8, 0.8)) + 1, 120)
        pool[" ".join(draw.choices(WORDS, k=length))] = None
    return list(pool)


def test_many_clients_get_their_own_answers(server: Server) -> None:
    """64 clients at once, each sending its texts one after the other: every answer is that of the text alone."""
    draw = random.Random(20)
    pool = make_pool(draw, 300)
    alone = np.stack([server.encode(text)["embeddings"][0] for text in pool])
    plans = [[draw.randrange(len(pool)) for _ in range(NUM_TEXTS)] for _ in range(NUM_CLIENTS)]

    def client(plan: list[int]) -> float:
        """Send one plan over a connection of its own, and return the largest error of any answer."""
        draw, error = random.Random(plan[0]), 0.0
        # the standard library's client: a heavier one would take the machine from the server
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE_SECONDS)
        with closing(connection):
            position = 0
            while position < len(plan):
                chosen = plan[position : position + draw.choice((1, 1, 1, 2, 5))]
                position += len(chosen)
                body = json.dumps({"texts": [pool[index] for index in chosen], "encoding_format": "base64"})
                connection.request("POST", "/encode", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                answer = json.loads(response.read())
                assert response.status == 200, answer
                rows = np.stack([np.frombuffer(base64.b64decode(row), "<f4") for row in answer["embeddings"]])
                error = max(error, float(np.abs(rows - alone[chosen]).max()))
        return error

    before = server.sample("eyeline_texts_total", route="/encode")
    with ThreadPoolExecutor(NUM_CLIENTS) as threads:
        errors = list(threads.map(client, plans))
    # two texts of the pool are never so near to each other that a swap would pass
    distances = np.linalg.norm(alone[:, None] - alone[None], axis=-1) + 10 * np.eye(len(pool))
    assert distances.min() > 10 * TOLERANCE
    assert max(errors) < TOLERANCE
    assert server.sample("eyeline_texts_total", route="/encode") - before == NUM_CLIENTS * NUM_TEXTS
    assert server.sample("eyeline_queue_texts") == 0
    assert server.sample("eyeline_batch_texts_sum") / server.sample("eyeline_batch_texts_count") > 1
