"""What became of one request: filled in on its way, read at its end by the access log and the tracer.

The middleware makes one for each request. Whoever works for the request finds it in :data:`facts_var`, as a task copies
the context of the task that started it; outside a request there is none, and nothing is noted.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

Stage = Literal["tokenize", "queue", "inference", "serialize"]

MAX_STAGES = 64
"""A request that runs in hundreds of turns is told by its first ones: what is kept of a request has a bound."""


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stretch of a request's time: readings of ``time.perf_counter``."""

    stage: Stage
    started: float
    ended: float


@dataclass(slots=True)
class RequestFacts:
    """What is known of a request so far; nothing of a text.

    Attributes
    ----------
    key : str or None
        The name of the API key that was shown.
    model : str or None
        The served name, once texts were run.
    num_texts, num_tokens, truncated : int
        Answered texts, their processed tokens (special tokens included), and how many texts were cut.
    stages : list of StageTime
        In the order in which they ended; the first :data:`MAX_STAGES`.
    """

    key: str | None = None
    model: str | None = None
    num_texts: int = 0
    num_tokens: int = 0
    truncated: int = 0
    stages: list[StageTime] = field(default_factory=list)

    def ran(self, model: str, num_texts: int, num_tokens: int, truncated: int) -> None:
        """Note what was run for the request."""
        self.model = model
        self.num_texts += num_texts
        self.num_tokens += num_tokens
        self.truncated += truncated

    def took(self, stage: Stage, started: float, ended: float) -> None:
        """Note when a stage began and ended."""
        if len(self.stages) < MAX_STAGES:
            self.stages.append(StageTime(stage, started, ended))

    def seconds(self) -> dict[Stage, float]:
        """Add up the stages by name."""
        totals: dict[Stage, float] = {}
        for time in self.stages:
            totals[time.stage] = totals.get(time.stage, 0.0) + time.ended - time.started
        return totals


facts_var: ContextVar[RequestFacts | None] = ContextVar("facts", default=None)
"""The facts of the request that this task works for; set by the middleware."""


def note_stage(stage: Stage, started: float, ended: float) -> None:
    """Note a stage of the request that this task works for, if it works for one."""
    facts = facts_var.get()
    if facts is not None:
        facts.took(stage, started, ended)
