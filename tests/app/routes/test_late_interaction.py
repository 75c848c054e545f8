"""Late interaction through HTTP: vectors of tokens, scores of documents, what is cut, what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
import safetensors.numpy

from app.settings import ModelSpec
from model.contract import EncodeInput, FloatArray
from model.late_interaction import max_sim
from model.readings import Role
from model.tokenizer import Text, TokenIds
from tests.app.conftest import Serve, Served
from tests.app.routes.scoring import make_models
from tests.app.routes.test_rerank import LONG, MARKER, ask, assert_error, assert_tei_error
from tests.model.test_late_interaction import own_layout
from tests.tiny import PYLATE, TOKEN_DIMENSIONS, make_bert_folder

pytestmark = pytest.mark.anyio

NAME = "late_interaction"
VECTOR_PATHS = ("/embed_all", f"/models/{NAME}/embed_all")
TEI_PATHS = ("/rerank", f"/models/{NAME}/rerank")
RERANK_PATHS = ("/rerank", "/v1/rerank", "/v2/rerank")
QUERY = "the cat sat"
TEXTS = ["a dog barked!", "", "the cat sat, on the mat.", "hello world"]
QUERY_LENGTH, DOCUMENT_LENGTH = PYLATE["query_length"], PYLATE["document_length"]


@pytest.fixture
async def server(serve: Serve, tmp_path: Path) -> AsyncIterator[Served]:
    """A late interaction model, which is the default, and a model of each other kind."""
    async with serve(model=make_models(tmp_path, NAME, "embedding", "sparse", "classifier", "reranker")) as served:
        yield served


def expected(server: Served, texts: Sequence[Text | TokenIds], role: Role = "document", **options: Any) -> list[Any]:
    """The vectors of each text from the library, run by themselves."""
    embedder = server.embedder
    inputs = embedder.tokenizer.encode(texts, role=role, **options)
    return [embedder.run([item], [embedder.own_output])[0].token_vectors for item in inputs]


def expected_scores(server: Served, query: str, texts: Sequence[str]) -> FloatArray:
    """MaxSim of a query with each text."""
    [asked] = expected(server, [query], "query")
    return np.array([max_sim(asked, document) for document in expected(server, texts)])


def assert_same(answer: list[list[list[float]]], vectors: Sequence[FloatArray]) -> None:
    """As many vectors of each text, and the same."""
    assert [len(one) for one in answer] == [len(one) for one in vectors]
    for one, other in zip(answer, vectors, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


# ---- /embed_all


@pytest.mark.parametrize("path", VECTOR_PATHS)
async def test_documents_have_a_vector_for_each_token_that_is_kept(server: Served, path: str) -> None:
    """With the prefix and the special tokens, without punctuation; also where no role is named, and of ids."""
    texts = [text for text in TEXTS if text]
    vectors = expected(server, texts)
    assert [len(one) for one in vectors] == [len(text.split()) + 3 for text in texts]
    for fields in ({}, {"prompt_name": "document"}, {"prompt_name": None}):
        assert_same(await ask(server, path, inputs=texts, **fields), vectors)
    assert_same(await ask(server, path, inputs=texts[0]), vectors[:1])
    [item] = server.embedder.tokenizer.encode(texts[:1])
    assert_same(await ask(server, path, inputs=[item.input_ids, texts[1]]), vectors[:2])
    route = path.replace(f"/{NAME}/", "/{name}/")
    assert server.sample("eyeline_texts_total", model=NAME, route=route) == 3 * len(texts) + 1 + 2


@pytest.mark.parametrize("path", VECTOR_PATHS)
async def test_queries_have_as_many_vectors_as_they_are_filled_up_to(server: Served, path: str) -> None:
    """Punctuation is kept, and mask tokens have vectors, too; each of unit length."""
    answer = await ask(server, path, inputs=[QUERY, "a, b"], prompt_name="query")
    assert np.array(answer).shape == (2, QUERY_LENGTH, TOKEN_DIMENSIONS)
    assert_same(answer, expected(server, [QUERY, "a, b"], "query"))
    np.testing.assert_allclose(np.linalg.norm(answer, axis=2), 1, atol=1e-6)


async def test_what_was_cut_is_said(server: Served) -> None:
    """By the length of the role; at either end; and refused where it may not be."""
    for role, length in (("query", QUERY_LENGTH), ("document", DOCUMENT_LENGTH)):
        body = {"inputs": ["a", LONG], "prompt_name": role}
        refused = await server.post("/embed_all", body)
        assert_tei_error(refused, 413, "Validation", "inputs[1]", "103", str(length))
        for direction, side in (("Right", "right"), ("Left", "left")):
            response = await server.post("/embed_all", {**body, "truncate": True, "truncation_direction": direction})
            assert response.headers["x-truncated-texts"] == "1"
            assert_same(response.json(), expected(server, ["a", LONG], role, side=side))  # type: ignore[arg-type]


async def test_a_prompt_of_the_role_stands_behind_its_prefix(serve: Serve, tmp_path: Path) -> None:
    """As the folder has it."""
    prompts = {"query": "query : ", "document": "passage : "}
    model = ModelSpec(NAME, make_bert_folder(tmp_path / NAME, late=True, prompts=prompts))
    async with serve(model=(model,)) as server:
        for role, prompt in prompts.items():
            answer = await ask(server, "/embed_all", inputs="the cat", prompt_name=role)
            assert_same(answer, expected(server, [f"{prompt}the cat"], role))  # type: ignore[arg-type]
        [asked] = expected(server, ["query : the cat"], "query")
        [document] = expected(server, ["passage : a dog"])
        [rank] = await ask(server, "/rerank", query="the cat", texts=["a dog"])
        assert rank["score"] == pytest.approx(max_sim(asked, document), abs=1e-5)


async def test_numbers_are_counted_before_they_are_computed(serve: Serve, tmp_path: Path) -> None:
    """Of the vectors that are sent: 413 (answer_too_large), exactly as many are answered."""
    models = make_models(tmp_path, NAME)
    number = (5 + 4) * TOKEN_DIMENSIONS
    body = {"inputs": ["the cat.", "a,"]}  # punctuation has no vector
    async with serve(model=models, max_token_values=number) as server:
        answer = await ask(server, "/embed_all", **body)
        assert sum(map(len, answer)) == 9
    async with serve(model=models, max_token_values=number - 1) as server:
        response = await server.post("/embed_all", body)
        assert_tei_error(response, 413, "Validation", "inputs", str(number), str(number - 1))
        assert server.embedder.batches == []


@pytest.mark.parametrize(
    ("body", "status", "kind", "parts"),
    [
        ({"inputs": ""}, 400, "Empty", ["inputs"]),
        ({"inputs": ["a", ""]}, 400, "Empty", ["inputs[1]"]),
        ({"inputs": [10**6]}, 422, "Validation", ["inputs"]),
        ({"inputs": "a", "prompt_name": MARKER}, 422, "Validation", ["prompt_name", "[document, query]"]),
        ({"inputs": "a", "prompt_name": ""}, 422, "Validation", ["prompt_name", "[document, query]"]),
        ({"inputs": [[5, 6]], "prompt_name": "query"}, 422, "Validation", ["prompt_name", "token ids"]),
        ({}, 422, "Validation", ["inputs"]),
    ],
)
async def test_what_is_refused(server: Served, body: dict[str, Any], status: int, kind: str, parts: list[str]) -> None:
    """In text-embeddings-inference's shape, with the place, before anything is run."""
    assert_tei_error(await server.post("/embed_all", body), status, kind, *parts)
    assert server.embedder.batches == []


