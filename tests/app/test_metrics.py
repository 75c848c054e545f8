"""Claims about app/metrics.py."""

import re
import threading
from itertools import pairwise
from typing import get_args

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

import app.metrics
from app.batcher import BatchObserver
from app.errors import ANSWERS, NotReadyError, QueueFullError, RequestTooLargeError
from app.facts import Stage
from app.metrics import (
    DURATION_BUCKETS,
    RATIO_BUCKETS,
    REJECTION_REASONS,
    RELOAD_RESULTS,
    STAGES,
    TEXT_BUCKETS,
    TOKEN_BUCKETS,
    Metrics,
)

ROUTES = ("/encode", "/v1/embeddings")
CODES = ("queue_full", "invalid_value")
FAULTS = ("worker_dead",)

EXPECTED = {
    "eyeline_requests_total": ("counter", {"route", "status"}),
    "eyeline_request_duration_seconds": ("histogram", {"route"}),
    "eyeline_key_requests_total": ("counter", {"key", "status"}),
    "eyeline_inflight_requests": ("gauge", set()),
    "eyeline_errors_total": ("counter", {"code"}),
    "eyeline_ready": ("gauge", set()),
    "eyeline_fault": ("gauge", {"reason"}),
    "eyeline_worker_restarts_total": ("counter", set()),
    "eyeline_log_lines_lost_total": ("counter", set()),
    "eyeline_batch_budget_tokens": ("gauge", {"model"}),
    "eyeline_out_of_memory_total": ("counter", {"model"}),
    "eyeline_non_finite_rows_total": ("counter", {"model"}),
    "eyeline_stage_duration_seconds": ("histogram", {"model", "stage"}),
    "eyeline_texts_total": ("counter", {"model", "route"}),
    "eyeline_tokens_total": ("counter", {"model", "route"}),
    "eyeline_truncated_texts_total": ("counter", {"model"}),
    "eyeline_attention_values_total": ("counter", {"model"}),
    "eyeline_batch_texts": ("histogram", {"model"}),
    "eyeline_batch_tokens": ("histogram", {"model"}),
    "eyeline_batch_padding_ratio": ("histogram", {"model"}),
    "eyeline_batch_duration_seconds": ("histogram", {"model"}),
    "eyeline_batch_failures_total": ("counter", {"model"}),
    "eyeline_queue_texts": ("gauge", {"model"}),
    "eyeline_queue_tokens": ("gauge", {"model"}),
    "eyeline_key_queue_texts": ("gauge", {"model", "key"}),
    "eyeline_key_queue_tokens": ("gauge", {"model", "key"}),
    "eyeline_key_tokens_total": ("counter", {"model", "key"}),
    "eyeline_rejected_total": ("counter", {"model", "reason"}),
    "eyeline_cancelled_total": ("counter", {"model"}),
    "eyeline_reloads_total": ("counter", {"result"}),
    "eyeline_model_info": (
        "gauge",
        {
            "model",
            "format",
            "dtype",
            "device",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "max_length",
            "pooling",
        },
    ),
}


@pytest.fixture
def metrics() -> Metrics:
    """The metrics of an app that has just started and has answered nothing."""
    metrics = Metrics(routes=ROUTES, error_codes=CODES, keys=["search"], faults=FAULTS)
    metrics.for_model("base", routes=["/encode"])
    metrics.set_model_info(
        "base",
        format="bert",
        dtype="bfloat16",
        device="cpu",
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        max_length=256,
        pooling="mean",
    )
    return metrics


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """One sample; None where the series does not exist."""
    return metrics.registry.get_sample_value(f"eyeline_{name}", labels)


