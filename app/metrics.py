"""What the server counts: Prometheus metrics, one registry per app.

=========================================  =========  =================================================
``eyeline_requests_total``                 counter    route, status
``eyeline_request_duration_seconds``       histogram  route: seconds from head to answer, see docs/api.md
``eyeline_key_requests_total``             counter    key, status: of callers that showed an API key
``eyeline_inflight_requests``              gauge
``eyeline_errors_total``                   counter    code
``eyeline_ready``                          gauge      1 = ready
``eyeline_fault``                          gauge      reason: 1 = this is why the server is not ready
``eyeline_worker_restarts_total``          counter    threads that had died
``eyeline_log_lines_lost_total``           counter    lines of the log that could not be written
``eyeline_stage_duration_seconds``         histogram  model, stage: seconds of tokenize, queue, inference, serialize
``eyeline_texts_total``                    counter    model, route: answered
``eyeline_tokens_total``                   counter    model, route: processed, special tokens included
``eyeline_truncated_texts_total``          counter    model
``eyeline_attention_values_total``         counter    model: weights computed in maps
``eyeline_batch_texts``                    histogram  model: texts
``eyeline_batch_tokens``                   histogram  model: tokens without padding, special tokens included
``eyeline_batch_padding_ratio``            histogram  model: share of padding in the attention core, 0 to 1
``eyeline_batch_duration_seconds``         histogram  model: seconds; the rate of their sum is the worker's busy share
``eyeline_batch_failures_total``           counter    model: batches, and then again each text that fails alone
``eyeline_batch_budget_tokens``            gauge      model: tokens that a batch may hold now, less after memory ran out
``eyeline_out_of_memory_total``            counter    model: runs that there was no memory for
``eyeline_non_finite_rows_total``          counter    model: rows withheld as they held a NaN or an infinity
``eyeline_queue_texts``                    gauge      model: texts that wait
``eyeline_queue_tokens``                   gauge      model: tokens that wait, special tokens included
``eyeline_key_queue_texts``                gauge      model, key: texts that wait
``eyeline_key_queue_tokens``               gauge      model, key: tokens that wait, special tokens included
``eyeline_key_tokens_total``               counter    model, key: processed for callers that showed it
``eyeline_rejected_total``                 counter    model, reason: requests
``eyeline_cancelled_total``                counter    model: texts whose caller had left
``eyeline_model_info``                     gauge      model, format, dtype, ...: always 1
``eyeline_reloads_total``                  counter    result: succeeded, failed, refused
=========================================  =========  =================================================

With them come the metrics of the process (``process_*``), the interpreter and its garbage collector (``python_*``).
Every label is bounded: routes are templates, keys go by the names that the operator gave them, codes, stages and
reasons come from fixed lists. A series that is known at the start stands at zero from the start, as an alert on a
series that is not there never fires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from app.facts import Stage
from app.log import num_lost_lines

NAMESPACE = "eyeline"

UNMATCHED = "unmatched"
"""The route label of a request that matched no route: its path is the caller's invention."""

STAGES = get_args(Stage)

REJECTION_REASONS = (
    *("queue_full", "key_queue_full", "request_too_large", "not_ready", "server_stopping", "worker_unavailable"),
    *("deadline_exceeded", "other"),
)
"""Why a request was not admitted, or was dropped: the codes of the queue's refusals. Any other reason is ``other``."""

RELOAD_RESULTS = ("succeeded", "failed", "refused")
"""How a reload of models ends: another model serves, the old one still does, or it was not begun."""

STATUSES_FROM_START = (200, 413, 422, 429, 500, 503, 504)
"""Statuses that each known route shows at zero: success, and those that alerts are about."""

DURATION_BUCKETS = tuple(0.0005 * 2**step for step in range(17))
"""0.5 ms, doubled up to 32.8 s: above any deadline worth waiting for. Seconds."""

TEXT_BUCKETS = tuple(float(2**step) for step in range(13))
"""1 to 4,096 texts in a batch."""

TOKEN_BUCKETS = tuple(float(2**step) for step in range(3, 18))
"""8 to 131,072 tokens in a batch: from one word to eight of the default CUDA budgets."""

