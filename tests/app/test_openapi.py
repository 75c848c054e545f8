"""/openapi.json describes what the server really reads and writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from fastapi.openapi.models import OpenAPI

from tests.app.conftest import Serve, Served
from tests.app.routes.scoring import make_models

pytestmark = pytest.mark.anyio

BODIES = {
    "/encode": "EncodeRequest",
    "/similarity": "SimilarityRequest",
    "/tokenize": "TokenizeRequest",
    "/attention/heads": "HeadDistancesRequest",
}
COMPATIBLE = {
    "/v1/embeddings": "OpenAIEmbeddingsRequest",
    "/embeddings": "InfinityEmbeddingsRequest",
    **{
        prefix + path: f"Tei{name}Request"
        for prefix in ("", "/models/{name}")
        for path, name in (
            ("/embed", "Embed"),
            ("/embed_all", "EmbedAll"),
            ("/embed_sparse", "EmbedSparse"),
            ("/decode", "Decode"),
            ("/predict", "Predict"),
        )
    },
    "/models/{name}/rerank": "TeiRerankRequest",
    "/models/{name}/similarity": "TeiSimilarityRequest",
    "/models/{name}/tokenize": "TeiTokenizeRequest",
}
SHARED = {"/similarity": "TeiSimilarityRequest", "/tokenize": "TeiTokenizeRequest"}
"""Paths of ours that take the body of another API as well."""
RERANK = {
    "/rerank": ["TeiRerankRequest", "RerankRequest"],
    "/v1/rerank": ["RerankRequest"],
    "/v2/rerank": ["RerankRequest"],
}
"""Paths of Cohere's and Jina's clients; the first is text-embeddings-inference's, too."""
LISTS = {"/v1/models", "/models", "/v1/models/{name}"}
INFERENCE = {"/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer"}
INFERENCE_STATE = {
    *{"/v2", "/v2/health/live", "/v2/health/ready"},
    *{"/v2/models/{name}", "/v2/models/{name}/versions/{version}"},
    *{"/v2/models/{name}/ready", "/v2/models/{name}/versions/{version}/ready"},
}
FOR_ANY_MODEL = {"/tokenize"}
"""Routes that every model can answer; of the others each has something that some models cannot do."""


@pytest.fixture
async def schema(server: Served) -> dict[str, Any]:
    """The schema as clients fetch it."""
    response = await server.client.get("/openapi.json")
    assert response.status_code == 200
    body: dict[str, Any] = response.json()
    return body


