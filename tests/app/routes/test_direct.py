"""Endpoints from request to response are called as they are; others get what they ask FastAPI for."""

from __future__ import annotations

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response

from app.routes.direct import DirectRoute

pytestmark = pytest.mark.anyio

router = APIRouter(route_class=DirectRoute)


@router.get("/direct", response_model=int)
async def direct(request: Request) -> Response:
    """Return what no response model would let pass."""
    if request.query_params:
        raise HTTPException(418)
    return Response(request.scope["route"].path)


@router.get("/named/{name}")
async def named(request: Request, name: str) -> Response:
    """Want a part of the path."""
    return Response(f"{request.scope['route'].path} {name}")


@router.get("/described")
async def described(request: Request) -> dict[str, str]:
    """Leave the response to FastAPI."""
    return {"route": request.scope["route"].path}


def refuse() -> None:
    """Let nobody in."""
    raise HTTPException(401)


@router.get("/guarded", dependencies=[Depends(refuse)])
async def guarded(request: Request) -> Response:
    """Be reached by nobody."""
    return Response(request.scope["route"].path)


@router.get("/plain")
def plain(request: Request) -> Response:
    """Be no coroutine."""
    return Response(request.scope["route"].path)


async def test_each_kind_of_endpoint_answers_and_is_described() -> None:
    """Through an app, as a router that is included; errors reach the handlers."""
    app = FastAPI()
    app.include_router(router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        answers = {
            path: await client.get(path)
            for path in ("/direct", "/named/a", "/described", "/guarded", "/plain", "/direct?a")
        }
    assert {path: (answer.status_code, answer.text) for path, answer in answers.items()} == {
        "/direct": (200, "/direct"),
        "/named/a": (200, "/named/{name} a"),
        "/described": (200, '{"route":"/described"}'),
        "/guarded": (401, '{"detail":"Unauthorized"}'),
        "/plain": (200, "/plain"),
        "/direct?a": (418, '{"detail":"I\'m a Teapot"}'),
    }
    assert app.openapi()["paths"].keys() == {"/direct", "/named/{name}", "/described", "/guarded", "/plain"}


def test_only_the_direct_one_is_called_without_fastapi() -> None:
    """What the route hands on is the endpoint itself."""
    handlers = {route.path: route.get_route_handler() for route in router.routes if isinstance(route, DirectRoute)}
    assert [path for path, handler in handlers.items() if handler in (direct, named, described, guarded, plain)] == [
        "/direct"
    ]
