"""Claims about the records between app and model."""

from __future__ import annotations

import pytest

from model.contract import AttentionSelection, EncodeInput, OutputSpec, Row


@pytest.mark.parametrize(("kept", "total", "truncated"), [(3, 3, False), (3, 4, True), (3, 300, True)])
def test_a_text_is_truncated_when_it_had_more_tokens(kept: int, total: int, truncated: bool) -> None:
    """Kept and total tokens are counted apart, and their difference is the truth about truncation."""
    text = EncodeInput([7] * kept, [0] * kept, total)
    assert text.num_tokens == kept
    assert text.is_truncated is truncated


@pytest.mark.parametrize(
    ("layers", "heads", "tokens", "values"), [((5,), (0,), 1, 1), ((0, 5), (1, 2, 3), 7, 294), ((), (1,), 9, 0)]
)
def test_a_selection_costs_layers_times_heads_times_tokens_squared(
    layers: tuple[int, ...], heads: tuple[int, ...], tokens: int, values: int
) -> None:
    """The number of weights is known before anything runs."""
    assert AttentionSelection(layers, heads).num_values(tokens) == values


def test_an_embedding_is_what_is_given_unless_more_is_asked() -> None:
    """By default a row holds one unit vector, and nothing that costs more."""
    spec = OutputSpec()
    assert (spec.pooled, spec.normalize, spec.dimensions) == (True, True, None)
    assert (spec.token_states, spec.logits, spec.attention) == (False, False, None)
    row = Row()
    assert (row.embedding, row.token_states, row.logits, row.attention) == (None, None, None, None)


def test_specs_are_values() -> None:
    """Equal wishes are equal, so that texts that wish the same can share a step."""
    assert OutputSpec(attention=AttentionSelection((1,), (2,))) == OutputSpec(attention=AttentionSelection((1,), (2,)))
    assert len({OutputSpec(), OutputSpec(), OutputSpec(dimensions=3)}) == 2
