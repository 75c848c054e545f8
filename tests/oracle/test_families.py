"""Every checkpoint family against transformers: hidden states, embeddings and every attention map."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import transformers

from model.contract import EncodeInput
from model.embedder import Embedder
from tests.oracle.families import FAMILIES
from tests.oracle.tiny import Answer, Family, assert_same, load, random_inputs, reference, run, save

pytestmark = pytest.mark.oracle


@dataclass(frozen=True)
class Case:
    """A family's tiny model, loaded by us, and what transformers says about some texts."""

    family: Family
    config: transformers.PreTrainedConfig
    embedder: Embedder
    inputs: list[EncodeInput]
    answers: list[Answer]


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Save each family's model once and load it."""
    family: Family = request.param
    built = family.build()
    folder = save(built, tmp_path_factory.mktemp(family.name), family.specials)
    inputs = random_inputs(family)
    return Case(family, built.config, load(folder), inputs, reference(built, family, inputs))


def test_alone(case: Case) -> None:
    """A text run by itself gets the reference's hidden states, embedding and maps."""
    for item, answer in zip(case.inputs, case.answers, strict=True):
        assert_same(run(case.embedder, [item], case.config)[0], answer)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_mixed(case: Case, seed: int) -> None:
    """A text run in a shuffled batch of mixed lengths gets what it gets by itself."""
    order = list(range(len(case.inputs)))
    random.Random(seed).shuffle(order)
    rows = run(case.embedder, [case.inputs[index] for index in order], case.config)
    for index, row in zip(order, rows, strict=True):
        assert_same(row, case.answers[index])


def test_maps_tell_layers_and_heads_apart(case: Case) -> None:
    """The tiny models are no degenerate ones: their maps differ from uniform, by layer and by head."""
    maps = case.answers[-1].attentions
    visible = 0.25 / maps.shape[-1]  # a quarter of a uniform weight
    assert (maps - 1 / maps.shape[-1]).abs().amax(dim=(-1, -2)).min() > visible
    assert (maps[0] - maps[-1]).abs().max() > visible
    assert (maps[:, 0] - maps[:, -1]).abs().max() > visible


@pytest.mark.parametrize(
    ("family", "head"),
    [pytest.param(family, head, id=head) for family in FAMILIES for head in family.heads],
)
def test_head_checkpoint(family: Family, head: str, tmp_path: Path) -> None:
    """A checkpoint of a model with a head loads through its prefix and gives the same hidden states."""
    built = family.build(head)
    embedder = load(save(built, tmp_path, family.specials))
    inputs = random_inputs(family, seed=4)[:5]
    rows = run(embedder, inputs, built.config)
    for row, answer in zip(rows, reference(built, family, inputs), strict=True):
        assert_same(row, answer)
