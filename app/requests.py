"""Reads what comes in over HTTP: the body with its limits, and whether the caller is still there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from app.errors import (
    BodyTooLargeError,
    InvalidRequestError,
    MalformedBodyError,
    ServiceError,
    UnsupportedMediaTypeError,
)
from app.validation import from_validation

BodyT = TypeVar("BodyT", bound=BaseModel)
T = TypeVar("T")


CLIENT_GONE = 499
"""The status that is counted, and reaches nobody, when the caller left first: nginx's number for it."""


MAX_FINDINGS = 100
"""Up to so many faults of a body are looked at to find the one to report: the fields of the largest request, twice."""


MAX_LENGTH_DIGITS = 15
"""Of a Content-Length: more than any body has, and every JSON reader can hold the number."""


TENSOR_TYPES = frozenset({"application/octet-stream", ""})
"""Beside JSON; empty is no content type at all, as Triton's client sends it."""


class ClientGoneError(Exception):
    """The caller closed the connection; there is nobody to answer."""


def has_body(request: Request) -> bool:
    """Whether a body is announced, for a route that can do without."""
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


async def read_body(request: Request, schema: type[BodyT], max_bytes: int) -> BodyT:
    """Read, parse and validate a JSON body; raises what :func:`read_json` and :func:`parse` raise."""
    return parse(await read_json(request, max_bytes), schema)


async def read_json(request: Request, max_bytes: int) -> bytes:
    """Read a body that is said to be JSON.

    Raises
    ------
    UnsupportedMediaTypeError
        If the content type is not JSON, or the body is compressed.
    BodyTooLargeError
        As soon as more than ``max_bytes`` are announced or have come.
    ClientGoneError
        If the caller left before the body was whole.
    """
    if not _is_json(request):
        raise UnsupportedMediaTypeError("the body must be sent as Content-Type: application/json")
    return await _read_plain(request, max_bytes)


async def read_tensors(request: Request, max_bytes: int) -> bytes:
    """Read a body of JSON, perhaps with tensors behind it; raises what :func:`read_json` raises.

    Clients of the Open Inference Protocol say ``application/octet-stream`` of it, or JSON, or nothing at all.
    """
    if _media_type(request) not in TENSOR_TYPES and not _is_json(request):
        raise UnsupportedMediaTypeError("the body must be sent as application/json or application/octet-stream")
    return await _read_plain(request, max_bytes)


def parse(body: bytes, schema: type[BodyT]) -> BodyT:
    """Parse and validate a body.

    Raises
    ------
    MalformedBodyError
        If the bytes are no JSON in UTF-8.
    InvalidRequestError
        If a field is missing, unknown or wrong.
    """
    try:
        return schema.model_validate_json(body)
    except ValidationError as error:
        raise _invalid(error) from None


def _invalid(error: ValidationError) -> ServiceError:
    """Tell broken JSON from a wrong value; listing findings is slow, so a flood of them is only counted."""
    if error.error_count() > MAX_FINDINGS:
        return InvalidRequestError(f"the body: {error.error_count()} faults, such as unknown fields")
    findings = error.errors(include_url=False, include_input=False)
    if findings[0]["type"] == "json_invalid":
        return MalformedBodyError("the body is not valid JSON in UTF-8, or it is nested too deeply")
    return from_validation(findings)


def _media_type(request: Request) -> str:
    """Return the content type without its parameters; empty where none is sent."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_json(request: Request) -> bool:
    media_type = _media_type(request)
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


async def _read_plain(request: Request, max_bytes: int) -> bytes:
    """Read the whole body, which must not be compressed, but never more than allowed."""
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMediaTypeError("the body must be sent as it is, without Content-Encoding")
    announced = request.headers.get("content-length", "")
    significant = announced.lstrip("0")[:MAX_LENGTH_DIGITS]
    if significant.isdecimal() and int(significant) > max_bytes:
        raise _too_large(max_bytes, int(significant))
    chunks = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                raise _too_large(max_bytes, size)
            chunks.append(chunk)
    except ClientDisconnect:
        raise ClientGoneError from None
    return b"".join(chunks)


def _too_large(limit: int, actual: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"a body may have {limit} bytes, this one has {actual} or more", param=None, limit=limit, actual=actual
    )


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Wait for ``work``, and cancel it when the caller leaves.

    Raises
    ------
    ClientGoneError
        If the caller left first.

    Notes
    -----
    The body must have been read: what is received after it can only be the end of the connection. The work is done in
    the task that calls; only the watch has one of its own.
    """
    task, has_left = asyncio.current_task(), False
    assert task is not None
    num_cancelled = task.cancelling()

    async def watch() -> None:
        nonlocal has_left
        await _until_disconnect(request)
        has_left = True
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if has_left and task.uncancel() <= num_cancelled:
            raise ClientGoneError from None
        raise  # somebody else wants the request to end
    finally:
        watching.cancel()


async def _until_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def install_client_gone(app: FastAPI) -> None:
    """Let a request whose caller left end quietly: there is nobody to send an answer to."""

    async def nobody(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_GONE)

    app.add_exception_handler(ClientGoneError, nobody)
