"""Eyeline under Ray Serve: many replicas of the single server behind one address.

Each replica is the app that ``eyeline serve`` runs, built by the same two functions, in a process that Ray places,
counts and replaces. What is asked of Ray is only what one process cannot do: to start more of them, to spread requests,
to put another in the place of one that died. docs/ray.md says how to run it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from pydantic import BaseModel, ConfigDict, Field, model_validator
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy
from ray.serve.schema import LoggingConfig

from app.log import configure_logging
from app.main import create_app, load_models
from app.replica_metrics import labelled, together
from app.server import GIL_SECONDS
from app.settings import Settings, SettingsError, load_settings
from app.state import ServerState

log = logging.getLogger("eyeline")

QUEUE_TOKENS = "queue_tokens"
"""What a replica reports to the autoscaler: tokens that wait in its queues, without the running batch."""

STOP_SECONDS = 10.0
"""What Ray waits longer than the server's own grace before it kills a replica."""


class Scale(BaseModel):
    """How many replicas, of what size: the arguments of the application, in ``serve.yaml`` or behind ``serve run``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_replicas: int = Field(1, ge=1)
    max_replicas: int = Field(4, ge=1)
    cpus_per_replica: int = Field(1, ge=1, description="cores that Ray sets aside, and threads of the matrix products")
    gpus_per_replica: float = Field(0, ge=0)
    target_ongoing_requests: float = Field(32, gt=0, description="of each replica; with more, replicas are added")
    target_queue_tokens: float = Field(8_192, gt=0, description="waiting in each replica; likewise")
    max_ongoing_requests: int = Field(
        1_024,
        ge=1,
        description="sent to one replica at a time. More than a batch has texts, or none is full: 2,048 tokens are "
        "340 texts of six",
    )
    scrape_timeout_seconds: float = Field(
        5, gt=0, description="for all replicas to show their metrics; Prometheus waits 10"
    )
    upscale_delay_seconds: float = Field(10, ge=0)
    downscale_delay_seconds: float = Field(300, ge=0)

    @model_validator(mode="after")
    def _in_order(self) -> Scale:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas is {self.min_replicas}, above max_replicas {self.max_replicas}")
        if self.target_ongoing_requests > self.max_ongoing_requests:
            raise ValueError(
                f"target_ongoing_requests is {self.target_ongoing_requests:g}, above max_ongoing_requests "
                f"{self.max_ongoing_requests}: no replica would ever be added"
            )
        return self


@dataclass(frozen=True, slots=True)
class WantedReplicas:
    """As many replicas as requests in progress and tokens in queues ask for, whichever asks for more.

    Requests alone do not tell a text of five tokens from a thousand of five hundred. Ray itself applies the bounds and
    the delays.

    Attributes
    ----------
    target_queue_tokens : float
        Of each replica.
    """

    target_queue_tokens: float

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, object]]:
        """Return how many replicas there should be, and no state."""
        waiting = (context.aggregated_metrics or {}).get(QUEUE_TOKENS, {})
        by_requests = context.total_num_requests / context.config.target_ongoing_requests
        by_tokens = sum(waiting.values()) / self.target_queue_tokens
        return max(by_requests, by_tokens), {}


class Replica:
    """One replica: what Ray asks of it beside requests. ``serve.ingress`` adds ``app``, and runs its lifespan."""

    app: FastAPI

    def check_health(self) -> None:
        """Tell Ray whether this replica can serve, as ``/health/live`` does; one that cannot is replaced."""
        if not self._state.is_live:
            raise RuntimeError(f"not live: {self._state.worst_fault}")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Tell the autoscaler how much waits."""
        service = self._state.service
        models = service.models.values() if service is not None else ()
        return {QUEUE_TOKENS: float(sum(model.batcher.queue_tokens for model in models))}

    def metrics(self) -> list[Metric]:
        """Show this replica's metrics, under its name."""
        return labelled(self._state.metrics.registry, serve.get_replica_context().replica_id.unique_id)

    @property
    def _state(self) -> ServerState:
        state: ServerState = self.app.state.server
        return state


