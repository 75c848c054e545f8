"""Requests whose rows are large run in turns: each turn's rows are let go before the next one runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from app.naming import naming, shifted
from app.service import ServedModel, Service, Timings
from model.contract import EncodeInput, OutputSpec, Row


async def run_in_turns(
    service: Service,
    model: ServedModel,
    inputs: list[EncodeInput],
    specs: list[OutputSpec],
    turns: Sequence[slice],
    add: Callable[[slice, list[Row]], None],
    timings: Timings,
    deadline: float | None,
) -> Timings:
    """Run a request stretch by stretch and hand each one's rows to ``add``, on a thread: they are never all held.

    The times of the turns add up. What the request was made of, the caller records.
    """
    for turn in turns:
        with naming(partial(shifted, by=turn.start)):
            rows = await service.submit(model, inputs[turn], specs[turn], deadline)
        timings = replace(
            timings,
            queue=timings.queue + max(row.queue_seconds for row in rows),
            inference=timings.inference + max(row.inference_seconds for row in rows),
        )
        await asyncio.to_thread(add, turn, rows)
        del rows
    return timings


def cut_turns(costs: Sequence[int], budget: int) -> list[slice]:
    """Cut a list into stretches whose costs fit the budget together, each with one item at least."""
    turns: list[slice] = []
    total = 0
    for index, cost in enumerate(costs):
        if turns and total + cost <= budget:
            turns[-1] = slice(turns[-1].start, index + 1)
            total += cost
        else:
            turns.append(slice(index, index + 1))
            total = cost
    return turns
