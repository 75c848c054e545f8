"""The client of asyncio."""

from __future__ import annotations

import asyncio
import inspect
import json
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import numpy as np
import pytest

from eyeline import (
    AsyncClient,
    Client,
    NoAnswerInTimeError,
    OverloadedError,
    RetryPolicy,
    TooLargeError,
    TruncationWarning,
    UnreachableError,
)
from tests.doubles import WAIT_SECONDS
from tests.eyeline.fake_server import FakeServer, answer_encode, problem


def client_of(server: FakeServer, **settings: Any) -> AsyncClient:
    """A client of a fake, on whose clock it waits."""
    return AsyncClient(transport=server.transport, wait=server.wait_async, clock=server.clock, **settings)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario to its end, which comes soon."""

    async def limited() -> None:
        await asyncio.wait_for(scenario(), WAIT_SECONDS)

    asyncio.run(limited())


def test_both_clients_have_the_same_methods() -> None:
    """By name, parameter, default and annotation; but for closing, which asyncio names otherwise."""
    names = {name for name in vars(Client) if not name.startswith("_")} - {"close"}
    assert names == {name for name in vars(AsyncClient) if not name.startswith("_")} - {"aclose"}
    assert "encode" in names
    for name in names:
        waiting, awaited = getattr(Client, name), getattr(AsyncClient, name)
        assert inspect.signature(waiting) == inspect.signature(awaited)
        assert inspect.iscoroutinefunction(awaited)
        assert awaited.__doc__ == waiting.__doc__


def test_every_method_returns_its_records() -> None:
    """The same as the client that waits."""

    async def scenario() -> None:
        with Client(transport=FakeServer().transport) as waiting:
            async with client_of(FakeServer()) as client:
                texts = ["1", "2"]
                encoded = await client.encode(texts)
                np.testing.assert_array_equal(encoded.embeddings, waiting.encode(texts).embeddings)
                view = await client.attention("7")
                assert view.maps is not None
                assert view.maps.shape == (1, 2, 3, 3)
                assert [one.embedding[0] for one in await client.attention(texts)] == [1, 2]
                assert await client.tokenize("4") == waiting.tokenize("4")
                assert await client.tokenize(texts) == waiting.tokenize(texts)
                assert (await client.similarity(texts)).similarities.shape == (2, 2)
                explained = (await client.similarity(pairs=[("7", "x")], explain=True)).explanations
                assert explained is not None
                assert explained[0].sum == 0.07
                assert await client.info() == waiting.info()
                assert await client.health() == "ready"

    run(scenario)


def test_retries_follow_the_same_rules() -> None:
    """Retry-After, lost connections, the deadline, and no second request where the first was answered."""

    async def scenario() -> None:
        server = FakeServer(problem(429, headers={"Retry-After": "3"}), httpx.ReadError("reset"))
        async with client_of(server) as client:
            assert (await client.encode("1")).embeddings[0, 0] == 1
        assert 3 <= server.waits[0] <= 3.25
        assert len(server.requests) == 3
        full = FakeServer(*[problem(429, headers={"Retry-After": "4"}) for _ in range(10)])
        async with client_of(full, retry=RetryPolicy(deadline_seconds=10)) as client:
            with pytest.raises(OverloadedError):
                await client.encode("1")
        assert len(full.requests) == 3
        final = FakeServer(problem(413, headers={"Retry-After": "1"}), httpx.ReadTimeout("slow"))
        async with client_of(final) as client:
            with pytest.raises(TooLargeError):
                await client.encode("1")
            with pytest.raises(NoAnswerInTimeError):
                await client.encode("1")
        assert final.waits == []

    run(scenario)


class GatedTransport(httpx.AsyncBaseTransport):
    """Holds every request until it is let through; counts them."""

    def __init__(self) -> None:
        self.gates: dict[str, asyncio.Event] = {}
        self.arrived = asyncio.Condition()
        self.num_under_way = 0
        self.max_under_way = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        gate = self.gates.setdefault(body["texts"][0], asyncio.Event())
        self.num_under_way += 1
        self.max_under_way = max(self.max_under_way, self.num_under_way)
        async with self.arrived:
            self.arrived.notify_all()
        try:
            await gate.wait()
        finally:
            self.num_under_way -= 1
        return problem(413, param="texts[0]") if body["texts"][0] == "bad" else answer_encode(body)

    async def wait_for(self, text: str) -> None:
        """Wait until the request that begins with a text is there."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: text in self.gates)

    async def let_through(self, text: str) -> None:
        """Wait for a request, and let it through."""
        await self.wait_for(text)
        self.gates[text].set()


def test_parts_run_together_and_come_back_in_order() -> None:
    """Two at a time; the first is answered last."""

    async def scenario() -> None:
        gated = GatedTransport()
        async with AsyncClient(transport=gated, max_texts_per_request=1, max_concurrency=2) as client:
            call = asyncio.create_task(client.encode(["0", "1", "2", "3"]))
            for text in ("1", "2", "3", "0"):
                await gated.let_through(text)
            assert (await call).embeddings[:, 0].tolist() == [0, 1, 2, 3]
        assert gated.max_under_way == 2

    run(scenario)


def test_one_failed_part_ends_the_others() -> None:
    """Its error is raised as it is, with the caller's index; no request is left under way, and none follows."""

    async def scenario() -> None:
        gated = GatedTransport()
        async with AsyncClient(transport=gated, max_texts_per_request=1, max_concurrency=2) as client:
            call = asyncio.create_task(client.encode(["0", "bad", "2"]))
            await gated.wait_for("0")
            await gated.let_through("bad")
            with pytest.raises(TooLargeError) as caught:
                await call
        assert caught.value.param == "texts[1]"
        assert gated.num_under_way == 0
        assert "2" not in gated.gates

    run(scenario)


def test_a_cancelled_call_leaves_nothing_behind() -> None:
    """The server sees the callers leave, and drops their texts."""

    async def scenario() -> None:
        gated = GatedTransport()
        async with AsyncClient(transport=gated, max_texts_per_request=1) as client:
            call = asyncio.create_task(client.encode(["0", "1"]))
            await gated.wait_for("0")
            await gated.wait_for("1")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert gated.num_under_way == 0

    run(scenario)


def test_cut_texts_are_told_where_the_call_is() -> None:
    """The warning points at the line that awaits, as far down as coroutines go."""

    async def scenario() -> None:
        async with client_of(FakeServer()) as client:
            with pytest.warns(TruncationWarning, match=r"1 of 2 .*\[1\]") as caught:
                await client.encode(["1", "cut 2"])
            assert [warning.filename for warning in caught] == [__file__]
        async with client_of(FakeServer(), warn_on_truncation=False) as client:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                await client.encode(["1", "cut 2"])

    run(scenario)


def test_waiting_until_ready() -> None:
    """Or until it takes too long."""

    async def scenario() -> None:
        server = FakeServer(httpx.ConnectError("refused"), httpx.Response(503, json={"status": "loading"}))
        async with client_of(server) as client:
            await client.wait_until_ready()
        assert len(server.waits) == 2
        never = FakeServer(*[httpx.ConnectError("refused")] * 99)
        async with client_of(never) as client:
            with pytest.raises(UnreachableError):
                await client.health()
            with pytest.raises(NoAnswerInTimeError, match="not ready in 2 seconds"):
                await client.wait_until_ready(2)

    run(scenario)


def test_closing_closes_the_connections() -> None:
    """At the end of the block."""

    async def scenario() -> None:
        async with client_of(FakeServer()) as client:
            await client.health()
        with pytest.raises(RuntimeError, match="closed"):
            await client.health()

    run(scenario)
