"""text-embeddings-inference's API through HTTP: what its clients send, what they read, and its errors."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.schemas.tei import TeiErrorResponse
from app.settings import ModelSpec
from model.contract import EncodeInput
from tests.app.conftest import Serve, Served, until
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.anyio

EMBED_PATHS = ("/embed", "/", "/models/tiny/embed", "/models/tiny")
TEXTS = ["The cat sat on the mat.", "A dog barked!", "hello world"]
LONG = "the cat " + "dog " * 100  # 104 tokens, the tiny model reads 32
MARKER = "MARKER7"
TIMES = ("x-compute-time", "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time")


async def ask(server: Served, path: str, **body: Any) -> Any:
    """Post a body, expecting success, and return the parsed answer."""
    response = await server.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


def assert_error(response: httpx.Response, status: int, kind: str, *parts: str) -> None:
    """Check the one shape: two keys; the sentence has these parts."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    TeiErrorResponse.model_validate(body, strict=True)
    assert list(body) == ["error", "error_type"]
    assert body["error_type"] == kind
    for part in parts:
        assert part in body["error"]
    assert MARKER not in response.text


@pytest.mark.parametrize("path", EMBED_PATHS)
async def test_texts_become_a_list_of_vectors(server: Served, path: str) -> None:
    """Always a list of lists, for one text too; as /encode gives them. Clients of the Hub post to the
    address itself.
    """
    many = await ask(server, path, inputs=TEXTS)
    np.testing.assert_allclose(many, server.embedder.encode(TEXTS), atol=1e-6)
    np.testing.assert_allclose(await ask(server, path, inputs=TEXTS[0]), many[:1], atol=1e-6)


async def test_a_flat_list_of_integers_is_one_text(server: Served) -> None:
    """And a list may hold texts and lists of ids side by side.

    https://github.com/huggingface/text-embeddings-inference/issues/273
    """
    ids = [item.input_ids for item in server.embedder.tokenizer.encode(TEXTS)]
    expected = server.embedder.encode(TEXTS)
    np.testing.assert_allclose(await ask(server, "/embed", inputs=ids[0]), expected[:1], atol=1e-6)
    mixed = await ask(server, "/embed", inputs=[TEXTS[0], ids[1], TEXTS[2]])
    np.testing.assert_allclose(mixed, expected, atol=1e-6)


async def test_options_of_embed(server: Served) -> None:
    """normalize, dimensions, prompt_name; nulls are defaults."""
    raw = await ask(server, "/embed", inputs="cat", normalize=False)
    np.testing.assert_allclose(raw, server.embedder.encode("cat", normalize=False), atol=1e-5)
    cut = await ask(server, "/embed", inputs="cat", dimensions=5)
    np.testing.assert_allclose(cut, server.embedder.encode("cat", dimensions=5), atol=1e-6)
    assert np.linalg.norm(cut) == pytest.approx(1, abs=1e-6)
    prompted = await ask(server, "/embed", inputs="cat", prompt_name="query")
    np.testing.assert_allclose(prompted, server.embedder.encode("cat", prompt_name="query"), atol=1e-6)
    nulls = await ask(server, "/embed", inputs="cat", truncate=None, prompt_name=None, dimensions=None)
    assert nulls == await ask(server, "/embed", inputs="cat")


@pytest.mark.parametrize(
    ("direction", "words"),
    [
        ("Right", "the cat " + "dog " * 28),
        ("Left", "dog " * 30),
        ("left", "dog " * 30),
        (None, "the cat " + "dog " * 28),
    ],
)
async def test_a_long_text_is_cut_at_either_end(server: Served, direction: str | None, words: str) -> None:
    """With truncate true; the headers say so, and it is counted."""
    fields = {} if direction is None else {"truncation_direction": direction}
    response = await server.post("/embed", {"inputs": ["a", LONG], "truncate": True, **fields})
    np.testing.assert_allclose(response.json()[1], server.embedder.encode(words)[0], atol=1e-6)
    assert (response.headers["x-truncated-count"], response.headers["x-truncated-texts"]) == ("1", "1")
    assert response.headers["x-compute-tokens"] == "35"
    assert server.sample("eyeline_truncated_texts_total", model="tiny") == 1