# ---- reranking


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("path", TEI_PATHS)
async def test_texts_are_ranked_by_max_sim(server: Served, path: str, raw: bool) -> None:
    """As it is, raw or not; an empty text has vectors of its special tokens. The query is read once."""
    scores = expected_scores(server, QUERY, TEXTS)
    server.embedder.batches.clear()
    response = await server.post(path, {"query": QUERY, "texts": TEXTS, "raw_scores": raw, "return_text": True})
    answer = response.json()
    assert [rank["index"] for rank in answer] == sorted(range(4), key=lambda index: -scores[index])
    for rank in answer:
        assert rank["score"] == pytest.approx(scores[rank["index"]], abs=1e-5)
        assert rank["text"] == TEXTS[rank["index"]]
    assert scores.max() > 1  # no probability
    num_tokens = QUERY_LENGTH + sum(item.num_tokens for item in server.embedder.tokenizer.encode(TEXTS))
    assert response.headers["x-compute-tokens"] == str(num_tokens)
    assert response.headers["x-compute-characters"] == str(len(QUERY) + sum(map(len, TEXTS)))
    assert sum(len(batch) for batch in server.embedder.batches) == 1 + len(TEXTS)
    route = path.replace(f"/{NAME}/", "/{name}/")
    assert server.sample("eyeline_texts_total", model=NAME, route=route) == 1 + len(TEXTS)


