"""How long and how fast a run learns: numbers that are checked once, and the schedule of the learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from training.errors import RunError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """When to step, save and stop.

    Attributes
    ----------
    steps : int or None
        Optimiser steps; None = as many as ``epochs`` or ``minutes`` hold.
    epochs : int or None
        Passes over the data.
    minutes : float or None
        Time for training, dev scores and checkpoints together, over all resumptions. Whichever ends first, ends it.
    learning_rate : float
        Its peak.
    warmup : float
        Share of the run in which the rate rises to its peak; after it the rate falls along half a cosine to 0.
    weight_decay : float
        Of the weights of products and embeddings, not of norms and biases.
    max_gradient_norm : float
        Longer gradients are shortened to it.
    accumulation : int
        Batches whose gradients are added up in one step.
    log_every, dev_every : int
        Steps.
    checkpoint_minutes : float
        Time between checkpoints.
    seed : int
        Of the data's order and of dropout.
    """

    steps: int | None = None
    epochs: int | None = None
    minutes: float | None = None
    learning_rate: float = 3e-4
    warmup: float = 0.05
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0
    accumulation: int = 1
    log_every: int = 20
    dev_every: int = 500
    checkpoint_minutes: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        if self.steps is None and self.epochs is None and self.minutes is None:
            raise RunError("say how long to train: steps, epochs or minutes")
        for name in ("accumulation", "log_every", "dev_every", "learning_rate", "max_gradient_norm"):
            if not getattr(self, name) > 0:
                raise RunError(f"{name} must be above 0, not {getattr(self, name)}")
        if not 0 <= self.warmup < 1:
            raise RunError(f"warmup is a share of the run from 0 to below 1, not {self.warmup}")


def learning_rate_share(progress: float, warmup: float) -> float:
    """Return the rate as a share of its peak: a straight rise, then half a cosine down to 0.

    Parameters
    ----------
    progress : float
        0 at the start of the run, 1 at its end.
    warmup : float
        Share of the run that the rise takes.
    """
    if progress < warmup:
        return progress / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - warmup) / (1 - warmup))))