@pytest.mark.parametrize("fields", [{}, {"truncate": False}, {"truncate": None}])
@pytest.mark.parametrize("path", ["/embed", "/embed_all", "/models/tiny/embed"])
async def test_without_truncate_a_long_text_is_413(server: Served, path: str, fields: dict[str, Any]) -> None:
    """On every route and for texts and ids alike, with the limit, the length and the place; nothing is run.

    https://github.com/huggingface/text-embeddings-inference/issues/52
    """
    for inputs, name in ((["a", LONG], "inputs[1]"), (LONG, "inputs"), ([5] * 104, "inputs")):
        response = await server.post(path, {"inputs": inputs, **fields})
        assert_error(response, 413, "Validation", name, "104", "32")
    assert server.embedder.batches == []
    fitting = await server.post(path, {"inputs": "cat " * 30, **fields})
    assert fitting.status_code == 200


async def test_a_vector_for_each_token(server: Served) -> None:
    """Special tokens included, no padding, not scaled: their mean is what /embed scales."""
    answer = await ask(server, "/embed_all", inputs=["the cat sat", "dog"])
    assert [len(text) for text in answer] == [5, 3]
    assert {len(vector) for text in answer for vector in text} == {16}
    pooled = [np.mean(text, axis=0) for text in answer]
    expected = server.embedder.encode(["the cat sat", "dog"], normalize=False)
    np.testing.assert_allclose(pooled, expected, atol=1e-5)
    assert server.sample("eyeline_texts_total", model="tiny", route="/embed_all") == 2
    again = await ask(server, "/models/tiny/embed_all", inputs=["the cat sat", "dog"])
    np.testing.assert_allclose(again[0], answer[0], atol=1e-6)


async def test_vectors_of_too_many_tokens_are_refused(serve: Serve) -> None:
    """413 (answer_too_large) before anything is run: as JSON they would be hundreds of megabytes."""
    async with serve(max_token_values=100) as server:
        response = await server.post("/embed_all", {"inputs": ["cat", "the cat sat"]})
        assert_error(response, 413, "Validation", "inputs", "128", "100")
        assert server.sample("eyeline_errors_total", code="answer_too_large") == 1
        assert server.embedder.batches == []


async def test_headers_say_what_it_took(server: Served) -> None:
    """Characters and tokens as they are; milliseconds whose parts are within the total; the device."""
    response = await server.post("/embed", {"inputs": ["héllo", "a dog", [5, 6]]})
    headers = response.headers
    assert headers["x-compute-characters"] == "10"
    num_tokens = sum(item.num_tokens for item in server.embedder.tokenizer.encode(["héllo", "a dog"])) + 2
    assert headers["x-compute-tokens"] == str(num_tokens)
    assert headers["x-compute-type"] == "cpu"
    total, also, *parts = (int(headers[name]) for name in TIMES)
    assert total == also >= sum(parts)
    assert headers["server-timing"].startswith("tokenize;dur=")
    assert headers["x-truncated-count"] == "0"


async def test_unknown_fields_are_named(server: Served) -> None:
    """They are taken, as there, but not in silence; a name that no header can hold is not repeated."""
    response = await server.post("/embed", {"inputs": "a", "normalise": False, "options": {}, "a b\r\nx: y": 1})
    assert response.status_code == 200
    assert response.headers["x-ignored-fields"] == "normalise,options,?"
    assert "x-ignored-fields" not in (await server.post("/embed", {"inputs": "a"})).headers
    nested = {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"truncat": True}}
    compared = await server.post("/similarity", nested)
    assert compared.headers["x-ignored-fields"] == "parameters.truncat"
    for path, body in (("/tokenize", {"inputs": "a"}), ("/decode", {"ids": [5]})):
        assert (await server.post(path, {**body, "x": 1})).headers["x-ignored-fields"] == "x"


@pytest.mark.parametrize("prefix", ["", "/models/tiny"])
async def test_ids_become_texts(server: Served, prefix: str) -> None:
    """One list of ids, or many; with special tokens where they are wanted."""
    [ids] = [item.input_ids for item in server.embedder.tokenizer.encode(["the cat sat"])]
    path = f"{prefix}/decode"
    assert await ask(server, path, ids=ids) == ["the cat sat"]
    assert await ask(server, path, ids=[ids, ids[1:3]]) == ["the cat sat", "the cat"]
    assert await ask(server, path, ids=ids, skip_special_tokens=False) == ["[CLS] the cat sat [SEP]"]


