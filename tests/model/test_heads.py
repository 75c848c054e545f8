"""Claims about the Dense module and the heads, against their formulas in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from model.heads import (
    HEAD_ACTIVATIONS,
    Classifier,
    ClassifierConfig,
    Dense,
    HeadActivation,
    MaskedLMConfig,
    MaskedLMHead,
)
from model.linear import pack_linear_layers

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


@pytest.mark.parametrize("width", [2, 3])
def test_a_residual_is_added_behind_the_activation(width: int) -> None:
    """As it is where the widths are equal, and through a layer of its own where they are not."""
    torch.manual_seed(0)
    dense = Dense(3, width, bias=False, activation="relu", has_residual=True)
    x = torch.tensor([[0.7, -1.3, 2.1]])
    if width == 3:
        assert set(dense.state_dict()) == {"linear.weight"}
        expected = torch.relu(x @ dense.linear.weight.T) + x
    else:
        assert set(dense.state_dict()) == {"linear.weight", "residual.weight"}
        expected = torch.relu(x @ dense.linear.weight.T) + x @ dense.state_dict()["residual.weight"].T
    torch.testing.assert_close(dense(x), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dense_bias", [True, False])
@pytest.mark.parametrize("norm", [None, "head.norm"])
def test_a_classifier_is_dense_activation_norm_out(norm: str | None, dense_bias: bool) -> None:
    """Logits = V n(act(W x + b)) + c, where n is a layer norm or nothing."""
    torch.manual_seed(0)
    config = ClassifierConfig("d", "o", "tanh", dense_bias=dense_bias, norm=norm, norm_eps=0.1, norm_bias=False)
    head = Classifier(config, hidden_size=3, num_labels=2)
    assert "norm.bias" not in head.state_dict()
    x = [0.7, -1.3, 2.1]
    shift = head.dense.bias.tolist() if dense_bias else [0.0] * 3
    hidden = [
        math.tanh(sum(w * v for w, v in zip(row, x, strict=True)) + b)
        for row, b in zip(head.dense.weight.tolist(), shift, strict=True)
    ]
    if norm is not None:
        mean = sum(hidden) / 3
        deviation = math.sqrt(sum((value - mean) ** 2 for value in hidden) / 3 + 0.1)
        hidden = [(value - mean) / deviation for value in hidden]  # the norm's own weight is 1 where nothing trained it
    expected = [
        sum(w * v for w, v in zip(row, hidden, strict=True)) + b
        for row, b in zip(head.out.weight.tolist(), head.out.bias.tolist(), strict=True)
    ]
    torch.testing.assert_close(head(torch.tensor([x])), torch.tensor([expected]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("num_labels", [1, 2, 3])
@pytest.mark.parametrize("hidden_size", [32, 384])
@torch.inference_mode()
def test_equal_texts_have_equal_logits(hidden_size: int, num_labels: int) -> None:
    """To the last bit, wherever they stand and however many others there are: equal documents keep their order."""
    torch.manual_seed(0)
    head = Classifier(ClassifierConfig("d", "o", "tanh"), hidden_size, num_labels).eval()
    pack_linear_layers(head)
    one = torch.randn(1, hidden_size)
    for num_texts in range(1, 40):
        assert torch.equal(head(one.repeat(num_texts, 1)), head(one).repeat(num_texts, 1))


@pytest.mark.parametrize("bias", ["head.bias", None])
def test_a_masked_language_models_head_is_dense_activation_norm_decoder(bias: str | None) -> None:
    """Logits = V n(act(W x + b)) + c, with or without c; any columns of them are those of the whole."""
    torch.manual_seed(0)
    config = MaskedLMConfig("d", "n", "o", "relu", bias, norm_eps=0.1, dense_bias=False, norm_bias=False)
    head = MaskedLMHead(config, hidden_size=3, embedding_size=2, vocab_size=5)
    assert {"dense.bias", "norm.bias"}.isdisjoint(head.state_dict())
    assert ("decoder.bias" in head.state_dict()) == (bias is not None)
    x = [0.7, -1.3, 2.1]
    hidden = [max(0.0, sum(w * v for w, v in zip(row, x, strict=True))) for row in head.dense.weight.tolist()]
    mean = sum(hidden) / 2
    deviation = math.sqrt(sum((value - mean) ** 2 for value in hidden) / 2 + 0.1)
    hidden = [(value - mean) / deviation for value in hidden]
    shift = [0.0] * 5 if bias is None else head.decoder.bias.tolist()
    expected = [
        sum(w * v for w, v in zip(row, hidden, strict=True)) + b
        for row, b in zip(head.decoder.weight.tolist(), shift, strict=True)
    ]
    transformed = head(torch.tensor([x]))
    torch.testing.assert_close(head.logits(transformed, slice(0, 9)), torch.tensor([expected]), rtol=0, atol=1e-6)
    torch.testing.assert_close(head.logits(transformed, slice(1, 3)), torch.tensor([expected[1:3]]), rtol=0, atol=1e-6)