RATIO_BUCKETS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Fine where a good batch is, coarse where it is bad anyway."""


PaddingRatio = Callable[[Sequence[int]], float]
"""Tokens of each text of a batch -> share of padding in what the attention core computes for them, 0 to 1."""


def pad_to_longest(num_tokens: Sequence[int]) -> float:
    """Return the padding of a batch whose texts are all padded to the longest."""
    return 1 - sum(num_tokens) / (len(num_tokens) * max(num_tokens))


class Metrics:
    """The metrics of one app, on a registry of their own, so that two apps in a process do not collide.

    Parameters
    ----------
    routes : iterable of str
        Route templates whose series stand at zero from the start.
    error_codes : iterable of str
        Every ``code`` an error can have, likewise.
    keys : iterable of str
        Names of API keys, likewise.
    faults : iterable of str
        Every reason not to be ready that the server can find in itself, likewise.

    Notes
    -----
    Every method may be called from any thread.
    """

    def __init__(
        self,
        *,
        routes: Iterable[str] = (),
        error_codes: Iterable[str] = (),
        keys: Iterable[str] = (),
        faults: Iterable[str] = (),
    ) -> None:
        # A switch of the whole process: without it each series has a second one that holds its time of birth.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it untyped
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._requests = self._counter("requests", "HTTP requests answered.", "route", "status")
        self._request_duration = self._durations("request_duration_seconds", "From head read to last byte.", "route")
        self._key_requests = self._counter("key_requests", "Requests of callers that showed a key.", "key", "status")
        self._inflight = self._gauge("inflight_requests", "HTTP requests in progress.")
        self._errors = self._counter("errors", "Errors answered, by their stable code.", "code")
        self._ready = self._gauge("ready", "1 when the server takes requests.")
        self._fault = self._gauge("fault", "1 while this keeps the server from being ready.", "reason")
        self._restarts = self._counter("worker_restarts", "Worker threads that died and were replaced.")
        self.registry.register(LostLogLines())
        self._stages = self._durations("stage_duration_seconds", "Time a request spends in a stage.", "model", "stage")
        self._texts = self._counter("texts", "Texts answered.", "model", "route")
        self._tokens = self._counter("tokens", "Tokens processed, special tokens included.", "model", "route")
        self._truncated = self._counter("truncated_texts", "Texts answered of which tokens were cut away.", "model")
        self._attention_values = self._counter("attention_values", "Attention weights computed in maps.", "model")
        self._batch_texts = self._histogram("batch_texts", "Texts in a batch.", TEXT_BUCKETS)
        self._batch_tokens = self._histogram("batch_tokens", "Tokens in a batch, without padding.", TOKEN_BUCKETS)
        self._padding = self._histogram("batch_padding_ratio", "Share of padding in the attention core.", RATIO_BUCKETS)
        self._batch_duration = self._durations("batch_duration_seconds", "Time the worker runs a batch.", "model")
        self._failures = self._counter("batch_failures", "Batches that raised an error.", "model")
        self._budget = self._gauge("batch_budget_tokens", "Tokens a batch may hold now.", "model")
        self._shortages = self._counter("out_of_memory", "Runs that there was no memory for.", "model")
        self._spoilt = self._counter("non_finite_rows", "Rows withheld for a NaN or an infinity.", "model")
        self._queue_texts = self._gauge("queue_texts", "Texts waiting.", "model")
        self._queue_tokens = self._gauge("queue_tokens", "Tokens waiting.", "model")
        self._key_queue_texts = self._gauge("key_queue_texts", "Texts of a key waiting.", "model", "key")
        self._key_queue_tokens = self._gauge("key_queue_tokens", "Tokens of a key waiting.", "model", "key")
        self._key_tokens = self._counter("key_tokens", "Tokens processed for a key.", "model", "key")
        self._rejected = self._counter(
            "rejected", "Requests not admitted, or dropped at their deadline.", "model", "reason"
        )
        self._cancelled = self._counter("cancelled", "Texts dropped because their caller had left.", "model")
        info = ("format", "dtype", "device", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_length")
        self._model_info = self._gauge("model_info", "What is served; always 1.", "model", *info, "pooling")
        self._reloads = self._counter("reloads", "Reloads of models that were asked for.", "result")
        for result in RELOAD_RESULTS:
            self._reloads.labels(result)
        self._info_labels: dict[str, tuple[str, ...]] = {}
        # labels() takes a lock and builds a tuple of texts each time; these are looked up on every request.
        self._request_counters: dict[tuple[str, int], Counter] = {}
        self._request_durations: dict[str, Histogram] = {}
        for route in (*routes, UNMATCHED):
            self._duration_of(route)
            for status in (404,) if route == UNMATCHED else STATUSES_FROM_START:
                self._requests_of(route, status)
        self._key_names = tuple(keys)
        for key in self._key_names:
            self._key_requests.labels(key, 200)
        for code in error_codes:
            self._errors.labels(code)
        for reason in faults:
            self._fault.labels(reason)

    def for_model(
        self, name: str, *, routes: Iterable[str] = (), padding_ratio: PaddingRatio = pad_to_longest
    ) -> ModelMetrics:
        """Return the metrics of one queue of a model; what several queues of one name count and hold adds up.

        Parameters
        ----------
        name : str
            The ``model`` label.
        routes : iterable of str
            Route templates that take texts, whose counters stand at zero from the start.
        padding_ratio : callable
            How this model pads the texts of a batch in its attention core.
        """
        model = ModelMetrics(self, name, padding_ratio)
        for route in routes:
            model.add_route(route)
        return model

    def request_started(self) -> None:
        """Count a request that has come in."""
        self._inflight.inc()

    def request_finished(self, route: str | None, status: int, seconds: float, key: str | None = None) -> None:
        """Count a request that has been answered, or left by its caller.

        Parameters
        ----------
        route : str or None
            The matched route's template, never the raw path; None = no route matched.
        status : int
            499 for a caller that left.
        seconds : float
            Since its head was read.
        key : str or None
            The name of the API key that the caller showed.
        """
        if key is not None:
            self._key_requests.labels(key, status).inc()
        template = UNMATCHED if route is None else route
        self._inflight.dec()
        self._requests_of(template, status).inc()
        self._duration_of(template).observe(seconds)

    def error(self, code: str) -> None:
        """Count an error by its stable code."""
        self._errors.labels(code).inc()

    def set_ready(self, *, ready: bool) -> None:
        """Say whether the server takes requests."""
        self._ready.set(ready)

    def set_fault(self, reason: str, *, present: bool) -> None:
        """Say whether something keeps the server from being ready."""
        self._fault.labels(reason).set(present)

    def worker_restarted(self) -> None:
        """Count a worker thread that has died."""
        self._restarts.inc()

    def set_model_info(
        self,
        name: str,
        *,
        format: str,
        dtype: str,
        device: str,
        hidden_size: int,
        num_hidden_layers: int,
        num_attention_heads: int,
        max_length: int,
        pooling: str,
    ) -> None:
        """Say what is served under ``name``, instead of what was before."""
        sizes = (hidden_size, num_hidden_layers, num_attention_heads, max_length)
        labels = (name, format, dtype, device, *map(str, sizes), pooling)
        before = self._info_labels.get(name, labels)
        if before != labels:
            self._model_info.remove(*before)
        self._info_labels[name] = labels
        self._model_info.labels(*labels).set(1)

    def reloaded(self, result: str) -> None:
        """Count a reload that was asked for, by one of :data:`RELOAD_RESULTS`."""
        self._reloads.labels(result).inc()

    def render(self, accept: str | None = None, registry: CollectorRegistry | None = None) -> tuple[bytes, str]:
        """Write all metrics.

        Parameters
        ----------
        accept : str or None
            The ``Accept`` header: OpenMetrics where it asks for it, else the Prometheus text format.
        registry : CollectorRegistry or None
            Written instead of this app's own: that of all replicas, for instance.

        Returns
        -------
        body : bytes
        content_type : str
        """
        try:
            encode, content_type = choose_encoder(accept or "")
        except (TypeError, ValueError):  # a version that is no number
            encode, content_type = choose_encoder("")
        return encode(self.registry if registry is None else registry), content_type

    def _requests_of(self, route: str, status: int) -> Counter:
        counter = self._request_counters.get((route, status))
        if counter is None:
            counter = self._request_counters[route, status] = self._requests.labels(route, status)
        return counter

    def _duration_of(self, route: str) -> Histogram:
        histogram = self._request_durations.get(route)
        if histogram is None:
            histogram = self._request_durations[route] = self._request_duration.labels(route)
        return histogram

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace=NAMESPACE, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, namespace=NAMESPACE, registry=self.registry)

    def _durations(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, namespace=NAMESPACE, registry=self.registry, buckets=DURATION_BUCKETS)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, text, ("model",), namespace=NAMESPACE, registry=self.registry, buckets=buckets)


class LostLogLines(Collector):
    """Reads how many lines of the log could not be written where they are counted."""

    def collect(self) -> Iterable[Metric]:
        """Return the one counter."""
        yield CounterMetricFamily(f"{NAMESPACE}_log_lines_lost", "Log lines not written.", num_lost_lines())


class ModelMetrics:
    """The metrics of one queue of a model, every child looked up once. Made by :meth:`Metrics.for_model`.

    The methods of :class:`~app.batcher.BatchObserver` are what the batcher calls, the others what the service calls.
    """

    def __init__(self, metrics: Metrics, name: str, padding_ratio: PaddingRatio) -> None:
        self._padding_ratio = padding_ratio
        self._texts_of_all = metrics._texts
        self._tokens_of_all = metrics._tokens
        self._name = name
        self._queue_texts = metrics._queue_texts.labels(name)
        self._queue_tokens = metrics._queue_tokens.labels(name)
        self._batch_texts = metrics._batch_texts.labels(name)
        self._batch_tokens = metrics._batch_tokens.labels(name)
        self._padding = metrics._padding.labels(name)
        self._batch_duration = metrics._batch_duration.labels(name)
        self._failures = metrics._failures.labels(name)
        self._budget = metrics._budget.labels(name)
        self._shortages = metrics._shortages.labels(name)
        self._spoilt = metrics._spoilt.labels(name)
        self._rejected = {reason: metrics._rejected.labels(name, reason) for reason in REJECTION_REASONS}
        self._cancelled = metrics._cancelled.labels(name)
        self._truncated = metrics._truncated.labels(name)
        self._attention_values = metrics._attention_values.labels(name)
        self._tokenize, self._queue, self._inference, self._serialize = (
            metrics._stages.labels(name, stage) for stage in STAGES
        )
        self._routes: dict[str, tuple[Counter, Counter]] = {}
        self._waiting = (0, 0)  # texts and tokens, as last said
        self._waiting_of_keys = dict.fromkeys(metrics._key_names, (0, 0))
        self._keys = {
            key: (
                metrics._key_queue_texts.labels(name, key),
                metrics._key_queue_tokens.labels(name, key),
                metrics._key_tokens.labels(name, key),
            )
            for key in metrics._key_names
        }

    def queue_changed(self, texts: int, tokens: int) -> None:
        """Say how many texts and tokens wait now: the whole queue, not the difference.

        The gauges take the difference, as two queues may stand under one name while a model is replaced.
        """
        old_texts, old_tokens = self._waiting
        self._waiting = (texts, tokens)
        self._queue_texts.inc(texts - old_texts)
        self._queue_tokens.inc(tokens - old_tokens)

    def key_queue_changed(self, key: str, texts: int, tokens: int) -> None:
        """Say how many texts and tokens, special tokens included, of a key wait now."""
        old_texts, old_tokens = self._waiting_of_keys[key]
        self._waiting_of_keys[key] = (texts, tokens)
        waiting_texts, waiting_tokens, _ = self._keys[key]
        waiting_texts.inc(texts - old_texts)
        waiting_tokens.inc(tokens - old_tokens)

    def batch_finished(self, num_tokens: Sequence[int], seconds: float) -> None:
        """Count a batch that ran.

        Parameters
        ----------
        num_tokens : sequence of int
            Tokens of each of its texts; at least one text.
        seconds : float
            How long the worker ran it.
        """
        self._batch_texts.observe(len(num_tokens))
        self._batch_tokens.observe(sum(num_tokens))
        self._padding.observe(self._padding_ratio(num_tokens))
        self._batch_duration.observe(seconds)

    def rejected(self, reason: str) -> None:
        """Count a request that was not admitted; one of :data:`REJECTION_REASONS`, any other is ``other``."""
        self._rejected.get(reason, self._rejected["other"]).inc()

    def cancelled(self, texts: int) -> None:
        """Count texts that were dropped because their caller had left."""
        self._cancelled.inc(texts)

    def batch_failed(self) -> None:
        """Count a batch that raised an error."""
        self._failures.inc()

    def out_of_memory(self) -> None:
        """Count a batch that there was no memory for."""
        self._shortages.inc()

    def rows_not_finite(self, rows: int) -> None:
        """Count rows that were withheld as they held a NaN or an infinity."""
        self._spoilt.inc(rows)

    def budget_changed(self, tokens: int) -> None:
        """Say how many tokens, special tokens included, a batch may hold now."""
        self._budget.set(tokens)

    def record_request(
        self,
        route: str,
        *,
        num_texts: int,
        num_tokens: int,
        truncated: int,
        tokenize_seconds: float,
        queue_seconds: float,
        inference_seconds: float,
        key: str | None = None,
    ) -> None:
        """Count what one answered request was made of.

        Parameters
        ----------
        route : str
            Its template.
        num_texts, num_tokens : int
            Tokens are those processed, special tokens included.
        truncated : int
            Texts of which tokens were cut away.
        tokenize_seconds, queue_seconds, inference_seconds : float
            Of several texts, those of the one that took longest.
        key : str or None
            The name of the API key that the caller showed.
        """
        if key is not None:
            self._keys[key][-1].inc(num_tokens)
        texts, tokens = self.add_route(route)
        texts.inc(num_texts)
        tokens.inc(num_tokens)
        self._truncated.inc(truncated)
        self._tokenize.observe(tokenize_seconds)
        self._queue.observe(queue_seconds)
        self._inference.observe(inference_seconds)

    def serialized(self, seconds: float) -> None:
        """Count the seconds that one answer took to write."""
        self._serialize.observe(seconds)

    def attention_values(self, count: int) -> None:
        """Count attention weights that were computed: layers x heads x tokens x tokens of each text."""
        self._attention_values.inc(count)

    def add_route(self, route: str) -> tuple[Counter, Counter]:
        """Return the counters of texts and tokens of a route, at zero when they are new."""
        pair = self._routes.get(route)
        if pair is None:
            labels = (self._name, route)
            pair = self._routes[route] = (self._texts_of_all.labels(*labels), self._tokens_of_all.labels(*labels))
        return pair
