"""Which metrics and labels a PromQL query names, and which of them there are."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import yaml

from app.errors import error_codes
from app.metrics import REJECTION_REASONS, RELOAD_RESULTS, STAGES, Metrics
from app.state import FAULTS
from tests.app.test_metrics import EXPECTED

ROOT = Path(__file__).parents[2]
RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))

TARGET_LABELS = frozenset({"job", "instance", "namespace"})
"""What Prometheus adds: the name of the scrape configuration, the address, and in Kubernetes the namespace."""

SERIES_OF = {
    "counter": {"": ()},
    "gauge": {"": ()},
    "histogram": {"_bucket": ("le",), "_sum": (), "_count": ()},
}
"""Suffixes of the series that a metric of a type has, each with the labels it has beside the metric's own."""

BOUNDED = {
    ("eyeline_errors_total", "code"): frozenset(error_codes()),
    ("eyeline_fault", "reason"): frozenset(FAULTS),
    ("eyeline_rejected_total", "reason"): frozenset(REJECTION_REASONS),
    ("eyeline_reloads_total", "result"): frozenset(RELOAD_RESULTS),
    ("eyeline_stage_duration_seconds", "stage"): frozenset(STAGES),
}
"""Metrics and labels of which every value is known."""

SET_OPERATORS = frozenset({"and", "or", "unless"})
CHOOSERS = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})
"""Aggregations that choose among the samples, and so change no label."""

SCALARS = frozenset({"pi", "scalar", "time"})
LOSES_LE = frozenset({"histogram_fraction", "histogram_quantile"})
ABSENT = frozenset({"absent", "absent_over_time"})


@dataclass(frozen=True, slots=True)
class Use:
    """One place in a query that names a metric.

    Attributes
    ----------
    metric : str
    labels : frozenset of str
        That its selector asks about.
    values : tuple of (str, str)
        Label and value, where the selector asks for exactly that.
    """

    metric: str
    labels: frozenset[str]
    values: tuple[tuple[str, str], ...]


def rules() -> Iterator[dict[str, Any]]:
    """Every recording and alert rule."""
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


@functools.cache
def exported() -> dict[str, frozenset[str]]:
    """Every series that a scrape shows, with its labels.

    tests/app/test_metrics.py holds EXPECTED against the registry; those of the process come from the registry itself.
    """
    found: dict[str, frozenset[str]] = {"up": TARGET_LABELS}
    for name, (kind, labels) in EXPECTED.items():
        for suffix, more in SERIES_OF[kind].items():
            found[name + suffix] = TARGET_LABELS | labels | set(more)
    for family in Metrics().registry.collect():
        if not family.name.startswith("eyeline_"):
            for sample in family.samples:
                found[sample.name] = TARGET_LABELS | set(sample.labels)
    return found


@functools.cache
def known() -> dict[str, frozenset[str]]:
    """What is exported, and what the rules record, with labels."""
    found = dict(exported())
    recorded = [rule for rule in rules() if "record" in rule]
    for rule in recorded:  # in the order of their evaluation: one may build on another
        found[rule["record"]] = labels_of(rule["expr"], found)
    return found


def expression(query: str) -> promql_parser.Expr:
    """Parse a query as Prometheus will see it, once Grafana has put a time in."""
    return promql_parser.parse(query.replace("$__rate_interval", "5m"))


def nodes(query: str) -> list[Any]:
    """Every node of a query's tree."""
    found: list[Any] = []
    promql_parser.walk(expression(query), lambda node: found.append(node))
    return found


def uses(query: str) -> list[Use]:
    """Every place in a query that names a metric."""
    found = []
    for node in nodes(query):
        if isinstance(node, promql_parser.VectorSelector):
            matchers = node.matchers.matchers
            labels = frozenset(matcher.name for matcher in matchers)
            exact = tuple((m.name, m.value) for m in matchers if m.op == promql_parser.MatchOp.Equal)
            found.append(Use(node.name, labels, exact))
    return found


def groupings(query: str) -> frozenset[str]:
    """Every label that a query groups, matches or joins by."""
    found: set[str] = set()
    for node in nodes(query):
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            found |= set(node.modifier.labels)
        if isinstance(node, promql_parser.BinaryExpr) and node.modifier is not None:
            if node.modifier.matching is not None:
                found |= set(node.modifier.matching.labels)
            found |= set(node.modifier.group_labels or ())
    return frozenset(found)


