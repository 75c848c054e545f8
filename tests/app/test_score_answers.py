"""How scores are written. Through HTTP: tests/app/routes/test_rerank.py and test_predict.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from app.plain import PlainRequest
from app.plain_flows import score
from app.score_answers import best_first, write_ranks
from tests.app.conftest import Serve
from tests.app.routes.scoring import make_models

pytestmark = pytest.mark.anyio


def test_the_best_is_first() -> None:
    """By the logits, the first among equals first."""
    assert best_first(np.array([0.5, 2.0, -1.0, 2.0], dtype=np.float32)) == [1, 3, 0, 2]


async def test_scores_that_have_run_into_one_are_told_apart(serve: Serve, tmp_path: Path) -> None:
    """A sigmoid of 40 and of 60 is 1 in float32: the order is that of the logits all the same."""
    async with serve(model=make_models(tmp_path, "reranker")) as server:
        assert server.state.service is not None
        asked = PlainRequest([("a", "b"), ("a", "c"), ("a", "d")])
        scored = await score(server.state.service, asked, "reranker", route="/rerank")
        for row, logit in zip(scored.rows, (40.0, 60.0, 50.0), strict=True):
            row.logits = np.array([logit], dtype=np.float32)
        ranks = json.loads(write_ranks(scored, None, raw_scores=False))
        assert ranks == [{"index": 1, "score": 1.0}, {"index": 2, "score": 1.0}, {"index": 0, "score": 1.0}]
