"""The client of asyncio."""

from __future__ import annotations

import asyncio
import inspect
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
    TruncationWarning,
    UnreachableError,
)
from tests.doubles import WAIT_SECONDS
from tests.eyeline.fake_server import FakeServer


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
                [_, chunked] = await client.encode_chunks(texts, unit="token", size=1)
                assert chunked.embeddings.tolist() == [[2, 0], [2, 1]]
                heads = await client.attention_heads(texts)
                assert heads.order == waiting.attention_heads(texts).order == [1, 0]
                assert await client.tokenize("4") == waiting.tokenize("4")
                assert await client.tokenize(texts) == waiting.tokenize(texts)
                assert (await client.similarity(texts)).similarities.shape == (2, 2)
                explained = (await client.similarity(pairs=[("7", "x")], explain=True)).explanations
                assert explained is not None
                assert explained[0].sum == 0.07
                assert await client.info() == waiting.info()
                assert await client.health() == "ready"

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
