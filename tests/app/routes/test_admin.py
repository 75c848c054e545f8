"""``POST /admin/reload``: what it takes and says. That no request notices: tests/app/test_reload.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.schemas.admin import ReloadResponse
from tests.app.conftest import Serve, Served, serving_alone
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.anyio

KEY, ADMIN = "search-key-of-the-tests", "admin-key-of-the-tests"
SHOWN = {"Authorization": f"Bearer {ADMIN}"}
PATH = "/admin/reload"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder that the test may write to."""
    return make_bert_folder(tmp_path / "one")


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[Served]:
    """A server with an admin key."""
    async with serving_alone(folder, admin_key=ADMIN, api_keys=KEY) as served:
        yield served


async def test_the_answer_says_what_changed(server: Served, folder: Path) -> None:
    """Without a body all models are loaded anew; files and facts that differ are named."""
    make_bert_folder(folder, seed=1, max_length=24)
    response = await server.client.post(PATH, headers=SHOWN)
    assert response.status_code == 200, response.text
    answer = ReloadResponse.model_validate(response.json(), strict=True)
    [replaced] = answer.models
    assert replaced.model == "one"
    assert "model.safetensors" in replaced.files
    assert [change.model_dump() for change in replaced.changes] == [
        {"field": "max_length", "before": "32", "after": "24"}
    ]
    assert answer.seconds > 0


@pytest.mark.parametrize("body", [{}, {"model": None}, {"model": "one"}])
async def test_a_body_may_name_the_model(server: Served, body: dict[str, str | None]) -> None:
    """Null is all of them."""
    response = await server.client.post(PATH, headers=SHOWN, json=body)
    assert (response.status_code, [one["model"] for one in response.json()["models"]]) == (200, ["one"])


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        ('{"model": "MARKER"}', "application/json", 404, "model_not_found"),
        ('{"model": 1}', "application/json", 422, "invalid_request"),
        ('{"folder": "/tmp"}', "application/json", 422, "invalid_request"),
        ("{", "application/json", 400, "malformed_json"),
        ("model=one", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
    ],
)
async def test_what_is_refused(server: Served, content: str, kind: str, status: int, code: str) -> None:
    """No other model, no folder of the caller's, no body that would be passed over; nothing was reloaded."""
    response = await server.client.post(PATH, headers={**SHOWN, "Content-Type": kind}, content=content)
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert "MARKER" not in response.text
    assert server.sample("eyeline_reloads_total", result="succeeded") == 0


async def test_a_folder_that_does_not_load_is_a_problem(server: Served, folder: Path) -> None:
    """The reason is told to whoever may reload; requests are answered as before."""
    (folder / "model.safetensors").unlink()
    response = await server.client.post(PATH, headers=SHOWN)
    problem = response.json()
    assert (response.status_code, problem["code"], problem["param"]) == (409, "reload_failed", "model")
    assert "model.safetensors" in problem["detail"]
    encoded = await server.client.post("/encode", headers={"Authorization": f"Bearer {KEY}"}, json={"texts": "a"})
    assert encoded.status_code == 200
    assert server.sample("eyeline_errors_total", code="reload_failed") == 1


@pytest.mark.parametrize("shown", [{}, {"Authorization": f"Bearer {KEY}"}])
async def test_it_needs_the_admin_key(server: Served, shown: dict[str, str]) -> None:
    """An API key does not open it."""
    assert (await server.client.post(PATH, headers=shown)).status_code == 401


async def test_without_an_admin_key_there_is_no_such_route(serve: Serve) -> None:
    """Nor is it described."""
    async with serve() as server:
        assert (await server.client.post(PATH)).status_code == 404
        assert PATH not in (await server.client.get("/openapi.json")).json()["paths"]


async def test_it_is_described_where_it_is(server: Served) -> None:
    """With its optional body, its errors and the key it needs."""
    described = (await server.client.get("/openapi.json")).json()["paths"][PATH]["post"]
    assert described["requestBody"]["required"] is False
    assert {"200", "400", "401", "404", "409", "413", "415", "422", "503"} <= described["responses"].keys()
    assert described["security"]
