"""Makes every error an answer that never repeats the input: RFC 9457 ``application/problem+json``.

How the compatible APIs word the same problem is in ``app/families.py``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from app.errors import ANSWERS, INTERNAL, ServiceError
from app.validation import from_fastapi
from model.errors import InputError

logger = logging.getLogger("eyeline")

MEDIA_TYPE = "application/problem+json"


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
        error = from_fastapi(error)
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
WriteProblem = Callable[[Request, Problem], Response]


def write_problem(request: Request, described: Problem) -> Response:
    """Write a problem as RFC 9457 has it."""
    return Response(orjson.dumps(described.as_dict()), described.status, described.headers(), MEDIA_TYPE)


def install_handlers(
    app: FastAPI, on_error: Callable[[str], None], write: WriteProblem = write_problem
) -> ErrorHandler:
    """Make every error of ``app`` an answer of one shape.

    Parameters
    ----------
    app : FastAPI
    on_error : callable
        Called once per error answer with its code; where the errors are counted.
    write : callable
        Words the problem; may choose the shape by the request.

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
        response = write(request, described)
        if isinstance(error, HTTPException):
            response.headers.update(error.headers or {})  # Allow, on a 405
        return response

    for error_class in (ServiceError, InputError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(error_class, answer)
    return answer


def _route_of(request: Request) -> str:
    """Name the route for the log by its template, which holds nothing of the caller's."""
    return str(getattr(request.scope.get("route"), "path", "an unknown route"))
