"""What the clients of other servers rely on, as a table for each family: what is sent, status, shape, message.

Each table goes through what a family's own server answers, errors included. A row that differs from it on purpose says
in which way and why; docs/decisions.md (17) has the principle, docs/compatibility.md the list for readers. What needs
more than a request (a full queue, a model that fails) is tested where it is at home, and the table points there.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from types import EllipsisType
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

from app.settings import ModelSpec
from tests.app.conftest import Serve, Served
from tests.app.routes.scoring import make_models
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.anyio

LIMITS = {"max_texts": 4, "max_text_characters": 1_000, "max_body_bytes": 3_000}
FULL = "cat " * 30  # 32 tokens, as many as the tiny model reads
LONG = "cat " * 100  # 102 tokens
INFER = "/v2/models/tiny/infer"


@dataclass(frozen=True)
class Each:
    """The shape of a list that is not empty: each of its items has this shape."""

    shape: Any


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes
    ----------
    case : str
    path : str
        POST, or GET where there is no body.
    body : bytes, or what becomes JSON
    status : int
    shape : Any
        See :func:`fits`.
    says : tuple of str
        Parts of the message, or of the body as it stands.
    differs : str
        How the family's own server answers, and why we do not.
    headers : dict
        That the answer has.
    sent : dict
        Headers of the request, where they are not those of JSON.
    """

    case: str
    path: str
    body: Any
    status: int
    shape: Any
    says: tuple[str, ...] = ()
    differs: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    sent: dict[str, str] | None = None


@dataclass(frozen=True)
class Elsewhere:
    """A row that is tested in another file: ``module.function`` below ``tests``."""

    case: str
    test: str
    differs: str = ""


def fits(found: Any, shape: Any) -> bool:
    """Whether a body has a shape: a type, a value, ``...`` (anything), or dicts and lists of just these."""
    if isinstance(shape, EllipsisType):
        return True
    if isinstance(shape, type):
        return type(found) is shape
    if isinstance(shape, Each):
        return isinstance(found, list) and len(found) > 0 and all(fits(item, shape.shape) for item in found)
    if isinstance(shape, dict):
        same = isinstance(found, dict) and found.keys() == shape.keys()
        return same and all(fits(found[key], part) for key, part in shape.items())
    if isinstance(shape, list):
        same = isinstance(found, list) and len(found) == len(shape)
        return same and all(fits(item, part) for item, part in zip(found, shape, strict=True))
    return type(found) is type(shape) and found == shape


VECTOR = [float] * 16

# ---- OpenAI; infinity's paths and fields among them


def openai_error(code: str, param: str | None = None, kind: str = "invalid_request_error") -> dict[str, Any]:
    """The nested object, its four keys always there."""
    return {"error": {"message": str, "type": kind, "param": param, "code": code}}


