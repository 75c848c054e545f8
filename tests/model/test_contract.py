"""Claims about the records between app and model."""

from __future__ import annotations

import pytest

from model.contract import AttentionSelection, EncodeInput, OutputSpec, RolloutSelection, Row


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


ROLLOUT = RolloutSelection(0.5, "mean", (1, 2, 3), 4)


@pytest.mark.parametrize(
    ("selection", "heads", "values"),
    [
        (AttentionSelection((0, 3), (2,)), [(2,), (), (), (2,)], 2),
        (AttentionSelection((0, 3), (2,), maps=False), [(), (), (), ()], 0),
        (AttentionSelection((0, 3), (2,), maps=False, stats=True), [(2,), (), (), (2,)], 2),
        (AttentionSelection((0, 3), (2,), rollout=ROLLOUT), [(2,), *[(0, 1, 2, 3)] * 3], 13),
        (AttentionSelection((0, 3), (2,), maps=False, rollout=ROLLOUT), [(), *[(0, 1, 2, 3)] * 3], 12),
        (AttentionSelection((3,), (1, 0), "mean", "word", "mask", top_k=1), [(), (), (), (1, 0)], 2),
    ],
)
def test_what_is_computed_is_what_somebody_reads(
    selection: AttentionSelection, heads: list[tuple[int, ...]], values: int
) -> None:
    """Asked layers and heads for maps and statistics, all heads of its layers for a rollout, each layer once."""
    assert [selection.heads_of(layer) for layer in range(4)] == heads
    assert selection.num_values(1) == values
    assert selection.num_values(9) == 81 * values


@pytest.mark.parametrize(
    ("top_k", "min_weight", "bound"),
    [
        (3, 0.0, 3),
        (30, 0.0, 20),
        (None, 0.5, 2),
        (None, 0.3, 3),
        (2, 0.3, 2),
        (None, 0.01, 20),
        (None, 1.0, 1),
        (None, 5e-324, 20),
    ],
)
def test_a_sparse_row_has_a_bound(top_k: int | None, min_weight: float, bound: int) -> None:
    """So many weights of at least so much cannot be more in a row that sums to 1, of 20 units here."""
    selection = AttentionSelection((0,), (0,), top_k=top_k, min_weight=min_weight)
    assert selection.is_sparse
    assert selection.row_bound(20) == bound
    assert not AttentionSelection((0,), (0,)).is_sparse


def test_an_embedding_is_what_is_given_unless_more_is_asked() -> None:
    """By default a row holds one unit vector, and nothing that costs more."""
    spec = OutputSpec()
    assert (spec.pooled, spec.normalize, spec.dimensions) == (True, True, None)
    assert (spec.token_states, spec.logits, spec.attention) == (False, False, None)
    row = Row()
    assert (row.embedding, row.token_states, row.logits) == (None, None, None)
    assert (row.maps, row.attention) == (None, None)


def test_specs_are_values() -> None:
    """Equal wishes are equal, so that texts that wish the same can share a step."""
    assert OutputSpec(attention=AttentionSelection((1,), (2,))) == OutputSpec(attention=AttentionSelection((1,), (2,)))
    assert len({OutputSpec(), OutputSpec(), OutputSpec(dimensions=3)}) == 2
