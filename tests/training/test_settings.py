"""The trainer's numbers and the schedule of its rate."""

from __future__ import annotations

from typing import Any

import pytest

from training.errors import RunError
from training.settings import TrainerSettings, learning_rate_share


def test_the_rate_rises_straight_and_falls_along_a_cosine() -> None:
    """0, half way up, the peak, half way down, 0, and 0 for whatever comes after the end."""
    shares = [learning_rate_share(progress, 0.2) for progress in (0, 0.1, 0.2, 0.6, 1.0, 1.3)]
    assert shares == pytest.approx([0, 0.5, 1, 0.5, 0, 0])
    assert learning_rate_share(0, 0) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": None}, "say how long to train"),
        ({"accumulation": 0}, "accumulation must be above 0, not 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0, not nan"),
        ({"warmup": 1.0}, "warmup is a share of the run from 0 to below 1"),
    ],
)
def test_numbers_that_cannot_be_run_are_refused(changes: dict[str, Any], message: str) -> None:
    """Before anything is computed, in one sentence."""
    with pytest.raises(RunError, match=message):
        TrainerSettings(**{"steps": 1, **changes})
