"""How answers are written at the end of a request."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from app.routes.writing import INLINE_VALUES, server_timing, written
from app.service import ServedModel, Timings


@dataclass
class SerializeTimes:
    """Metrics that keep the seconds of writing."""

    seconds: list[float] = field(default_factory=list)

    def serialized(self, seconds: float) -> None:
        """Note one."""
        self.seconds.append(seconds)


@dataclass
class Model:
    """A model as far as writing goes."""

    metrics: SerializeTimes = field(default_factory=SerializeTimes)


@pytest.mark.parametrize(
    ("num_values", "is_inline"), [(0, True), (INLINE_VALUES, True), (INLINE_VALUES + 1, False), (None, False)]
)
def test_long_answers_are_written_off_the_loop(num_values: int | None, is_inline: bool) -> None:
    """Up to the bound on the event loop; more, or an unknown number, on a thread; each is recorded once."""
    model = Model()
    writer = asyncio.run(written(cast(ServedModel, model), threading.get_ident, num_values))
    assert (writer == threading.get_ident()) == is_inline
    assert len(model.metrics.seconds) == 1


def test_what_fails_to_be_written_is_not_recorded() -> None:
    """The error goes to the caller."""
    model = Model()

    def write() -> Any:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(written(cast(ServedModel, model), write))
    assert model.metrics.seconds == []


def test_the_timing_header_is_in_milliseconds() -> None:
    """Each stage by its name."""
    header = server_timing(Timings(0.001, 0.002, 0.003), 0.0)
    assert header.startswith("tokenize;dur=1.000, queue;dur=2.000, inference;dur=3.000, total;dur=")
