"""Who may ask for what: no route is open by mistake, and no answer helps a guesser."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Response
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from app.access import KEY_HEADERS, AccessControl, AccessRules, shown_key
from app.keys import KeyRing, NamedKey
from app.main import EXPOSED_HEADERS
from app.tensors import LENGTH_HEADER
from tests.app.conftest import Serve, Served, routes_of

pytestmark = pytest.mark.anyio

KEY, OTHER, ADMIN = "search-key-of-the-tests", "batch-key-of-the-tests", "admin-key-of-the-tests"
KEYS = f"search:{KEY},batch:{OTHER}"

OPEN = {
    *{"/health", "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"},
    *{"/", "/viewer/{name}", "/docs", "/openapi.json", "/static-offline-docs/{name}"},
}
"""Readable by everyone. A route that is to be open must be added here, and in the list of ``app/access.py``."""


@pytest.fixture
async def locked(serve: Serve) -> AsyncIterator[Served]:
    """A server with two API keys and an admin key."""
    async with serve(api_keys=KEYS, admin_key=ADMIN) as served:
        yield served


def bearer(key: str) -> dict[str, str]:
    """The header that shows a key."""
    return {"Authorization": f"Bearer {key}"}


async def test_every_route_is_closed_but_those_that_are_open(locked: Served) -> None:
    """Without a key each route and method answers 401, before it does anything, but reading what is listed here."""
    routes = routes_of(locked)
    assert len(routes) > 50
    assert {path for _, path in routes} >= OPEN
    for method, template in routes:
        path = template.replace("{name}", "tiny").replace("{version}", "1")
        response = await locked.client.request(method, path, content=b"{}")
        if template in OPEN and method in ("GET", "HEAD"):
            assert response.status_code in (200, 404), (method, template)
        else:
            assert response.status_code == 401, (method, template)
            assert response.headers["www-authenticate"] == "Bearer"
    assert locked.embedder.batches == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nowhere"),
        ("GET", "/viewer/../encode"),
        ("GET", "/health/"),
        ("GET", "/HEALTH"),
        ("POST", "/health"),
        ("POST", "/"),
        ("POST", "/docs"),
        ("OPTIONS", "/encode"),
        ("DELETE", "/openapi.json"),
        ("GET", "/metrics"),
        ("GET", "/metrics/"),
    ],
)
async def test_what_is_nearly_open_is_closed(locked: Served, method: str, path: str) -> None:
    """A path is open by its very name; what does not exist is closed, so that nobody can tell."""
    assert (await locked.client.request(method, path)).status_code in (401, 404)
    scope: Scope = {"type": "http", "method": method, "path": path, "headers": []}
    rules = AccessRules(api=KeyRing([NamedKey("a", KEY)]))
    is_file = path.startswith("/viewer/")  # 404 there: its router knows single names alone
    assert (rules.ring_for(scope["method"], scope["path"]) is None) == is_file


@pytest.mark.parametrize(
    "headers",
    [
        bearer(KEY),
        {"authorization": f"bearer   {KEY} "},
        {"X-API-Key": KEY},
        {"Api-Key": KEY},
        {"Authorization": "Basic dXNlcjpwYXNz", "x-api-key": KEY},
        bearer(KEY) | {"x-api-key": "another"},
    ],
    ids=["bearer", "spaces", "x-api-key", "api-key", "beside a proxy's Basic", "bearer first"],
)
async def test_a_key_opens(locked: Served, headers: dict[str, str]) -> None:
    """A key is taken from each header that clients send it in."""
    response = await locked.client.post("/encode", json={"texts": "a"}, headers=headers)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, "no API key was sent"),
        ({"Authorization": f"Basic {KEY}"}, "no API key was sent"),
        ({"Authorization": KEY}, "no API key was sent"),
        ({"Authorization": "Bearer"}, "not known"),
        (bearer(""), "not known"),
        (bearer(KEY[:-1]), "not known"),
        (bearer(KEY + "MARKER77"), "not known"),
        (bearer(ADMIN), "not known"),
        (bearer("search"), "not known"),
        ({"Cookie": f"key={KEY}"}, "no API key was sent"),
    ],
)
async def test_anything_else_does_not(locked: Served, headers: dict[str, str], said: str) -> None:
    """The refusal says what to send, nothing of what was sent, and is counted; it needs no body."""
    before = locked.sample("eyeline_errors_total", code="unauthorized")
    response = await locked.client.post("/encode", content=b"no json at all", headers=headers)
    assert response.status_code == 401
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert (body["code"], body["status"]) == ("unauthorized", 401)
    assert said in body["detail"]
    assert "MARKER77" not in response.text
    assert locked.sample("eyeline_errors_total", code="unauthorized") == before + 1
    assert locked.sample("eyeline_requests_total", route="unmatched", status=401) == before + 1


async def test_an_address_holds_no_key(locked: Served) -> None:
    """A key in the query does not open: addresses end in logs."""
    for query in (f"?key={KEY}", f"?api_key={KEY}", f"?access_token={KEY}"):
        assert (await locked.client.get(f"/info{query}")).status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "shape"),
    [
        ("POST", "/encode", {"type", "title", "status", "detail", "code"}),
        ("POST", "/v1/embeddings", {"error"}),
        ("GET", "/v1/models", {"error"}),
        ("POST", "/embed", {"error", "error_type"}),
        ("POST", "/", {"error", "error_type"}),
        ("POST", "/v1/rerank", {"message", "detail", "code"}),
        ("POST", "/v2/models/tiny/infer", {"error"}),
    ],
)
async def test_each_family_words_the_refusal(locked: Served, method: str, path: str, shape: set[str]) -> None:
    """Other servers' clients read a 401 in the shape that they know."""
    response = await locked.client.request(method, path)
    assert response.status_code == 401
    assert set(response.json()) == shape
    if "v1/embeddings" in path:
        error = response.json()["error"]
        assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")


