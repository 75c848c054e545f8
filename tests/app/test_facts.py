"""What is noted about a request on its way, by whom, and what is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.comparison_flows import explain
from app.facts import MAX_STAGES, RequestFacts, StageTime, facts_var, note_stage
from app.schemas.encode import EncodeRequest
from app.schemas.similarity import SimilarityRequest
from tests.app.conftest import Serve

pytestmark = pytest.mark.anyio


@pytest.fixture
def facts() -> Iterator[RequestFacts]:
    """The facts of the request that the test stands for."""
    found = RequestFacts()
    token = facts_var.set(found)
    yield found
    facts_var.reset(token)


def test_outside_a_request_nothing_is_noted() -> None:
    """A warm-up, or a script that uses the service, has no request."""
    note_stage("queue", 1.0, 2.0)
    assert facts_var.get() is None


def test_stages_of_one_name_add_up(facts: RequestFacts) -> None:
    """A request that runs in turns waits and runs several times."""
    note_stage("queue", 1.0, 1.5)
    note_stage("inference", 1.5, 3.0)
    note_stage("queue", 3.0, 3.25)
    assert facts.stages == [
        StageTime("queue", 1.0, 1.5),
        StageTime("inference", 1.5, 3.0),
        StageTime("queue", 3.0, 3.25),
    ]
    assert facts.seconds() == {"queue": 0.75, "inference": 1.5}


def test_the_list_of_stages_has_a_bound(facts: RequestFacts) -> None:
    """However many turns a request takes, little is kept of it."""
    for number in range(MAX_STAGES + 10):
        note_stage("queue", number, number + 1)
    assert len(facts.stages) == MAX_STAGES


async def test_a_request_is_noted_stage_by_stage(serve: Serve, facts: RequestFacts) -> None:
    """Texts, tokens and cuts are counted; each stage begins where the one before ended, in order of time."""
    async with serve(batch_tokens=32) as server:  # the second text needs a batch of its own
        assert server.state.service is not None
        body = EncodeRequest(texts=["the cat", "dog " * 40])
        await server.state.service.encode(body, binary=False, route="/encode")
    assert (facts.model, facts.num_texts, facts.num_tokens, facts.truncated) == ("tiny", 2, 4 + 32, 1)
    assert [time.stage for time in facts.stages] == ["tokenize", "queue", "inference"]
    tokenize, queue, inference = facts.stages
    assert tokenize.started < tokenize.ended <= queue.started < queue.ended == inference.started < inference.ended


async def test_turns_are_noted_one_by_one(serve: Serve, facts: RequestFacts) -> None:
    """A comparison runs in turns: each waits and runs."""
    async with serve(batch_tokens=32) as server:
        assert server.state.service is not None
        body = SimilarityRequest(pairs=[("the cat " * 6, "a dog " * 6)] * 2, explain=True)
        await explain(server.state.service, body, route="/similarity")
    assert [time.stage for time in facts.stages] == ["tokenize", "queue", "inference", "queue", "inference"]
    assert facts.num_texts == 4
