"""Write Grafana's dashboard: ``python deploy/grafana/make_dashboard.py > deploy/grafana/dashboards/eyeline.json``.

A panel is a line or two here and sixty in JSON. tests/deploy/test_dashboard.py holds the file against this program, and
every name and label in it against what the server exports. The format is that of Grafana 11 and later.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

COLUMNS = 24
"""Width of Grafana's grid."""

SOURCE = {"type": "prometheus", "uid": "${datasource}"}

HERE = 'job=~"$job", instance=~"$instance"'
"""What the variables select, for metrics of the whole server."""

MODEL = f'{HERE}, model=~"$model"'
"""The same for metrics of one model."""

API = f'{HERE}, route!~"/health.*|/metrics|/info|/admin.*|unmatched"'
"""Requests that callers make for themselves: the same routes as in deploy/prometheus/rules/recording.yml."""

Json = dict[str, Any]


def rate(metric: str, labels: str, by: str | None = None) -> str:
    """Return the growth of a counter in a second, summed over all that ``by`` does not tell apart, if it is given."""
    growth = f"rate({metric}{{{labels}}}[$__rate_interval])"
    if by is None:
        return growth
    return f"sum by ({by}) ({growth})" if by else f"sum({growth})"


def increase(metric: str, labels: str, by: str = "") -> str:
    """Return by how much a counter has grown between two points of the graph: how often a rare thing happened."""
    growth = f"increase({metric}{{{labels}}}[$__rate_interval])"
    return f"sum by ({by}) ({growth})" if by else f"sum({growth})"


def share(part: str, whole: str) -> str:
    """Return a quotient that is absent, rather than no number, while nothing happens."""
    return f"{part} / ({whole} > 0)"


def quantile(q: float, metric: str, labels: str, by: str = "") -> str:
    """Return a quantile of a histogram, over all that ``by`` does not tell apart."""
    return f"histogram_quantile({q}, {rate(metric + '_bucket', labels, by=f'le, {by}' if by else 'le')})"


def panel(
    title: str,
    description: str,
    *queries: tuple[str, str],
    unit: str,
    kind: str = "timeseries",
    width: int = 8,
    height: int = 8,
    stack: bool = False,
    red_above: float | None = None,
) -> Json:
    """Describe one panel.

    Parameters
    ----------
    queries : tuple of str
        PromQL, and the legend with ``{{label}}`` in it.
    unit : str
        Grafana's name of the unit: s, percentunit, bytes, short, ...
    width, height : int
        In cells of the grid, of which a row has 24.
    red_above : float, optional
        From this value on the panel is red.
    """
    defaults: Json = {"unit": unit, "min": 0}
    if red_above is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": red_above}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    options: Json = {}
    if kind == "timeseries":
        stacking = {"mode": "normal" if stack else "none", "group": "A"}
        defaults["custom"] = {"fillOpacity": 20 if stack else 5, "showPoints": "never", "stacking": stacking}
        options = {
            "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    elif kind == "stat":
        reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        options = {"reduceOptions": reduce, "colorMode": "value", "graphMode": "area"}
    elif kind == "heatmap":
        options = {
            "calculate": False,
            "yAxis": {"unit": unit},
            "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
            "cellGap": 1,
            "legend": {"show": True},
        }
    elif kind == "state-timeline":
        states = {"0": {"text": "not ready", "color": "red"}, "1": {"text": "ready", "color": "green"}}
        defaults["mappings"] = [{"type": "value", "options": states}]
        options = {"showValue": "never", "mergeValues": True, "legend": {"showLegend": False}}
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend,
                "format": {"heatmap": "heatmap", "table": "table"}.get(kind, "time_series"),
                "instant": kind == "table",
                "range": kind != "table",
            }
            for index, (expression, legend) in enumerate(queries)
        ],
    }


def stat(title: str, description: str, query: str, *, unit: str, red_above: float | None = None) -> Json:
    """Describe a number of the first row."""
    return panel(title, description, (query, ""), unit=unit, kind="stat", width=3, height=4, red_above=red_above)


