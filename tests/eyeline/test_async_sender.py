"""How calls are made, awaited: attempts, waits, parts of a long list; through the client, which has no other way."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from eyeline import (
    AsyncClient,
    NoAnswerInTimeError,
    OverloadedError,
    RetryPolicy,
    TooLargeError,
    UnexpectedAnswerError,
)
from tests.eyeline.fake_server import FakeServer, answer_badly, answer_encode, problem
from tests.eyeline.test_async_client import client_of, run


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


def test_an_answer_that_cannot_be_decoded_is_no_answer_of_eyelines() -> None:
    """As for the client that waits: an error of ours, at once, whatever is asked."""

    async def scenario() -> None:
        server = FakeServer()
        server.routes["/encode"] = server.routes["/health"] = answer_badly
        async with client_of(server) as client:
            with pytest.raises(UnexpectedAnswerError, match="cannot be decoded"):
                await client.encode("1")
            with pytest.raises(UnexpectedAnswerError, match="cannot be decoded"):
                await client.health()
        assert (len(server.requests), server.waits) == (2, [])

    run(scenario)


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


def test_closing_closes_the_connections() -> None:
    """At the end of the block."""

    async def scenario() -> None:
        async with client_of(FakeServer()) as client:
            await client.health()
        with pytest.raises(RuntimeError, match="closed"):
            await client.health()

    run(scenario)