def openai_list(count: int, embedding: Any = None, num_tokens: Any = int) -> dict[str, Any]:
    """The answer with so many embeddings."""
    data = [{"object": "embedding", "index": index, "embedding": embedding or VECTOR} for index in range(count)]
    return {
        "object": "list",
        "data": data,
        "model": "tiny",
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


EMBEDDINGS = "/v1/embeddings"
MODEL = {"id": "tiny", "object": "model", "created": int, "owned_by": str}
OPENAI = [
    Row("a string", EMBEDDINGS, {"input": "the cat", "model": "tiny"}, 200, openai_list(1, num_tokens=4)),
    Row("a list of strings", EMBEDDINGS, {"input": ["a", "b"], "model": "tiny"}, 200, openai_list(2)),
    Row("a list of integers is one text", EMBEDDINGS, {"input": [5, 6, 7]}, 200, openai_list(1, num_tokens=3)),
    Row("lists of integers", EMBEDDINGS, {"input": [[5], [6, 7]]}, 200, openai_list(2, num_tokens=3)),
    Row("base64", EMBEDDINGS, {"input": "a", "encoding_format": "base64"}, 200, openai_list(1, str)),
    Row("float, user", EMBEDDINGS, {"input": "a", "encoding_format": "float", "user": "u"}, 200, openai_list(1)),
    Row("dimensions", EMBEDDINGS, {"input": "a", "dimensions": 5}, 200, openai_list(1, [float] * 5),
        differs="400 for a model that was not trained for it: any model can be cut, what is left is its own affair"),
    Row("no model", EMBEDDINGS, {"input": "a"}, 200, openai_list(1), differs="required: here the first one is served"),
    Row("an empty string", EMBEDDINGS, {"input": ""}, 400, openai_error("empty_input", "input"), ("empty",),
        differs="param and code are null there: here the place is named, and the code is stable"),
    Row("an empty list", EMBEDDINGS, {"input": []}, 400, openai_error("empty_input", "input")),
    Row("an empty string among others", EMBEDDINGS, {"input": ["a", ""]}, 400, openai_error("empty_input", "input[1]")),
    Row("an empty list of ids", EMBEDDINGS, {"input": [[]]}, 400, openai_error("empty_input", "input[0]")),
    Row("too many texts", EMBEDDINGS, {"input": ["a"] * 5}, 400, openai_error("too_many_texts", "input"), ("4", "5"),
        differs="2,048: here --max-texts"),
    Row("too many tokens", EMBEDDINGS, {"input": ["a", LONG]}, 200, openai_list(2, num_tokens=35),
        headers={"x-truncated-count": "1", "x-truncated-texts": "1"},
        differs="400: self-hosted servers cut, and here headers say so"),
    Row("too many tokens, truncate false", EMBEDDINGS, {"input": LONG, "truncate": False}, 400,
        openai_error("context_length_exceeded", "input"), ("102", "32")),
    Row("bad encoding_format", EMBEDDINGS, {"input": "a", "encoding_format": "md5"}, 400,
        openai_error("invalid_request", "encoding_format"), ("'float'", "'base64'")),
    Row("dimensions 0", EMBEDDINGS, {"input": "a", "dimensions": 0}, 400,
        openai_error("invalid_request", "dimensions")),
    Row("more dimensions than there are", EMBEDDINGS, {"input": "a", "dimensions": 17}, 400,
        openai_error("dimensions_out_of_range", "dimensions"), ("16", "17")),
    Row("a field that is not known", EMBEDDINGS, {"input": "a", "dimension": 8}, 400,
        openai_error("invalid_request", "dimension")),
    Row("no input", EMBEDDINGS, {"model": "tiny"}, 400, openai_error("invalid_request", "input"), ("required",)),
    Row("input of another kind", EMBEDDINGS, {"input": {"text": "a"}}, 400, openai_error("invalid_request", "input")),
    Row("messages, as vLLM takes them", EMBEDDINGS, {"messages": []}, 400, openai_error("invalid_request", "input")),
    Row("an id that is not in the vocabulary", EMBEDDINGS, {"input": [99_999]}, 400,
        openai_error("token_id_out_of_range", "input")),
    Row("an unknown model", EMBEDDINGS, {"input": "a", "model": "gpt"}, 404, openai_error("model_not_found", "model"),
        ("tiny",)),
    Row("a model without embeddings", EMBEDDINGS, {"input": "a", "model": "reranker"}, 400,
        openai_error("wrong_model_kind", "model")),
    Row("late interaction", EMBEDDINGS, {"input": "a", "model": "late_interaction"}, 400,
        openai_error("wrong_model_kind", "model"), ("/embed_all",)),
    Row("malformed JSON", EMBEDDINGS, b'{"input": ', 400, openai_error("malformed_json")),
    Row("half a surrogate pair", EMBEDDINGS, b'{"input": "a\\ud800b"}', 400, openai_error("malformed_json")),
    Row("no content type", EMBEDDINGS, b"{}", 415, openai_error("unsupported_media_type"), sent={}),
    Row("too many bytes", EMBEDDINGS, {"input": "a" * 3_000}, 413, openai_error("body_too_large"), ("3000",)),
    Row("a wrong verb", EMBEDDINGS, None, 405, openai_error("method_not_allowed"), headers={"allow": "POST"}),
    Row("a path that is not served", "/v1/chat/completions", {}, 404, openai_error("not_found")),
    Row("models", "/v1/models", None, 200, {"object": "list", "data": Each({**MODEL, "id": str})}),
    Row("one model", "/v1/models/tiny", None, 200, MODEL),
    Row("a model that is not there", "/v1/models/gpt", None, 404, openai_error("model_not_found", "model")),
    Row("infinity's own fields", "/embeddings", {"input": ["a"], "dimensions": 0, "modality": "text", "user": None},
        200, openai_list(1, num_tokens=3), differs="characters in usage: here tokens"),
    Row("infinity, dimensions null", "/embeddings", {"input": "a", "dimensions": None}, 200, openai_list(1),
        differs="422: here null is the default"),
    Row("infinity, another modality", "/embeddings", {"input": "a", "modality": "image"}, 400,
        openai_error("invalid_request", "modality"), differs="a code that is a number"),
    Row("infinity's models", "/models", None, 200, {"object": "list", "data": Each({**MODEL, "id": str})},
        differs="load and backend of each: here in /metrics and /info"),
    Elsewhere("rate limit: 429 with Retry-After", "app.routes.test_openai.test_a_full_queue_says_when_to_come_back"),
    Elsewhere("bad key: 401 invalid_api_key", "app.test_access.test_each_family_words_the_refusal"),
    Elsewhere("not ready 503, a batch that fails 500", 
              "app.routes.test_openai.test_a_server_that_cannot_answer_says_so"),
    Elsewhere("the error of TEI's /v1/embeddings is flat", "app.test_families.test_every_error_in_every_shape",
              differs="one shape a family: OpenAI's, whoever else has the path"),
]  # fmt: skip

# ---- text-embeddings-inference


def tei_error(kind: str) -> dict[str, Any]:
    """Two keys."""
    return {"error": str, "error_type": kind}


SCORED = {"score": float, "label": str}
TOKEN = {"id": int, "text": str, "special": bool}
SPECIAL = {**TOKEN, "start": None, "stop": None}
JSON_ERROR = "plain text: here the same two keys as for all other errors"
TOO_LARGE = "422 since 1.8, 413 before: here 413 for what is too large, with limit and value"
TEI = [
    Row("a text", "/embed", {"inputs": "the cat"}, 200, [VECTOR], headers={"x-compute-tokens": "4"}),
    Row("a batch", "/embed", {"inputs": ["a", "b"]}, 200, [VECTOR] * 2),
    Row("a flat list of integers is one text", "/embed", {"inputs": [5, 6]}, 200, [VECTOR]),
    Row("texts and ids mixed", "/embed", {"inputs": ["a", [5, 6], "b"]}, 200, [VECTOR] * 3),
    Row("at the address itself", "/", {"inputs": "a"}, 200, [VECTOR]),
    Row("as many tokens as the model reads", "/embed", {"inputs": FULL, "truncate": False}, 200, [VECTOR]),
    Row("truncate, from either side", "/embed", {"inputs": LONG, "truncate": True, "truncation_direction": "left"}, 200,
        [VECTOR], headers={"x-truncated-count": "1"}),
    Row("as many dimensions as there are", "/embed", {"inputs": "a", "dimensions": 16}, 200, [VECTOR]),
    Row("fields that are not known", "/embed", {"inputs": "a", "normalise": False}, 200, [VECTOR],
        headers={"x-ignored-fields": "normalise"}, differs="ignored: here named, too"),
    Row("an empty text", "/embed", {"inputs": ""}, 400, tei_error("Empty"), ("inputs", "empty")),
    Row("no text", "/embed", {"inputs": []}, 400, tei_error("Empty"), ("inputs",)),
    Row("an empty text among others", "/embed", {"inputs": ["a", ""]}, 400, tei_error("Empty"), ("inputs[1]",),
        differs="no place: here it is named"),
    Row("too many texts", "/embed", {"inputs": ["a"] * 5}, 413, tei_error("Validation"), ("4", "5"), TOO_LARGE),
    Row("too long, truncate false", "/embed", {"inputs": LONG, "truncate": False}, 413, tei_error("Validation"),
        ("102", "32"), TOO_LARGE),
    Row("too long, truncate not sent", "/embed", {"inputs": LONG}, 413, tei_error("Validation"), ("102", "32"),
        "cut since 1.9 and not said: here refused, as auto_truncate in /info says"),
    Row("too many characters", "/embed", {"inputs": "a" * 1_001, "truncate": True}, 413, tei_error("Validation"),
        ("1001", "1000"), "cut at so many bytes: here refused"),
    Row("an unknown prompt", "/embed", {"inputs": "a", "prompt_name": "x"}, 422, tei_error("Validation"),
        ("prompt_name", "Available prompts: [passage, query]")),
    Row("dimensions 0", "/embed", {"inputs": "a", "dimensions": 0}, 422, tei_error("Validation"), ("dimensions",)),
    Row("more dimensions than there are", "/embed", {"inputs": "a", "dimensions": 17}, 422, tei_error("Validation"),
        ("dimensions", "16", "17")),
    Row("normalize null", "/embed", {"inputs": "a", "normalize": None}, 422, tei_error("Validation"), ("normalize",)),
    Row("a wrong shape", "/embed", {"inputs": {"text": "a"}}, 422, tei_error("Validation"), ("inputs",), JSON_ERROR),
    Row("ids that are not in the vocabulary", "/embed", {"inputs": [99_999]}, 422, tei_error("Validation"), ("99999",),
        "200 with the vector of another text: here refused"),
    Row("a model of another kind", "/models/classifier/embed", {"inputs": "a"}, 422, tei_error("Validation"),
        ("classifier",), "424 Backend: it is no fault of the server's"),
    Row("malformed JSON", "/embed", b'{"inputs": ', 400, tei_error("Validation"), (), JSON_ERROR),
    Row("half a surrogate pair", "/embed", b'{"inputs": "a\\ud800b"}', 400, tei_error("Validation"), (), JSON_ERROR),
    Row("no content type", "/embed", b"{}", 415, tei_error("Validation"), ("application/json",), JSON_ERROR, sent={}),
    Row("too many bytes", "/embed", {"inputs": "a" * 3_000}, 413, tei_error("Validation"), ("3000",), JSON_ERROR),
    Row("a wrong verb", "/embed", None, 405, tei_error("Validation"), headers={"allow": "POST"},
        differs="no body: here the same two keys"),
    Row("a vector for each token", "/embed_all", {"inputs": ["the cat", "a"]}, 200, [[VECTOR] * 4, [VECTOR] * 3]),
    Row("SPLADE, of a model without it", "/embed_sparse", {"inputs": "a"}, 422, tei_error("Validation"), ("embedding",),
        differs="424: clients take that for a fault of the server; here as of any model of another kind"),
    Elsewhere("SPLADE", "app.routes.test_embed_sparse.test_texts_become_lists_of_weights"),
    Row("late interaction: a query's vectors", "/models/late_interaction/embed_all",
        {"inputs": "the cat", "prompt_name": "query"}, 200, [[[float] * 8] * 10],
        differs="not there: /embed_all would give states without a projection"),
    Row("late interaction: a document's vectors", "/models/late_interaction/embed_all", {"inputs": ["the cat.", "a"]},
        200, [[[float] * 8] * 5, [[float] * 8] * 4], differs="not there"),
    Row("late interaction: ranks", "/models/late_interaction/rerank", {"query": "the cat", "texts": ["a", "cat"]}, 200,
        [{"index": int, "score": float}] * 2, differs="not there: MaxSim, not from 0 to 1"),
    Row("late interaction: no embedding", "/models/late_interaction/embed", {"inputs": "a"}, 422,
        tei_error("Validation"), ("/embed_all", "/rerank"), differs="not there; 424 of any model of another kind"),
    Row("late interaction: no cosines", "/models/late_interaction/similarity",
        {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, 422, tei_error("Validation"), ("/rerank",),
        differs="not there"),
    Row("tokens", "/tokenize", {"inputs": "cat"}, 200, [[SPECIAL, {**TOKEN, "start": 0, "stop": 3}, SPECIAL]]),
    Row("tokens without special ones", "/tokenize", {"inputs": ["cat"], "add_special_tokens": False}, 200,
        [[{**TOKEN, "start": 0, "stop": 3}]]),
    Row("tokens of nothing", "/tokenize", {"inputs": []}, 400, tei_error("Empty"), ("inputs",)),
    Row("ids to text", "/decode", {"ids": [5, 6]}, 200, [str]),
    Row("lists of ids to texts", "/decode", {"ids": [[5], [6]], "skip_special_tokens": False}, 200, [str, str]),
    Row("no ids", "/decode", {"ids": []}, 400, tei_error("Empty"), ("ids",)),
    Row("cosines", "/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", "cat"]}, "parameters": None},
        200, [float, float]),
    Row("no sentences", "/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 400, tei_error("Empty"),
        ("inputs.sentences",)),
    Row("the source sentence counts", "/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"] * 4}}, 413,
        tei_error("Validation"), ("4", "5"), TOO_LARGE),
    Row("ranks", "/models/reranker/rerank", {"query": "the cat", "texts": ["a", "cat"]}, 200,
        [{"index": int, "score": float}] * 2),
    Row("ranks with texts", "/models/reranker/rerank",
        {"query": "the cat", "texts": ["a"], "return_text": True, "raw_scores": True}, 200,
        [{"index": 0, "text": "a", "score": float}]),
    Row("nothing to rank", "/models/reranker/rerank", {"query": "a", "texts": []}, 400, tei_error("Empty"), ("texts",)),
    Row("no reranker", "/rerank", {"query": "a", "texts": ["b"]}, 422, tei_error("Validation"), ("embedding",),
        "424 Backend: it is no fault of the server's"),
    Row("labels of a text", "/models/classifier/predict", {"inputs": "the cat"}, 200, [SCORED] * 3),
    Row("two strings are a pair", "/models/classifier/predict", {"inputs": ["a", "b"]}, 200, [SCORED] * 3),
    Row("a batch of texts and pairs", "/models/classifier/predict", {"inputs": [["a"], ["a", "b"]]}, 200,
        [[SCORED] * 3] * 2),
    Row("labels of an embedding model", "/predict", {"inputs": "a"}, 422, tei_error("Validation"), ("embedding",),
        "424 Backend: it is no fault of the server's"),
    Row("a model that is not served", "/models/x/embed", {"inputs": "a"}, 404, tei_error("Validation"), ("tiny",)),
    Row("health", "/health", None, 200, {"status": "ready"}, differs="no body"),
    Elsewhere("overloaded: 429, here with Retry-After", "app.routes.test_tei.test_overload_is_429_with_a_time"),
    Elsewhere("Unhealthy 503, Backend 500", "app.routes.test_tei.test_a_server_that_cannot_answer_says_so",
              differs="424 for Backend: here 500, where alerts look for it"),
    Elsewhere("offsets are bytes of prompt and text",
              "app.test_tei_answers.test_offsets_are_bytes_of_what_was_tokenized"),
    Elsewhere("every field of /info", "app.routes.test_health.test_info_is_a_superset_of_teis"),
    Elsewhere("metrics at the main port", "app.routes.test_health.test_metrics_can_be_scraped",
              differs="te_ names: here ours, with units"),
    Elsewhere("a bad key: 401", "app.test_access.test_each_family_words_the_refusal"),
]  # fmt: skip

