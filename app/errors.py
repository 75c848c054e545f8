"""What can go wrong with a request, and the one table from error to answer.

::

    Exception
    ├── ServiceError                 raised by app/
    │   ├── MalformedBodyError       400  the body is not JSON
    │   ├── NotAcceptableError       406  no format in Accept that we write
    │   ├── UnknownModelError        404  no such model is served
    │   ├── BodyTooLargeError        413  bytes
    │   ├── TooManyTextsError        413  texts in one request
    │   ├── RequestTooLargeError     413  one request over the whole queue's capacity: waiting would not help
    │   ├── AttentionTooLargeError   413  attention values in one request
    │   ├── UnsupportedMediaTypeError  415  the body's content type
    │   ├── InvalidRequestError      422  a field's value
    │   ├── QueueFullError           429  no room now, Retry-After says when
    │   ├── NotReadyError            503  loading or shutting down, with Retry-After
    │   ├── DeadlineExceededError    504  the caller's deadline passed while it waited
    │   ├── InferenceError           500  the encoder failed on a text; the reason is in the log only
    │   └── NonFiniteError           500  the encoder's result holds a NaN or an infinity
    ├── model.errors.ModelError
    │   ├── CheckpointError          start-up only: the command line prints it, no request ever sees it
    │   └── InputError               413 or 422, its leaves are in the table below
    ├── starlette HTTPException      404, 405, ...: the status, in our shape
    ├── RequestValidationError       as InvalidRequestError (or MalformedBodyError)
    └── anything else                500  internal_error: a bug, logged and not explained

Every answer is one shape, RFC 9457 ``application/problem+json``, and none of them repeats the caller's input.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from model.errors import (
    AttentionSelectionError,
    CheckpointError,
    DimensionsError,
    InputError,
    PairError,
    PromptError,
    TextTooLongError,
    TokenIdError,
)

logger = logging.getLogger("eyeline")

MEDIA_TYPE = "application/problem+json"
MAX_NAME_CHARACTERS = 64  # of a field name that the caller chose: enough to find a typing error


class ServiceError(Exception):
    """Base of every error this package raises on purpose.

    Parameters
    ----------
    message : str
        One sentence for people, with the limit and the value; never the caller's text.
    param : str, optional
        The field at fault, in the words of the wire, such as ``texts[3]``.
    limit, actual : int or float, optional
        The limit and the value that broke it, where there are such numbers.
    retry_after_seconds : float, optional
        When the same request is likely to succeed.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        limit: float | None = None,
        actual: float | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.limit = limit
        self.actual = actual
        self.retry_after_seconds = retry_after_seconds


class MalformedBodyError(ServiceError):
    """The body is not JSON."""


class NotAcceptableError(ServiceError):
    """The Accept header names no format that we write."""


class UnknownModelError(ServiceError):
    """The request names a model that is not served."""


class BodyTooLargeError(ServiceError):
    """More bytes than a body may have."""


class TooManyTextsError(ServiceError):
    """More texts than one request may hold."""


class RequestTooLargeError(ServiceError):
    """One request over the queue's whole capacity. Not a 429: it would never fit."""


class AttentionTooLargeError(ServiceError):
    """More attention values than one request may ask for."""


class UnsupportedMediaTypeError(ServiceError):
    """The body's content type is not one that we read."""


class InvalidRequestError(ServiceError):
    """A field that is missing, unknown, of the wrong kind or out of range."""


class QueueFullError(ServiceError):
    """The request does not fit into the queue now."""


class NotReadyError(ServiceError):
    """The server is loading or shutting down."""


class DeadlineExceededError(ServiceError):
    """The caller's deadline passed before its texts were run."""


class InferenceError(ServiceError):
    """The encoder failed on a text. The reason is logged, not returned."""


class NonFiniteError(ServiceError):
    """The encoder's result for a text holds a NaN or an infinity, so it is withheld."""


class Answer(NamedTuple):
    """How an error looks on the wire: status, stable code, title for people."""

    status: int
    code: str
    title: str


ANSWERS: Mapping[type[Exception], Answer] = {
    MalformedBodyError: Answer(400, "malformed_json", "The body is not JSON"),
    UnknownModelError: Answer(404, "model_not_found", "No such model"),
    NotAcceptableError: Answer(406, "not_acceptable", "No such response format"),
    BodyTooLargeError: Answer(413, "body_too_large", "Body too large"),
    TooManyTextsError: Answer(413, "too_many_texts", "Too many texts"),
    RequestTooLargeError: Answer(413, "request_too_large", "Request larger than the queue"),
    AttentionTooLargeError: Answer(413, "attention_too_large", "Too many attention values"),
    UnsupportedMediaTypeError: Answer(415, "unsupported_media_type", "Unsupported content type"),
    InvalidRequestError: Answer(422, "invalid_request", "Invalid request"),
    QueueFullError: Answer(429, "queue_full", "Queue full"),
    InferenceError: Answer(500, "inference_failed", "Inference failed"),
    NonFiniteError: Answer(500, "non_finite_output", "Non-finite output"),
    NotReadyError: Answer(503, "not_ready", "Not ready"),
    DeadlineExceededError: Answer(504, "deadline_exceeded", "Deadline exceeded"),
    TextTooLongError: Answer(413, "text_too_long", "Text too long"),
    TokenIdError: Answer(422, "token_id_out_of_range", "Token id out of range"),
    PairError: Answer(422, "pair_not_supported", "Pairs not supported"),
    PromptError: Answer(422, "unknown_prompt", "Unknown prompt"),
    DimensionsError: Answer(422, "dimensions_out_of_range", "Dimensions out of range"),
    AttentionSelectionError: Answer(422, "attention_out_of_range", "Layer or head out of range"),
}
"""The one table from error to answer. A leaf of the trees that is missing here fails a test."""

