"""The loop: schedule, accumulation, limits, and a memory that survives a kill."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from tests.training.disks import FullDisk
from training.checkpoints import latest_checkpoint, load_checkpoint, save_checkpoint
from training.errors import RunError
from training.files import write_synced
from training.journal import Journal, read_log
from training.settings import TrainerSettings
from training.trainer import BatchLoss, Trainer, make_optimizer


class Killed(BaseException):
    """What a test raises where a process would be gone."""


@dataclass
class Regression:
    """Learn a linear map from 24 points, with dropout, so that generators matter."""

    kill_at: int = -1
    batches: int = 0
    seen: list[list[int]] = field(default_factory=list)
    score: float | None = 50.0

    def __post_init__(self) -> None:
        torch.manual_seed(5)
        self.model: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.x = torch.randn(24, 4)

    def plan(self, epoch: int) -> list[NDArray[np.int64]]:
        order = np.random.default_rng((0, epoch)).permutation(24)
        return [order[start : start + 4] for start in range(0, 24, 4)]

    def loss(self, batch: NDArray[np.int64]) -> BatchLoss:
        if self.batches == self.kill_at:
            raise Killed
        self.batches += 1
        self.seen.append(batch.tolist())
        x = self.x[batch]
        loss = F.mse_loss(self.model(x), x.sum(dim=1, keepdim=True))
        return BatchLoss(loss, {"mse": float(loss.detach())}, 10 * len(batch))

    def dev_score(self) -> float | None:
        return self.score


class Clock:
    """Time that passes only where work is done."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TimedRegression(Regression):
    """A batch takes a second, a dev score three."""

    clock: Clock

    def loss(self, batch: NDArray[np.int64]) -> BatchLoss:
        self.clock.now += 1
        return super().loss(batch)

    def dev_score(self) -> float | None:
        self.clock.now += 3
        return super().dev_score()


def timed(clock: Clock) -> TimedRegression:
    """A task on a clock."""
    task = TimedRegression()
    task.clock = clock
    return task


def train(run: Path, task: Regression, *, clock: Any = None, **changes: Any) -> Trainer:
    """Train a task in a run folder; 20 steps if nothing else is said."""
    run.mkdir(exist_ok=True)
    limits = {} if changes.keys() & {"minutes", "epochs", "steps"} else {"steps": 20}
    stop = changes.pop("should_stop", lambda: False)
    write = {"write": changes.pop("write")} if "write" in changes else {}
    settings = TrainerSettings(**{"learning_rate": 0.05, "log_every": 1, "dev_every": 7, **limits, **changes})
    with Journal(run / "log.jsonl") as journal:
        trainer = Trainer(task, settings, run, journal, clock=clock or Clock(), should_stop=stop, **write)
        trainer.train()
    return trainer


def weights(task: Regression) -> list[torch.Tensor]:
    """What has been learned."""
    return [parameter.detach().clone() for parameter in task.model.parameters()]


