"""Claims about tests/deploy/queries.py: what checks queries sees what is wrong with one."""

import pytest

from tests.app.test_metrics import EXPECTED
from tests.deploy.queries import BOUNDED, complaints, known, labels_of, uses

RIGHT = [
    'sum by (le, stage) (rate(eyeline_stage_duration_seconds_bucket{stage="queue", job=~"$job"}[$__rate_interval]))',
    'eyeline_errors_total{code="queue_full"} > 3',
    "process_resident_memory_bytes / scalar(eyeline:objective_memory_bytes)",
    "max_over_time(up[5m]) unless on (job) (eyeline_ready == 1)",
]

WRONG = [
    ("rate(eyeline_request_total[5m])", "no metric eyeline_request_total"),
    ("eyeline_requests", "no metric eyeline_requests"),
    ("rate(eyeline_stage_duration_seconds[5m])", "no metric eyeline_stage_duration_seconds"),
    ('eyeline_requests_total{code="200"}', "eyeline_requests_total has no label code"),
    ('eyeline_ready{model="m"}', "eyeline_ready has no label model"),
    ('eyeline_batch_texts_sum{le="8.0"}', "eyeline_batch_texts_sum has no label le"),
    (
        'eyeline_stage_duration_seconds_count{stage="wait"}',
        "eyeline_stage_duration_seconds_count never has stage='wait'",
    ),
    ('eyeline_errors_total{code="full"}', "eyeline_errors_total never has code='full'"),
    ('eyeline_fault{reason="queue_full"}', "eyeline_fault never has reason='queue_full'"),
    (
        'rate(eyeline_rejected_total{reason="worker_hung"}[5m])',
        "eyeline_rejected_total never has reason='worker_hung'",
    ),
    ("sum by (route) (eyeline_queue_tokens)", "no metric of the query has the label route"),
    ("eyeline_ready * on (pod) up", "no metric of the query has the label pod"),
    ("up * on (job) group_left(device) eyeline_ready", "no metric of the query has the label device"),
]


@pytest.mark.parametrize("query", RIGHT)
def test_nothing_to_complain_of(query: str) -> None:
    """Metrics, labels and values that there are."""
    assert complaints(query, known()) == []


@pytest.mark.parametrize(("query", "complaint"), WRONG)
def test_what_is_not_there_is_named(query: str, complaint: str) -> None:
    """A misspelt metric, a series that its type has not, a label of another metric, a value that never occurs."""
    assert complaint in complaints(query, known())


LABELS = [
    ("left", "ab"),
    ("-(left)", "ab"),
    ("sum(left)", ""),
    ("sum by (a, x) (left)", "a"),
    ("sum without (a) (left)", "b"),
    ("topk without (a) (3, left)", "ab"),
    ('count_values by (a) ("version", left)', ["a", "version"]),
    ("left * 2", "ab"),
    ("1 / left", "ab"),
    ("left / scalar(right)", "ab"),
    ("vector(1) > 0", ""),
    ("left > right", "ab"),
    ("left == bool 1", "ab"),
    ("left > on (a) right", "a"),
    ("left / ignoring (a) right", "b"),
    ("left / on (b) group_left (c, x) right", "abc"),
    ("left / on (b) group_right (a) right", "abc"),
    ("left / on (b) group_right right", "bc"),
    ("left and on (b) right", "ab"),
    ("left unless right", "ab"),
    ("left or right", "abc"),
    ("sum by (a) (left) or sum by (c) (right)", "ac"),
    ("sum by (a) (left / on (b) group_left (c) right)", "a"),
    ("sum by (b) (left) / on (b) group_right () right", "bc"),
    ("rate(left[5m])", "ab"),
    ("max_over_time(sum by (a) (left)[1h:5m])", "a"),
    ("quantile_over_time(0.9, left[1h])", "ab"),
    ("histogram_quantile(0.99, sum by (le, b) (rate(times[5m])))", "b"),
    ("histogram_quantile(scalar(left), times)", "b"),
    ('absent(left{a="1", b=~"2"})', "a"),
    ('absent_over_time(left{b="1"}[5m])', "b"),
    ("absent(sum(left))", ""),
    ('label_replace(right, "x", "$1", "b", "(.*)")', "bcx"),
]
"""Queries on the metrics left (labels a and b), right (b and c) and times (b and le), with the labels they keep."""


@pytest.mark.parametrize(("query", "kept"), LABELS)
def test_labels_follow_promql(query: str, kept: str | list[str]) -> None:
    """Groupings, vector matching and functions keep, add and lose what Prometheus says they do, however deep."""
    metrics = {"left": frozenset("ab"), "right": frozenset("bc"), "times": frozenset({"b", "le"})}
    assert labels_of(query, metrics) == set(kept)


def test_every_bounded_label_has_its_values() -> None:
    """Values are told apart by metric: a reason of a fault is none of a refusal."""
    names = {label for _, label in BOUNDED}
    found = {(metric, label) for metric, (_, labels) in EXPECTED.items() for label in labels & names}
    assert found == set(BOUNDED)


def test_labels_after_a_grouping() -> None:
    """A recorded series has the labels that its grouping keeps."""
    metrics = known()
    assert metrics["job_status:eyeline_requests_total:rate5m"] == {"namespace", "job", "status"}
    assert metrics["job:eyeline_requests_total:rate5m"] == {"namespace", "job"}
    assert metrics["instance:eyeline_batch_duration_seconds:busy_ratio_rate5m"] == {"namespace", "job", "instance"}
    assert labels_of("sum without (le) (eyeline_batch_texts_bucket)", metrics) >= {"model", "job"}


def test_selectors_are_found_wherever_they_are() -> None:
    """In a function's argument, on both sides of an operator, in a parameter and in a subquery."""
    query = "topk(scalar(up), rate(eyeline_ready[5m])) / max_over_time((process_open_fds + eyeline_queue_texts)[1h:1m])"
    assert {use.metric for use in uses(query)} == {"up", "eyeline_ready", "process_open_fds", "eyeline_queue_texts"}
