"""Readiness, and how routes reach what the app holds."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import Request

from app.errors import NotReadyError
from app.metrics import Metrics
from app.reload import Reloader
from app.service import Service
from app.state import FATAL, FAULTS, ServerState, max_body_bytes, route_of, service_of, state_of

SERVICE = cast(Service, SimpleNamespace(for_caller=lambda caller: SERVICE))


def request_to(state: ServerState) -> Request:
    """A request to an app that holds ``state``."""
    app: Any = SimpleNamespace(state=SimpleNamespace(server=state))
    return Request({"type": "http", "app": app, "headers": []})


@pytest.fixture
def state() -> ServerState:
    """The state of an app whose models are not warm yet."""
    return ServerState(Metrics(), max_body_bytes=77)


def test_ready_between_warm_up_and_the_first_signal(state: ServerState) -> None:
    """Not before the service is there, and not after draining has begun."""
    assert not state.is_ready
    state.begin_serving(SERVICE)
    assert state.service is SERVICE
    assert state.is_ready
    assert state.metrics.registry.get_sample_value("eyeline_ready") == 1
    state.begin_draining()
    assert not state.is_ready
    assert state.metrics.registry.get_sample_value("eyeline_ready") == 0


def test_a_server_that_is_told_to_stop_while_it_warms_up_is_never_ready(state: ServerState) -> None:
    """The metric says of readiness what the probes say, whatever comes first."""
    state.begin_draining()
    state.begin_serving(SERVICE)
    assert not state.is_ready
    assert state.metrics.registry.get_sample_value("eyeline_ready") == 0


def test_a_stopping_server_reloads_nothing(state: ServerState) -> None:
    """From the first signal on, and after a start during which it came."""
    closed: list[str] = []
    state.begin_draining()
    state.reloader = cast(Reloader, SimpleNamespace(close=lambda: closed.append("closed")))
    state.begin_serving(SERVICE)
    assert closed == ["closed"]
    state.begin_draining()
    assert closed == ["closed", "closed"]


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


def test_a_fault_is_told_until_it_is_gone(state: ServerState, caplog: pytest.LogCaptureFixture) -> None:
    """Readiness is off while there is any fault, liveness while there is one that needs a new process."""
    state.service = SERVICE
    read = state.metrics.registry.get_sample_value
    state.begin_fault("non_finite_output", "not a number")
    assert (state.is_ready, state.is_live, state.worst_fault) == (False, True, "non_finite_output")
    state.begin_fault("worker_hung", "hangs")
    state.begin_fault("worker_hung", "hangs for longer")
    assert (state.is_ready, state.is_live, state.worst_fault) == (False, False, "worker_hung")
    assert state.faults["worker_hung"] == "hangs for longer"
    assert read("eyeline_ready") == 0
    assert read("eyeline_fault", {"reason": "worker_hung"}) == 1
    state.end_fault("worker_hung")
    state.end_fault("worker_dead")  # there was none
    assert (state.is_ready, state.is_live) == (False, True)
    assert read("eyeline_fault", {"reason": "worker_hung"}) == 0
    state.end_fault("non_finite_output")
    assert (state.is_ready, state.worst_fault) == (True, None)
    assert read("eyeline_ready") == 1
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "WARNING", "WARNING"]


def test_a_fault_that_ends_does_not_end_the_draining(state: ServerState) -> None:
    """A server that stops stays not ready, whatever recovers."""
    state.service = SERVICE
    state.begin_fault("worker_dead", "dead")
    state.begin_draining()
    state.end_fault("worker_dead")
    assert not state.is_ready
    assert state.metrics.registry.get_sample_value("eyeline_ready") == 0


def test_only_a_process_of_ours_is_ended(state: ServerState) -> None:
    """Where the server was given no way to end the process it does nothing: its supervisor sees that it is not live."""
    state.end_process_if_ours()
    ended: list[str] = []
    state.end_process = lambda: ended.append("now")
    state.end_process_if_ours()
    assert ended == ["now"]


def test_every_fault_has_its_place() -> None:
    """The worst first: those that a new process would not have."""
    assert set(FAULTS[: len(FATAL)]) == FATAL


def test_a_page_of_metrics_is_of_this_process_unless_one_address_stands_for_several(state: ServerState) -> None:
    """Where an app is one of many replicas, whoever puts it together says how all are asked."""

    async def scrape_all(accept: str | None) -> tuple[bytes, str]:
        return b"all", f"as {accept}"

    assert b"eyeline_ready 0.0" in asyncio.run(state.scrape(None))[0]
    state.scrape_all = scrape_all
    assert asyncio.run(state.scrape("asked")) == (b"all", "as asked")