def equal(first: Regression, second: Regression) -> bool:
    """Whether two tasks have learned the same, bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(weights(first), weights(second), strict=True))


@pytest.mark.parametrize("kill_at", [0, 2, 9, 17, 39])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path, kill_at: int, accumulation: int) -> None:
    """Killed wherever (in a pass, between passes, inside a step), resumed by a new process, the weights are equal."""
    whole = Regression()
    train(tmp_path / "whole", whole, accumulation=accumulation)
    changes = {"accumulation": accumulation, "checkpoint_minutes": 0.05}
    clock = Clock()
    killed = timed(clock)
    killed.kill_at = kill_at
    if kill_at < 20 * accumulation:
        with pytest.raises(Killed):
            train(tmp_path / "cut", killed, clock=clock, **changes)
        latest = latest_checkpoint(tmp_path / "cut")
        assert latest is not None
        assert (latest.name == "step-00000000") is (kill_at < 3 * accumulation)
    torch.manual_seed(99)  # whatever else the new process has drawn
    resumed = Regression()
    train(tmp_path / "cut", resumed, **changes)
    assert equal(whole, resumed)
    logs = [read_log(tmp_path / name / "log.jsonl") for name in ("whole", "cut")]
    losses = [[(entry["step"], entry["loss"]) for entry in log if "loss" in entry] for log in logs]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 20


def test_a_run_that_was_asked_to_stop_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    """Ctrl-C saves where the run is."""
    whole, first, second = Regression(), Regression(), Regression()
    train(tmp_path / "whole", whole)
    asked = iter([False] * 8 + [True])
    assert train(tmp_path / "cut", first, should_stop=lambda: next(asked)).progress.step == 8
    assert train(tmp_path / "cut", second).progress.step == 20
    assert equal(whole, second)
    assert len(second.seen) == 12


def test_accumulated_batches_are_one_larger_batch(tmp_path: Path) -> None:
    """Without dropout, two batches of 4 in a step give the gradient of one of 8."""
    together, apart = Regression(), Regression()
    for task in (together, apart):
        task.model = nn.Linear(4, 1)
        nn.init.zeros_(task.model.weight)
        nn.init.zeros_(task.model.bias)
    halves = apart.plan
    together.plan = lambda epoch: [np.concatenate(halves(epoch)[i : i + 2]) for i in (0, 2, 4)]  # type: ignore[method-assign]
    train(tmp_path / "a", together, steps=3)
    train(tmp_path / "b", apart, steps=3, accumulation=2)
    for a, b in zip(weights(together), weights(apart), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_every_pass_sees_all_data_in_another_order(tmp_path: Path) -> None:
    """Two epochs are twelve batches of four: each text once in each half."""
    task = Regression()
    train(tmp_path / "r", task, epochs=2)
    first, second = np.concatenate(task.seen[:6]).tolist(), np.concatenate(task.seen[6:]).tolist()
    assert sorted(first) == sorted(second) == list(range(24))
    assert first != second


def test_minutes_end_the_run_in_time(tmp_path: Path) -> None:
    """Dev scores and checkpoints of two seconds a file included; resuming with more minutes goes on."""
    clock = Clock()

    def write(path: Path, content: bytes) -> None:
        clock.now += 2
        write_synced(path, content)

    trainer = train(tmp_path / "r", timed(clock), clock=clock, write=write, minutes=1)
    assert 57 < clock.now - 100 <= 60
    assert read_log(tmp_path / "r" / "log.jsonl")[-1]["dev"] == 50
    steps = trainer.progress.step
    again = clock.now
    assert train(tmp_path / "r", timed(clock), clock=clock, write=write, minutes=1).progress.step == steps
    assert clock.now - again <= 7
    assert train(tmp_path / "r", timed(clock), clock=clock, write=write, minutes=2).progress.step > steps + 20


def test_the_rate_follows_the_schedule(tmp_path: Path) -> None:
    """Up to the peak within the warm-up, then down to nearly nothing."""
    train(tmp_path / "r", Regression(), warmup=0.2)
    rates = [entry["learning_rate"] for entry in read_log(tmp_path / "r" / "log.jsonl") if "loss" in entry]
    assert rates.index(max(rates)) == 4
    assert max(rates) == pytest.approx(0.05)
    assert rates[0] == 0
    assert rates[-1] < 0.001


def test_long_gradients_are_shortened(tmp_path: Path) -> None:
    """With a tiny limit hardly anything is learned by a rate that is not adaptive; the log has the length before."""
    task = Regression()
    lengths = []
    step = torch.optim.AdamW.step

    def spy(self: torch.optim.AdamW, *args: Any) -> Any:
        lengths.append(torch.cat([p.grad.flatten() for p in task.model.parameters() if p.grad is not None]).norm())
        return step(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", spy)
        train(tmp_path / "r", task, max_gradient_norm=0.01)
    logged = [entry["gradient_norm"] for entry in read_log(tmp_path / "r" / "log.jsonl") if "loss" in entry]
    assert max(lengths) < 0.0101
    assert max(logged) > 0.1


def test_norms_and_biases_do_not_decay() -> None:
    """Only weights with two axes."""
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Embedding(3, 4))
    groups = make_optimizer(model, TrainerSettings(steps=1, weight_decay=0.3)).param_groups
    decays = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    assert {name for name, parameter in model.named_parameters() if decays[id(parameter)] == 0.3} == {
        "0.weight",
        "2.weight",
    }


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_loss_that_is_not_finite_ends_the_run_before_it_does_harm(tmp_path: Path) -> None:
    """One sentence with the step; the checkpoint has finite weights."""
    task = Regression()
    task.x[3] = float("inf")
    with pytest.raises(RunError, match=r"^step \d: loss (inf|nan) with a gradient of .* is not finite$"):
        train(tmp_path / "r", task)
    latest = latest_checkpoint(tmp_path / "r")
    assert latest is not None
    assert all(bool(torch.isfinite(tensor).all()) for tensor in load_checkpoint(latest).weights.values())


def test_a_full_disk_is_found_before_the_first_step(tmp_path: Path) -> None:
    """Not after hours."""
    task = Regression()
    with pytest.raises(RunError, match="No space left on device"):
        train(tmp_path / "r", task, write=FullDisk(0))
    assert task.batches == 0


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    """The weights do not fit, and one sentence says so."""
    train(tmp_path / "r", Regression())
    other = Regression()
    other.model = nn.Linear(5, 1)
    with pytest.raises(RunError, match="is of another run"):
        train(tmp_path / "r", other)


def test_data_that_makes_no_batch_is_refused(tmp_path: Path) -> None:
    """The run would never end."""
    task = Regression()
    task.plan = lambda epoch: []  # type: ignore[method-assign]
    with pytest.raises(RunError, match="no batch to train on"):
        train(tmp_path / "r", task)


def test_scores_are_taken_at_the_start_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    """Once each; a task without a dev set has none."""
    train(tmp_path / "r", Regression(), dev_every=10)
    log = read_log(tmp_path / "r" / "log.jsonl")
    assert [entry["step"] for entry in log if "dev" in entry] == [0, 10, 20]
    train(tmp_path / "s", Regression(score=None))
    assert not any("dev" in entry for entry in read_log(tmp_path / "s" / "log.jsonl"))


def test_a_run_that_is_over_is_not_scored_again(tmp_path: Path) -> None:
    """The same command once more: the log is as it was, and the score is known."""
    train(tmp_path / "r", Regression())
    before = (tmp_path / "r" / "log.jsonl").read_bytes()
    again = train(tmp_path / "r", Regression(score=99))
    assert (tmp_path / "r" / "log.jsonl").read_bytes() == before
    assert again.progress.last_score == 50


def test_checkpoints_of_earlier_versions_are_resumed(tmp_path: Path) -> None:
    """They kept the best score, which nothing reads, and not the step that was scored last."""
    train(tmp_path / "r", Regression(), should_stop=iter([*[False] * 8, True]).__next__)
    latest = latest_checkpoint(tmp_path / "r")
    assert latest is not None
    saved = load_checkpoint(latest)
    del saved.state["progress"]["scored_step"]
    saved.state["progress"]["best_score"] = 50.0
    save_checkpoint(tmp_path / "r", 8, saved.weights, saved.state)
    assert train(tmp_path / "r", Regression()).progress.step == 20