def test_names_types_and_labels(metrics: Metrics) -> None:
    """Exactly the documented metrics exist, with their type and labels, and every one has a sample from the start."""
    found = {}
    for family in parse_text(metrics.render()[0].decode()):
        if family.name.startswith("eyeline_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = {frozenset(set(sample.labels) - {"le"}) for sample in family.samples}
            assert len(labels) == 1, name
            found[name] = (family.type, set(labels.pop()))
            assert family.documentation
    assert found == EXPECTED


def test_documented_list_is_complete() -> None:
    """The module's own table names each metric."""
    documented = set(re.findall(r"``(eyeline_\w+)``", app.metrics.__doc__ or ""))
    assert documented == set(EXPECTED)


def test_series_stand_at_zero_from_the_start(metrics: Metrics) -> None:
    """Alerts work before the first request: every bounded series is there, at zero."""
    for route in ROUTES:
        for status in ("200", "413", "422", "429", "500", "503", "504"):
            assert value(metrics, "requests_total", route=route, status=status) == 0
        assert value(metrics, "request_duration_seconds_count", route=route) == 0
    assert value(metrics, "requests_total", route="unmatched", status="404") == 0
    for code in CODES:
        assert value(metrics, "errors_total", code=code) == 0
    for stage in ("tokenize", "queue", "inference", "serialize"):
        assert value(metrics, "stage_duration_seconds_count", model="base", stage=stage) == 0
    for reason in REJECTION_REASONS:
        assert value(metrics, "rejected_total", model="base", reason=reason) == 0
    for name in ("cancelled", "truncated_texts", "batch_failures", "attention_values"):
        assert value(metrics, f"{name}_total", model="base") == 0
    for name in ("texts", "tokens"):
        assert value(metrics, f"{name}_total", model="base", route="/encode") == 0
    assert value(metrics, "ready") == 0
    assert value(metrics, "inflight_requests") == 0


def test_two_apps_in_one_process(metrics: Metrics) -> None:
    """Two Metrics do not collide and do not share a count."""
    other = Metrics(routes=ROUTES, error_codes=CODES)
    other.for_model("base")
    metrics.error("queue_full")
    metrics.for_model("base").cancelled(1)
    assert value(other, "errors_total", code="queue_full") == 0
    assert value(other, "cancelled_total", model="base") == 0


def test_requests(metrics: Metrics) -> None:
    """A request is in flight until it is finished, then counted once by route and status, with its duration."""
    metrics.request_started()
    metrics.request_started()
    assert value(metrics, "inflight_requests") == 2
    metrics.request_finished("/encode", 200, 0.003)
    assert value(metrics, "inflight_requests") == 1
    assert value(metrics, "requests_total", route="/encode", status="200") == 1
    assert value(metrics, "request_duration_seconds_sum", route="/encode") == 0.003
    assert value(metrics, "request_duration_seconds_bucket", route="/encode", le="0.002") == 0
    assert value(metrics, "request_duration_seconds_bucket", route="/encode", le="0.004") == 1
    metrics.request_finished("/encode", 418, 0.003)
    assert value(metrics, "requests_total", route="/encode", status="418") == 1


def test_paths_without_a_route_share_one_label(metrics: Metrics) -> None:
    """A request that no route matched is "unmatched": callers cannot make new series."""
    for _ in range(3):
        metrics.request_started()
        metrics.request_finished(None, 404, 0.001)
    assert value(metrics, "requests_total", route="unmatched", status="404") == 3
    assert value(metrics, "request_duration_seconds_count", route="unmatched") == 3


def test_stages_are_those_that_are_noted() -> None:
    """What a request's facts can hold is what its metrics have series for, in that order."""
    assert STAGES == get_args(Stage) == ("tokenize", "queue", "inference", "serialize")


def test_units_are_written_down() -> None:
    """The table of metrics says what is counted in, of each histogram and each gauge of a quantity."""
    table = re.findall(r"^``(\S+)`` +\w+ *(.*)$", app.metrics.__doc__ or "", re.MULTILINE)
    assert {name for name, _ in table} == EXPECTED.keys()
    for name, text in table:
        for unit in ("seconds", "tokens", "texts"):
            if name.endswith(f"_{unit}"):
                assert unit in text.partition(": ")[2], name


def test_readiness(metrics: Metrics) -> None:
    """The ready gauge follows the server."""
    metrics.set_ready(ready=True)
    assert value(metrics, "ready") == 1
    metrics.set_ready(ready=False)
    assert value(metrics, "ready") == 0


def test_queue_is_set_not_added(metrics: Metrics) -> None:
    """The queue gauges show the last state."""
    model = metrics.for_model("base")
    model.queue_changed(3, 70)
    model.queue_changed(2, 40)
    assert value(metrics, "queue_texts", model="base") == 2
    assert value(metrics, "queue_tokens", model="base") == 40


def test_batches(metrics: Metrics) -> None:
    """A batch counts its texts, its tokens, its padding and its time; a failed one counts as a failure."""
    model = metrics.for_model("grouped", padding_ratio=lambda num_tokens: 0.25)
    model.batch_finished([5, 7, 12], 0.02)
    model.batch_failed()
    assert value(metrics, "batch_texts_sum", model="grouped") == 3
    assert value(metrics, "batch_tokens_sum", model="grouped") == 24
    assert value(metrics, "batch_padding_ratio_sum", model="grouped") == 0.25
    assert value(metrics, "batch_duration_seconds_sum", model="grouped") == 0.02
    assert value(metrics, "batch_texts_count", model="grouped") == 1
    assert value(metrics, "batch_failures_total", model="grouped") == 1


def test_padding_ratio_from_lengths(metrics: Metrics) -> None:
    """Where the core does not say how much it padded, the ratio is that of padding to the longest text."""
    metrics.for_model("base").batch_finished([2, 4, 6], 0.001)
    assert value(metrics, "batch_padding_ratio_sum", model="base") == pytest.approx(1 / 3)


def test_model_metrics_are_what_the_batcher_reports_to(metrics: Metrics) -> None:
    """The metrics of a model are a BatchObserver (checked by mypy), and count its refusals under their codes."""
    observer: BatchObserver = metrics.for_model("base")
    for error_class in (QueueFullError, RequestTooLargeError, NotReadyError):
        observer.rejected(ANSWERS[error_class].code)
        assert value(metrics, "rejected_total", model="base", reason=ANSWERS[error_class].code) == 1
    assert value(metrics, "rejected_total", model="base", reason="other") == 0


def test_rejections_have_bounded_reasons(metrics: Metrics) -> None:
    """A known reason counts under its name, any other under "other"."""
    model = metrics.for_model("base")
    for reason in (*REJECTION_REASONS[:-1], "because of /some/path"):
        model.rejected(reason)
    assert {r: value(metrics, "rejected_total", model="base", reason=r) for r in REJECTION_REASONS} == dict.fromkeys(
        REJECTION_REASONS, 1
    )
    assert "some/path" not in metrics.render()[0].decode()


def test_one_request_recorded(metrics: Metrics) -> None:
    """An answered request adds its texts and tokens to its route, and one observation to each stage."""
    model = metrics.for_model("base")
    model.record_request(
        "/encode",
        num_texts=2,
        num_tokens=30,
        truncated=1,
        tokenize_seconds=0.001,
        queue_seconds=0.002,
        inference_seconds=0.004,
    )
    model.serialized(0.008)
    model.attention_values(144)
    model.cancelled(3)
    assert value(metrics, "texts_total", model="base", route="/encode") == 2
    assert value(metrics, "tokens_total", model="base", route="/encode") == 30
    assert value(metrics, "truncated_texts_total", model="base") == 1
    assert value(metrics, "attention_values_total", model="base") == 144
    assert value(metrics, "cancelled_total", model="base") == 3
    sums = {s: value(metrics, "stage_duration_seconds_sum", model="base", stage=s) for s in STAGES}
    assert sums == {"tokenize": 0.001, "queue": 0.002, "inference": 0.004, "serialize": 0.008}


def test_models_are_told_apart(metrics: Metrics) -> None:
    """Each model has its own series."""
    metrics.for_model("mini").batch_failed()
    assert value(metrics, "batch_failures_total", model="mini") == 1
    assert value(metrics, "batch_failures_total", model="base") == 0


def test_two_queues_of_one_name_add_up(metrics: Metrics) -> None:
    """While a model is replaced the old queue empties and the new one fills: the gauges show both together."""
    old, new = metrics.for_model("base"), metrics.for_model("base")
    old.queue_changed(3, 30)
    new.queue_changed(2, 20)
    assert (value(metrics, "queue_texts", model="base"), value(metrics, "queue_tokens", model="base")) == (5, 50)
    old.queue_changed(0, 0)
    assert (value(metrics, "queue_texts", model="base"), value(metrics, "queue_tokens", model="base")) == (2, 20)
    old.cancelled(1)
    new.cancelled(2)
    assert value(metrics, "cancelled_total", model="base") == 3


def test_another_model_of_a_name_replaces_the_first(metrics: Metrics) -> None:
    """What is no longer served is no longer said."""
    numbers = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "max_length": 16}
    for dtype in ("float32", "int8", "int8"):
        metrics.set_model_info("other", format="bert", dtype=dtype, device="cpu", pooling="mean", **numbers)
    text = metrics.render()[0].decode()
    [line] = [line for line in text.splitlines() if line.startswith("eyeline_model_info{") and 'model="other"' in line]
    assert 'dtype="int8"' in line


