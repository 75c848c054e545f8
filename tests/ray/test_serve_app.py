"""deploy/ray/serve_app.py: replicas that Ray Serve places, counts and replaces."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import DEFAULT_MODEL, Server, command
from tests.ray.cluster import PATIENCE_SECONDS, ROOT, Cluster, free_port, last_lines, wait_for

pytestmark = pytest.mark.ray

REPLICA_TITLE = "ray::ServeReplica:eyeline"
SENTENCES = (ROOT / "bench/texts/sentences-10.txt").read_text(encoding="utf-8").splitlines()
NUM_CALLERS = 8
TOLERANCE = 1e-5


@dataclass
class Application:
    """The application on the cluster, seen through its one address."""

    cluster: Cluster
    log: Path
    client: httpx.Client

    def samples(self, name: str, **labels: str) -> dict[str, float]:
        """One metric of every replica, summed over the labels that are not named."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(self.client.get("/metrics").raise_for_status().text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    replica = sample.labels["replica"]
                    found[replica] = found.get(replica, 0) + sample.value
        return found

    def replicas(self) -> set[str]:
        """Names of the replicas that are ready; nobody, while the address does not answer."""
        try:
            return {replica for replica, ready in self.samples("eyeline_ready").items() if ready}
        except httpx.HTTPError:
            return set()


def configuration(port: int, **scale: Any) -> dict[str, Any]:
    """deploy/ray/serve.yaml with another port and scale."""
    content: dict[str, Any] = yaml.safe_load((ROOT / "deploy/ray/serve.yaml").read_text())
    content["http_options"] |= {"host": "127.0.0.1", "port": port}
    content["proxy_location"] = "HeadOnly"  # both nodes are this machine, and have its ports
    content["applications"][0]["args"] |= scale
    content["applications"][0]["runtime_env"]["env_vars"] |= {
        "EYELINE_MODEL": str(DEFAULT_MODEL),
        "EYELINE_DTYPE": "float32",
        "EYELINE_MAX_QUEUE_TOKENS": "100000",  # a crushed machine measures a speed for which less is enough
    }
    return content


@pytest.fixture(scope="module")
def application(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """One replica, and a second as soon as a single token waits for long enough to be seen."""
    folder, port = tmp_path_factory.mktemp("serve"), free_port()
    scale = {
        "min_replicas": 1,
        "max_replicas": 2,
        "target_queue_tokens": 1,
        "upscale_delay_seconds": 0,
        "downscale_delay_seconds": 3_600,
        "scrape_timeout_seconds": 300,
    }
    (folder / "serve.yaml").write_text(yaml.safe_dump(configuration(port, **scale)))
    log = folder / "log"
    process = cluster.run(log, "-m", "ray.serve.scripts", "run", folder / "serve.yaml")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS) as client:
        running = Application(cluster, log, client)
        try:
            wait_for(lambda: process.poll() is not None or bool(running.replicas()), "the first replica")
            assert process.poll() is None, last_lines(log)
            yield running
        finally:
            process.send_signal(signal.SIGINT)  # takes the application down, and leaves the cluster
            process.wait(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def grown(application: Application) -> tuple[set[str], set[str]]:
    """Replicas before tokens waited, and after: requests of many texts, until a second replica is there."""
    before = application.replicas()
    finished = threading.Event()

    def send() -> None:
        while not finished.is_set():
            application.client.post("/encode", json={"texts": SENTENCES[:500], "dimensions": 1}).raise_for_status()

    with ThreadPoolExecutor(2) as callers:  # one waits while the other is served; far below any target of requests
        sending = [callers.submit(send) for _ in range(2)]
        try:
            wait_for(lambda: len(application.replicas()) == 2, "a second replica")
        finally:
            finished.set()
        for sent in sending:
            sent.result()
    return before, application.replicas()


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server without Ray."""
    flags = ("--model", DEFAULT_MODEL, "--dtype", "float32", "--device", "cpu", "--port", 0, "--threads", 1)
    server = Server(tmp_path_factory.mktemp("single") / "log", command("serve", *flags))
    yield server
    server.close()


def test_tokens_that_wait_bring_another_replica(grown: tuple[set[str], set[str]]) -> None:
    """Two requests at a time are far under the target of requests: only the queues' tokens ask for more."""
    before, after = grown
    assert len(before) == 1
    assert len(after) == 2
    assert before < after


REQUESTS: list[tuple[str, Any]] = [
    ("/encode", {"texts": SENTENCES[:20]}),
    ("/encode", {"texts": ["", "a", ["a pair", "of texts"]], "dimensions": 8, "normalize": False}),
    ("/encode", {"texts": "The cat sat.", "attention": {"layers": [-1], "heads": [0, 3], "digits": 5}}),
    ("/encode", {"texts": [SENTENCES[0] * 100], "output_dtype": "int8"}),
    ("/similarity", {"pairs": [["a cat", "a kitten"]], "explain": True}),
    ("/tokenize", {"texts": ["Ein Café in 東京 🙂"]}),
    ("/v1/embeddings", {"input": SENTENCES[:2], "model": "eyeline-base"}),
    ("/embed", {"inputs": "a text"}),
    ("/encode", {"texts": []}),
    ("/encode", {"texts": "a", "dimensions": 5_000}),
    ("/encode", {"texts": ["a"] * 2_000}),
    ("/v1/embeddings", {"input": "a", "model": "none"}),
    ("/nothing", {}),
]


def assert_alike(found: Any, expected: Any) -> None:
    """Equal, but for the last digits of numbers."""
    if isinstance(expected, dict):
        assert isinstance(found, dict)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_alike(found[key], value)
    elif isinstance(expected, list):
        assert isinstance(found, list)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=TOLERANCE)
    else:
        assert found == expected