@pytest.mark.parametrize("path", RERANK_PATHS)
async def test_documents_are_ranked_by_max_sim(server: Served, path: str) -> None:
    """The same scores in Cohere's and Jina's form. The query is read once."""
    scores = expected_scores(server, QUERY, TEXTS)
    server.embedder.batches.clear()
    answer = await ask(server, path, query=QUERY, documents=TEXTS, top_n=3, return_documents=True)
    assert [one["index"] for one in answer["results"]] == sorted(range(4), key=lambda index: -scores[index])[:3]
    for one in answer["results"]:
        assert one["relevance_score"] == pytest.approx(scores[one["index"]], abs=1e-5)
        assert one["document"] == {"text": TEXTS[one["index"]]}
    num_tokens = QUERY_LENGTH + sum(item.num_tokens for item in server.embedder.tokenizer.encode(TEXTS))
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert sum(len(batch) for batch in server.embedder.batches) == 1 + len(TEXTS)


async def test_what_was_cut_of_a_ranking_is_said(server: Served) -> None:
    """A document by its place; a query that was cut, of every document. truncate false refuses either."""
    response = await server.post("/v1/rerank", {"query": "a", "documents": ["b", LONG, "c"]})
    assert response.headers["x-truncated-texts"] == "1"
    response = await server.post("/v1/rerank", {"query": LONG, "documents": ["b", "c"]})
    assert response.headers["x-truncated-texts"] == "0-1"
    response = await server.post("/rerank", {"query": LONG, "texts": ["b", "c"], "truncate": True})
    assert response.headers["x-truncated-texts"] == "0-1"
    server.embedder.batches.clear()
    for path, key in (("/v1/rerank", "documents"), ("/rerank", "texts")):
        for body, place, length in (
            ({"query": "a", key: ["b", LONG]}, f"{key}[1]", DOCUMENT_LENGTH),
            ({"query": LONG, key: ["b"]}, "query", QUERY_LENGTH),
        ):
            refused = await server.post(path, {**body, "truncate": False})
            if path == "/rerank":
                assert_tei_error(refused, 413, "Validation", place, "103", str(length))
            else:
                assert_error(refused, 413, "text_too_long", place, "103", str(length))
    assert server.embedder.batches == []


async def test_a_rankings_limits_are_those_of_pairs(serve: Serve, tmp_path: Path) -> None:
    """So many documents, and so many characters with the query."""
    async with serve(model=make_models(tmp_path, NAME), max_texts=3, max_text_characters=50) as server:
        await ask(server, "/v1/rerank", query="a", documents=["b"] * 3)
        response = await server.post("/v1/rerank", {"query": "a", "documents": ["b"] * 4})
        assert_error(response, 413, "too_many_texts", "documents", "3", "4")
        response = await server.post("/v1/rerank", {"query": "a" * 26, "documents": ["a", "b" * 25]})
        assert_error(response, 413, "text_too_long", "documents[1]", "50", "51")
        assert_tei_error(await server.post("/rerank", {"query": "a", "texts": []}), 400, "Empty", "texts")
        assert_tei_error(await server.post("/rerank", {"query": "", "texts": ["a"]}), 400, "Empty", "query")


async def test_a_ranking_may_be_as_long_as_the_queue(serve: Serve, tmp_path: Path) -> None:
    """The query is no document; all documents together must fit the queue, or nothing is run."""
    models = make_models(tmp_path, NAME)
    async with serve(model=models, max_texts=3, max_queue_texts=3) as server:
        answer = await ask(server, "/v1/rerank", query="a", documents=["b"] * 3)
        assert len(answer["results"]) == 3
    async with serve(model=models, max_queue_tokens=20) as server:
        await ask(server, "/v1/rerank", query="a", documents=["b"] * 5)
        server.embedder.batches.clear()
        response = await server.post("/v1/rerank", {"query": "a", "documents": ["b"] * 6})
        assert_error(response, 413, "request_too_large", "documents", "20", "24")
        assert server.embedder.batches == []


