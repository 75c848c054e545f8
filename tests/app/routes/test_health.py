"""What operators ask: is it alive, is it ready, what does it serve, what has it counted."""

from __future__ import annotations

from typing import get_args

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.main import create_app
from app.schemas.info import Health, InfoResponse
from app.state import FAULTS
from app.version import VERSION
from tests.app.conftest import PROMPTS, Served, load, make_settings
from tests.tiny import CONFIG, VOCABULARY

pytestmark = pytest.mark.anyio

PROBES = ("/health", "/health/ready")


@pytest.mark.parametrize("path", [*PROBES, "/health/live"])
async def test_health_is_one_line(server: Served, path: str) -> None:
    """A ready server answers 200 in one line of JSON, for curl and for people."""
    response = await server.client.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.text == f'{{"status":"{"live" if path.endswith("live") else "ready"}"}}\n'
    Health.model_validate(response.json(), strict=True)


@pytest.mark.parametrize("path", [*PROBES, "/health/live"])
async def test_head_is_get_without_the_body(server: Served, path: str) -> None:
    """Load balancers probe with HEAD."""
    get, head = await server.client.get(path), await server.client.head(path)
    assert head.status_code == get.status_code == 200
    assert head.headers["content-length"] == get.headers["content-length"]


async def test_readiness_before_during_and_after(tiny_folder: str) -> None:
    """503 while it loads, 200 while it serves, 503 from the first signal on; alive throughout."""
    settings = make_settings(tiny_folder)
    app = create_app(settings, load(settings))
    state = app.state.server

    async def probe() -> tuple[int, str]:
        answers = [await client.get(path) for path in PROBES]
        heads = [await client.head(path) for path in PROBES]
        assert len({answer.status_code for answer in (*answers, *heads)}) == 1
        assert (await client.get("/health/live")).json() == {"status": "live"}
        metrics = (await client.get("/metrics")).text
        assert (f"eyeline_ready {float(answers[0].status_code == 200)}\n") in metrics
        return answers[0].status_code, answers[0].json()["status"]

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://eyeline") as client:
        assert await probe() == (503, "loading")
        async with app.router.lifespan_context(app):
            assert await probe() == (200, "ready")
            state.begin_draining()
            assert await probe() == (503, "draining")
            assert (await client.post("/encode", json={"texts": "still served"})).status_code == 200
        assert await probe() == (503, "draining")
        late = await client.post("/encode", json={"texts": "too late"})
        assert (late.status_code, late.json()["code"]) == (503, "not_ready")


async def test_a_fault_is_told_to_probes(server: Served) -> None:
    """Not ready, with the reason, while there is a fault; not live either where only a new process helps."""

    async def probe(path: str) -> tuple[int, dict[str, str]]:
        get, head = await server.client.get(path), await server.client.head(path)
        assert head.status_code == get.status_code
        assert get.text.endswith("}\n")
        Health.model_validate(get.json(), strict=True)
        return get.status_code, get.json()

    server.state.begin_fault("non_finite_output", "not a number")
    failing = {"status": "failing", "reason": "non_finite_output", "detail": "not a number"}
    for path in PROBES:
        assert await probe(path) == (503, failing)
    assert await probe("/health/live") == (200, {"status": "live"})
    server.state.begin_fault("worker_hung", "hangs")
    for path in (*PROBES, "/health/live"):
        assert await probe(path) == (503, {"status": "failing", "reason": "worker_hung", "detail": "hangs"})
    server.state.end_fault("worker_hung")
    server.state.end_fault("non_finite_output")
    assert await probe("/health/ready") == (200, {"status": "ready"})


def test_the_schema_names_every_fault() -> None:
    """What a probe can be told is what the server can find."""
    assert set(get_args(get_args(Health.model_fields["reason"].annotation)[0])) == set(FAULTS)


async def test_info_is_a_superset_of_teis(server: Served) -> None:
    """The fields that text-embeddings-inference clients read, then our limits, then each model."""
    response = await server.client.get("/info")
    body = response.json()
    InfoResponse.model_validate(body, strict=True)
    assert {
        "model_id": "tiny",
        "model_dtype": "float32",
        "model_type": {"embedding": {"pooling": "mean"}},
        "max_input_length": 32,
        "max_batch_tokens": 2_048,
        "max_client_batch_size": 1_024,
        "auto_truncate": False,
        "model_sha": None,
        "served_model_name": "tiny",
        "max_concurrent_requests": 16_384,
        "max_batch_requests": None,
        "tokenization_workers": 1,
        "sha": None,
        "docker_label": None,
        "version": VERSION,
        "max_attention_values_list": 1_000_000,
        "max_attention_values_binary": 32_000_000,
        "max_attention_values_computed": 256_000_000,
        "max_token_values": 4_000_000,
        "max_text_characters": 200_000,
        "max_body_bytes": 4 * 1024 * 1024,
        "batch_attention_values": 8_000_000,
        "max_queue_texts": 16_384,
        "max_prompt_characters": 4_096,
        "request_timeout_seconds": None,
    }.items() <= body.items()
    [model] = body["models"]
    assert model == {
        "name": "tiny",
        "kind": "embedding",
        "labels": [],
        "format": "BERT",
        "dimensions": 16,
        "max_length": 32,
        "pooling": "mean",
        "hidden_size": CONFIG["hidden_size"],
        "num_hidden_layers": CONFIG["num_hidden_layers"],
        "num_attention_heads": CONFIG["num_attention_heads"],
        "vocab_size": len(VOCABULARY),
        "num_parameters": server.embedder.info.num_parameters,
        "num_ignored_tensors": 0,
        "dtype": "float32",
        "device": "cpu",
        "special_tokens": "text",
        "prompts": list(PROMPTS),
        "attention": True,
    }


async def test_info_waits_for_the_models(server: Served) -> None:
    """Before the models are warm there is nothing to say."""
    service, server.state.service = server.state.service, None
    response = await server.client.get("/info")
    assert (response.status_code, response.json()["code"]) == (503, "not_ready")
    server.state.service = service


async def test_metrics_can_be_scraped(server: Served) -> None:
    """The exposition parses, names the model, and does not hold texts."""
    await server.encode("MARKER")
    response = await server.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    [info] = families["eyeline_model_info"].samples
    assert info.value == 1
    assert info.labels == {
        "model": "tiny",
        "format": "BERT",
        "dtype": "float32",
        "device": "cpu",
        "hidden_size": "16",
        "num_hidden_layers": "2",
        "num_attention_heads": "2",
        "max_length": "32",
        "pooling": "mean",
    }
    assert "MARKER" not in response.text


async def test_openmetrics_where_it_is_asked_for(server: Served) -> None:
    """Prometheus asks for OpenMetrics by Accept, and gets it."""
    response = await server.client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")
