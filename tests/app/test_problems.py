"""Every error is answered in one shape, and no answer repeats the caller's input."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated, Any, Literal

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.errors import ANSWERS, QueueFullError, ServiceError, TooManyTextsError
from app.problems import Problem, install_handlers, problem
from model.errors import InputError

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}


class Attention(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    layers: list[int] | Literal["all"] = "all"
    top_k: Annotated[int, Field(ge=1, le=5)] | None = None


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    texts: str | Annotated[list[str | list[str]], Field(min_length=1, max_length=3)]
    attention: Attention | None = None
    dimensions: int | None = None

    @model_validator(mode="after")
    def refuse_both(self) -> Body:
        if self.dimensions is not None and self.attention is not None:
            raise ValueError("dimensions and attention exclude each other")
        return self


class Served:
    """A FastAPI app whose one route raises what it is told to, and the codes its error hook heard."""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.error: Exception = RuntimeError()
        self.app = FastAPI()
        install_handlers(self.app, self.codes.append)

        @self.app.get("/raise")
        async def raise_error() -> None:
            raise self.error

        @self.app.post("/body")
        async def read_body(body: Body) -> None:
            """Take what FastAPI validated."""

    async def request(self, method: str, path: str, *, is_bug: bool = False, **options: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=not is_bug)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **options)

    async def raised(self, error: Exception, *, is_bug: bool = False) -> httpx.Response:
        self.error = error
        return await self.request("GET", "/raise", is_bug=is_bug)


def make_error(error_class: Callable[..., Exception]) -> Exception:
    """Make an error with every field set; both trees take the same ones."""
    return error_class("a sentence", param="texts[3]", limit=4, actual=5)


@pytest.mark.parametrize("error_class", ANSWERS, ids=lambda error_class: error_class.__name__)
async def test_every_row_through_fastapi(error_class: type[Exception]) -> None:
    """Each error answers with its status, its code, problem+json and the numbers, and is counted once."""
    served = Served()
    response = await served.raised(make_error(error_class))
    answer = ANSWERS[error_class]
    assert response.status_code == answer.status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json() == {
        "type": f"urn:eyeline:problem:{answer.code}",
        "title": answer.title,
        "status": answer.status,
        "detail": "a sentence",
        "code": answer.code,
        "param": "texts[3]",
        "limit": 4,
        "actual": 5,
    }
    assert served.codes == [answer.code]


async def test_unset_fields_are_left_out() -> None:
    """param, limit and actual appear only where they are set, and Retry-After likewise."""
    response = await Served().raised(TooManyTextsError("a sentence"))
    assert response.json().keys() == {"type", "title", "status", "detail", "code"}
    assert "retry-after" not in response.headers


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.2, "1"), (2.0, "2"), (2.01, "3")])
async def test_retry_after_is_whole_seconds(seconds: float, header: str) -> None:
    """Retry-After is rounded up and never 0, so that nobody comes back too early.

    https://github.com/huggingface/text-embeddings-inference answers 429 without it.
    """
    response = await Served().raised(QueueFullError("full", retry_after_seconds=seconds))
    assert response.headers["retry-after"] == header


async def test_unknown_path() -> None:
    """A path that is not served has the same shape, and is not repeated."""
    served = Served()
    response = await served.request("GET", "/secret-path")
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["code"] == "not_found"
    assert "secret" not in response.text
    assert served.codes == ["not_found"]


async def test_wrong_method_keeps_allow() -> None:
    """A wrong method has the same shape and still says which methods are right."""
    response = await Served().request("DELETE", "/body")
    assert response.status_code == 405
    assert response.json()["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


async def test_a_framework_error_is_not_quoted() -> None:
    """Of an HTTPException only the status is used: its detail may hold the caller's words."""
    response = await Served().raised(HTTPException(413, "SECRET"))
    assert (response.status_code, response.json()["status"]) == (413, 413)
    assert "SECRET" not in response.text


async def test_unexpected_error_is_logged_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """A bug answers 500 internal_error without its message; the log has the traceback."""
    served = Served()
    with caplog.at_level(logging.ERROR, logger="eyeline"):
        response = await served.raised(KeyError("hidden detail"), is_bug=True)
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert (response.json()["code"], response.json()["detail"]) == ("internal_error", "an unexpected error")
    assert served.codes == ["internal_error"]
    [record] = [record for record in caplog.records if record.name == "eyeline"]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)


@pytest.mark.parametrize("error", [ServiceError("a sentence"), InputError("a sentence", param="texts")])
def test_an_error_without_a_row_is_a_bug(error: Exception) -> None:
    """An error that the table does not list is answered as a bug, not as some neighbour's status."""
    described = problem(error)
    assert (described.status, described.code) == (500, "internal_error")


async def test_malformed_json() -> None:
    """A body that is not JSON is 400, not 422."""
    response = await Served().request("POST", "/body", content=b'{"texts": ', headers=JSON)
    assert (response.status_code, response.json()["code"]) == (400, "malformed_json")


async def test_fastapis_body_is_no_field() -> None:
    """FastAPI's own first word of a location, body, is not part of the field's name."""
    response = await Served().request("POST", "/body", json={"texts": 5})
    assert (response.status_code, response.json()["param"]) == (422, "texts")


@pytest.mark.parametrize(
    "content",
    [
        b'{"texts": {"x": "\\ud800"}}',
        b'{"texts": NaN}',
        b'{"texts": "a", "dimensions": Infinity}',
        b'{"texts": {"x": "' + b"y" * 1_000_000 + b'"}}',
        b'{"' + b"y" * 1_000_000 + b'": 1}',
        b'{"texts": [' + b"1," * 300_000 + b"1]}",
        b'"' + b"y" * 1_000_000 + b'"',
    ],
    ids=["surrogate", "nan", "infinity", "1 MB value", "1 MB name", "1 MB of wrong items", "1 MB body"],
)
async def test_a_hostile_body_gets_a_small_answer(content: bytes) -> None:
    """What is wrongly typed is refused in under 2 kB and not echoed; FastAPI's own handler fails or answers 2 MB.

    https://github.com/MemMachine/MemMachine/issues/211
    """
    response = await Served().request("POST", "/body", content=content, headers=JSON)
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert len(response.content) < 2_000
    assert "y" * 65 not in response.text


async def test_another_shape_keeps_what_a_framework_error_carries() -> None:
    """Whoever words the problem, Allow stays on a 405, and the error is counted by its code."""
    served = Served()

    def write(request: Request, described: Problem) -> Response:
        return Response(described.code, described.status, media_type="text/plain")

    install_handlers(served.app, served.codes.append, write)
    response = await served.request("DELETE", "/body")
    assert (response.status_code, response.text) == (405, "method_not_allowed")
    assert response.headers["allow"] == "POST"
    assert served.codes == ["method_not_allowed"]
