"""Claims about EncoderConfig: what can be built, and what cannot."""

from __future__ import annotations

import pytest

from model.config import GATED_ACTIVATIONS, MAX_TABLE_VALUES, LayerConfig, Positions, RotaryConfig
from tests.model.test_positions import make_config


def test_a_head_is_a_share_of_the_width() -> None:
    """K = D / H."""
    assert make_config(hidden_size=12, num_attention_heads=3).head_size == 4


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    """Both numbers are in the message."""
    with pytest.raises(ValueError, match=r"hidden_size 8 .* num_attention_heads 3"):
        make_config(num_attention_heads=3)


@pytest.mark.parametrize(
    "field", ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"]
)
@pytest.mark.parametrize("size", [0, -4])
def test_a_size_below_one_is_refused(field: str, size: int) -> None:
    """A size that builds nothing is named, and is no division by zero."""
    with pytest.raises(ValueError, match=f"{field} {size}"):
        make_config(**{field: size})


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "relative"])
def test_a_table_of_positions_needs_a_length(positions: Positions) -> None:
    """Without ``max_positions`` it is refused by name; its rows are those of the positions and of the offset."""
    with pytest.raises(ValueError, match=f"positions '{positions}' need max_positions"):
        make_config(positions=positions, max_positions=None)
    assert make_config(positions=positions, max_positions=10, position_offset=2).num_position_rows == 12


@pytest.mark.parametrize("positions", ["none", "rotary"])
def test_what_has_no_table_needs_no_length(positions: Positions) -> None:
    """Texts may then be of any length."""
    assert make_config(positions=positions, max_positions=None).num_position_rows == 0


def test_a_table_that_is_computed_has_a_limit() -> None:
    """With its offset and its own width; a table that is read has the limits of its file."""
    rows = MAX_TABLE_VALUES // 8
    changes = {"positions": "sinusoidal", "max_positions": rows - 2}
    assert make_config(**changes, position_offset=2).num_position_rows == rows
    with pytest.raises(
        ValueError, match=f"{rows + 1} positions x 8 dimensions are more than the {MAX_TABLE_VALUES} values"
    ):
        make_config(**changes, position_offset=3)
    assert make_config(**changes, position_offset=3, embedding_size=4).embedding_width == 4
    with pytest.raises(ValueError, match=f"{rows} positions x 16 dimensions"):
        make_config(**changes, position_offset=2, embedding_size=16)
    assert make_config(positions="learned", max_positions=rows + 1).num_position_rows == rows + 1


def test_layers_are_filled_in() -> None:
    """Without a word about layers all are alike, and rotary where positions are."""
    assert make_config(num_hidden_layers=3).layers == (LayerConfig(),) * 3
    rotary = make_config(num_hidden_layers=2, positions="rotary")
    assert rotary.layers == (LayerConfig(rotary=RotaryConfig()),) * 2


def test_layers_that_are_given_are_kept() -> None:
    """A layer's own window and rope stay as they are."""
    layers = (LayerConfig(window=3), LayerConfig(attention_norm=False))
    assert make_config(num_hidden_layers=2, layers=layers).layers == layers


def test_a_wrong_number_of_layers_is_refused() -> None:
    """One entry per layer, or none at all."""
    with pytest.raises(ValueError, match="1 layer configs for num_hidden_layers 2"):
        make_config(num_hidden_layers=2, layers=(LayerConfig(),))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "geglu", "swiglu"])
def test_gates_are_known(activation: str) -> None:
    """GEGLU and SwiGLU have twice as many outputs, the others do not."""
    assert make_config(activation=activation).is_gated is (activation in {"geglu", "swiglu"})
    assert {"geglu", "swiglu"} == GATED_ACTIVATIONS
