"""The loop: batches in, smaller losses out, with a memory that survives a kill.

What is learned is a :class:`Task`'s business; when to step, log, score, save and stop is decided here.

Notes
-----
On a CPU with one thread, a run that was killed and resumed has the weights of one that was not, bit for bit, as long as
steps and not minutes end it: with minutes the rate follows the clock. With more threads, or on a GPU, sums are
added in another order and the weights agree to rounding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from training.checkpoints import latest_checkpoint, load_checkpoint, save_checkpoint
from training.errors import RunError
from training.files import WriteBytes, write_synced
from training.journal import Journal
from training.settings import TrainerSettings, learning_rate_share


@dataclass(frozen=True, slots=True)
class BatchLoss:
    """What a task says of one batch.

    Attributes
    ----------
    total : Tensor, scalar
        What is made smaller.
    parts : mapping of str to float
        What it is made of, for the log.
    num_tokens : int
    """

    total: Tensor
    parts: Mapping[str, float]
    num_tokens: int


class Task(Protocol):
    """What is learned.

    Attributes
    ----------
    model : nn.Module
        Everything that is trained.
    """

    model: nn.Module

    def plan(self, epoch: int) -> list[NDArray[np.int64]]:
        """Cut one pass over the data into batches; the same for the same ``epoch``."""

    def loss(self, batch: NDArray[np.int64]) -> BatchLoss:
        """Compute the loss of one batch, with gradients."""

    def dev_score(self) -> float | None:
        """Measure the model, more is better; None where there is nothing to measure with."""


@dataclass(slots=True)
class Progress:
    """Where a run is.

    Attributes
    ----------
    step, epoch : int
    position : int
        Batches of this epoch that are behind us.
    tokens : int
    elapsed_seconds : float
        Over all resumptions.
    last_score : float or None
    scored_step : int
        The one that was scored last; -1 = none.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    tokens: int = 0
    elapsed_seconds: float = 0.0
    last_score: float | None = None
    scored_step: int = -1


