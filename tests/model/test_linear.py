"""Claims about the linear layer: packed or not, it is the product, the bias and the activation."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from model.config import GATED_ACTIVATIONS, Activation
from model.linear import ACTIVATION_FUNCTIONS, Linear, pack_linear_layers

PLAIN: list[Activation | None] = [None, *(name for name in ACTIVATION_FUNCTIONS if name not in GATED_ACTIVATIONS)]


def make(activation: Activation | None, *, bias: bool) -> Linear:
    """A layer of uneven sizes with a bias that shows."""
    torch.manual_seed(0)
    layer = Linear(24, 10, bias=bias, activation=activation)
    if bias:
        nn.init.normal_(layer.bias)
    return layer.requires_grad_(requires_grad=False)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", PLAIN)
@pytest.mark.parametrize("num_tokens", [1, 3, 70])
def test_a_packed_layer_computes_what_the_plain_one_does(
    activation: Activation | None, bias: bool, num_tokens: int
) -> None:
    """act(x W^T + b) by the formula, by the plain layer and by the packed one, for any number of tokens."""
    layer = make(activation, bias=bias)
    x = 2 * torch.randn(num_tokens, 24)
    expected = x @ layer.weight.T + (layer.bias if bias else 0.0)
    expected = expected if activation is None else ACTIVATION_FUNCTIONS[activation](expected)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-5)
    packed = copy.deepcopy(layer)
    packed.pack()
    torch.testing.assert_close(packed(x), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("activation", PLAIN)
def test_a_packed_layer_in_bfloat16(activation: Activation | None) -> None:
    """The same within the rounding of bfloat16, and bfloat16 comes out."""
    layer = make(activation, bias=True)
    x = torch.randn(9, 24)
    expected = layer(x)
    half = layer.bfloat16()
    half.pack()
    out = half(x.bfloat16())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=0.02, atol=0.04)


def test_packing_twice_is_packing_once() -> None:
    """A layer that is packed already stays as it is."""
    layer = make(None, bias=True)
    x = torch.randn(2, 24)
    layer.pack()
    once = layer(x)
    layer.pack()
    torch.testing.assert_close(layer(x), once, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes_stay_plain(dtype: torch.dtype) -> None:
    """What the kernel does not know is left as it is, and still runs; other modules are not touched."""
    module = nn.Sequential(Linear(24, 10), nn.Linear(10, 4)).to(dtype)
    pack_linear_layers(module)
    assert module[0].weight is not None
    assert module[1].weight is not None
    assert module(torch.randn(3, 24, dtype=dtype)).shape == (3, 4)


def test_a_build_without_the_kernel_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PyTorch was built without oneDNN the plain product runs."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    layer = make("gelu", bias=True)
    weight = layer.weight
    layer.pack()
    assert layer.weight is weight


def test_a_processor_without_bfloat16_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where oneDNN has no product in bfloat16, packing would raise: the plain layer runs, in float32 the packed one."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    half, single = make("gelu", bias=True).bfloat16(), make("gelu", bias=True)
    expected = single(torch.ones(3, 24))
    half.pack()
    single.pack()
    assert half.weight is not None
    assert single.weight is None
    torch.testing.assert_close(half(torch.ones(3, 24).bfloat16()).float(), expected, rtol=0.02, atol=0.04)


def test_a_layer_that_is_not_packed_learns() -> None:
    """In training the gradient reaches weight and bias."""
    layer = Linear(24, 10, activation="gelu")
    layer(torch.randn(5, 24)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.any()
    assert layer.bias.grad.any()