START_UP_ONLY: frozenset[type[Exception]] = frozenset({CheckpointError})
"""Leaves that have no row because no request can meet them."""

INTERNAL = Answer(500, "internal_error", "Internal error")

FRAMEWORK_CODES = ("not_found", "method_not_allowed")
"""Codes of the errors that Starlette raises itself."""


def error_codes() -> list[str]:
    """Return every code that an answer can have."""
    return [*(answer.code for answer in ANSWERS.values()), INTERNAL.code, *FRAMEWORK_CODES]


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as RFC 9457 words it.

    Attributes
    ----------
    status : int
    code, title, detail : str
        ``code`` is stable and for programs, ``detail`` is for people.
    param, limit, actual : optional
        As in :class:`ServiceError`.
    retry_after_seconds : float, optional
        Goes into the Retry-After header, not into the body.
    """

    status: int
    code: str
    title: str
    detail: str
    param: str | None = None
    limit: float | None = None
    actual: float | None = None
    retry_after_seconds: float | None = None

    @property
    def type(self) -> str:
        """The problem type: a name, not an address."""
        return f"urn:eyeline:problem:{self.code}"

    def as_dict(self) -> dict[str, object]:
        """Return the body; ``param``, ``limit`` and ``actual`` only where they are set."""
        body: dict[str, object] = {
            "type": self.type,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }
        optional = {"param": self.param, "limit": self.limit, "actual": self.actual}
        return body | {name: value for name, value in optional.items() if value is not None}

    def headers(self) -> dict[str, str]:
        """Return Retry-After in whole seconds, rounded up and at least 1, where there is one."""
        if self.retry_after_seconds is None:
            return {}
        return {"Retry-After": str(max(1, math.ceil(self.retry_after_seconds)))}


def problem(error: Exception) -> Problem:
    """Put any error into the one shape.

    Parameters
    ----------
    error : Exception
        Ours, the model's, Starlette's, FastAPI's, or anything else, which becomes ``internal_error``.
    """
    if isinstance(error, RequestValidationError):
        error = _from_fastapi(error)
    if isinstance(error, HTTPException):
        status = HTTPStatus(error.status_code)
        # Not error.detail: a framework may put the caller's words there.
        return Problem(error.status_code, status.name.lower(), status.phrase, status.description or status.phrase)
    answer = ANSWERS.get(type(error))
    if answer is None:
        return Problem(*INTERNAL, detail="an unexpected error")
    if isinstance(error, ServiceError):
        return Problem(*answer, error.message, error.param, error.limit, error.actual, error.retry_after_seconds)
    if isinstance(error, InputError):
        return Problem(*answer, str(error), error.param, error.limit, error.actual)
    raise TypeError(f"{type(error).__name__} is in the table, but is of neither tree")


ErrorHandler = Callable[[Request, Exception], Awaitable[Response]]


def install_handlers(app: FastAPI, on_error: Callable[[str], None]) -> ErrorHandler:
    """Make every error of ``app`` an ``application/problem+json`` answer.

    Parameters
    ----------
    app : FastAPI
    on_error : callable
        Called once per error answer with its code; where the errors are counted.

    Returns
    -------
    callable
        What makes an answer of an error, for middleware, whose own errors pass no handler.
    """

    async def answer(request: Request, error: Exception) -> Response:
        described = problem(error)
        if described.code == INTERNAL.code:
            logger.error("unexpected error in %s", _route_of(request), exc_info=error)
        on_error(described.code)
        headers = described.headers()
        if isinstance(error, HTTPException):
            headers |= error.headers or {}  # Allow, on a 405
        return Response(orjson.dumps(described.as_dict()), described.status, headers, MEDIA_TYPE)

    for error_class in (ServiceError, InputError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(error_class, answer)
    return answer


def from_validation(errors: ValidationError | Sequence[Mapping[str, Any]]) -> InvalidRequestError:
    """Turn pydantic's findings into one sentence about one field, in the words of the wire.

    A union reports every branch that did not match. The deepest finding about the first field at fault is the one
    meant: it comes from the branch that matched furthest.

    Parameters
    ----------
    errors : ValidationError or sequence of mapping
        At least one finding, as pydantic lists them: ``type``, ``loc``, ``msg``, perhaps ``ctx``.

    Notes
    -----
    The input is never repeated; of a name that the caller chose, 64 printable characters are.
    What a validator of ours says in a ``ValueError`` is passed on, so it must not quote the value.
    """
    findings = [
        _Finding(_path(error), _expectation(error), _limit(error), error.get("ctx", {}).get("actual_length"))
        for error in (
            errors.errors(include_url=False, include_input=False) if isinstance(errors, ValidationError) else errors
        )
    ]
    same_field = [finding for finding in findings if finding.path[:1] == findings[0].path[:1]]
    deepest = max(same_field, key=lambda finding: len(finding.path))
    alternatives = [finding for finding in same_field if finding.path == deepest.path]
    # A branch that complains about a limit has matched otherwise: the other branches' complaints are noise.
    alternatives = [finding for finding in alternatives if finding.limit is not None] or alternatives
    param = _spell(deepest.path)
    expectations = list(dict.fromkeys(finding.expectation for finding in alternatives))
    if all(expectation.startswith(SHOULD_BE) for expectation in expectations):
        expected = SHOULD_BE + " or ".join(expectation.removeprefix(SHOULD_BE) for expectation in expectations)
    else:
        expected = next(expectation for expectation in expectations if not expectation.startswith(SHOULD_BE))
    message = f"{param or 'the body'}: {expected}"
    return InvalidRequestError(message, param=param, limit=alternatives[0].limit, actual=alternatives[0].actual)


SHOULD_BE = "should be "
WIRE_NAME = re.compile(r"[a-z][a-z0-9_]*")
PYTHON_TYPES = frozenset({"any", "bool", "bytes", "dict", "float", "int", "list", "none", "set", "str", "tuple"})
BODY_PARTS = frozenset({"body", "cookie", "header", "path", "query"})
OWN_WORDS = {
    "missing": "is required",
    "extra_forbidden": "is not a field of this request",
    "model_type": "should be an object",
    "model_attributes_type": "should be an object",
    "dict_type": "should be an object",
}
LIMITS = ("le", "lt", "ge", "gt", "max_length", "min_length")


class _Finding(NamedTuple):
    """One of pydantic's errors, without the union branches and without the input."""

    path: tuple[str | int, ...]
    expectation: str
    limit: float | None
    actual: int | None


