"""Which API a request speaks, and how that API words an error: one adapter from our problem to each shape.

The path decides, and where two APIs share a path (``/similarity``, ``/tokenize``, ``/rerank``) the key of the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import orjson
from fastapi import Request, Response
from pydantic_core import from_json

from app.errors import InvalidRequestError
from app.problems import Problem, write_problem


class Family(Enum):
    """An API and its shape of errors."""

    NATIVE = "native"
    OPENAI = "openai"
    TEI = "tei"
    RERANK = "rerank"
    OIP = "oip"


OPENAI_PATHS = frozenset({"/embeddings", "/models"})
"""With everything under ``/v1/``."""

RERANK_PATHS = frozenset({"/v1/rerank", "/v2/rerank"})
"""Cohere's and Jina's, in the midst of the other families' paths."""

TEI_PATHS = frozenset({"/embed", "/embed_all", "/embed_sparse", "/predict", "/rerank", "/decode"})
"""With everything under ``/models/``, and what is posted to ``/``."""

OIP_PATH = "/v2"
"""And everything under it."""

TEI_KEY = "inputs"
RERANK_KEY = "documents"

OPENAI_STATUS: Mapping[str, int] = {"text_too_long": 400, "too_many_texts": 400}
"""Where OpenAI has another status than we; beside these, all that is 422 here is 400 there."""

OPENAI_CODES: Mapping[str, str] = {
    "text_too_long": "context_length_exceeded",
    "queue_full": "rate_limit_exceeded",
    "key_queue_full": "rate_limit_exceeded",
    "unauthorized": "invalid_api_key",
}
"""Codes that programs know by OpenAI's name; all others are ours."""

TEI_TYPES: Mapping[str, str] = {
    "empty_input": "Empty",
    "queue_full": "Overloaded",
    "key_queue_full": "Overloaded",
    "deadline_exceeded": "Overloaded",
    "not_ready": "Unhealthy",
    "server_stopping": "Unhealthy",
    "worker_unavailable": "Unhealthy",
    "out_of_memory": "Backend",
    "inference_failed": "Backend",
    "non_finite_output": "Backend",
    "internal_error": "Backend",
}
"""By our code; every other fault is the caller's: ``Validation``."""


def family_of(request: Request) -> Family:
    """Return the API that a request speaks, as far as it is known by now."""
    decided: Family | None = request.scope.get("state", {}).get("family")
    path: str = request.scope["path"]
    if decided is not None:
        return decided
    if path in RERANK_PATHS:
        return Family.RERANK
    if path.startswith("/v1/") or path in OPENAI_PATHS:
        return Family.OPENAI
    if path.startswith("/models/") or path in TEI_PATHS or (path == "/" and request.method == "POST"):
        return Family.TEI
    if path == OIP_PATH or path.startswith(f"{OIP_PATH}/"):
        return Family.OIP
    return Family.NATIVE


def speaks(request: Request, body: bytes, family: Family, key: str, other_keys: frozenset[str]) -> bool:
    """Decide by its key whether a body speaks an API that shares the path, for this request's errors too.

    Parameters
    ----------
    request : Request
    body : bytes
    family : Family
    key : str
        What bodies of that family have.
    other_keys : frozenset of str
        What those of the other family have.

    Raises
    ------
    InvalidRequestError
        If it has keys of both.
    """
    if f'"{key}"'.encode() not in body:
        return False
    try:
        keys = from_json(body)
    except ValueError:
        return False  # whoever reads it next says so
    if not isinstance(keys, dict) or key not in keys:
        return False
    if other_keys & keys.keys():
        names = " or ".join(sorted(other_keys))
        raise InvalidRequestError(f"give either {key} or {names}, not both", param=key)
    request.state.family = family
    return True


def write_error(request: Request, problem: Problem) -> Response:
    """Write an error as the API that the request speaks has it."""
    family = family_of(request)
    if family is Family.OPENAI:
        return _json(as_openai(problem), openai_status(problem), problem)
    if family is Family.TEI:
        return _json(as_tei(problem), problem.status, problem)
    if family is Family.RERANK:
        return _json(as_rerank(problem), problem.status, problem)
    if family is Family.OIP:
        return _json(as_oip(problem), oip_status(problem), problem)
    return write_problem(request, problem)


def openai_status(problem: Problem) -> int:
    """Return the status that OpenAI's clients expect."""
    return OPENAI_STATUS.get(problem.code, 400 if problem.status == 422 else problem.status)


def as_openai(problem: Problem) -> dict[str, object]:
    """Word an error as OpenAI does: one nested object, its four keys always there."""
    if problem.status == 429:
        kind = "rate_limit_error"
    else:
        kind = "server_error" if problem.status >= 500 else "invalid_request_error"
    code = OPENAI_CODES.get(problem.code, problem.code)
    return {"error": {"message": problem.detail, "type": kind, "param": problem.param, "code": code}}


def as_tei(problem: Problem) -> dict[str, object]:
    """Word an error as text-embeddings-inference does: a sentence, which names the field, and a type."""
    return {"error": _sentence(problem), "error_type": TEI_TYPES.get(problem.code, "Validation")}


def as_rerank(problem: Problem) -> dict[str, object]:
    """Word an error for clients of Cohere, who read ``message``, and of Jina, who read ``detail``."""
    sentence = _sentence(problem)
    return {"message": sentence, "detail": sentence, "code": problem.code}


def oip_status(problem: Problem) -> int:
    """Return the status that the Open Inference Protocol has: it knows no 422."""
    return 400 if problem.status == 422 else problem.status


def as_oip(problem: Problem) -> dict[str, object]:
    """Word an error as the Open Inference Protocol does: a sentence, which names the field."""
    return {"error": _sentence(problem)}


def _sentence(problem: Problem) -> str:
    """Put the name of the field before what is wrong, for shapes without a place for it."""
    if problem.param is None or problem.param in problem.detail:
        return problem.detail
    return f"{problem.param}: {problem.detail}"


def _json(body: dict[str, object], status: int, problem: Problem) -> Response:
    return Response(orjson.dumps(body), status, problem.headers(), "application/json")
