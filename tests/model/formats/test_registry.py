"""Claims about finding the family of a checkpoint."""

from __future__ import annotations

import pytest

from model.errors import CheckpointError
from model.formats import weight_and_bias
from model.formats.registry import FORMATS, find_format


@pytest.mark.parametrize("family", FORMATS, ids=lambda family: family.name)
def test_each_family_is_found_by_each_of_its_types(family: object) -> None:
    """Every ``model_type`` of a family leads to it."""
    for model_type in family.model_types:  # type: ignore[attr-defined]
        assert find_format({"model_type": model_type}, "config.json") is family


def test_no_type_belongs_to_two_families() -> None:
    """The answer does not depend on an order."""
    types = [model_type for family in FORMATS for model_type in family.model_types]
    assert len(set(types)) == len(types)
    assert {"seed-0", "seed-2", "bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet"} <= set(types)
    assert {"electra", "nomic_bert", "modernbert"} <= set(types)


@pytest.mark.parametrize("raw", [{"model_type": "gpt2"}, {}, {"model_type": ["bert"]}])
def test_an_unknown_type_is_refused(raw: dict[str, object]) -> None:
    """With the file, the value and every type there is."""
    with pytest.raises(CheckpointError) as caught:
        find_format(raw, "folder/config.json")
    message = str(caught.value)
    assert message.startswith(f"folder/config.json: model_type {raw.get('model_type')!r}")
    assert all(model_type in message for family in FORMATS for model_type in family.model_types)


def test_weight_and_bias_go_together() -> None:
    """Each suffix maps to the same suffix of every name, in order; without a bias there is none."""
    assert weight_and_bias("a", "x", "y") == {"a.weight": ("x.weight", "y.weight"), "a.bias": ("x.bias", "y.bias")}
    assert weight_and_bias("a", "x", bias=False) == {"a.weight": ("x.weight",)}
