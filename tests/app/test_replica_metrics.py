"""The metrics of several replicas on one page."""

from __future__ import annotations

import pickle

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from app.metrics import Metrics
from app.replica_metrics import labelled, together


def replica(num_texts: int) -> Metrics:
    """One process that has served so many requests of one text."""
    metrics = Metrics(routes=["/encode"])
    model = metrics.for_model("m", routes=["/encode"])
    for _ in range(num_texts):
        metrics.request_started()
        metrics.request_finished("/encode", 200, 0.25)
        model.record_request(
            "/encode",
            num_texts=1,
            num_tokens=5,
            truncated=0,
            tokenize_seconds=0.001,
            queue_seconds=0.002,
            inference_seconds=0.003,
        )
    return metrics


@pytest.fixture
def page() -> tuple[bytes, bytes]:
    """What two replicas show, as text and as OpenMetrics."""
    replicas = [("a", replica(2)), ("b", replica(5))]
    sent = [pickle.loads(pickle.dumps(labelled(metrics.registry, name))) for name, metrics in replicas]
    writer = Metrics()
    open_metrics = "application/openmetrics-text; version=1.0.0"
    return writer.render(None, together(sent))[0], writer.render(open_metrics, together(sent))[0]


def test_every_series_is_there_once_for_each_replica(page: tuple[bytes, bytes]) -> None:
    """Nothing is added up and nothing left out: the two pages in one, told apart by a label."""
    own = {family.name: len(list(family.samples)) for family in replica(0).registry.collect()}
    found = {family.name: family for family in parse_text(page[0].decode())}
    assert found.keys() == own.keys()
    for name, family in found.items():
        samples = family.samples
        assert {sample.labels["replica"] for sample in samples} == ({"a", "b"} if own[name] else set())
        if name.startswith("eyeline_"):
            assert len(samples) == 2 * own[name]
        assert len({(sample.name, *sorted(sample.labels.items())) for sample in samples}) == len(samples)


def test_counters_and_histograms_keep_their_numbers(page: tuple[bytes, bytes]) -> None:
    """Each replica's own."""
    families = {family.name: family for family in parse_text(page[0].decode())}
    texts = {sample.labels["replica"]: sample.value for sample in families["eyeline_texts"].samples}
    assert texts == {"a": 2, "b": 5}
    counts = {
        sample.labels["replica"]: sample.value
        for sample in families["eyeline_request_duration_seconds"].samples
        if sample.name.endswith("_count") and sample.labels["route"] == "/encode"
    }
    assert counts == {"a": 2, "b": 5}


def test_the_page_is_valid_in_both_formats(page: tuple[bytes, bytes]) -> None:
    """OpenMetrics' parser is strict: a family that came twice, or in pieces, would be refused."""
    names = {family.name for family in parse_open_metrics(page[1].decode())}
    assert "eyeline_texts" in names
    assert page[1].endswith(b"# EOF\n")
    assert page[0].count(b"# TYPE eyeline_texts_total counter") == 1
