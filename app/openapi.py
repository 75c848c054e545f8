"""Completes ``/openapi.json``: routes read their bodies themselves, so FastAPI does not know the request models."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from app.access import AccessRules
from app.callers import MAX_TIMEOUT_SECONDS, TIMEOUT_HEADER
from app.schemas.attention import HeadDistancesRequest
from app.schemas.encode import EncodeRequest, TokenizeRequest
from app.schemas.oip import OIPInferRequest
from app.schemas.openai import InfinityEmbeddingsRequest, OpenAIEmbeddingsRequest
from app.schemas.rerank import RerankRequest
from app.schemas.similarity import SimilarityRequest
from app.schemas.tei import (
    TeiDecodeRequest,
    TeiEmbedAllRequest,
    TeiEmbedRequest,
    TeiPredictRequest,
    TeiRerankRequest,
    TeiSimilarityRequest,
    TeiTokenizeRequest,
)
from app.schemas.tei_sparse import TeiEmbedSparseRequest

REQUESTS = (
    *(EncodeRequest, SimilarityRequest, TokenizeRequest, HeadDistancesRequest, OpenAIEmbeddingsRequest),
    InfinityEmbeddingsRequest,
    *(TeiEmbedRequest, TeiEmbedAllRequest, TeiSimilarityRequest, TeiTokenizeRequest, TeiDecodeRequest),
    *(TeiEmbedSparseRequest, TeiPredictRequest, TeiRerankRequest, RerankRequest),
    OIPInferRequest,
)
SHARED_PATHS = ("/similarity", "/tokenize")
"""Their errors have the shape of the API that the body speaks."""

REQUEST_ID_HEADER = {
    "description": "The caller's own where it is valid, else a new one.",
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": 128},
}
RETRY_AFTER_HEADER = {
    "description": "Seconds until the same request is likely to succeed.",
    "required": True,
    "schema": {"type": "integer", "minimum": 1},
}


DEADLINE = (
    f"The deadline passed: the server's own, or after as many seconds as the request's header {TIMEOUT_HEADER} says, "
    f"from 0 to {MAX_TIMEOUT_SECONDS:g}, since it arrived"
)
"""No parameter of the operations: a schema would then say that no other header may be sent."""
SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key: `Authorization: Bearer KEY`."},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key, bare."},
    "api-key": {"type": "apiKey", "in": "header", "name": "api-key", "description": "The same key, bare."},
}
UNAUTHORIZED = {
    "description": "No key, or one that is not known here; in the shape of the other errors of this path",
    "headers": {"WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}}},
}


PROBLEM_CONTENT = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemResponse"}}}


def describe(app: FastAPI, rules: AccessRules) -> None:
    """Give ``app`` an ``openapi()`` that knows its request bodies and its keys, and says how errors are sent."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, summary=app.summary, routes=app.routes, openapi_version="3.1.0"
            )
            template = "#/components/schemas/{model}"
            _, requests = models_json_schema([(model, "validation") for model in REQUESTS], ref_template=template)
            schema["components"]["schemas"] |= requests["$defs"]
            _drop_impossible_errors(schema)
            _mark_problems(schema)
            _add_second_shape(schema)
            _add_security(schema, rules)
            _add_headers(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI documents this as the way to extend the schema


def _drop_impossible_errors(schema: dict[str, Any]) -> None:
    """Take away the errors of FastAPI's own checks: parameters of our paths are strings, which never fail."""
    for path in schema["paths"].values():
        for operation in path.values():
            content = operation["responses"].get("422", {}).get("content", {})
            reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
            if reference.endswith("/HTTPValidationError"):
                del operation["responses"]["422"]
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)


def _mark_problems(schema: dict[str, Any]) -> None:
    """Give error answers their media type, which FastAPI writes as application/json."""
    for path in schema["paths"].values():
        for operation in path.values():
            for response in operation["responses"].values():
                content = response.get("content", {})
                reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
                if reference.endswith("/ProblemResponse"):
                    content["application/problem+json"] = content.pop("application/json")


def _add_second_shape(schema: dict[str, Any]) -> None:
    """Name the other shape that the errors of shared paths may have."""
    for path in SHARED_PATHS:
        for response in schema["paths"][path]["post"]["responses"].values():
            if "application/problem+json" in response["content"]:
                reference = {"$ref": "#/components/schemas/TeiErrorResponse"}
                response["content"]["application/json"] = {"schema": reference}


def _add_security(schema: dict[str, Any], rules: AccessRules) -> None:
    """Name the keys that each path needs, and how one is refused that has none."""
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            ring = rules.ring_for(method.upper(), path)
            if ring is None:
                continue
            operation["security"] = [{name: []} for name in SECURITY_SCHEMES]
            shapes = (found["content"] for status, found in operation["responses"].items() if status >= "400")
            operation["responses"]["401"] = UNAUTHORIZED | {"content": next(shapes, PROBLEM_CONTENT)}
    if rules.api is not None or rules.admin is not None:
        schema["components"]["securitySchemes"] = SECURITY_SCHEMES


def _add_headers(schema: dict[str, Any]) -> None:
    """Name the headers: of requests a time-out, of answers an id for each, and when to come again."""
    for path in schema["paths"].values():
        for operation in path.values():
            if "504" in operation["responses"]:
                operation["responses"]["504"]["description"] = DEADLINE
            for status, response in operation["responses"].items():
                headers = response.setdefault("headers", {})
                headers["X-Request-ID"] = REQUEST_ID_HEADER
                if status == "429":
                    headers["Retry-After"] = RETRY_AFTER_HEADER