def make_optimizer(model: nn.Module, settings: TrainerSettings) -> torch.optim.AdamW:
    """Build AdamW (Loshchilov and Hutter 2019) that decays weights with two axes only."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98), eps=1e-9, fused=True)


@dataclass(slots=True)
class _Slowest:
    """How long the parts of a run take at most, in seconds: what must be kept free before the time is up."""

    step: float = 0.0
    dev: float = 0.0
    save: float = 0.0

    @property
    def reserve(self) -> float:
        """Time for one more step and for closing the run."""
        return self.step + self.dev + self.save


@dataclass(slots=True)
class Trainer:
    """Trains one task in one run folder.

    Attributes
    ----------
    task : Task
    settings : TrainerSettings
    run : Path
        Where checkpoints and the log go.
    journal : Journal
    clock : callable
        Seconds that only rise.
    should_stop : callable
        Asked before each step; True saves and ends the run, to be resumed.
    write : WriteBytes
    """

    task: Task
    settings: TrainerSettings
    run: Path
    journal: Journal
    clock: Callable[[], float] = time.monotonic
    should_stop: Callable[[], bool] = lambda: False
    write: WriteBytes = write_synced
    progress: Progress = field(default_factory=Progress)
    _slowest: _Slowest = field(default_factory=_Slowest)
    _last_clock: float = 0.0
    _planned: tuple[int, list[NDArray[np.int64]]] | None = None

    def train(self) -> Progress:
        """Run from the latest checkpoint, or from the start, to the end; the last state is saved.

        Returns
        -------
        Progress

        Raises
        ------
        RunError
            If the loss is not finite, a checkpoint is damaged or cannot be written, or the data makes no batch.
        """
        torch.manual_seed(self.settings.seed)
        optimizer = make_optimizer(self.task.model, self.settings)
        self._resume(optimizer)
        self._last_clock = self.clock()
        self.task.model.train()
        if self.progress.step == 0:  # finds out at once whether both work, and how long they take
            self._score()
            self._save(optimizer)
        last_save = self._tick()
        batches = self._batches()
        while not self._is_over() and not self.should_stop():
            step_start = self._tick()
            entry = self._step(optimizer, batches)
            self._slowest.step = max(self._slowest.step, self._tick() - step_start)
            if self.progress.step % self.settings.log_every == 0 or self.progress.step == 1:
                self.journal.write(entry)
            self.journal.show(self.progress, entry, self.share_done())
            if self.progress.step % self.settings.dev_every == 0:
                self._score()
            if self._tick() - last_save >= 60 * self.settings.checkpoint_minutes:
                self._save(optimizer)
                last_save = self.progress.elapsed_seconds
        if self._is_over() and self.progress.scored_step != self.progress.step:
            self._score()
        self._save(optimizer)
        return self.progress

    def share_done(self) -> float:
        """How much of the run is behind us, 0 to 1, by whichever limit comes first."""
        settings, done = self.settings, [0.0]
        if settings.steps is not None:
            done.append(self.progress.step / settings.steps if settings.steps else 1.0)
        if settings.epochs is not None:
            in_epoch = self.progress.position / max(1, len(self._plan()))
            done.append((self.progress.epoch + in_epoch) / settings.epochs if settings.epochs else 1.0)
        if settings.minutes is not None:
            done.append(self.progress.elapsed_seconds / (60 * settings.minutes) if settings.minutes else 1.0)
        return min(1.0, max(done))

    def _is_over(self) -> bool:
        """Whether a limit is reached, or the time left would not hold another step and the closing of the run."""
        if self.share_done() >= 1:
            return True
        minutes = self.settings.minutes
        return minutes is not None and self.progress.elapsed_seconds + self._slowest.reserve >= 60 * minutes

    def _tick(self) -> float:
        """Bring the elapsed time up to date and return it, in seconds."""
        now = self.clock()
        self.progress.elapsed_seconds += now - self._last_clock
        self._last_clock = now
        return self.progress.elapsed_seconds

    def _plan(self) -> list[NDArray[np.int64]]:
        """Return the batches of the current pass over the data."""
        if self._planned is None or self._planned[0] != self.progress.epoch:
            self._planned = self.progress.epoch, self.task.plan(self.progress.epoch)
            if not self._planned[1]:
                raise RunError("the data makes no batch to train on")
        return self._planned[1]

    def _batches(self) -> Iterator[NDArray[np.int64]]:
        """Go through the data from where the run is, pass after pass."""
        while True:
            plan = self._plan()
            while self.progress.position < len(plan):
                self.progress.position += 1
                yield plan[self.progress.position - 1]
            self.progress.epoch += 1
            self.progress.position = 0

    def _step(self, optimizer: torch.optim.AdamW, batches: Iterator[NDArray[np.int64]]) -> dict[str, Any]:
        """Take one optimiser step and describe it."""
        rate = self.settings.learning_rate * learning_rate_share(self.share_done(), self.settings.warmup)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        losses: list[BatchLoss] = []
        for _ in range(self.settings.accumulation):
            loss = self.task.loss(next(batches))
            torch.autograd.backward(loss.total / self.settings.accumulation)
            losses.append(loss)
        total = sum(float(loss.total.detach()) for loss in losses) / len(losses)
        norm = float(nn.utils.clip_grad_norm_(self.task.model.parameters(), self.settings.max_gradient_norm))
        self.progress.step += 1
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise RunError(f"step {self.progress.step}: loss {total} with a gradient of {norm} is not finite")
        optimizer.step()
        self.progress.tokens += sum(loss.num_tokens for loss in losses)
        parts = {name: sum(loss.parts[name] for loss in losses) / len(losses) for name in losses[0].parts}
        return {
            "step": self.progress.step, "epoch": self.progress.epoch, "tokens": self.progress.tokens,
            "loss": total, **parts, "learning_rate": rate, "gradient_norm": norm,
            "elapsed_seconds": self.progress.elapsed_seconds,
        }  # fmt: skip

    def _score(self) -> None:
        """Measure the model on the dev set and write it down."""
        start = self._tick()
        score = self.task.dev_score()
        self._slowest.dev = max(self._slowest.dev, self._tick() - start)
        progress = self.progress
        progress.scored_step = progress.step
        if score is None:
            return
        progress.last_score = score
        self.journal.write({"step": progress.step, "dev": score, "elapsed_seconds": progress.elapsed_seconds})

    def _save(self, optimizer: torch.optim.AdamW) -> None:
        """Write a checkpoint."""
        start = self._tick()
        state = {
            "optimizer": optimizer.state_dict(),
            "progress": {name: getattr(self.progress, name) for name in Progress.__slots__},
            "slowest": {name: getattr(self._slowest, name) for name in _Slowest.__slots__},
            "cpu_generator": torch.get_rng_state(),
            "cuda_generators": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        save_checkpoint(self.run, self.progress.step, self.task.model.state_dict(), state, self.write)
        self._slowest.save = max(self._slowest.save, self._tick() - start)

    def _resume(self, optimizer: torch.optim.AdamW) -> None:
        """Go back to the latest checkpoint, if there is one, and forget what was logged after it."""
        folder = latest_checkpoint(self.run)
        if folder is not None:
            saved = load_checkpoint(folder)
            try:
                self.task.model.load_state_dict(saved.weights)
                optimizer.load_state_dict(saved.state["optimizer"])
                saved.state["progress"].pop("best_score", None)  # earlier versions kept it
                self.progress = Progress(**saved.state["progress"])
                self._slowest = _Slowest(**saved.state["slowest"])
                torch.set_rng_state(saved.state["cpu_generator"])
                if torch.cuda.is_available() and saved.state["cuda_generators"]:
                    torch.cuda.set_rng_state_all(saved.state["cuda_generators"])
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise RunError(f"checkpoint {folder} is of another run: {error}") from error
        self.journal.rewind(self.progress.step)
