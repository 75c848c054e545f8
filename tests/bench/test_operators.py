"""Claims about the shares of operators: all of a pass is seen, and a pass that is not seen is no table of zeros."""

from __future__ import annotations

import pytest

from bench.operators import GROUPS, group_of, shares
from model.embedder import Embedder
from tests.model.answers import MINILM

TEXTS = ["The cat sat on the mat.", "A dog.", "One more sentence, which is a little longer."] * 10


def test_linear_layers_are_most_of_a_pass() -> None:
    """The shares add up to 1, and every row of the table but that of bytes has one."""
    found = shares(Embedder.load(MINILM, dtype="float32", device="cpu", threads=1), TEXTS)
    assert sum(found.values()) == pytest.approx(1.0)
    assert found.keys() >= GROUPS.keys() - {"numbers to bytes"}
    assert max(found, key=found.__getitem__) == "linear layers"


def test_threads_that_the_profiler_does_not_watch_are_an_error() -> None:
    """With lanes the calling thread computes nothing."""
    embedder = Embedder.load(MINILM, dtype="float32", device="cpu", threads=2)
    with pytest.raises(RuntimeError, match="no linear layer"):
        shares(embedder, TEXTS * 20)


@pytest.mark.parametrize(
    ("operator", "group"),
    [
        ("aten::native_layer_norm", "norms"),
        ("mkldnn::_linear_pointwise", "linear layers"),
        ("aten::add", "other operators"),
        ("aten::baddbmm", "attention core"),
        ("aten::addmm", "linear layers"),
    ],
)
def test_an_operator_is_counted_by_its_name(operator: str, group: str) -> None:
    """The first group whose part the name holds."""
    assert group_of(operator) == group