def test_reloads_are_counted_by_their_result(metrics: Metrics) -> None:
    """Each result stands at zero from the start."""
    metrics.reloaded("failed")
    found = {result: value(metrics, "reloads_total", result=result) for result in RELOAD_RESULTS}
    assert found == {"succeeded": 0, "failed": 1, "refused": 0}


def test_model_info(metrics: Metrics) -> None:
    """What is served is readable from the labels of a series that is 1."""
    labels = {
        "model": "base",
        "format": "bert",
        "dtype": "bfloat16",
        "device": "cpu",
        "hidden_size": "384",
        "num_hidden_layers": "6",
        "num_attention_heads": "12",
        "max_length": "256",
        "pooling": "mean",
    }
    assert value(metrics, "model_info", **labels) == 1


def test_buckets() -> None:
    """Durations go from 0.5 ms in equal ratios past 30 s, sizes by powers of two, ratios from 0 to 1."""
    assert DURATION_BUCKETS[0] == 0.0005
    assert 30 < DURATION_BUCKETS[-1] < 40
    ratios = [b / a for a, b in pairwise(DURATION_BUCKETS)]
    assert ratios == pytest.approx([2] * (len(DURATION_BUCKETS) - 1))
    for buckets in (TEXT_BUCKETS, TOKEN_BUCKETS):
        assert all(float(b).is_integer() and int(b).bit_count() == 1 for b in buckets)
    assert TOKEN_BUCKETS[-1] >= 16_384
    assert (RATIO_BUCKETS[0], RATIO_BUCKETS[-1]) == (0, 1)
    assert list(RATIO_BUCKETS) == sorted(RATIO_BUCKETS)