@pytest.mark.usefixtures("grown")
@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_every_replica_answers_as_the_single_server(
    application: Application, single: Server, path: str, body: Any
) -> None:
    """Embeddings, attention, errors, other servers' shapes: the same app. Asked until both have answered."""
    expected = single.client.post(path, json=body)
    begun = application.samples("eyeline_requests_total")
    for _ in range(50):
        answer = application.client.post(path, json=body)
        assert answer.status_code == expected.status_code
        assert answer.headers["content-type"] == expected.headers["content-type"]
        assert_alike(answer.json(), expected.json())
        # a scrape is counted when it is answered, so only what is asked for here differs between two pages by route
        counted = application.samples("eyeline_requests_total")
        if all(counted[replica] > begun[replica] for replica in begun):
            return
    pytest.fail("one replica never answered")


@pytest.mark.usefixtures("grown")
def test_one_page_has_the_metrics_of_every_replica(application: Application) -> None:
    """Whoever answers the scrape: texts are counted once, by the replica that served them, and no counter goes back."""
    before = application.samples("eyeline_texts_total", route="/encode")
    for index in range(40):
        application.client.post(
            "/encode", json={"texts": SENTENCES[index : index + 3], "dimensions": 1}
        ).raise_for_status()
    pages = [application.samples("eyeline_texts_total", route="/encode") for _ in range(6)]
    assert all(page == pages[0] for page in pages)
    grew = {replica: pages[0][replica] - before[replica] for replica in before}
    assert sum(grew.values()) == 120
    assert all(count > 0 for count in grew.values())


@dataclass
class Calls:
    """What callers saw."""

    answered: int = 0
    failed: list[tuple[float, str]] = field(default_factory=list)  # when it was sent, and how it ended
    lock: threading.Lock = field(default_factory=threading.Lock)


def call(address: str, calls: Calls, finished: threading.Event) -> None:
    """Send one request after the other."""
    with httpx.Client(base_url=address, timeout=PATIENCE_SECONDS) as client:
        while not finished.is_set():
            sent = time.monotonic()
            try:
                answer = client.post("/encode", json={"texts": SENTENCES[calls.answered % 900], "dimensions": 1})
                problem = "" if answer.status_code == 200 else f"{answer.status_code} {answer.text[:200]}"
            except httpx.HTTPError as error:
                problem = repr(error)
            with calls.lock:
                calls.answered += not problem
                if problem:
                    calls.failed.append((sent, problem))


@pytest.mark.usefixtures("grown")
def test_a_killed_replica_costs_what_it_was_serving_and_is_replaced(application: Application) -> None:
    """SIGKILL under load: no request fails that was sent after it, and soon there are two replicas again."""
    before, calls, finished = application.replicas(), Calls(), threading.Event()
    pids = application.cluster.processes(REPLICA_TITLE)
    assert len(pids) == 2
    callers = [
        threading.Thread(target=call, args=(str(application.client.base_url), calls, finished))
        for _ in range(NUM_CALLERS)
    ]
    for caller in callers:
        caller.start()
    try:
        wait_for(lambda: calls.answered > 5 * NUM_CALLERS, "load")
        os.kill(pids[0], signal.SIGKILL)
        killed = time.monotonic()
        wait_for(lambda: len(application.replicas()) == 2 and application.replicas() != before, "another replica")
        answered = calls.answered
        wait_for(lambda: calls.answered > answered + 5 * NUM_CALLERS, "load on the new one")
    finally:
        finished.set()
        for caller in callers:
            caller.join()
    print(f"{calls.answered} answered, {len(calls.failed)} failed: {calls.failed}")
    assert len(calls.failed) <= NUM_CALLERS
    assert [problem for sent, problem in calls.failed if sent > killed] == []
    assert len(before & application.replicas()) == 1
    assert all(count > 0 for count in application.samples("eyeline_texts_total", route="/encode").values())
