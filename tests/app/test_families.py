"""Which API a request speaks, and how each words the errors of our tree."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import HTTPException, Request

from app.errors import ANSWERS, InvalidRequestError, QueueFullError, ServiceError, TooManyTextsError
from app.families import (
    Family,
    as_oip,
    as_openai,
    as_rerank,
    as_tei,
    family_of,
    oip_status,
    openai_status,
    speaks,
    write_error,
)
from app.problems import problem

NATIVE_KEYS = frozenset({"texts", "pairs"})


def request_to(path: str, method: str = "POST") -> Request:
    """A request as the server sees it before any route has run."""
    return Request({"type": "http", "method": method, "path": path, "headers": []})


def make_error(error_class: Any) -> Exception:
    """Any error of the table, with all its fields."""
    error: Exception = error_class("a sentence", param="input[3]", limit=4, actual=5)
    return error


@pytest.mark.parametrize(
    ("path", "family"),
    [
        ("/v1/embeddings", Family.OPENAI),
        ("/v1/anything/else", Family.OPENAI),
        ("/embeddings", Family.OPENAI),
        ("/models", Family.OPENAI),
        ("/models/a/embed", Family.TEI),
        ("/embed", Family.TEI),
        ("/embed_all", Family.TEI),
        ("/embed_sparse", Family.TEI),
        ("/decode", Family.TEI),
        ("/", Family.TEI),
        ("/v2", Family.OIP),
        ("/v2/models/a/infer", Family.OIP),
        ("/v2/anything", Family.OIP),
        ("/v2x", Family.NATIVE),
        ("/encode", Family.NATIVE),
        ("/similarity", Family.NATIVE),
        ("/tokenize", Family.NATIVE),
        ("/v1", Family.NATIVE),
        ("/embedding", Family.NATIVE),
    ],
)
def test_the_path_decides(path: str, family: Family) -> None:
    """Also where no route was found; what is not one of theirs is ours."""
    assert family_of(request_to(path)) is family


def test_the_page_is_ours() -> None:
    """What is posted to / is an embedding of text-embeddings-inference's, what is got there is the page."""
    assert family_of(request_to("/", "GET")) is Family.NATIVE


@pytest.mark.parametrize(
    ("body", "is_tei"),
    [
        (b'{"inputs": "a"}', True),
        (b'{"inputs": null, "unknown": 1}', True),
        (b'{"texts": "a"}', False),
        (b'{"texts": "the key \\"inputs\\""}', False),
        (b'{"nested": {"inputs": 1}}', False),
        (b'["inputs"]', False),
        (b'{"inputs": ', False),
        (b'{"inputs": "\\ud800"}', False),
        (b"", False),
    ],
)
def test_on_shared_paths_the_key_decides(body: bytes, is_tei: bool) -> None:
    """At the top of the body, whatever the rest is; what cannot be read stays ours."""
    request = request_to("/tokenize")
    assert speaks(request, body, Family.TEI, "inputs", NATIVE_KEYS) is is_tei
    assert family_of(request) is (Family.TEI if is_tei else Family.NATIVE)


@pytest.mark.parametrize("key", sorted(NATIVE_KEYS))
def test_keys_of_both_are_refused(key: str) -> None:
    """In our shape: it is not known which was meant."""
    request = request_to("/similarity")
    with pytest.raises(InvalidRequestError, match="either inputs or"):
        speaks(request, json.dumps({"inputs": 1, key: 2}).encode(), Family.TEI, "inputs", NATIVE_KEYS)
    assert family_of(request) is Family.NATIVE


@pytest.mark.parametrize("error_class", ANSWERS, ids=lambda error_class: error_class.__name__)
def test_every_error_in_every_shape(error_class: type[Exception]) -> None:
    """Each row of the table has an answer of each API: its keys, a sentence, and the status that its clients know."""
    described = problem(make_error(error_class))
    theirs = as_openai(described)["error"]
    assert isinstance(theirs, dict)
    assert list(theirs) == ["message", "type", "param", "code"]
    assert (theirs["message"], theirs["param"]) == ("a sentence", "input[3]")
    assert openai_status(described) in {400, 401, 404, 406, 409, 413, 415, 429, 500, 501, 503, 504}
    kinds = {True: "server_error", False: "invalid_request_error"}
    expected = "rate_limit_error" if described.status == 429 else kinds[described.status >= 500]
    assert theirs["type"] == expected

    tei = as_tei(described)
    assert list(tei) == ["error", "error_type"]
    assert tei["error"] == "input[3]: a sentence"
    assert tei["error_type"] in {"Unhealthy", "Backend", "Overloaded", "Validation", "Empty"}
    assert (tei["error_type"] == "Validation") == (400 <= described.status < 500 and described.status != 429) or (
        described.code in {"empty_input", "attention_not_supported", "explanation_not_supported"}
    )

    sentence = "input[3]: a sentence"
    assert as_rerank(described) == {"message": sentence, "detail": sentence, "code": described.code}

    assert as_oip(described) == {"error": "input[3]: a sentence"}
    assert oip_status(described) == (400 if described.status == 422 else described.status)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v1/embeddings", 400), ("/v1/rerank", 413), ("/embed", 413), ("/v2/models/a/infer", 413), ("/encode", 413)],
)
def test_the_shape_is_that_of_the_request(path: str, status: int) -> None:
    """One problem, as many answers as families."""
    response = write_error(request_to(path), problem(TooManyTextsError("a sentence", param="texts")))
    assert response.status_code == status
    body = json.loads(bytes(response.body))
    shapes = {"/v1/embeddings": {"error"}, "/v2/models/a/infer": {"error"}, "/embed": {"error", "error_type"}}
    shapes["/v1/rerank"] = {"message", "detail", "code"}
    assert set(body) == shapes.get(path, set(problem(TooManyTextsError("a sentence", param="texts")).as_dict()))
    kind = "application/problem+json" if path == "/encode" else "application/json"
    assert response.headers["content-type"] == kind


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/embed", "/v2/models/a/infer", "/encode"])
def test_retry_after_is_kept(path: str) -> None:
    """In every shape."""
    response = write_error(request_to(path), problem(QueueFullError("full", retry_after_seconds=2.5)))
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")


@pytest.mark.parametrize("error", [HTTPException(404, "MARKER"), KeyError("MARKER"), ServiceError("a bug")])
def test_what_is_not_ours_is_not_quoted(error: Exception) -> None:
    """A framework's error or a bug tells nothing of itself, in any shape."""
    described = problem(error)
    for body in (as_openai(described), as_tei(described), as_oip(described), as_rerank(described)):
        assert "MARKER" not in str(body)
        assert "a bug" not in str(body)


def test_a_field_is_named_once() -> None:
    """text-embeddings-inference has no place for the field but the sentence."""
    error = InvalidRequestError("inputs[3]: should be a valid string", param="inputs[3]")
    assert as_tei(problem(error))["error"] == "inputs[3]: should be a valid string"