@pytest.mark.parametrize(
    ("path", "body", "parts"),
    [
        ("/embed", {"inputs": ""}, ["inputs"]),
        ("/embed", {"inputs": []}, ["inputs"]),
        ("/embed", {"inputs": ["a", ""]}, ["inputs[1]"]),
        ("/embed_all", {"inputs": [[5], []]}, ["inputs[1]"]),
        ("/decode", {"ids": []}, ["ids"]),
        ("/decode", {"ids": [[5], []]}, ["ids[1]"]),
        ("/tokenize", {"inputs": ["a", ""]}, ["inputs[1]"]),
        ("/similarity", {"inputs": {"source_sentence": "", "sentences": ["a"]}}, ["inputs.source_sentence"]),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", ""]}}, ["inputs.sentences[1]"]),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, ["inputs.sentences"]),
    ],
)
async def test_nothing_is_400_empty(server: Served, path: str, body: dict[str, Any], parts: list[str]) -> None:
    """As there, and here the place is named; other texts than "" are texts."""
    assert_error(await server.post(path, body), 400, "Empty", *parts)
    assert server.embedder.batches == []
    assert (await server.post("/embed", {"inputs": [" ", "\u200b"]})).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "parts"),
    [
        ("/embed", {}, ["inputs", "required"]),
        ("/embed", {"inputs": {"text": MARKER}}, ["inputs"]),
        ("/embed", {"inputs": [5, "a"]}, ["inputs[0]", "string"]),
        ("/embed", {"inputs": ["a", [5], 5]}, ["inputs[2]", "string"]),
        ("/embed", {"inputs": ["a", [5, "b"]]}, ["inputs[1][1]", "integer"]),
        ("/embed", {"inputs": [[-1]]}, ["inputs[0]", "-1"]),
        ("/embed", {"inputs": [999_999]}, ["inputs:", "999999"]),
        ("/embed", {"inputs": "a", "normalize": None}, ["normalize"]),
        ("/embed", {"inputs": "a", "dimensions": 0}, ["dimensions"]),
        ("/embed", {"inputs": "a", "dimensions": 17}, ["dimensions", "17", "16"]),
        ("/embed", {"inputs": "a", "truncate": "yes"}, ["truncate"]),
        ("/embed", {"inputs": "a", "truncation_direction": MARKER}, ["truncation_direction"]),
        ("/embed", {"inputs": "a", "prompt_name": MARKER}, ["prompt_name", "Available prompts: [passage, query]"]),
        ("/embed", {"inputs": [5], "prompt_name": "query"}, ["prompt_name"]),
        ("/embed_all", {"inputs": 5}, ["inputs"]),
        ("/decode", {"ids": [5, -1]}, ["ids:", "-1"]),
        ("/decode", {"ids": MARKER}, ["ids"]),
        ("/models/tiny/similarity", {"inputs": [MARKER]}, ["inputs"]),
        ("/models/tiny/tokenize", {"texts": [MARKER]}, ["inputs", "required"]),
    ],
)
async def test_what_is_wrong_is_422(server: Served, path: str, body: dict[str, Any], parts: list[str]) -> None:
    """In two keys, with the field in the sentence."""
    assert_error(await server.post(path, body), 422, "Validation", *parts)
    assert server.embedder.batches == []


@pytest.mark.parametrize("route", ["embed", "embed_all", "decode", "similarity", "tokenize", "info"])
async def test_a_model_is_named_by_the_path(serve: Serve, tmp_path: Path, route: str) -> None:
    """Every route of a body without a model; a name that is not served is 404 and not repeated."""
    bodies: dict[str, Any] = {
        "decode": {"ids": [5]},
        "similarity": {"inputs": {"source_sentence": "the cat", "sentences": ["dog"]}},
    }
    first = make_bert_folder(tmp_path / "first")
    second = make_bert_folder(tmp_path / "second", seed=1, hidden_size=24)
    async with serve(model=(ModelSpec("first", first), ModelSpec("second", second))) as server:

        async def answer(path: str) -> httpx.Response:
            if route == "info":
                return await server.client.get(path)
            return await server.post(path, bodies.get(route, {"inputs": "the cat"}))

        plain = (await answer(f"/{route}")).json()
        assert (await answer(f"/models/first/{route}")).json() == plain
        named = (await answer(f"/models/second/{route}")).json()
        assert (named == plain) == (route in {"decode", "tokenize"})  # both read alike
        if route == "embed":
            np.testing.assert_allclose(named, server.embedders["second"].encode("the cat"), atol=1e-6)
        assert_error(await answer(f"/models/{MARKER}/{route}"), 404, "Validation", "first, second")


