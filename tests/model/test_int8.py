"""Claims about linear layers in bytes: near the product they stand for, and the same whoever the neighbours are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from model.config import GATED_ACTIVATIONS, Activation
from model.embedder import Embedder
from model.int8 import (
    ByteScale,
    InputRange,
    Int8Linear,
    has_kernel,
    largest_weight,
    observe_inputs,
    quantize_linear_layers,
)
from model.linear import ACTIVATION_FUNCTIONS, Linear

PLAIN: list[Activation | None] = [None, *(name for name in ACTIVATION_FUNCTIONS if name not in GATED_ACTIVATIONS)]

CHANNELS = 24


@pytest.fixture
def rows() -> Tensor:
    """Rows whose channels differ in range a hundredfold, one of them constant."""
    torch.manual_seed(3)
    ranges = torch.logspace(-1, 1, CHANNELS)
    rows = torch.randn(200, CHANNELS) * ranges + ranges
    rows[:, 5] = 0.0
    return rows


def make(activation: Activation | None = None, *, bias: bool = True) -> Linear:
    """A layer of uneven sizes with a bias that shows."""
    torch.manual_seed(0)
    layer = Linear(CHANNELS, 10, bias=bias, activation=activation)
    if bias:
        nn.init.normal_(layer.bias)
    return layer.requires_grad_(requires_grad=False)


def slow_product(layer: Linear, x: Tensor, scale: ByteScale) -> Tensor:
    """The same in whole numbers, step by step: bytes, products of whole numbers, scales."""
    steps = torch.floor(x / scale.scale + scale.zero_point + 0.5).clamp(0, 255).double()
    scaled = (layer.weight * scale.scale).double()
    weight_scale = scaled.abs().amax(dim=1, keepdim=True) / largest_weight()
    weight = torch.round(scaled / weight_scale)
    out = ((steps - scale.zero_point) @ weight.T) * weight_scale.T
    out = out + (layer.bias if layer.bias is not None else 0.0)
    return (out if layer.activation is None else ACTIVATION_FUNCTIONS[layer.activation](out)).float()


@pytest.mark.parametrize("largest", [127, 64])
def test_the_largest_products_fit(largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether sums of two products are kept in 16 bits or in 32: all bytes at their ends give the exact sum."""
    if largest_weight() < largest:
        pytest.skip("this processor has no VNNI")
    monkeypatch.setattr("model.int8.largest_weight", lambda: largest)
    layer = Linear(CHANNELS, 10, bias=False).requires_grad_(requires_grad=False)
    layer.weight.fill_(0.5)
    unit = ByteScale(torch.tensor(1.0), torch.tensor(0.0))
    for num_rows in (1, 3, 200):
        out = Int8Linear(layer, unit)(torch.full((num_rows, CHANNELS), 255.0))
        torch.testing.assert_close(out, torch.full((num_rows, 10), 255 * 0.5 * CHANNELS), rtol=1e-6, atol=0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", PLAIN)
@pytest.mark.parametrize("num_rows", [1, 3, 200])
def test_the_kernel_computes_the_product_of_whole_numbers(
    rows: Tensor, activation: Activation | None, bias: bool, num_rows: int
) -> None:
    """Scales and zero points, moved into weight and bias, give what the slow formula gives."""
    layer = make(activation, bias=bias)
    scale = InputRange.of(rows).scale_by_channel(layer.weight)
    quick = Int8Linear(layer, scale)(rows[:num_rows])
    torch.testing.assert_close(quick, slow_product(layer, rows[:num_rows], scale), rtol=1e-4, atol=1e-3)


def test_the_product_is_near_that_of_floats(rows: Tensor) -> None:
    """With a scale a channel the error is under a hundredth of the output, though ranges differ a hundredfold.

    Where weights have one bit less, twice as much.
    """
    layer = make()
    out, expected = Int8Linear(layer, InputRange.of(rows).scale_by_channel(layer.weight))(rows), layer(rows)
    assert out.dtype == torch.float32
    assert float((out - expected).norm() / expected.norm()) < 0.01 * 127 / largest_weight()


def test_bytes_between_two_layers(rows: Tensor) -> None:
    """A layer that writes bytes for the next one: the pair is near the pair in floats."""
    first, second = make("gelu"), Linear(10, 7).requires_grad_(requires_grad=False)
    hidden = first(rows)
    between = InputRange.of(hidden).scale_of_all()
    quick_first = Int8Linear(first, InputRange.of(rows).scale_by_channel(first.weight), between)
    quick_second = Int8Linear(second, between)
    quick_hidden = quick_first(rows)
    assert quick_hidden.dtype == torch.uint8
    out, expected = quick_second(quick_hidden), second(hidden)
    assert float((out - expected).norm() / expected.norm()) < 0.02


def test_what_is_out_of_range_is_clipped(rows: Tensor) -> None:
    """A number beyond what calibration saw becomes the largest byte, not a small one by wrapping round."""
    layer = make(bias=False)
    quantized = Int8Linear(layer, InputRange.of(rows).scale_by_channel(layer.weight))
    for far in (1e4, 1e30, -1e30):
        out = quantized(torch.full((1, CHANNELS), far))
        end = quantized(torch.full((1, CHANNELS), 1e3 if far > 0 else -1e3))
        torch.testing.assert_close(out, end, rtol=0, atol=0)


def test_one_scale_for_all_leaves_out_what_is_rare() -> None:
    """One number five times as large as the rest is clipped, for finer steps of all others; without it nothing is."""
    torch.manual_seed(1)
    x = torch.rand(400_000, 4)
    assert float(InputRange.of(x).scale_of_all().scale) * 255 > 0.99
    x[8, 2] = 5.0
    assert float(InputRange.of(x).scale_of_all().scale) * 255 < 4.6


def test_ranges_of_two_batches_join(rows: Tensor) -> None:
    """What is seen in parts is what is seen at once."""
    parts = InputRange.of(rows[:80]).merge(InputRange.of(rows[80:]))
    whole = InputRange.of(rows)
    torch.testing.assert_close(parts.low, whole.low, rtol=0, atol=0)
    torch.testing.assert_close(parts.high, whole.high, rtol=0, atol=0)
    torch.testing.assert_close(parts.sample, whole.sample, rtol=0, atol=0)


def test_a_row_does_not_depend_on_its_neighbours(rows: Tensor) -> None:
    """An outlier beside it changes no bit of a row: scales are not the batch's."""
    layer = make("gelu")
    quantized = Int8Linear(layer, InputRange.of(rows).scale_by_channel(layer.weight))
    crowd = torch.cat((rows[:8], 1e4 * torch.ones(8, CHANNELS)))
    torch.testing.assert_close(quantized(crowd)[:8], quantized(rows[:8].repeat(2, 1))[:8], rtol=0, atol=0)


def test_every_linear_layer_is_observed_and_replaced(tiny_float32: Embedder) -> None:
    """No product is left in floats; observing leaves no hook behind; a feed-forward block passes bytes on."""
    encoder = tiny_float32._encoder
    names = [name for name, module in encoder.named_modules() if isinstance(module, Linear)]
    ranges = observe_inputs(encoder, lambda: tiny_float32.encode(["the cat sat", "a dog"]))
    assert sorted(ranges) == sorted(names)
    assert len(names) == 8
    assert not any(module._forward_pre_hooks for module in encoder.modules())
    quantize_linear_layers(encoder, ranges)
    assert {name for name, module in encoder.named_modules() if isinstance(module, Int8Linear)} == set(names)
    assert encoder.layers[0].feed_forward.expand(torch.zeros(3, 16)).dtype == torch.uint8
    assert encoder.layers[0].feed_forward.contract(torch.zeros(3, 24)).dtype == torch.float32


def test_a_failed_observation_leaves_no_hook(tiny_float32: Embedder) -> None:
    """Whatever the run raises, the encoder is as it was."""
    with pytest.raises(ZeroDivisionError):
        observe_inputs(tiny_float32._encoder, lambda: 1 // 0)
    assert not any(module._forward_pre_hooks for module in tiny_float32._encoder.modules())


@pytest.fixture
def tiny_float32(folder: Path) -> Embedder:
    """A tiny BERT in float32 whose linear layers were not packed, to be taken apart."""
    embedder = Embedder.load(folder, dtype="float32", device="cpu", threads=1)
    for module in embedder._encoder.modules():
        if isinstance(module, Linear):
            torch.manual_seed(module.in_features)
            plain = Linear(module.in_features, module.out_features, activation=module.activation)
            module.__dict__.update(plain.__dict__)
            module.requires_grad_(requires_grad=False)
    return embedder


def test_no_kernel_no_int8(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Where PyTorch was built without oneDNN, and on a GPU, int8 is refused in one sentence before anything is read."""
    assert has_kernel()
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not has_kernel()
    with pytest.raises(ValueError, match="dtype 'int8' needs a CPU, and a PyTorch that was built with oneDNN"):
        Embedder.load(folder, dtype="int8", device="cpu", threads=1)


def test_an_embedder_in_int8_says_so(folder: Path) -> None:
    """The dtype is named as it was asked for, and embeddings are near those of float32."""
    exact = Embedder.load(folder, dtype="float32", device="cpu", threads=1)
    quick = Embedder.load(folder, dtype="int8", device="cpu", threads=1)
    assert (exact.info.dtype, quick.info.dtype) == ("float32", "int8")
    texts = ["the cat sat", "", "a dog barked at the cat"]
    cosines = (exact.encode(texts) * quick.encode(texts)).sum(axis=1)
    assert cosines.min() > 0.98
    assert np.abs(exact.encode(texts) - quick.encode(texts)).max() > 1e-4