def _path(error: Mapping[str, Any]) -> tuple[str | int, ...]:
    """Return ``loc`` without the tags that pydantic adds for the branches of a union."""
    *parts, last = error["loc"] or (None,)
    path = [part for part in parts if _is_wire_part(part)]
    if error["type"] == "extra_forbidden":
        path.append("".join(character for character in str(last)[:MAX_NAME_CHARACTERS] if character.isprintable()))
    elif _is_wire_part(last):
        path.append(last)
    return tuple(path)


def _is_wire_part(part: str | int | None) -> bool:
    """Whether a part of ``loc`` is a field or an index; a union branch is spelled as a type (``list[str]``)."""
    if isinstance(part, str):
        return len(part) <= MAX_NAME_CHARACTERS and bool(WIRE_NAME.fullmatch(part)) and part not in PYTHON_TYPES
    return part is not None


def _spell(path: tuple[str | int, ...]) -> str | None:
    """Spell a path as the wire does: ``("attention", "layers", 0)`` is ``attention.layers[0]``."""
    spelled = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return spelled.removeprefix(".") or None


def _expectation(error: Mapping[str, Any]) -> str:
    """Say what was expected, in pydantic's words where those cannot hold the input."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in OWN_WORDS:
        return OWN_WORDS[kind]
    if kind in ("value_error", "assertion_error"):
        return str(context["error"])
    if "error" in context or "tag" in context:  # a parser's complaint or a union's tag: both quote the input
        return "is not valid"
    words = str(error["msg"]).removeprefix("Input ").replace(" after validation", "")
    return words[:1].lower() + words[1:]


def _limit(error: Mapping[str, Any]) -> float | None:
    """Return the limit that was broken, where pydantic gives one."""
    context = error.get("ctx", {})
    return next((context[name] for name in LIMITS if isinstance(context.get(name), int | float)), None)


def _from_fastapi(error: RequestValidationError) -> ServiceError:
    """Drop FastAPI's first part of ``loc`` (body, query, ...); tell broken JSON from a wrong value."""
    findings: list[dict[str, Any]] = []
    for finding in error.errors():
        if finding["type"] == "json_invalid":
            return MalformedBodyError("the body is not valid JSON")
        loc = tuple(finding["loc"])
        findings.append({**finding, "loc": loc[1:] if loc[:1] and loc[0] in BODY_PARTS else loc})
    return from_validation(findings)


def _route_of(request: Request) -> str:
    """Name the route for the log by its template, which holds nothing of the caller's."""
    return str(getattr(request.scope.get("route"), "path", "an unknown route"))
