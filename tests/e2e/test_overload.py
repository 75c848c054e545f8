"""Far more callers than there is room for, and a day's worth of requests: what is answered is right, and nothing grows.

Both print their figures (``pytest -s``); ``TEST_SCALE=100`` makes them a minute of overload and 100,000 requests.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import time
from asyncio.subprocess import PIPE
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.conftest import PATIENCE_SECONDS, TEST_SCALE, Server, StartServer, start_faulty, wait_for

pytestmark = pytest.mark.e2e

LIMIT_TEXTS = 16
OVERLOAD_SECONDS = min(60.0, 3.0 * TEST_SCALE)
HEALTH_SECONDS = 10.0
"""No probe may take longer, however crushed the machine is; on a quiet one it is milliseconds."""

PROBE = """
import http.client, json, sys, time
host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
end, probes = time.monotonic() + seconds, []
connection = http.client.HTTPConnection(host, port)
while time.monotonic() < end:
    started = time.monotonic()
    connection.request("GET", "/health")
    response = connection.getresponse()
    response.read()
    probes.append((response.status, time.monotonic() - started))
    time.sleep(0.05)
print(json.dumps(probes))
"""
"""Asks from a process of its own: among callers that decode answers it would measure how long they keep it waiting."""

NUM_REQUESTS = int(1_000 * TEST_SCALE)
NUM_CALLERS = 16
MOST_POOL_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""The threads of asyncio's own pool, each of which starts when work first finds the others busy."""
LONG = "the cat sat on the mat and looked at the dog " * 120  # so long that a thread tokenizes it

DRAW = random.Random(7)
WORDS = ("cat", "dog", "tree", "under", "the", "a", "very", "quick", "fox", "mat")
TEXTS = [" ".join(DRAW.choices(WORDS, k=DRAW.randint(1, 40))) for _ in range(64)]

Vectors = np.ndarray[Any, np.dtype[np.float32]]


class Process:
    """What a server process holds, read from the system.

    Attributes
    ----------
    megabytes : float
        Resident.
    num_files, num_threads : int
    """

    def __init__(self, server: Server) -> None:
        folder = Path("/proc") / str(server.process.pid)
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        self.megabytes = int(status["VmRSS"].split()[0]) / 1_000
        self.num_threads = int(status["Threads"])
        self.num_files = len(list((folder / "fd").iterdir()))

    def __str__(self) -> str:
        return f"{self.megabytes:.0f} MB, {self.num_files} descriptors, {self.num_threads} threads"


def client_of(server: Server, connections: int) -> httpx.AsyncClient:
    """A client that opens as many connections as there are callers."""
    limits = httpx.Limits(max_connections=connections)
    return httpx.AsyncClient(base_url=server.url, limits=limits, timeout=PATIENCE_SECONDS)


def known_vectors(server: Server) -> Vectors:
    """The embedding of each of :data:`TEXTS`, asked for one by one."""
    return np.array([server.encode(text)["embeddings"][0] for text in TEXTS], dtype=np.float32)


async def ask(http: httpx.AsyncClient, known: Vectors, draw: random.Random) -> int:
    """Send one text, or several, and return the status; an answer must be right, a refusal must say when to come."""
    chosen = draw.sample(range(len(TEXTS)), draw.choice((1, 1, 2, 5)))
    response = await http.post("/encode", json={"texts": [TEXTS[index] for index in chosen]})
    if response.status_code == 200:
        found = np.array(response.json()["embeddings"], dtype=np.float32)
        np.testing.assert_allclose(found, known[chosen], atol=1e-4)
    elif response.status_code == 429:
        assert response.json()["code"] == "queue_full"
        assert int(response.headers["retry-after"]) >= 1
    return response.status_code