FAILED = API + ', status=~"500|503|504"'


def glance() -> list[Json]:
    """Return what one looks at first."""
    requests = rate("eyeline_requests_total", API, by="")
    failed = rate("eyeline_requests_total", FAILED, by="")
    busy = rate("eyeline_batch_duration_seconds_sum", HERE, by="instance")
    return [
        stat("Ready", "Instances that take requests.", f"sum(eyeline_ready{{{HERE}}})", unit="short"),
        stat("Requests", "Requests of the API in a second, whatever their answer.", requests, unit="reqps"),
        stat(
            "Failed",
            "Share that the server failed: 500, 503 and 504.",
            share(failed, requests),
            unit="percentunit",
            red_above=0.001,
        ),
        stat(
            "p99",
            "99 of 100 requests are answered within this time, from its head to the last byte.",
            quantile(0.99, "eyeline_request_duration_seconds", API),
            unit="s",
            red_above=2,
        ),
        stat("Texts", "Texts answered in a second.", rate("eyeline_texts_total", MODEL, by=""), unit="cps"),
        stat("Tokens", "Tokens processed in a second.", rate("eyeline_tokens_total", MODEL, by=""), unit="cps"),
        stat(
            "Longest queue",
            "How long what waits will take at the present speed, in the instance where it takes longest.",
            f"max(instance:eyeline_queue_tokens:wait_seconds{{{HERE}}})",
            unit="s",
            red_above=5,
        ),
        stat(
            "Worker busy",
            "Share of the time in which workers ran batches, mean of the instances. At 100 % more callers wait more.",
            f"avg({busy})",
            unit="percentunit",
        ),
        panel(
            "Readiness",
            "Which instance took requests when.",
            (f"eyeline_ready{{{HERE}}}", "{{instance}}"),
            unit="short",
            kind="state-timeline",
            width=COLUMNS,
            height=5,
        ),
    ]


def latency() -> list[Json]:
    """Return where time goes."""
    requests, stages = "eyeline_request_duration_seconds", "eyeline_stage_duration_seconds"
    return [
        panel(
            "Requests",
            "From the head to the last byte, all routes of the API.",
            (quantile(0.5, requests, API), "p50"),
            (quantile(0.99, requests, API), "p99"),
            ("eyeline:objective_latency_seconds", "objective for p99"),
            unit="s",
        ),
        panel(
            "p99 by route",
            "Which kind of request is slow. Routes with large requests are slow by nature.",
            (quantile(0.99, requests, API, by="route") + " > 0", "{{route}}"),  # without > 0, silent routes are NaN
            unit="s",
        ),
        panel(
            "Durations",
            "How many requests took how long. Two bands are two kinds of caller.",
            (rate(requests + "_bucket", API, by="le"), "{{le}}"),
            unit="s",
            kind="heatmap",
        ),
        panel(
            "p50 by stage",
            "Where the usual request spends its time.",
            (quantile(0.5, stages, MODEL, by="stage"), "{{stage}}"),
            unit="s",
            width=12,
        ),
        panel(
            "p99 by stage",
            "Where a slow request spends it. A long queue wants more instances; long inference wants smaller requests.",
            (quantile(0.99, stages, MODEL, by="stage"), "{{stage}}"),
            unit="s",
            width=12,
        ),
    ]