@pytest.mark.parametrize("path", ["/embed", "/embed_all", "/decode", "/", "/models/tiny/embed", "/models/tiny"])
async def test_errors_before_the_route_have_the_shape_too(serve: Serve, path: str) -> None:
    """Malformed JSON, another content type, too many bytes, a wrong verb."""
    async with serve(max_body_bytes=100, viewer=False) as server:
        json = {"content-type": "application/json"}
        for content in (b'{"inputs": ', b'{"inputs": "a\\ud800b"}', b""):
            assert_error(await server.client.post(path, content=content, headers=json), 400, "Validation")
        assert_error(await server.client.post(path, content=b"{}"), 415, "Validation", "application/json")
        assert_error(await server.post(path, {"inputs": "a" * 200}), 413, "Validation", "100")
        if path != "/":
            wrong_verb = await server.client.get(path)
            assert_error(wrong_verb, 405, "Validation")
            assert wrong_verb.headers["allow"] == "POST"


async def test_too_many_texts_are_413(serve: Serve) -> None:
    """With the limit and the number."""
    async with serve(max_texts=3) as server:
        assert_error(await server.post("/embed", {"inputs": ["a"] * 4}), 413, "Validation", "3", "4")
        assert_error(await server.post("/decode", {"ids": [[5]] * 4}), 413, "Validation", "3", "4")
        compared = {"inputs": {"source_sentence": "a", "sentences": ["b"] * 3}}
        assert_error(await server.post("/similarity", compared), 413, "Validation", "3", "4")


async def test_overload_is_429_with_a_time(serve: Serve) -> None:
    """Overloaded, and when to come back, which is more than that server says."""
    async with serve(max_queue_texts=1, max_texts=1) as server:
        server.embedder.gate.clear()
        running = asyncio.create_task(server.post("/embed", {"inputs": "a"}))
        await until(lambda: bool(server.embedder.batches))
        waiting = asyncio.create_task(server.post("/embed", {"inputs": "b"}))
        await until(lambda: server.sample("eyeline_queue_texts", model="tiny") == 1)
        refused = await server.post("/embed", {"inputs": "c"})
        assert_error(refused, 429, "Overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        server.embedder.gate.set()
        assert [answer.status_code for answer in await asyncio.gather(running, waiting)] == [200, 200]


async def test_a_server_that_cannot_answer_says_so(server: Served) -> None:
    """503 Unhealthy before it is ready, 500 Backend for what fails: never vectors of nulls.

    https://github.com/huggingface/text-embeddings-inference/issues/644
    """
    service, server.state.service = server.state.service, None
    early = await server.post("/embed", {"inputs": "a"})
    assert_error(early, 503, "Unhealthy")
    assert early.headers["retry-after"] == "1"
    server.state.service = service

    def fail(inputs: list[EncodeInput]) -> None:
        raise RuntimeError(MARKER)

    server.embedder.before_run = fail  # type: ignore[assignment]
    assert_error(await server.post("/embed", {"inputs": ["a"]}), 500, "Backend", "inputs[0]")


FLOODS = {
    "unknown fields": ("/embed", '{"inputs":"a",%s"inputs":"a"}', '"x":1,', 200),
    "wrong items": ("/embed", '{"inputs":[%s5]}', '"a",[1],', 422),
    "empty lists": ("/embed", '{"inputs":[%s[]]}', "[],", 400),
    "ids of one text": ("/embed", '{"inputs":[%s5]}', "5,", 413),
    "texts": ("/embed_all", '{"inputs":[%s"a"]}', '"a",', 413),
    "wrong sentences": ("/similarity", '{"inputs":{"source_sentence":"a","sentences":[%s5]}}', "5,", 422),
    "lists of ids": ("/decode", '{"ids":[%s[5]]}', "[5],", 413),
    "nesting": ("/tokenize", '{"inputs":%s}', "[", 400),
}


@pytest.mark.usefixtures("frozen_heap")
@pytest.mark.parametrize(("path", "body", "item", "status"), FLOODS.values(), ids=FLOODS)
async def test_a_flood_is_answered_in_a_few_words(server: Served, path: str, body: str, item: str, status: int) -> None:
    """200,000 items cost a fraction of a second of this thread's time, and headers and errors stay short."""
    content = (body % (item * 200_000)).encode()
    began = time.thread_time()
    response = await server.client.post(path, content=content, headers={"content-type": "application/json"})
    assert time.thread_time() - began < 3.0
    assert response.status_code == status, response.text[:300]
    assert len(response.content) < 1_000
    assert sum(len(name) + len(value) for name, value in response.headers.items()) < 1_000
    assert server.embedder.batches == [] or status == 200


async def test_many_numbers_are_written_on_a_thread(serve: Serve) -> None:
    """1,300 vectors of 16 numbers are more than the event loop writes; nothing differs."""
    async with serve(max_texts=2_000) as server:
        answer = await ask(server, "/embed", inputs=["cat", "dog"] * 650)
        np.testing.assert_allclose(answer[-2:], server.embedder.encode(["cat", "dog"]), atol=1e-6)
