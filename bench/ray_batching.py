"""Whose batching under Ray Serve: ours, or ``@serve.batch``. Run with ``.venv-ray``'s Python; needs ``wrk``.

One replica of one thread each way, behind the same proxy, under the same loads. The application with Ray's batching
does as little else as possible: no validation, no limits, one route. So what it loses, it loses by its batches.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from typing import Any

import numpy as np
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from bench.server import EYELINE, Load, Server
from bench.text_sets import MIXED, read_texts
from deploy.ray.serve_app import build
from model.embedder import Embedder

PORT = 18_310
LOADS = (Load(1, 1, "base64"), Load(8, 1, "base64"), Load(64, 1, "base64"))
BATCH_TEXTS = 64
WAIT_SECONDS = 0.01  # Serve's own default; it fires when a batch is not full by then


@serve.deployment(name="ServeBatch", max_ongoing_requests=1_024, ray_actor_options={"num_cpus": 1})
class ServeBatch:
    """The same model behind Ray's batching."""

    def __init__(self, model: str) -> None:
        self._embedder = Embedder.load(model, dtype="float32", device="cpu", threads=1)

    @serve.batch(max_batch_size=BATCH_TEXTS, batch_wait_timeout_s=WAIT_SECONDS)
    async def encode(self, texts: list[str]) -> list[bytes]:
        """Encode what has gathered."""
        rows = await asyncio.to_thread(self._embedder.encode, texts)
        return [np.asarray(row).tobytes() for row in rows]

    async def __call__(self, request: Request) -> Response:
        """Answer one text."""
        if request.method == "GET":
            return Response(b"{}")
        [text] = json.loads(await request.body())["texts"]
        return Response(await self.encode(text))


class Running(Server):
    """An application behind Ray's proxy, which shows no metrics of one process."""

    def __init__(self) -> None:
        super().__init__(f"http://127.0.0.1:{PORT}", EYELINE, process=None)  # type: ignore[arg-type]

    def _busy_seconds(self) -> None:
        return None


def main() -> None:
    """Print a line per load and kind of batching."""
    parser = argparse.ArgumentParser(prog="bench.ray_batching", description=__doc__)
    parser.add_argument("--model", default="weights/eyeline-base")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "EYELINE_MODEL": arguments.model, "EYELINE_DTYPE": "float32"}
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000)
    applications: dict[str, Any] = {
        "eyeline's batching": build({"max_replicas": 1}),
        "@serve.batch": ServeBatch.bind(arguments.model),
    }
    texts = read_texts(MIXED)
    found: dict[tuple[str, str], list[tuple[float, float, float, int]]] = {}
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": PORT})
        for _ in range(arguments.rounds):
            for name, application in applications.items():
                serve.run(application, name="bench", route_prefix="/")
                server = Running()
                server.run(LOADS[1], texts, 2)
                for load in LOADS:
                    answered = server.run(load, texts, arguments.seconds)
                    figures = (answered.texts_per_second, answered.p50_ms, answered.p99_ms, answered.failed)
                    found.setdefault((load.name, name), []).append(figures)
                serve.delete("bench")
                time.sleep(1)
    finally:
        serve.shutdown()
        ray.shutdown()
    print(f"{'':48}{'texts/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'failed':>8}")
    for (load_name, name), rounds in sorted(found.items()):
        *measured, failed = zip(*rounds, strict=True)
        rate, p50, p99 = (statistics.median(column) for column in measured)
        print(f"{load_name + ', ' + name:48}{rate:9.0f}{p50:9.1f}{p99:9.1f}{sum(failed):8}")


if __name__ == "__main__":
    main()