def throughput() -> list[Json]:
    """Return how much is done."""
    texts, tokens = rate("eyeline_texts_total", MODEL, by="model"), rate("eyeline_tokens_total", MODEL, by="model")
    return [
        panel(
            "Texts",
            "Texts answered in a second, by model and route.",
            (rate("eyeline_texts_total", MODEL, by="model, route") + " > 0", "{{model}} {{route}}"),
            unit="cps",
            stack=True,
        ),
        panel(
            "Tokens",
            "Tokens processed in a second, special tokens included, by model and route.",
            (rate("eyeline_tokens_total", MODEL, by="model, route") + " > 0", "{{model}} {{route}}"),
            unit="cps",
            stack=True,
        ),
        panel(
            "Speed while busy",
            "Tokens in a second of the worker's time. It falls when something slows the machine down, and when batches "
            "are small because little is asked.",
            (
                share(rate("eyeline_batch_tokens_sum", MODEL), rate("eyeline_batch_duration_seconds_sum", MODEL)),
                "{{instance}} {{model}}",
            ),
            unit="cps",
        ),
        panel(
            "Tokens per text",
            "Mean length of the texts answered.",
            (share(tokens, texts), "{{model}}"),
            unit="short",
            width=12,
        ),
        panel(
            "Truncated",
            "Share of the texts that were cut because the model reads no longer ones. Answers say so, too.",
            (share(rate("eyeline_truncated_texts_total", MODEL, by="model"), texts), "{{model}}"),
            unit="percentunit",
            width=12,
        ),
    ]


def waiting() -> list[Json]:
    """Return what waits, and for whom."""
    batches = "eyeline_batch_duration_seconds"
    return [
        panel(
            "Tokens waiting",
            "What Kubernetes may scale by. A sawtooth is normal under load; a rise is not.",
            (f"eyeline_queue_tokens{{{MODEL}}}", "{{instance}} {{model}}"),
            unit="short",
        ),
        panel(
            "Texts waiting",
            "The same in texts.",
            (f"eyeline_queue_texts{{{MODEL}}}", "{{instance}} {{model}}"),
            unit="short",
        ),
        panel(
            "Time to work it off",
            "Tokens waiting over tokens done in a second, mean of five minutes.",
            (f"instance:eyeline_queue_tokens:wait_seconds{{{HERE}}}", "{{instance}}"),
            ("eyeline:objective_queue_wait_seconds", "objective"),
            unit="s",
        ),
        panel(
            "Worker busy",
            "Share of the time in which an instance's one worker ran batches, by model.",
            (rate(batches + "_sum", MODEL), "{{instance}} {{model}}"),
            unit="percentunit",
            stack=True,
        ),
        panel(
            "Requests in progress",
            "From the head to the last byte, probes included.",
            (f"eyeline_inflight_requests{{{HERE}}}", "{{instance}}"),
            unit="short",
        ),
        panel(
            "Batches",
            "How long a batch runs: what a request that comes now may have to wait at least.",
            (quantile(0.5, batches, MODEL, by="model"), "{{model}} p50"),
            (quantile(0.99, batches, MODEL, by="model"), "{{model}} p99"),
            unit="s",
        ),
    ]


def batches() -> list[Json]:
    """Return what runs together."""
    padding = "eyeline_batch_padding_ratio"
    return [
        panel(
            "Texts in a batch",
            "One under little load; under much, what fits the budget of tokens.",
            (rate("eyeline_batch_texts_bucket", MODEL, by="le"), "{{le}}"),
            unit="short",
            kind="heatmap",
        ),
        panel(
            "Tokens in a batch",
            "Without padding. Batches well under --batch-tokens mean that the worker has room.",
            (rate("eyeline_batch_tokens_bucket", MODEL, by="le"), "{{le}}"),
            unit="short",
            kind="heatmap",
        ),
        panel(
            "Padding",
            "Share of padding in the attention core, the only place that has any: mean of the batches.",
            (
                share(rate(padding + "_sum", MODEL, by="model"), rate(padding + "_count", MODEL, by="model")),
                "{{model}}",
            ),
            unit="percentunit",
        ),
        panel(
            "What a batch may hold",
            "Tokens. Less than --batch-tokens after memory ran out; it grows again by itself.",
            (f"eyeline_batch_budget_tokens{{{MODEL}}}", "{{instance}} {{model}}"),
            unit="short",
            width=COLUMNS,
            height=5,
        ),
    ]