def test_a_batch_without_padding_is_visible(metrics: Metrics) -> None:
    """A ratio of exactly 0 has a bucket of its own."""
    metrics.for_model("base").batch_finished([4, 4], 0.001)
    assert value(metrics, "batch_padding_ratio_bucket", model="base", le="0.0") == 1


def test_process_and_interpreter_metrics(metrics: Metrics) -> None:
    """Memory, CPU time and garbage collection of the process are there, under their usual names."""
    text = metrics.render()[0].decode()
    for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"):
        assert f"\n{name} " in text
    assert "python_info{" in text
    assert "python_gc_collections_total{" in text


def test_no_birth_series(metrics: Metrics) -> None:
    """No series is doubled by one with its time of birth, in either format."""
    assert b"_created" not in metrics.render()[0]
    assert b"_created" not in metrics.render("application/openmetrics-text; version=1.0.0")[0]


def test_text_format_is_the_default(metrics: Metrics) -> None:
    """Without a wish, and for a browser, the Prometheus text format is written."""
    for accept in (None, "", "*/*", "text/html,application/xhtml+xml", "nonsense;;q=,"):
        body, content_type = metrics.render(accept)
        assert content_type.startswith("text/plain; version=0.0.4")
        assert list(parse_text(body.decode()))


def test_openmetrics_when_asked(metrics: Metrics) -> None:
    """A scraper that asks for OpenMetrics gets it, valid to the last line."""
    body, content_type = metrics.render("application/openmetrics-text; version=1.0.0; q=0.8,text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")
    names = {family.name for family in parse_openmetrics(body.decode())}  # type: ignore[no-untyped-call]  # the library's
    assert {name.removesuffix("_total") for name in EXPECTED} <= names


def test_safe_from_threads(metrics: Metrics) -> None:
    """Counts from several threads, new series among them, are all there."""
    model = metrics.for_model("base")

    def work() -> None:
        for step in range(200):
            metrics.request_finished(f"/r{step % 5}", 200, 0.001)
            model.cancelled(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(metrics, "cancelled_total", model="base") == 800
    assert sum(value(metrics, "requests_total", route=f"/r{n}", status="200") or 0 for n in range(5)) == 800
