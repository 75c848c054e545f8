"""Every error is one shape, has its row in the table, and never repeats the caller's input."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

import app.errors
from app.errors import (
    ANSWERS,
    START_UP_ONLY,
    InvalidRequestError,
    QueueFullError,
    ServiceError,
    TooManyTextsError,
    from_validation,
    install_handlers,
    problem,
)
from model.errors import InputError, ModelError

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}


@pytest.fixture
def anyio_backend() -> str:
    """Run on asyncio only."""
    return "asyncio"


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


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


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


def leaves(base: type[Exception]) -> Iterator[type[Exception]]:
    """Yield the classes of a tree that have no subclass."""
    subclasses = base.__subclasses__()
    for subclass in subclasses:
        yield from leaves(subclass)
    if not subclasses:
        yield base


def make_error(error_class: Callable[..., Exception]) -> Exception:
    """Make an error with every field set; both trees take the same ones."""
    return error_class("a sentence", param="texts[3]", limit=4, actual=5)


def finding_of(value: object, schema: type[BaseModel] = Body) -> InvalidRequestError:
    """Validate what cannot be valid, and return the error made of the findings."""
    with pytest.raises(ValidationError) as caught:
        schema.model_validate(value)
    return from_validation(caught.value)


def test_every_leaf_has_a_row() -> None:
    """Both trees end in classes that the table, or the start-up list, knows."""
    known = ANSWERS.keys() | START_UP_ONLY
    assert {*leaves(ServiceError), *leaves(ModelError)} == known


def test_codes_and_start_up_errors_are_distinct() -> None:
    """A code names one error, and no start-up error has a row."""
    codes = [answer.code for answer in ANSWERS.values()]
    assert len(codes) == len(set(codes))
    assert not ANSWERS.keys() & START_UP_ONLY


def test_the_docstring_draws_the_tree() -> None:
    """The picture at the top of the module shows every class of ours with its status."""
    picture = inspect.getdoc(app.errors) or ""
    for error_class in leaves(ServiceError):
        line = next(line for line in picture.splitlines() if f"─ {error_class.__name__} " in line)
        assert line.split(error_class.__name__)[1].split()[0] == str(ANSWERS[error_class].status)


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


@pytest.mark.parametrize(
    ("value", "param", "message"),
    [
        ({}, "texts", "texts: is required"),
        ({"texts": 5}, "texts", "texts: should be a valid string or a valid list"),
        ({"texts": ["a", 3]}, "texts[1]", "texts[1]: should be a valid string or a valid list"),
        ({"texts": ["a", ["b", 3]]}, "texts[1][1]", "texts[1][1]: should be a valid string"),
        ({"texts": "a", "attention": 1}, "attention", "attention: should be an object"),
        (
            {"texts": "a", "attention": {"layers": ["x"]}},
            "attention.layers[0]",
            "attention.layers[0]: should be a valid integer",
        ),
        (
            {"texts": "a", "attention": {"layers": 1}},
            "attention.layers",
            "attention.layers: should be a valid list or 'all'",
        ),
        ({"texts": "a", "dimension": 3}, "dimension", "dimension: is not a field of this request"),
        ([], None, "the body: should be an object"),
        (
            {"texts": "a", "dimensions": 3, "attention": {}},
            None,
            "the body: dimensions and attention exclude each other",
        ),
    ],
)
def test_a_finding_in_the_words_of_the_wire(value: object, param: str | None, message: str) -> None:
    """Param is spelled as the wire spells it, without pydantic's union branches, and the message names it."""
    error = finding_of(value)
    assert (error.param, error.message) == (param, message)


@pytest.mark.parametrize(
    ("value", "param", "limit", "actual"),
    [
        ({"texts": ["a"] * 7}, "texts", 3, 7),
        ({"texts": []}, "texts", 1, 0),
        ({"texts": "a", "attention": {"top_k": 9}}, "attention.top_k", 5, None),
        ({"texts": "a", "attention": {"top_k": 0}}, "attention.top_k", 1, None),
    ],
)
def test_a_limit_is_a_number(value: object, param: str, limit: int, actual: int | None) -> None:
    """A broken limit is in the answer as a number, and beside other branches of a union it is what counts."""
    error = finding_of(value)
    assert (error.param, error.limit, error.actual) == (param, limit, actual)
    assert str(limit) in error.message
    assert "string" not in error.message
    assert "validation" not in error.message


def test_the_first_field_at_fault_is_named() -> None:
    """With several fields at fault, the answer is about the first, even where another's finding is deeper."""
    assert finding_of({"texts": 5, "attention": {"layers": ["x"]}}).param == "texts"


def test_a_name_of_the_caller_is_cut_and_cleaned() -> None:
    """Of a field name that the caller made up, 64 characters at most are repeated, and only printable ones."""
    error = finding_of({"texts": "a", "a\n\x1b\u202e" + "b" * 100: 1})
    assert error.param == "a" + "b" * 60
    assert error.message.isprintable()


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "SECRET"}),
        (dict[str, int], {"SECRET" * 20: "SECRET"}),
        (dict[str, int], {"secret" * 20: "SECRET"}),
        (int, "SECRET"),
        (Literal["a", "b"], "SECRET"),
    ],
    ids=["union tag", "dictionary key", "long dictionary key", "number", "choice"],
)
def test_the_value_is_never_in_the_message(schema: Any, value: object) -> None:
    """No kind of finding quotes the value, not even where pydantic's own message does."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(schema).validate_python(value)
    error = from_validation(caught.value)
    assert "secret" not in error.message.lower()
    assert "secret" not in (error.param or "").lower()


def test_a_parsers_complaint_is_not_passed_on() -> None:
    """A parser says which character of the value stopped it, so its words are replaced."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(UUID).validate_python("SECRET")
    assert from_validation(caught.value).message == "the body: is not valid"


def test_a_list_of_errors_is_taken_too() -> None:
    """Findings may come as the plain list that FastAPI keeps; two branches with one complaint make one."""
    finding = {"type": "int_type", "loc": ("texts", 3), "msg": "Input should be a valid integer"}
    assert from_validation([finding, finding]).message == "texts[3]: should be a valid integer"