def references(node: Any) -> Iterator[str]:
    """Every ``$ref`` in a schema."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def validator(schema: dict[str, Any], name: str) -> Any:
    """What checks a value against one component."""
    return jsonschema_rs.Draft202012Validator({"$ref": f"#/components/schemas/{name}", **schema})


async def test_it_is_openapi(schema: dict[str, Any]) -> None:
    """The document is OpenAPI 3.1, and every reference in it leads somewhere."""
    assert schema["openapi"] == "3.1.0"
    OpenAPI.model_validate(schema)
    found = set(references(schema))
    assert len(found) > 10
    for reference in found:
        node: Any = schema
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]


async def test_every_route_is_there(schema: dict[str, Any]) -> None:
    """What is served is described, probes included; names of operations are distinct."""
    operation_paths = {"/health", "/health/live", "/health/ready", "/metrics", "/info", "/models/{name}/info"}
    others = {*RERANK, *LISTS, *operation_paths, *INFERENCE, *INFERENCE_STATE}
    assert schema["paths"].keys() == {*BODIES, *COMPATIBLE, *others}
    names = [operation["operationId"] for path in schema["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("path", "name"), BODIES.items())
async def test_bodies_are_described(schema: dict[str, Any], path: str, name: str) -> None:
    """A route that reads its body itself still says what the body is, and that there must be one."""
    body = schema["paths"][path]["post"]["requestBody"]
    assert body["required"] is True
    names = [name, *([SHARED[path]] if path in SHARED else [])]
    assert list(references(body)) == [f"#/components/schemas/{one}" for one in names]
    assert list(body["content"]) == ["application/json"]
    assert schema["components"]["schemas"][name]["additionalProperties"] is False


@pytest.mark.parametrize("path", BODIES)
async def test_errors_are_described(schema: dict[str, Any], path: str) -> None:
    """Every status a route can answer is listed, errors as application/problem+json; where the body may speak another
    API, in its shape too.
    """
    responses = schema["paths"][path]["post"]["responses"]
    expected = {"200", "400", "404", "406", "413", "415", "422", "429", "500", "503", "504"}
    assert set(responses) == (expected if path in FOR_ANY_MODEL else expected | {"501"})
    for status, response in responses.items():
        if status != "200":
            second = ["application/json"] if path in SHARED else []
            assert list(response["content"]) == ["application/problem+json", *second]


ACCEPTED_OF_OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"input": "a"}),
    ("/v1/embeddings", {"input": [5, 6], "encoding_format": "base64", "user": "u", "dimensions": None}),
    ("/embeddings", {"input": [[5], [6, 7]], "model": "tiny", "truncate": False}),
    ("/embeddings", {"input": "a", "modality": "text", "dimensions": 0}),
    ("/embed", {"inputs": "a"}),
    ("/embed", {"inputs": ["a", [5]], "normalize": False, "truncate": None, "unknown": 1}),
    ("/embed_all", {"inputs": [5, 6], "truncation_direction": "left"}),
    ("/decode", {"ids": [5, 6]}),
    ("/decode", {"ids": [[5, 6], [7]], "skip_special_tokens": False}),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}, "parameters": None}),
    ("/tokenize", {"inputs": ["a", "b"], "add_special_tokens": False}),
]
REFUSED_BY_OTHERS: list[tuple[str, dict[str, Any], int]] = [
    ("/v1/embeddings", {"input": ""}, 400),
    ("/v1/embeddings", {"input": []}, 400),
    ("/v1/embeddings", {"input": [[]]}, 400),
    ("/v1/embeddings", {"input": "a", "unknown": 1}, 400),
    ("/v1/embeddings", {"input": "a", "modality": "text"}, 400),
    ("/embeddings", {"input": "a", "modality": "image"}, 400),
    ("/embed", {"inputs": ["a", ""]}, 400),
    ("/embed", {"inputs": [5, "a"]}, 422),
    ("/embed", {"inputs": "a", "normalize": None}, 422),
    ("/embed_all", {"inputs": "a", "truncation_direction": "up"}, 422),
    ("/decode", {"ids": []}, 400),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 400),
    ("/tokenize", {"inputs": None}, 422),
]


@pytest.mark.parametrize(("path", "body"), ACCEPTED_OF_OTHERS)
async def test_bodies_of_other_apis_fit(
    server: Served, schema: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    """What is taken is valid by the schema of the body, and so is the answer."""
    response = await server.post(path, body)
    assert response.status_code == 200, response.text
    operation = schema["paths"][path]["post"]
    for described, value in (
        (operation["requestBody"]["content"]["application/json"]["schema"], body),
        (operation["responses"]["200"]["content"]["application/json"]["schema"], response.json()),
    ):
        jsonschema_rs.Draft202012Validator({**described, "components": schema["components"]}).validate(value)


@pytest.mark.parametrize(("path", "body", "status"), REFUSED_BY_OTHERS)
async def test_what_other_apis_refuse_does_not_fit(
    server: Served, schema: dict[str, Any], path: str, body: dict[str, Any], status: int
) -> None:
    """What is refused is invalid by the schema of the body, and the refusal has the shape that is described."""
    response = await server.post(path, body)
    assert response.status_code == status
    name = {**COMPATIBLE, **SHARED}[path]
    assert not validator(schema, name).is_valid(body)
    shape = "OpenAIErrorResponse" if not name.startswith("Tei") else "TeiErrorResponse"
    validator(schema, shape).validate(response.json())


@pytest.mark.parametrize(("path", "name"), COMPATIBLE.items())
async def test_compatible_routes_are_described(schema: dict[str, Any], path: str, name: str) -> None:
    """With their own body, their own errors in plain JSON, and no status that they do not answer with."""
    operation = schema["paths"][path]["post"]
    assert operation["requestBody"]["content"] == {
        "application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}
    }
    statuses = {"200", "400", "404", "413", "415", "429", "500", "503", "504"}
    assert set(operation["responses"]) == (statuses if not name.startswith("Tei") else statuses | {"422"})
    for status, response in operation["responses"].items():
        if status != "200":
            [reference] = references(response["content"]["application/json"])
            assert reference.endswith("OpenAIErrorResponse" if not name.startswith("Tei") else "TeiErrorResponse")


@pytest.mark.parametrize(("path", "names"), RERANK.items())
async def test_reranking_is_described(schema: dict[str, Any], path: str, names: list[str]) -> None:
    """With the bodies that are taken, and the errors of each of them."""
    operation = schema["paths"][path]["post"]
    assert list(references(operation["requestBody"])) == [f"#/components/schemas/{name}" for name in names]
    assert set(operation["responses"]) == {"200", "400", "404", "413", "415", "422", "429", "500", "503", "504"}
    shapes = ["TeiErrorResponse"] * (path == "/rerank") + ["RerankErrorResponse"]
    for status, response in operation["responses"].items():
        if status != "200":
            assert list(references(response)) == [f"#/components/schemas/{shape}" for shape in shapes]


SCORING = [
    ("classifier", "/predict", "TeiPredictRequest"),
    ("reranker", "/predict", "TeiPredictRequest"),
    *(("reranker", path, name) for path, names in RERANK.items() for name in names),
]


@pytest.mark.parametrize(("kind", "path", "name"), SCORING)
async def test_examples_of_scores_are_taken_as_they_are(
    serve: Serve, tmp_path: Path, kind: str, path: str, name: str
) -> None:
    """What /docs offers to try works with a model of the kind, is valid, and is answered as described."""
    async with serve(model=make_models(tmp_path, kind)) as server:
        schema = (await server.client.get("/openapi.json")).json()
        answer = schema["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        examples = schema["components"]["schemas"][name]["examples"]
        assert len(examples) > 2
        for example in examples:
            response = await server.post(path, example)
            assert response.status_code == 200, response.text
            validator(schema, name).validate(example)
            described = jsonschema_rs.Draft202012Validator({**answer, "components": schema["components"]})
            described.validate(response.json())


@pytest.mark.parametrize(
    ("path", "name", "body"),
    [
        ("/predict", "TeiPredictRequest", {"inputs": []}),
        ("/predict", "TeiPredictRequest", {"inputs": ["a", "b", "c"]}),
        ("/predict", "TeiPredictRequest", {"inputs": [["a"], "b"]}),
        ("/rerank", "TeiRerankRequest", {"query": "a", "texts": []}),
        ("/rerank", "TeiRerankRequest", {"query": "a", "texts": ["b"], "return_text": 1}),
        ("/rerank", "RerankRequest", {"query": "a", "documents": ["b"], "top_n": 0}),
        ("/v1/rerank", "RerankRequest", {"query": "", "documents": ["b"]}),
        ("/v2/rerank", "RerankRequest", {"query": "a", "documents": ["b"], "max_tokens_per_doc": 1}),
    ],
)
async def test_scores_that_are_refused_do_not_fit(
    serve: Serve, tmp_path: Path, path: str, name: str, body: dict[str, Any]
) -> None:
    """Bodies that are refused are invalid by the schema, and the refusal has the shape that is described."""
    async with serve(model=make_models(tmp_path, "reranker")) as server:
        schema = (await server.client.get("/openapi.json")).json()
        response = await server.post(path, body)
        assert response.status_code in {400, 422}
        assert not validator(schema, name).is_valid(body)
        shape = "TeiErrorResponse" if name.startswith("Tei") else "RerankErrorResponse"
        validator(schema, shape).validate(response.json())


@pytest.mark.parametrize("path", sorted(INFERENCE))
async def test_inference_is_described(schema: dict[str, Any], path: str) -> None:
    """Body and answer are JSON, or JSON with tensors behind it; a header says how much of it is JSON; errors are JSON,
    and their statuses are those that the route has.
    """
    operation = schema["paths"][path]["post"]
    for described, name in (
        (operation["requestBody"], "OIPInferRequest"),
        (operation["responses"]["200"], "OIPInferResponse"),
    ):
        assert described["content"].keys() == {"application/json", "application/octet-stream"}
        assert described["content"]["application/json"]["schema"] == {"$ref": f"#/components/schemas/{name}"}
    named = {parameter["name"]: parameter["in"] for parameter in operation["parameters"]}
    in_path = {"name": "path", "version": "path"} if "{version}" in path else {"name": "path"}
    assert named == {**in_path, "Inference-Header-Content-Length": "header"}
    assert "Inference-Header-Content-Length" in operation["responses"]["200"]["headers"]
    statuses = {"200", "400", "404", "413", "415", "429", "500", "501", "503", "504"}
    assert operation["responses"].keys() == statuses
    for status in statuses - {"200"}:
        assert list(references(operation["responses"][status])) == ["#/components/schemas/OIPErrorResponse"]


async def test_inference_fits_its_description(server: Served, schema: dict[str, Any]) -> None:
    """The example is taken as it is, and its answer is valid; so are the answers about server and model."""
    [example] = schema["components"]["schemas"]["OIPInferRequest"]["examples"]
    example = {**example, "parameters": {"dimensions": 8}}  # the tiny model has 16
    response = await server.post("/v2/models/tiny/infer", example)
    assert response.status_code == 200
    validator(schema, "OIPInferRequest").validate(example)
    validator(schema, "OIPInferResponse").validate(response.json())
    named = {"{name}": "tiny", "{version}": "1"}
    for template in sorted(INFERENCE_STATE):
        path = template
        for name, value in named.items():
            path = path.replace(name, value)
        [reference] = references(schema["paths"][template]["get"]["responses"]["200"])
        validator(schema, reference.rsplit("/", 1)[-1]).validate((await server.client.get(path)).json())


ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("/encode", {"texts": "a"}),
    ("/encode", {"texts": ["a", ["b", "c"]], "attention": {"layers": "all"}, "dimensions": 3}),
    ("/encode", {"texts": ["a"], "attention": {"items": [0], "encoding": "base64"}, "encoding_format": "base64"}),
    ("/encode", {"texts": ["a"], "output_dtype": "float16"}),
    ("/encode", {"texts": ["a"], "output_dtype": "ubinary", "dimensions": 8}),
    ("/similarity", {"texts": ["a", "b"]}),
    ("/similarity", {"pairs": [["a", "b"]]}),
    ("/similarity", {"pairs": [["a", "b"]], "explain": False}),
    ("/similarity", {"pairs": [["a", "b"]], "explain": True}),
    ("/similarity", {"pairs": [["a", "b c"]], "explain": True, "unit": "word"}),
    ("/tokenize", {"texts": ["a", ["b", "c"]]}),
    ("/attention/heads", {"texts": "a"}),
    ("/attention/heads", {"texts": ["a", ["b", "c"]], "special": "renormalize"}),
]


@pytest.mark.parametrize(("path", "body"), ACCEPTED)
async def test_what_is_accepted_and_answered_fits(
    server: Served, schema: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    """Bodies that the server takes are valid by the schema, and so are its answers."""
    response = await server.post(path, body)
    assert response.status_code == 200
    validator(schema, BODIES[path]).validate(body)
    validator(schema, BODIES[path].replace("Request", "Response")).validate(response.json())


async def test_examples_are_taken_as_they_are(server: Served, schema: dict[str, Any]) -> None:
    """What /docs offers to try works, and is answered as described."""
    examples = schema["components"]["schemas"]["EncodeRequest"]["examples"]
    assert len(examples) > 2
    for example in examples:
        response = await server.post("/encode", example)
        assert response.status_code == 200, response.text
        validator(schema, "EncodeRequest").validate(example)
        answer = "ChunksResponse" if "chunks" in example else "EncodeResponse"
        validator(schema, answer).validate(response.json())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/encode", {}),
        ("/encode", {"texts": []}),
        ("/encode", {"texts": [["a"]]}),
        ("/encode", {"texts": "a", "extra": 1}),
        ("/encode", {"texts": "a", "dimensions": 0}),
        ("/encode", {"texts": "a", "output_dtype": "float"}),
        ("/encode", {"texts": "a", "chunks": {"unit": "token", "size": 0}}),
        ("/encode", {"texts": "a", "chunks": {"unit": "token"}}),
        ("/encode", {"texts": "a", "attention": {"digits": 10}}),
        ("/encode", {"texts": "a", "attention": {"min_weight": 2}}),
        ("/similarity", {"texts": [1]}),
        ("/similarity", {"texts": ["a"], "explain": True}),
        ("/similarity", {"pairs": [["a", "b"]], "explain": True, "unit": "piece"}),
        ("/similarity", {"pairs": [["a", "b"]], "unit": "word"}),
        ("/similarity", {"pairs": [["a", "b"]], "explain": False, "unit": "token"}),
        ("/similarity", {"texts": ["a"], "unit": "token"}),
        ("/attention/heads", {"texts": []}),
        ("/attention/heads", {"texts": "a", "special": "mask"}),
        ("/tokenize", {"texts": None}),
    ],
)
async def test_what_is_refused_does_not_fit(
    server: Served, schema: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    """Bodies that the server refuses are invalid by the schema, and the refusal is as described."""
    response = await server.post(path, body)
    assert response.status_code == 422
    assert not validator(schema, BODIES[path]).is_valid(body)
    validator(schema, "ProblemResponse").validate(response.json())


async def test_probes_and_info_fit(server: Served, schema: dict[str, Any]) -> None:
    """What operators get is described too."""
    validator(schema, "Health").validate((await server.client.get("/health")).json())
    validator(schema, "InfoResponse").validate((await server.client.get("/info")).json())


async def test_it_is_built_once(server: Served) -> None:
    """The document does not change while the server runs."""
    assert server.app.openapi() is server.app.openapi()


async def test_it_can_be_switched_off(serve: Serve) -> None:
    """Without docs there is neither page nor document, and the API is still there."""
    async with serve(docs=False) as server:
        for path in ("/docs", "/openapi.json", "/redoc"):
            assert (await server.client.get(path)).status_code == 404
        assert (await server.post("/encode", {"texts": "a"})).status_code == 200