def errors() -> list[Json]:
    """Return what was not answered as asked."""
    return [
        panel(
            "Answers by status",
            "499: the caller left. 429: come back later.",
            (rate("eyeline_requests_total", API, by="status") + " > 0", "{{status}}"),
            unit="reqps",
            stack=True,
        ),
        panel(
            "Errors by code",
            "The code is in the error's body, and docs/api.md explains it.",
            (rate("eyeline_errors_total", HERE, by="code") + " > 0", "{{code}}"),
            unit="cps",
            stack=True,
        ),
        panel(
            "Refusals by reason",
            "Requests not admitted to the queue, or dropped at their deadline.",
            (rate("eyeline_rejected_total", MODEL, by="reason"), "{{reason}}"),
            unit="reqps",
            stack=True,
        ),
        panel(
            "Failed share",
            "500, 503 and 504 among the requests of the API, all instances of a job, and what is allowed over 30 days.",
            ('job:eyeline_requests_total:failed_ratio_rate5m{job=~"$job"}', "{{job}} 5 minutes"),
            ('job:eyeline_requests_total:failed_ratio_rate1h{job=~"$job"}', "{{job}} 1 hour"),
            ("eyeline:objective_error_ratio", "objective"),
            unit="percentunit",
        ),
        panel(
            "Callers that left",
            "Texts dropped because nobody waited for them any more. Often a caller's time-out, shorter than the queue.",
            (rate("eyeline_cancelled_total", MODEL, by="model"), "{{model}}"),
            unit="cps",
        ),
        panel(
            "Batches that failed",
            "Each was tried again text by text, so that only the texts at fault were lost.",
            (rate("eyeline_batch_failures_total", MODEL, by="instance, model"), "{{instance}} {{model}}"),
            unit="cps",
        ),
        panel(
            "Faults",
            "What an instance has found in itself, and is not ready for: docs/reliability.md says what each means.",
            (f"eyeline_fault{{{HERE}}} == 1", "{{instance}} {{reason}}"),
            unit="short",
            width=12,
        ),
        panel(
            "What should never be",
            "Results withheld for a NaN or an infinity, runs without enough memory, worker threads that died, lines of "
            "the log that could not be written.",
            (increase("eyeline_non_finite_rows_total", MODEL), "not finite"),
            (increase("eyeline_out_of_memory_total", MODEL), "out of memory"),
            (increase("eyeline_worker_restarts_total", HERE), "worker restarts"),
            (increase("eyeline_log_lines_lost_total", HERE), "log lines lost"),
            unit="short",
            width=12,
        ),
    ]


def keys() -> list[Json]:
    """Return who asks, where there are API keys."""
    return [
        panel(
            "Requests by key",
            "Requests of callers that showed a key, whatever their answer.",
            (rate("eyeline_key_requests_total", HERE, by="key"), "{{key}}"),
            unit="reqps",
            stack=True,
        ),
        panel(
            "Tokens by key",
            "Whose work the worker does.",
            (rate("eyeline_key_tokens_total", MODEL, by="key"), "{{key}}"),
            unit="cps",
            stack=True,
        ),
        panel(
            "Waiting by key",
            "Tokens and texts of a key in the queues. One key fills no more than --max-key-share of them.",
            (f"sum by (key) (eyeline_key_queue_tokens{{{MODEL}}})", "{{key}} tokens"),
            (f"sum by (key) (eyeline_key_queue_texts{{{MODEL}}})", "{{key}} texts"),
            unit="short",
        ),
    ]


def attention() -> list[Json]:
    """Return what maps cost."""
    weights = rate("eyeline_attention_values_total", MODEL, by="model")
    return [
        panel(
            "Weights computed",
            "Attention weights in maps, in a second. Each is computed a second time, beside the fast path.",
            (weights, "{{model}}"),
            unit="cps",
            width=12,
        ),
        panel(
            "Weights per text",
            "Over all texts, with and without maps: how much of the work is maps.",
            (share(weights, rate("eyeline_texts_total", MODEL, by="model")), "{{model}}"),
            unit="short",
            width=12,
        ),
    ]