def labels_of(query: str, metrics: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Which labels the result of a query can have, by PromQL's rules."""
    return _labels(expression(query), metrics) or frozenset()


def _labels(node: Any, metrics: Mapping[str, frozenset[str]]) -> frozenset[str] | None:
    """Which labels a node's vector can have; None for what is a number or a text."""
    match node:
        case promql_parser.VectorSelector():
            return metrics[node.name]
        case promql_parser.MatrixSelector():
            return metrics[node.vector_selector.name]
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            return _labels(node.expr, metrics)
        case promql_parser.AggregateExpr():
            return _labels_of_aggregation(node, metrics)
        case promql_parser.BinaryExpr():
            return _labels_of_operation(node, metrics)
        case promql_parser.Call():
            return _labels_of_call(node, metrics)
        case promql_parser.NumberLiteral() | promql_parser.StringLiteral():
            return None
    raise TypeError(f"unknown node of PromQL: {type(node).__name__}")


def _labels_of_aggregation(node: Any, metrics: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """What ``by`` and ``without`` leave, and nothing without either."""
    labels = _labels(node.expr, metrics) or frozenset()
    operator = str(node.op)
    if operator in CHOOSERS:
        return labels
    added = frozenset({node.param.val}) if operator == "count_values" else frozenset()
    if node.modifier is None:
        return added
    named = frozenset(node.modifier.labels)
    by = node.modifier.type == promql_parser.AggModifierType.By
    return (labels & named if by else labels - named) | added


def _labels_of_operation(node: Any, metrics: Mapping[str, frozenset[str]]) -> frozenset[str] | None:
    """The left side's labels, or the many's; of one to one, those that were matched by; of ``or``, both sides'."""
    left, right = _labels(node.lhs, metrics), _labels(node.rhs, metrics)
    if left is None or right is None:
        return right if left is None else left
    operator = str(node.op)
    if operator in SET_OPERATORS:
        return left | right if operator == "or" else left
    if node.modifier is None:
        return left
    added = frozenset(node.modifier.group_labels or ())
    if node.modifier.card == promql_parser.VectorMatchCardinality.ManyToOne:
        return left | added & right
    if node.modifier.card == promql_parser.VectorMatchCardinality.OneToMany:
        return right | added & left
    if node.modifier.matching is None:
        return left
    named = frozenset(node.modifier.matching.labels)
    on = node.modifier.matching.type == promql_parser.LabelModifierType.Include
    return left & named if on else left - named


def _labels_of_call(node: Any, metrics: Mapping[str, frozenset[str]]) -> frozenset[str] | None:
    """Those of the one vector among the arguments, but for functions that make, add or lose labels."""
    name = node.func.name
    if name in SCALARS:
        return None
    if name in ABSENT:
        (argument,) = node.args
        selector = getattr(argument, "vector_selector", argument)
        matchers = selector.matchers.matchers if isinstance(selector, promql_parser.VectorSelector) else ()
        return frozenset(matcher.name for matcher in matchers if matcher.op == promql_parser.MatchOp.Equal)
    vectors = [labels for labels in (_labels(argument, metrics) for argument in node.args) if labels is not None]
    labels = vectors[0] if vectors else frozenset()
    if name in LOSES_LE:
        return labels - {"le"}
    return labels | {node.args[1].val} if name in {"label_replace", "label_join"} else labels


def complaints(query: str, metrics: Mapping[str, frozenset[str]]) -> list[str]:
    """Say what a query names that is not there: metrics, labels, values of labels that are bounded."""
    found = []
    available: set[str] = set()
    for use in uses(query):
        if use.metric not in metrics:
            found.append(f"no metric {use.metric}")
            continue
        available |= metrics[use.metric]
        found += [f"{use.metric} has no label {label}" for label in sorted(use.labels - metrics[use.metric])]
        family = re.sub(r"_(bucket|sum|count)$", "", use.metric)
        found += [
            f"{use.metric} never has {label}={value!r}"
            for label, value in use.values
            if value not in BOUNDED.get((family, label), {value})
        ]
    found += [f"no metric of the query has the label {label}" for label in sorted(groupings(query) - available)]
    return found


def legend_labels(legend: str) -> set[str]:
    """Which labels a legend or a summary shows: ``{{label}}`` of Grafana, ``$labels.label`` of Prometheus."""
    return set(re.findall(r"\{\{(\w+)\}\}", legend)) | set(re.findall(r"\$labels\.(\w+)", legend))
