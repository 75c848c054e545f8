"""Claims about the Dense module, against its formula in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from model.heads import HEAD_ACTIVATIONS, Dense, HeadActivation

FORMULAS = {
    "identity": lambda x: x,
    "tanh": math.tanh,
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
}


def test_every_activation_has_a_formula_here() -> None:
    """An activation that is added is added to this test."""
    assert set(FORMULAS) == set(HEAD_ACTIVATIONS)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", HEAD_ACTIVATIONS)
def test_dense_is_a_product_then_an_activation(activation: HeadActivation, bias: bool) -> None:
    """Out = act(W x + b), with or without b."""
    torch.manual_seed(0)
    dense = Dense(3, 2, bias=bias, activation=activation)
    assert set(dense.state_dict()) == ({"linear.weight", "linear.bias"} if bias else {"linear.weight"})
    x = [0.7, -1.3, 2.1]
    weight = dense.linear.weight.tolist()
    shift = dense.linear.bias.tolist() if bias else [0.0, 0.0]
    expected = [
        FORMULAS[activation](sum(w * v for w, v in zip(row, x, strict=True)) + b)
        for row, b in zip(weight, shift, strict=True)
    ]
    torch.testing.assert_close(dense(torch.tensor([x])), torch.tensor([expected]), rtol=0, atol=1e-6)