def process() -> list[Json]:
    """Return what the machine sees of it."""
    served = panel(
        "What is served",
        "Each model with its format, number type, device and sizes, as /info says.",
        (f"max without (instance) (eyeline_model_info{{{MODEL}}})", ""),
        unit="short",
        kind="table",
        width=COLUMNS,
        height=6,
    )
    hidden = {"Time": True, "Value": True, "__name__": True}
    served["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return [
        panel(
            "Memory",
            "Resident memory, and the limit at which an instance is killed.",
            (f"process_resident_memory_bytes{{{HERE}}}", "{{instance}}"),
            ("eyeline:objective_memory_bytes", "limit"),
            unit="bytes",
        ),
        panel(
            "CPU",
            "Cores kept busy. Fewer than threads while the worker is busy: something holds it back.",
            (rate("process_cpu_seconds_total", HERE), "{{instance}}"),
            unit="short",
        ),
        panel(
            "Open descriptors",
            "Connections, mostly.",
            (f"process_open_fds{{{HERE}}}", "{{instance}}"),
            unit="short",
        ),
        panel(
            "Garbage collections",
            "By generation. One of generation 2 stalls the event loop for some milliseconds.",
            (rate("python_gc_collections_total", HERE, by="generation"), "generation {{generation}}"),
            unit="cps",
        ),
        panel(
            "Up for",
            "Time since the process began. A drop to zero is a restart.",
            (f"time() - process_start_time_seconds{{{HERE}}}", "{{instance}}"),
            unit="s",
        ),
        panel(
            "Reloads",
            "Model folders loaded anew, by how it ended. After a failure the old models serve.",
            (increase("eyeline_reloads_total", HERE, by="result"), "{{result}}"),
            unit="short",
        ),
        served,
    ]


def place(panels: Iterable[Json], top: int) -> int:
    """Put panels side by side from row ``top`` of the grid on, and return the first free row under them."""
    left, height = 0, 0
    for one in panels:
        position = one["gridPos"]
        if left + position["w"] > COLUMNS:
            top, left, height = top + height, 0, 0
        position.update(x=left, y=top)
        left += position["w"]
        height = max(height, position["h"])
    return top + height


def variable(name: str, label: str, query: str) -> Json:
    """Describe a variable whose values Prometheus knows, with all of them chosen at first."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def dashboard() -> Json:
    """Return the whole dashboard."""
    panels: list[Json] = []
    top = 0
    rows = {
        "At a glance": glance(),
        "Latency": latency(),
        "Throughput": throughput(),
        "Queue and worker": waiting(),
        "Shape of batches": batches(),
        "Errors and refusals": errors(),
        "Keys": keys(),
        "Attention maps": attention(),
        "Process": process(),
    }
    for title, members in rows.items():
        panels.append(
            {"type": "row", "title": title, "collapsed": False, "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1}}
        )
        top = place(members, top + 1)
        panels += members
    for number, one in enumerate(panels, start=1):
        one["id"] = number
    return {
        "uid": "eyeline",
        "title": "Eyeline",
        "description": "Sentence embeddings: latency, throughput, batches, errors. What to do: docs/operations.md.",
        "tags": ["eyeline"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                variable("job", "Job", "label_values(eyeline_ready, job)"),
                variable("instance", "Instance", 'label_values(eyeline_ready{job=~"$job"}, instance)'),
                variable("model", "Model", f"label_values(eyeline_model_info{{{HERE}}}, model)"),
            ]
        },
        "annotations": {
            "list": [
                {
                    "name": "Starts",
                    "datasource": SOURCE,
                    "enable": True,
                    "iconColor": "blue",
                    "expr": f"changes(process_start_time_seconds{{{HERE}}}[1m]) > 0",
                    "titleFormat": "{{instance}} started again",
                }
            ]
        },
        "panels": panels,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dashboard(), indent=2) + "\n")