async def test_documents_are_scored_in_turns(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the vectors of a few are held, not those of all; that changes no score, and nothing is counted twice."""
    many = [f"the cat {'sat ' * (index % 5)}" for index in range(12)]
    scores = expected_scores(server, QUERY, many)
    # 81 vectors, 5 to 9 of a text
    monkeypatch.setattr("app.plain_flows.MAX_TURN_NUMBERS", 30 * TOKEN_DIMENSIONS)
    server.embedder.batches.clear()
    response = await server.post("/v1/rerank", {"query": QUERY, "documents": many})
    query, *turns = server.embedder.batches
    assert [item.num_tokens for item in query] == [QUERY_LENGTH]
    assert len(turns) == 3
    assert all(sum(item.num_vectors for item in turn) <= 30 for turn in turns)
    for one in response.json()["results"]:
        assert one["relevance_score"] == pytest.approx(scores[one["index"]], abs=1e-5)
    assert server.sample("eyeline_texts_total", model=NAME, route="/v1/rerank") == 1 + len(many)
    assert server.sample("eyeline_stage_duration_seconds_count", model=NAME, stage="inference") == 1
    stages = dict(part.split(";dur=") for part in response.headers["server-timing"].split(", "))
    parts = sum(float(stages[name]) for name in ("tokenize", "queue", "inference"))
    assert parts <= float(stages["total"]) + 0.001


@pytest.mark.parametrize("numbers", [1, 2**22])
async def test_faults_of_a_ranking_name_what_is_at_fault(
    server: Served, monkeypatch: pytest.MonkeyPatch, numbers: int
) -> None:
    """A document by its place in the request, whichever turn it is in; the query as the query."""
    monkeypatch.setattr("app.plain_flows.MAX_TURN_NUMBERS", numbers)
    documents = ["a", "b", "the cat sat on the mat", "c"]
    for fault, place in ((9, "documents[2]"), (QUERY_LENGTH, "query")):

        def refuse(inputs: Sequence[EncodeInput], fault: int = fault) -> None:
            if any(item.num_tokens == fault for item in inputs):
                raise RuntimeError("no")

        server.embedder.before_run = refuse
        response = await server.post("/v1/rerank", {"query": "a", "documents": documents})
        assert_error(response, 500, "inference_failed", place)


async def test_equal_texts_keep_their_order(server: Served) -> None:
    """The first among equals is first: not even the last bit of a score depends on the others."""
    answer = await ask(server, "/rerank", query=QUERY, texts=["a dog", "hello", *["a dog"] * 21])
    assert len({one["score"] for one in answer}) == 2
    assert [one["index"] for one in answer if one["index"] != 1] == [0, *range(2, 23)]


async def test_neighbours_change_no_score(server: Served) -> None:
    """Alone, among many, and among requests of the other role."""
    many = [f"the cat {'sat ' * (index % 13)}on the mat" for index in range(60)]
    together = {one["index"]: one["score"] for one in await ask(server, "/rerank", query=QUERY, texts=many)}
    for index in (0, 7, 12, 59):
        [alone] = await ask(server, "/rerank", query=QUERY, texts=[many[index]])
        assert alone["score"] == pytest.approx(together[index], abs=1e-5)


# ---- what else such a model answers, and does not


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/encode", {"texts": "a"}, 422),
        ("/v1/embeddings", {"input": "a"}, 400),
        ("/embed", {"inputs": "a"}, 422),
        ("/embed_sparse", {"inputs": "a"}, 422),
        ("/predict", {"inputs": "a"}, 422),
        ("/similarity", {"texts": ["a", "b"]}, 422),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, 422),
    ],
)
async def test_what_it_is_not_there_for(server: Served, path: str, body: dict[str, Any], status: int) -> None:
    """And it names the routes that it is there for."""
    response = await server.post(path, body)
    assert response.status_code == status
    assert "this model is a late interaction model" in response.text
    assert "/embed_all and /rerank" in response.text
    assert server.embedder.batches == []
    assert server.sample("eyeline_errors_total", code="wrong_model_kind") == 1


async def test_attention_shows_what_is_hidden(server: Served) -> None:
    """Of a query nobody looks at the mask tokens; the tokens are those that the model reads."""
    body = {"texts": "the cat", "prompt_name": "query", "attention": {"layers": "all", "special": "keep"}}
    answer = await ask(server, "/encode", **body)
    [entry] = answer["attention"]
    expected_tokens = ["[CLS]", "[Q] ", "the", "cat", "[SEP]", *["[MASK]"] * (QUERY_LENGTH - 5)]
    assert entry["tokens"]["text"] == expected_tokens
    maps = np.array(entry["maps"]["values"])
    assert maps[..., 5:].max() == 0
    assert maps[..., 5:, :5].sum(axis=-1) == pytest.approx(1, abs=entry["maps"]["row_sum_tolerance"])
    words = await ask(server, "/encode", **{**body, "attention": {"unit": "word", "special": "renormalize"}})
    assert words["attention"][0]["words"]["text"] == ["the", "cat"]


@pytest.mark.parametrize("role", ["query", "document"])
async def test_tokens_are_those_that_are_read(server: Served, role: Role) -> None:
    """In our own form and in text-embeddings-inference's, prefix and mask tokens among them."""
    [item] = server.embedder.tokenizer.encode(["the cat"], role=role)
    ours = await ask(server, "/tokenize", texts="the cat", prompt_name=role)
    assert ours["texts"][0]["tokens"]["id"] == item.input_ids
    [theirs] = await ask(server, "/tokenize", inputs="the cat", prompt_name=role)
    assert [token["id"] for token in theirs] == item.input_ids
    assert [token["text"] for token in theirs if not token["special"]] == ["the", "cat"]


async def test_info_says_what_it_is(server: Served) -> None:
    """Its kind, the width of its vectors, the roles as prompts, the longer of both lengths."""
    info = (await server.client.get("/info")).json()
    [model] = [one for one in info["models"] if one["name"] == NAME]
    found = (model["kind"], model["dimensions"], model["prompts"], model["max_length"], model["pooling"])
    assert found == (NAME, TOKEN_DIMENSIONS, ["query", "document"], DOCUMENT_LENGTH, "none")
    assert NAME in [one["id"] for one in (await server.client.get("/v1/models")).json()["data"]]


async def test_vectors_that_are_not_finite_are_withheld(serve: Serve, tmp_path: Path) -> None:
    """500, never a null."""
    folder = make_bert_folder(tmp_path / NAME, late=True)
    fields = json.loads((folder / "1_Dense/config.json").read_text())
    (folder / "1_Dense/config.json").write_text(json.dumps({**fields, "bias": True}))
    tensors = safetensors.numpy.load_file(folder / "1_Dense/model.safetensors")
    # finite, but their squares are not
    bias = np.full(TOKEN_DIMENSIONS, 3e38, dtype=np.float32)
    bias[0] = -3e38
    tensors = {"linear.weight": tensors["linear.weight"] * np.float32(1e38), "linear.bias": bias}
    safetensors.numpy.save_file(tensors, folder / "1_Dense/model.safetensors")
    async with serve(model=(ModelSpec(NAME, folder),)) as server:
        assert_tei_error(await server.post("/embed_all", {"inputs": ["a"]}), 500, "Backend", "inputs[0]")
        response = await server.post("/v1/rerank", {"query": "a", "documents": ["b"]})
        assert response.status_code == 500


@pytest.mark.parametrize(("size", "status"), [(1e2, 200), (1e22, 500)])
async def test_scores_that_are_not_finite_are_withheld(serve: Serve, tmp_path: Path, size: float, status: int) -> None:
    """Of vectors that are sent as they are, their products may be too large: 500 with the document, never a null."""
    folder = own_layout(make_bert_folder(tmp_path / NAME, late=True))
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps(modules[:-1]))  # no Normalize
    tensors = safetensors.numpy.load_file(folder / "1_Dense/model.safetensors")
    tensors = {"linear.weight": tensors["linear.weight"] * np.float32(size)}
    safetensors.numpy.save_file(tensors, folder / "1_Dense/model.safetensors")
    async with serve(model=(ModelSpec(NAME, folder),)) as server:
        assert np.isfinite(np.array(await ask(server, "/embed_all", inputs="a"))).all()
        response = await server.post("/v1/rerank", {"query": "a", "documents": ["b", "c"]})
        assert response.status_code == status
        if status == 500:
            assert_error(response, 500, "non_finite_output", "documents[0]")
            assert_tei_error(await server.post("/rerank", {"query": "a", "texts": ["b"]}), 500, "Backend", "texts[0]")


async def test_examples_are_taken_as_they_are(server: Served) -> None:
    """What /docs offers to try works, is valid, and is answered as described."""
    schema = (await server.client.get("/openapi.json")).json()
    for path, name in (("/embed_all", "TeiEmbedAllRequest"), ("/rerank", "TeiRerankRequest")):
        body = jsonschema_rs.Draft202012Validator({"$ref": f"#/components/schemas/{name}", **schema})
        answer = schema["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        described = jsonschema_rs.Draft202012Validator({**answer, "components": schema["components"]})
        examples = schema["components"]["schemas"][name]["examples"]
        assert len(examples) > 2
        for example in examples:
            body.validate(example)
            described.validate(await ask(server, path, **example))