# ---- Open Inference Protocol

OIP_ERROR = {"error": str}


def tensor(name: str, datatype: str, *shape: int, item: type = float) -> dict[str, Any]:
    """An output in JSON, its numbers flat."""
    return {"name": name, "shape": list(shape), "datatype": datatype, "data": [item] * int(np.prod(shape))}


def asked(*texts: Any, **fields: Any) -> dict[str, Any]:
    """A body of the protocol."""
    return {"inputs": [{"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}], **fields}


def changed(**fields: Any) -> dict[str, Any]:
    """A body of two texts whose input is odd."""
    return {"inputs": [{**asked("a", "b")["inputs"][0], **fields}]}


INFERRED = {"model_name": "tiny", "model_version": "1", "parameters": {"truncated_count": 0}}
READY = {"name": "tiny", "ready": True}
LAST_LAYER = {"layers": "1", "heads": "0,1"}
ONE_CUT = {"truncated_count": 1, "truncated_texts": "0"}
DESCRIBED = Each({"name": str, "datatype": str, "shape": Each(int)})
PLACED = '{"error"} alone: here the sentence has the place'
OIP = [
    Row("the server", "/v2", None, 200, {"name": str, "version": str, "extensions": Each(str)}),
    Row("live", "/v2/health/live", None, 200, {"live": True}),
    Row("ready", "/v2/health/ready", None, 200, {"ready": True},
        differs="{\"live\"} in one of its two documents, no body in the other"),
    Row("a model is ready", "/v2/models/tiny/ready", None, 200, READY),
    Row("a version is ready", "/v2/models/tiny/versions/1/ready", None, 200, READY),
    Row("a model", "/v2/models/tiny", None, 200,
        {"name": "tiny", "versions": ["1"], "platform": str, "inputs": DESCRIBED, "outputs": DESCRIBED}),
    Row("texts", INFER, asked("a", "b"), 200, {**INFERRED, "outputs": [tensor("embedding", "FP32", 2, 16)]},
        differs="all outputs: here those that cost something are asked for"),
    Row("by version", "/v2/models/tiny/versions/1/infer", asked("a"), 200,
        {**INFERRED, "outputs": [tensor("embedding", "FP32", 1, 16)]}),
    Row("the id comes back", INFER, asked("a", id="42"), 200, {**INFERRED, "id": "42", "outputs": [...]}),
    Row("nested data", INFER, changed(shape=[2, 1], data=[["a"], ["b"]]), 200,
        {**INFERRED, "outputs": [tensor("embedding", "FP32", 2, 16)]}),
    Row("flat data of a nested shape", INFER, changed(shape=[2, 1]), 200,
        {**INFERRED, "outputs": [tensor("embedding", "FP32", 2, 16)]}),
    Row("an empty text is a text", INFER, asked("", outputs=[{"name": "num_tokens"}]), 200,
        {**INFERRED, "outputs": [tensor("num_tokens", "INT32", 1, item=int)]}),
    Row("attention", INFER, asked("cat", outputs=[{"name": "attention"}]), 200,
        {**INFERRED, "outputs": [{**tensor("attention", "FP32", 1, 1, 2, 3, 3), "parameters": LAST_LAYER}]}),
    Row("a long text", INFER, asked(LONG, outputs=[{"name": "truncated"}]), 200,
        {**INFERRED, "parameters": ONE_CUT, "outputs": [tensor("truncated", "BOOL", 1, item=bool)]}),
    Row("a long text, truncate false", INFER, asked(LONG, parameters={"truncate": False}), 413, OIP_ERROR,
        ("text[0]", "102", "32"), "a 4xx: 413 for what is too large"),
    Row("fields that are not known", INFER, asked("a", parameters={"timeout": 5}), 200, {**INFERRED, "outputs": [...]},
        headers={"x-ignored-fields": "parameters.timeout"}, differs="ignored: here named, too"),
    Row("no inputs", INFER, {}, 400, OIP_ERROR, ("inputs", "required")),
    Row("another input", INFER, changed(name="ids"), 400, OIP_ERROR, ("inputs[0].name",), PLACED),
    Row("another datatype", INFER, changed(datatype="FP32"), 400, OIP_ERROR, ("inputs[0].datatype", "BYTES"), PLACED),
    Row("less data than the shape says", INFER, changed(shape=[3]), 400, OIP_ERROR, ("inputs[0].data", "2", "3"),
        PLACED),
    Row("numbers for texts", INFER, asked(5), 400, OIP_ERROR, ("inputs[0].data[0]",), PLACED),
    Row("an output that is not there", INFER, asked("a", outputs=[{"name": "logits"}]), 400, OIP_ERROR,
        ("outputs[0].name",)),
    Row("an id that is a number", INFER, asked("a", id=5), 400, OIP_ERROR, ("id",)),
    Row("a bad parameter", INFER, asked("a", parameters={"dimensions": 17}), 400, OIP_ERROR,
        ("parameters.dimensions", "16")),
    Row("too many texts", INFER, asked(*"abcde"), 413, OIP_ERROR, ("4", "5"), "a 4xx: 413 for what is too large"),
    Row("malformed JSON", INFER, b'{"inputs": ', 400, OIP_ERROR, ("not valid JSON",)),
    Row("another content type", INFER, b"{}", 415, OIP_ERROR, sent={"content-type": "text/plain"}),
    Row("a wrong verb", INFER, None, 405, OIP_ERROR, headers={"allow": "POST"}),
    Row("a model that is not served", "/v2/models/x/infer", asked("a"), 404, OIP_ERROR, ("tiny",)),
    Row("a version that is not served", "/v2/models/tiny/versions/2/ready", None, 404, OIP_ERROR, ("1",)),
    Row("a model without embeddings", "/v2/models/reranker/infer", asked("a"), 400, OIP_ERROR, ("reranker",)),
    Elsewhere("tensors behind the JSON", "app.routes.test_oip.test_texts_and_tensors_behind_the_json"),
    Elsewhere("binary that does not fit", "app.routes.test_oip.test_binary_that_does_not_fit_is_400"),
    Elsewhere("overloaded: 429 with Retry-After", "app.routes.test_oip.test_a_full_queue_says_when_to_come_back"),
    Elsewhere("a failure, and a model without maps", "app.routes.test_oip.test_a_server_that_cannot_answer_says_so"),
    Elsewhere("while it starts and stops", "app.routes.test_oip.test_health_and_readiness"),
]  # fmt: skip

# ---- Cohere and Jina


def rerank_error(code: str) -> dict[str, Any]:
    """Cohere's clients read message, Jina's detail."""
    return {"message": str, "detail": str, "code": code}


def ranked(*results: Any) -> dict[str, Any]:
    """The answer, with the tokens where each family looks for them."""
    usage = {"prompt_tokens": int, "total_tokens": int}
    return {
        "id": str,
        "model": "reranker",
        "results": [*results],
        "usage": usage,
        "meta": {"tokens": {"input_tokens": int}},
    }


def to_rank(*documents: Any, **fields: Any) -> dict[str, Any]:
    """A body."""
    return {"model": "reranker", "query": "the cat", "documents": list(documents), **fields}


RESULT = {"index": int, "relevance_score": float}
NO_SILENCE = "taken: here a value that would be ignored is refused"
RERANK = [
    Row("documents", "/v1/rerank", to_rank("a", "cat"), 200, ranked(RESULT, RESULT)),
    Row("Cohere's second version", "/v2/rerank", to_rank("a", "cat"), 200, ranked(RESULT, RESULT)),
    Row("by its key", "/rerank", to_rank("a"), 200, ranked(RESULT)),
    Row("documents as objects", "/v1/rerank", to_rank({"text": "a"}), 200, ranked(RESULT)),
    Row("the best", "/v1/rerank", to_rank("a", "b", "cat", top_n=2), 200, ranked(RESULT, RESULT)),
    Row("with their documents", "/v1/rerank", to_rank("a", return_documents=True), 200,
        ranked({**RESULT, "document": {"text": "a"}})),
    Row("fields that clients send as null", "/v2/rerank", to_rank("a", max_tokens_per_doc=None, rank_fields=None), 200,
        ranked(RESULT)),
    Row("a field that means something there", "/v2/rerank", to_rank("a", max_tokens_per_doc=9), 422,
        rerank_error("invalid_request"), ("max_tokens_per_doc",), NO_SILENCE),
    Row("a field that is not known", "/v1/rerank", to_rank("a", top_k=1), 422, rerank_error("invalid_request"),
        ("top_k",), NO_SILENCE),
    Row("a long document", "/v1/rerank", to_rank("a", LONG), 200, ranked(RESULT, RESULT),
        headers={"x-truncated-count": "1", "x-truncated-texts": "1"}, differs="cut or in chunks: here headers say so"),
    Row("a long document, truncate false", "/v1/rerank", to_rank(LONG, truncate=False), 413,
        rerank_error("text_too_long"), ("documents[0]", "32")),
    Row("no documents", "/v1/rerank", to_rank(), 400, rerank_error("empty_input"), ("documents",)),
    Row("no query", "/v1/rerank", {"model": "reranker", "documents": ["a"]}, 422, rerank_error("invalid_request"),
        ("query", "required")),
    Row("an empty query", "/v1/rerank", to_rank("a", query=""), 422, rerank_error("invalid_request"), ("query",)),
    Row("documents of another kind", "/v1/rerank", to_rank(5), 422, rerank_error("invalid_request"), ("documents[0]",)),
    Row("top_n 0", "/v1/rerank", to_rank("a", top_n=0), 422, rerank_error("invalid_request"), ("top_n",)),
    Row("too many documents", "/v1/rerank", to_rank(*"abcde"), 413, rerank_error("too_many_texts"), ("4", "5")),
    Row("an unknown model", "/v1/rerank", to_rank("a", model="x"), 404, rerank_error("model_not_found"), ("reranker",)),
    Row("late interaction", "/v1/rerank", to_rank("a", "cat", model="late_interaction"), 200,
        {**ranked(RESULT, RESULT), "model": "late_interaction"}, differs="from 0 to 1: here MaxSim as it is"),
    Row("late interaction: a long query", "/v1/rerank",
        to_rank("a", "b", query=LONG, model="late_interaction", truncate=False), 413, rerank_error("text_too_long"),
        ("query", "103", "10")),
    Row("no reranker", "/v1/rerank", to_rank("a", model="tiny"), 422, rerank_error("wrong_model_kind"), ("embedding",)),
    Row("malformed JSON", "/v1/rerank", b'{"query": ', 400, rerank_error("malformed_json")),
    Row("no content type", "/v1/rerank", b"{}", 415, rerank_error("unsupported_media_type"), sent={}),
    Row("a wrong verb", "/v1/rerank", None, 405, rerank_error("method_not_allowed"), headers={"allow": "POST"}),
    Elsewhere("overloaded: 429 with Retry-After", "app.routes.test_rerank.test_overload_is_429_with_a_time"),
    Elsewhere("a bad key: 401", "app.test_access.test_each_family_words_the_refusal"),
]  # fmt: skip

TABLES: dict[str, list[Row | Elsewhere]] = {"openai": [*OPENAI], "tei": [*TEI], "oip": [*OIP], "rerank": [*RERANK]}


async def send(server: Served, row: Row) -> httpx.Response:
    """Make a row's request."""
    if row.body is None:
        return await server.client.get(row.path)
    if isinstance(row.body, bytes):
        headers = {"content-type": "application/json"} if row.sent is None else row.sent
        return await server.client.post(row.path, content=row.body, headers=headers)
    return await server.post(row.path, row.body)


def faults(row: Row, response: httpx.Response) -> list[str]:
    """Say where an answer is not what the row has."""
    found = []
    if response.status_code != row.status:
        found.append(f"status {response.status_code}, not {row.status}")
    if not fits(response.json(), row.shape):
        found.append(f"another shape than {row.shape}")
    found += [f"nothing of {part!r}" for part in row.says if part not in response.text]
    for name, value in row.headers.items():
        if response.headers.get(name) != value:
            found.append(f"{name}: {response.headers.get(name)}, not {value}")
    return [f"{fault}: {response.text[:300]}" for fault in found]


@pytest.mark.parametrize("family", TABLES)
async def test_the_table(serve: Serve, tiny_folder: Path, tmp_path: Path, family: str) -> None:
    """Each row's status, shape and message; no more than what is said to differ does."""
    models = (ModelSpec("tiny", tiny_folder), *make_models(tmp_path, "reranker", "classifier", "late_interaction"))
    async with serve(model=models, viewer=False, **LIMITS) as server:
        rows = [row for row in TABLES[family] if isinstance(row, Row)]
        wrong = {row.case: found for row in rows if (found := faults(row, await send(server, row)))}
    assert wrong == {}
    assert len({row.case for row in rows}) == len(rows)


@pytest.mark.parametrize("family", TABLES)
def test_what_is_elsewhere_is_there(family: str) -> None:
    """Each pointer leads to a test."""
    for row in TABLES[family]:
        if isinstance(row, Elsewhere):
            module, name = f"tests.{row.test}".rsplit(".", 1)
            assert name.startswith("test_")
            assert callable(getattr(importlib.import_module(module), name)), row.test


@pytest.mark.parametrize(
    ("found", "shape", "good"),
    [
        ([1.0, 2.0], [float] * 2, True),
        ([1.0], [float] * 2, False),
        ([1.0, 2], Each(float), False),
        ([], Each(float), False),
        ({"a": True}, {"a": int}, False),
        ({"a": 1, "b": 2}, {"a": int}, False),
        ({"a": [None]}, {"a": [None]}, True),
        ({"a": "x"}, {"a": ...}, True),
        (1, True, False),
    ],
)
def test_shapes_are_exact(found: Any, shape: Any, good: bool) -> None:
    """A field more, a field less, another kind of number: another shape."""
    assert fits(found, shape) == good


# ---- rows of every table that need a server of their own

FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "openai": (
        EMBEDDINGS,
        {"input": ["cat"]},
        openai_error("deadline_exceeded", kind="server_error"),
        openai_error("non_finite_output", "input[0]", "server_error"),
    ),
    "tei": ("/embed", {"inputs": ["cat"]}, tei_error("Overloaded"), tei_error("Backend")),
    "oip": (INFER, asked("cat"), OIP_ERROR, OIP_ERROR),
}
"""Path, body, and the shape of each of the two rows."""


@pytest.mark.parametrize("family", FAMILIES)
async def test_too_late_is_504(serve: Serve, family: str) -> None:
    """In each API's shape; nothing is run."""
    path, body, late, _ = FAMILIES[family]
    async with serve(request_timeout_seconds=1e-6) as server:
        response = await server.post(path, body)
        assert response.status_code == 504
        assert fits(response.json(), late)
        assert server.embedder.batches == []


@pytest.mark.parametrize("family", FAMILIES)
async def test_what_is_not_finite_is_500(serve: Serve, tmp_path: Path, family: str) -> None:
    """Never vectors of nulls.

    https://github.com/huggingface/text-embeddings-inference/issues/644
    """
    path, body, _, withheld = FAMILIES[family]
    folder = make_bert_folder(tmp_path / "tiny")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors["encoder.layer.1.output.LayerNorm.bias"][3] = 3e38  # finite, but no two of them can be added
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    async with serve(model=(ModelSpec("tiny", folder),)) as server:
        response = await server.post(path, body)
        assert response.status_code == 500, response.text[:200]
        assert fits(response.json(), withheld)


@pytest.mark.parametrize(("shape", "data"), [([2, 1], [["a"], ["b"]]), ([2, 1], ["a", "b"]), ([2], ["a", "b"])])
async def test_data_may_be_nested_or_flat(server: Served, shape: list[int], data: list[Any]) -> None:
    """As the Open Inference Protocol allows."""
    response = await server.post(INFER, changed(shape=shape, data=data))
    [output] = response.json()["outputs"]
    found = np.array(output["data"]).reshape(output["shape"])
    np.testing.assert_allclose(found, server.embedder.encode(["a", "b"]), atol=1e-6)
