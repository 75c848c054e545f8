"""Readiness, and how routes reach what the app holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import Request

from app.errors import NotReadyError
from app.metrics import Metrics
from app.service import Service
from app.state import ServerState, max_body_bytes, route_of, service_of, state_of

SERVICE = cast(Service, object())


def request_to(state: ServerState) -> Request:
    """A request to an app that holds ``state``."""
    app: Any = SimpleNamespace(state=SimpleNamespace(server=state))
    return Request({"type": "http", "app": app})


@pytest.fixture
def state() -> ServerState:
    """The state of an app whose models are not warm yet."""
    return ServerState(Metrics(), max_body_bytes=77)


def test_ready_between_warm_up_and_the_first_signal(state: ServerState) -> None:
    """Not before the service is there, and not after draining has begun."""
    assert not state.is_ready
    state.service = SERVICE
    assert state.is_ready
    state.metrics.set_ready(ready=True)
    state.begin_draining()
    assert not state.is_ready
    assert state.metrics.registry.get_sample_value("eyeline_ready") == 0


def test_a_draining_server_still_serves(state: ServerState) -> None:
    """Until the listeners close requests come in, and are answered: only readiness is off."""
    state.service = SERVICE
    state.begin_draining()
    assert service_of(request_to(state)) is SERVICE


def test_no_service_before_the_models_are_warm(state: ServerState) -> None:
    """A request that comes too early is told when to come back."""
    with pytest.raises(NotReadyError) as refused:
        service_of(request_to(state))
    assert refused.value.retry_after_seconds == 1


def test_a_route_finds_its_own_apps_state(state: ServerState) -> None:
    """Two apps in one process do not mix."""
    other = ServerState(Metrics(), max_body_bytes=1)
    assert state_of(request_to(state)) is state
    assert (max_body_bytes(request_to(state)), max_body_bytes(request_to(other))) == (77, 1)


def test_a_route_is_named_by_its_template() -> None:
    """Labels of metrics hold nothing of the caller's."""
    route = SimpleNamespace(path="/models/{name}/embed")
    assert route_of(Request({"type": "http", "route": route, "path": "/models/x/embed"})) == "/models/{name}/embed"