async def metrics_of_all(own: CollectorRegistry, timeout_seconds: float) -> list[list[Metric]]:
    """Ask every replica, this one included, for its metrics.

    One that dies meanwhile is not on the page. While one hangs, until Ray replaces it, the page is of this replica
    alone, which is better than none.
    """
    context = serve.get_replica_context()
    handle = serve.get_deployment_handle(context.deployment, context.app_name)
    try:
        found = await handle.broadcast("metrics").results_async(timeout_s=timeout_seconds, return_exceptions=True)
    except TimeoutError:
        log.warning("not every replica showed its metrics", extra={"seconds": timeout_seconds})
        return [labelled(own, context.replica_id.unique_id)]
    return [families for families in found if not isinstance(families, BaseException)]


def build(arguments: dict[str, Any]) -> serve.Application:
    """Build the application: what ``serve run`` and ``serve deploy`` call.

    Parameters
    ----------
    arguments : dict
        The fields of :class:`Scale` that differ from its defaults.

    The settings are those of ``eyeline serve``, read here from the ``EYELINE_*`` variables and sent to every replica,
    so that all of them serve the same. Host and port are Ray's to decide, in ``serve.yaml``.

    Raises
    ------
    SettingsError
        Before anything is started.
    """
    scale = Scale.model_validate(arguments)
    # A replica sees all cores of its node, and owns these.
    of_replica = ["--threads", str(scale.cpus_per_replica)]
    settings = load_settings(
        [] if scale.gpus_per_replica or "EYELINE_THREADS" in os.environ else of_replica, os.environ
    )
    if settings.read_admin_keys():
        raise SettingsError(
            "EYELINE_ADMIN_KEY opens /admin/reload, which would reach one replica of several: leave it out, and deploy "
            "again to change models, which replaces replica after replica."
        )

    def make_app() -> FastAPI:
        return replica_app(settings, scale.scrape_timeout_seconds)

    deployment = serve.deployment(
        serve.ingress(make_app)(Replica),
        name="Eyeline",
        ray_actor_options={"num_cpus": scale.cpus_per_replica, "num_gpus": scale.gpus_per_replica},
        logging_config=LoggingConfig(enable_access_log=False),  # it writes a line for each request, with the raw path
        max_ongoing_requests=scale.max_ongoing_requests,
        # What waits in front of the replicas. Beyond it Ray answers 503; a replica's own queue answers 429 before.
        max_queued_requests=scale.max_ongoing_requests,
        graceful_shutdown_timeout_s=settings.shutdown_grace_seconds + STOP_SECONDS,
        autoscaling_config=AutoscalingConfig(
            min_replicas=scale.min_replicas,
            max_replicas=scale.max_replicas,
            target_ongoing_requests=scale.target_ongoing_requests,
            upscale_delay_s=scale.upscale_delay_seconds,
            downscale_delay_s=scale.downscale_delay_seconds,
            policy=AutoscalingPolicy(
                policy_function=WantedReplicas, policy_kwargs={"target_queue_tokens": scale.target_queue_tokens}
            ),
        ),
    )
    return deployment.bind()


def replica_app(settings: Settings, scrape_timeout_seconds: float) -> FastAPI:
    """Make the app of one replica, in its own process: that of ``eyeline serve``, with the metrics of all replicas."""
    configure_logging(settings.log_level)
    sys.setswitchinterval(GIL_SECONDS)
    app = create_app(settings, load_models(settings))
    state: ServerState = app.state.server

    async def scrape(accept: str | None) -> tuple[bytes, str]:
        registry = together(await metrics_of_all(state.metrics.registry, scrape_timeout_seconds))
        # Thousands of lines for each replica: not on the thread that answers requests.
        return await asyncio.to_thread(state.metrics.render, accept, registry)

    state.scrape_all = scrape
    return app