def test_four_times_too_many_callers(start_server: StartServer) -> None:
    """Four callers for each place in the queue, with one text or several, who come again at once: nothing but 200, 429
    and 503; each 200 is right; every probe finds the server ready; the queue fills, never over its limit, and is empty
    in the end; memory is as before.
    """
    server = start_faulty(start_server, "--warmup", "--max-queue-texts", LIMIT_TEXTS, "--max-texts", LIMIT_TEXTS)
    known = known_vectors(server)
    for first in range(0, len(TEXTS) - LIMIT_TEXTS, 3):  # products are compiled for each number of rows, and kept
        for count in range(2, LIMIT_TEXTS + 1, 2):
            server.encode(TEXTS[first : first + count])
    before = Process(server)
    statuses: Counter[int] = Counter()
    waiting: list[float] = []

    async def caller(http: httpx.AsyncClient, number: int, end: float) -> None:
        draw = random.Random(number)
        while time.monotonic() < end:
            status = await ask(http, known, draw)
            statuses[status] += 1
            if status != 200:
                await asyncio.sleep(0.05)

    async def watch_queue(done: asyncio.Event) -> None:
        while not done.is_set():
            waiting.append(await asyncio.to_thread(server.sample, "eyeline_queue_texts"))
            if waiting[-1] and statuses[429]:
                server.open_gate()  # till then the queue fills, however fast the server is
            await asyncio.sleep(0.05)

    async def probe() -> list[tuple[int, float]]:
        url = httpx.URL(server.url)
        arguments = (url.host, str(url.port), str(OVERLOAD_SECONDS))
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROBE, *arguments, stdout=PIPE)
        output, _ = await process.communicate()
        return [(status, seconds) for status, seconds in json.loads(output)]

    async def everyone() -> list[tuple[int, float]]:
        done, end = asyncio.Event(), time.monotonic() + OVERLOAD_SECONDS
        async with client_of(server, 4 * LIMIT_TEXTS) as http:
            watching, probing = asyncio.create_task(watch_queue(done)), asyncio.create_task(probe())
            await asyncio.gather(*(caller(http, number, end) for number in range(4 * LIMIT_TEXTS)))
            done.set()
            await watching
            return await probing

    with server.held():
        probes = asyncio.run(everyone())
    seconds = sorted(seconds for _, seconds in probes)
    after = Process(server)
    print(
        f"\n{OVERLOAD_SECONDS:g} s, {4 * LIMIT_TEXTS} callers, {LIMIT_TEXTS} places: {dict(statuses)}; health in the "
        f"middle {statistics.median(seconds) * 1000:.1f} ms, at most {seconds[-1] * 1000:.1f} ms of {len(seconds)}; "
        f"at most {max(waiting):g} texts waited; {before} -> {after}"
    )
    assert {200, 429} <= statuses.keys() <= {200, 429, 503}
    assert {status for status, _ in probes} == {200}
    assert seconds[-1] < HEALTH_SECONDS
    assert 0 < max(waiting) <= LIMIT_TEXTS
    for name in ("eyeline_queue_texts", "eyeline_queue_tokens"):
        assert server.sample(name) == 0
    assert server.sample("eyeline_inflight_requests") == 1  # this very one
    assert server.sample("eyeline_rejected_total", reason="queue_full") == statuses[429]
    wait_for(lambda: Process(server).megabytes < before.megabytes * 1.05 + 20, "the return of its memory")
    assert after.num_threads <= before.num_threads + MOST_POOL_THREADS


async def use(http: httpx.AsyncClient, known: Vectors, draw: random.Random) -> int:
    """Ask for one of the many things that callers ask for, right or wrong; sometimes leave before the answer."""
    kind = draw.random()
    if kind < 0.8:
        return await ask(http, known, draw)
    text = draw.choice(TEXTS)
    requests: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/encode", {"texts": text, "attention": {"layers": "all", "encoding": "base64"}}),
        ("/encode", {"texts": [text, LONG], "encoding_format": "base64"}),
        ("/encode", {"texts": text, "dimensions": 10_000}),
        ("/similarity", {"pairs": [[text, "the cat"]], "explain": True}),
        ("/v1/embeddings", {"input": [text], "model": "all-MiniLM-L6-v2"}),
        ("/nowhere", {}),
    )
    path, body = draw.choice(requests)
    if kind < 0.98:
        return (await http.post(path, json=body)).status_code
    asking = asyncio.create_task(http.post(path, json=body))
    await asyncio.sleep(draw.random() * 0.01)
    asking.cancel()
    await asyncio.wait([asking])
    return 499


def test_nothing_grows_over_many_requests(start_server: StartServer) -> None:
    """Of many thousand requests of every kind, right and wrong, some left by their callers, each 200 is right; the
    second half adds no memory, no descriptor and no thread to what the first half took.
    """
    server = start_server()
    known = known_vectors(server)
    statuses: Counter[int] = Counter()

    async def half() -> None:
        async with client_of(server, NUM_CALLERS) as http:
            numbers = iter(range(NUM_REQUESTS // 2))
            draws = [random.Random(number) for number in range(NUM_CALLERS)]

            async def caller(draw: random.Random) -> None:
                for _ in numbers:
                    statuses[await use(http, known, draw)] += 1

            await asyncio.gather(*map(caller, draws))

    def settled() -> Process:
        wait_for(lambda: server.sample("eyeline_inflight_requests") == 1, "the end of every request")
        return Process(server)

    started = time.monotonic()
    asyncio.run(half())
    first = settled()
    asyncio.run(half())
    second = settled()
    print(f"\n{NUM_REQUESTS} requests in {time.monotonic() - started:.0f} s, {dict(statuses)}: {first} -> {second}")
    assert sum(statuses.values()) == NUM_REQUESTS // 2 * 2
    assert {200, 404, 422} <= statuses.keys() <= {200, 404, 422, 499}
    limit = first.megabytes * 1.05 + (20 if TEST_SCALE < 10 else 0)  # a short run has warmed up less
    wait_for(lambda: Process(server).megabytes < limit, "the return of its memory")
    wait_for(lambda: Process(server).num_files <= first.num_files, "the closing of every connection")
    assert second.num_threads <= first.num_threads + (
        MOST_POOL_THREADS if TEST_SCALE < 10 else 0
    )  # nor filled its pool
    assert server.sample("eyeline_queue_texts") == server.sample("eyeline_queue_tokens") == 0
    assert [entry for entry in server.log_entries() if entry["level"] in ("error", "warning")] == []
