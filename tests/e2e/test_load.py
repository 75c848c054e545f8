"""Too many callers, callers that leave, and a long day."""

from __future__ import annotations

import asyncio
import http.client
import random
import select

import httpx
import pytest

from tests.e2e.conftest import PATIENCE_SECONDS, TEST_SCALE, Server, StartServer, start_faulty, wait_for

pytestmark = pytest.mark.e2e

MEGABYTE = 1_000_000


def client_of(server: Server, connections: int) -> httpx.AsyncClient:
    """A client that opens as many connections as there are callers."""
    limits = httpx.Limits(max_connections=connections)
    return httpx.AsyncClient(base_url=server.url, limits=limits, timeout=PATIENCE_SECONDS)


def test_a_connection_outlasts_its_callers_patience(server: Server) -> None:
    """A caller that keeps connections for five seconds, as httpx does, closes them itself: none is closed under it."""
    connection = http.client.HTTPConnection(server.client.base_url.host, server.client.base_url.port)
    try:
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        # Six seconds in which nothing comes, not even the end: no other event says that a connection stays open.
        assert select.select([connection.sock], [], [], 6) == ([], [], [])
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
    finally:
        connection.close()


def test_a_full_queue_says_so(start_server: StartServer) -> None:
    """Under more callers than it can hold a server answers 200 or 429 with Retry-After, and stays healthy."""
    server = start_faulty(start_server, "--max-queue-texts", 8, "--max-texts", 8)
    statuses: list[int] = []
    probes: list[int] = []
    num_requests = int(8 * TEST_SCALE)

    def has_seen_enough() -> bool:
        return set(statuses) == {200, 429} and len(probes) > 3

    async def caller(http: httpx.AsyncClient) -> None:
        num_sent = 0
        while num_sent < num_requests or not has_seen_enough():
            num_sent += 1
            response = await http.post("/encode", json={"texts": ["cat " * 60, "dog " * 30]})
            statuses.append(response.status_code)
            if response.status_code == 429:
                server.open_gate()  # till then the queue fills, however fast the server is
                assert int(response.headers["retry-after"]) >= 1
                assert response.json()["code"] == "queue_full"
            else:
                assert response.status_code == 200, response.text

    async def probe(http: httpx.AsyncClient, done: asyncio.Event) -> None:
        while not done.is_set():
            probes.append((await http.get("/health")).status_code)
            await asyncio.sleep(0.05)

    async def everyone() -> None:
        done = asyncio.Event()
        async with client_of(server, 41) as http:
            probing = asyncio.create_task(probe(http, done))
            await asyncio.gather(*(caller(http) for _ in range(40)))
            done.set()
            await probing

    with server.held():
        asyncio.run(everyone())
    assert set(probes) == {200}
    assert server.sample("eyeline_rejected_total", reason="queue_full") == statuses.count(429)
    assert server.sample("eyeline_texts_total", route="/encode") == 2 * statuses.count(200) + 1  # the one at the gate
    assert server.sample("eyeline_queue_texts") == 0
    assert server.sample("eyeline_queue_tokens") == 0
    assert server.sample("eyeline_inflight_requests") == 1  # this very one


def test_work_for_callers_who_left_is_not_done(start_server: StartServer) -> None:
    """50 callers send much work and leave while it waits: none of it is run, and the next caller is served at once.

    https://github.com/vllm-project/vllm/issues/10087
    """
    server = start_faulty(start_server)
    num_callers, num_texts = 50, 20

    async def leave_early() -> None:
        async with client_of(server, num_callers) as http:
            body = {"texts": ["The cat sat."] * num_texts}
            tasks = [asyncio.create_task(http.post("/encode", json=body)) for _ in range(num_callers)]
            await asyncio.to_thread(
                wait_for, lambda: server.sample("eyeline_queue_texts") == num_callers * num_texts, "the queue"
            )
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    with server.held():
        asyncio.run(leave_early())
        wait_for(lambda: server.sample("eyeline_queue_texts") == 0, "that their leaving is noticed")
    assert server.encode("short")["num_tokens"] == [3]
    assert server.sample("eyeline_queue_tokens") == 0
    assert server.sample("eyeline_cancelled_total") == num_callers * num_texts
    assert server.sample("eyeline_requests_total", route="/encode", status="499") == num_callers
    for name in ("batch_texts_sum", "batch_texts_count"):
        assert server.sample(f"eyeline_{name}") == 2, "of the two that stayed"
    assert server.sample("eyeline_texts_total", route="/encode") == 2


def test_memory_stays_flat(start_server: StartServer) -> None:
    """After 2,000 texts the process is under 700 MB, and the second half has added next to nothing."""
    server = start_server("--no-warmup")
    draw = random.Random(7)
    words = ("cat", "dog", "tree", "under", "the", "a", "very", "quick", "fox", "mat")

    def half() -> float:
        for _ in range(int(1_000 * TEST_SCALE) // 20):
            texts = [" ".join(draw.choices(words, k=draw.randint(1, 30))) for _ in range(20)]
            server.encode(texts, attention={"items": [0], "layers": "all", "encoding": "base64"})
        return server.sample("process_resident_memory_bytes")

    first, _ = half(), half()
    limit = min(700 * MEGABYTE, first * 1.05 + 20 * MEGABYTE)
    wait_for(lambda: server.sample("process_resident_memory_bytes") < limit, "the return of its memory")