async def test_the_body_is_not_read_before_the_key() -> None:
    """Whoever has no key cannot make the server take a body."""
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("the body was asked for")

    async def send(message: Message) -> None:
        sent.append(message)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the app was asked")

    async def answer(request: Request, error: Exception) -> Response:
        return Response("refused", 401)

    access = AccessControl(app, AccessRules(api=KeyRing([NamedKey("a", KEY)])), answer)
    await access({"type": "http", "method": "POST", "path": "/encode", "headers": []}, receive, send)
    assert sent[0]["status"] == 401


async def test_the_life_of_the_server_passes() -> None:
    """What is no request has no key to show."""
    passed: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        passed.append(scope)

    access = AccessControl(app, AccessRules(api=KeyRing([NamedKey("a", KEY)])), None)  # type: ignore[arg-type]
    await access({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert len(passed) == 1


async def test_metrics_are_open_where_that_is_set(serve: Serve) -> None:
    """Prometheus gets in with a key, or with the setting without one; other paths stay closed."""
    async with serve(api_keys=KEYS) as closed:
        assert (await closed.client.get("/metrics")).status_code == 401
        assert (await closed.client.get("/metrics", headers=bearer(KEY))).status_code == 200
    async with serve(api_keys=KEYS, metrics_without_key=True) as opened:
        assert (await opened.client.get("/metrics")).status_code == 200
        assert (await opened.client.get("/info")).status_code == 401


async def test_requests_are_counted_by_the_name_of_the_key(locked: Served) -> None:
    """Each name has its own count, from zero; what opens without a key is nobody's."""
    for key in (KEY, KEY, OTHER):
        await locked.client.post("/encode", json={"texts": "a"}, headers=bearer(key))
    await locked.client.get("/health", headers=bearer(KEY))
    await locked.client.post("/encode", json={"texts": []}, headers=bearer(OTHER))
    assert locked.sample("eyeline_key_requests_total", key="search", status=200) == 2
    assert locked.sample("eyeline_key_requests_total", key="batch", status=200) == 1
    assert locked.sample("eyeline_key_requests_total", key="batch", status=422) == 1


async def test_without_keys_all_is_open(server: Served) -> None:
    """Keys are a choice: none is asked for, and one that is shown does not matter."""
    assert (await server.client.get("/info")).status_code == 200
    assert (await server.client.get("/metrics")).status_code == 200
    assert (await server.client.get("/info", headers=bearer("anything"))).status_code == 200


async def test_admin_has_a_key_of_its_own(serve: Serve) -> None:
    """An API key does not open what is under /admin, and the admin key nothing else; without one there is nothing."""
    async with serve(api_keys=KEYS, admin_key=ADMIN) as locked:
        for path in ("/admin", "/admin/", "/admin/reload", "/admin/none"):
            for headers in ({}, bearer(KEY), bearer(ADMIN[:-1])):
                assert (await locked.client.post(path, headers=headers)).status_code == 401
        assert (await locked.client.post("/admin/none", headers=bearer(ADMIN))).status_code == 404
        assert (await locked.client.get("/info", headers=bearer(ADMIN))).status_code == 401
        assert (await locked.client.get("/administration", headers=bearer(ADMIN))).status_code == 401
    async with serve(admin_key=ADMIN) as half:
        assert (await half.client.post("/admin/none")).status_code == 401
        assert (await half.client.get("/info")).status_code == 200
    async with serve(api_keys=KEYS) as none:
        assert (await none.client.post("/admin/none", headers=bearer(KEY))).status_code == 404
    async with serve() as open_server:
        assert (await open_server.client.post("/admin/none")).status_code == 404


async def test_no_log_line_and_no_metric_holds_a_key(
    locked: Served, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """At the lowest level, with right and wrong keys, in every header."""
    caplog.set_level(logging.DEBUG)
    for headers in (bearer(KEY), {"x-api-key": OTHER}, bearer("wrong-" + KEY), {"api-key": ADMIN}):
        await locked.client.post("/encode", json={"texts": "a"}, headers=headers)
    pages = [
        (await locked.client.get(path, headers=bearer(KEY))).text for path in ("/metrics", "/info", "/openapi.json")
    ]
    said = caplog.text + json.dumps([record.__dict__ for record in caplog.records], default=str) + "".join(pages)
    assert "search" in said
    assert not any(key in said for key in (KEY, OTHER, ADMIN))


async def test_the_description_names_the_keys(locked: Served, server: Served) -> None:
    """/openapi.json says which operations need a key, in which headers, and how 401 looks; without keys nothing."""
    schema: dict[str, Any] = (await locked.client.get("/openapi.json")).json()
    assert set(schema["components"]["securitySchemes"]) == {"bearer", "x-api-key", "api-key"}
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            assert ("security" in operation) == (path not in OPEN), path
            assert ("401" in operation["responses"]) == (path not in OPEN), path
    refusal = schema["paths"]["/v1/embeddings"]["post"]["responses"]["401"]
    assert refusal["content"]["application/json"]["schema"]["$ref"].endswith("/OpenAIErrorResponse")
    assert "X-Request-ID" in refusal["headers"]
    assert "securitySchemes" not in (await server.client.get("/openapi.json")).json()["components"]


def test_the_key_is_found_in_its_headers() -> None:
    """The first header that has one decides; of several equal headers the first."""
    assert shown_key(Headers({})) is None
    assert shown_key(Headers(raw=[(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")])) == "a"
    assert shown_key(Headers({"api-key": "a", "x-api-key": "b"})) == "b"


ORIGIN = "https://app.example.com"


async def test_pages_of_other_origins_may_not_ask(server: Served) -> None:
    """By default no header lets a browser hand an answer to a page of another origin, nor asks for its permission."""
    response = await server.client.get("/health", headers={"Origin": ORIGIN})
    preflight = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    asked = await server.client.options("/encode", headers=preflight)
    assert asked.status_code == 405
    assert not any(name.startswith("access-control") for name in (*response.headers, *asked.headers))


async def test_pages_of_named_origins_may_read_every_header() -> None:
    """Whatever header an answer may have: those that the code writes, found in the code. What is left out is read by
    every page, or is the viewer's own page, or is a name that keys are sent by.
    """
    header = re.compile(r"[A-Za-z]+(-[A-Za-z]+)+")
    written = {LENGTH_HEADER.lower()}
    for path in (Path(__file__).parents[2] / "app").rglob("*.py"):
        if path.name == "viewer.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = node.keys if isinstance(node, ast.Dict) else [node.slice] if isinstance(node, ast.Subscript) else []
            texts = [str(name.value) for name in names if isinstance(name, ast.Constant)]
            written |= {text.lower() for text in texts if header.fullmatch(text)}
    assert {"x-request-id", "x-compute-type", "x-ignored-fields", "server-timing"} <= written
    assert written - {"content-type", *KEY_HEADERS} <= {name.lower() for name in EXPOSED_HEADERS}


async def test_pages_of_named_origins_may_ask(serve: Serve) -> None:
    """A browser learns without a key what it may send, and its page can read an answer, a refusal included; cookies are
    never meant, and another origin is told nothing.
    """
    async with serve(api_keys=KEYS, cors_origins=(ORIGIN,)) as server:
        preflight = {
            "Origin": ORIGIN,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-request-timeout",
        }
        asked = await server.client.options("/encode", headers=preflight)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == ORIGIN
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert "DELETE" not in asked.headers["access-control-allow-methods"]
        for headers, status in ((bearer(KEY), 200), ({}, 401)):
            response = await server.post("/encode", {"texts": "a"}, Origin=ORIGIN, **headers)
            assert response.status_code == status
            assert response.headers["access-control-allow-origin"] == ORIGIN
            assert "X-Request-ID" in response.headers["access-control-expose-headers"]
            assert "access-control-allow-credentials" not in response.headers
            assert response.headers["vary"] == "Origin"
        for other in ("https://evil.example.com", "https://app.example.com.evil.com", "http://app.example.com", "null"):
            refused = await server.client.options("/encode", headers=preflight | {"Origin": other})
            assert refused.status_code == 400
            assert "access-control-allow-origin" not in refused.headers
            response = await server.post("/encode", {"texts": "a"}, Origin=other, **bearer(KEY))
            assert "access-control-allow-origin" not in response.headers
