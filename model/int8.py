"""Linear layers in 8-bit integers, for processors that multiply bytes twice as fast as anything else (VNNI, AMX).

A weight is a signed byte times a scale of its output channel (without VNNI it has a bit less). What comes in is an
unsigned byte with a scale of its input channel: the channels of a Transformer's hidden states differ in range a
hundredfold, and one scale for all would leave most of them a few steps. The scales are fixed when the model is loaded,
from texts it reads once (:mod:`model.calibration`), never from the batch: a text's row must not depend on its
neighbours.

Between the two layers of a feed-forward block nothing is ever wider than a byte: the first layer's kernel applies the
activation and writes bytes at once, which takes one scale for all channels. Everywhere else float32 stands between the
products: bfloat16 is no faster there, and its rounding, which differs with the padding of a group, would tip one byte
in a hundred over to the next.

References: Jacob et al. 2018 (integer products, one zero point a tensor); Xiao et al. 2023, SmoothQuant (ranges moved
from activations into weights, channel by channel).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from model.encoder import FeedForward
from model.linear import FUSED_ACTIVATIONS, PACKED_ROWS, Linear, has_onednn

SMOOTHING = 0.75
"""Share of a channel's range that is taken out of the activations and put into the weights. Cosine to float32 of
all-MiniLM-L6-v2's embeddings with 0.5, 0.75 and 1: 0.9959, 0.9962, 0.9959, the lowest 0.985, 0.988, 0.983
(with bfloat16 between the products)."""

CLIPPED_SHARES = tuple(share / 10 for share in range(10, 1, -1))
"""Shares of the observed range that are tried for an activation's output: what is beyond is clipped, and all else has
finer steps."""

SAMPLED_ROWS = 8
"""One row in so many is kept to choose among :data:`CLIPPED_SHARES`."""

_SMALLEST = 1e-6
"""Stands in for a range or a weight of zero."""


def has_kernel() -> bool:
    """Whether this build of PyTorch multiplies bytes."""
    return has_onednn() and hasattr(torch.ops.onednn, "qlinear_pointwise")


@cache
def largest_weight() -> int:
    """Return the largest byte that a weight may be for the product to be exact: 127, or 64 on processors without VNNI.

    There the kernel adds two products in 16 bits (``vpmaddubsw``), which clips silently: 2 x 255 x 127 does not fit,
    2 x 255 x 64 does. The kernel is asked, as no list of processors is complete.
    """
    size = 64
    weight = torch.full((size, size), 127, dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(weight, [PACKED_ROWS, size])
    ones, zeros = torch.ones(size), torch.zeros(size, dtype=torch.int32)
    x = torch.full((size, size), 255, dtype=torch.uint8)
    out = torch.ops.onednn.qlinear_pointwise(
        x, 1.0, 0, packed, ones, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return 127 if bool((out == 255 * 127 * size).all()) else 64


@dataclass(frozen=True, slots=True)
class ByteScale:
    """How numbers are bytes: ``x ~ scale * (byte - zero_point)``.

    Attributes
    ----------
    scale, zero_point : Tensor, shape (channels,) or (), float32
        Zero points are whole numbers.
    """

    scale: Tensor
    zero_point: Tensor


@dataclass(slots=True)
class InputRange:
    """What a layer was given while the calibration texts ran: the rows of their tokens, and those that fill a batch up.

    Attributes
    ----------
    low, high : Tensor, shape (channels,)
    sample : Tensor, shape (rows, channels)
        Some of the rows.
    """

    low: Tensor
    high: Tensor
    sample: Tensor

    @classmethod
    def of(cls, x: Tensor) -> InputRange:
        """Note one batch of rows, (T, channels)."""
        return cls(x.amin(dim=0), x.amax(dim=0), x[::SAMPLED_ROWS].clone())

    def merge(self, other: InputRange) -> InputRange:
        """Join what two batches showed."""
        return InputRange(
            torch.minimum(self.low, other.low),
            torch.maximum(self.high, other.high),
            torch.cat((self.sample, other.sample)),
        )

    def scale_by_channel(self, weight: Tensor) -> ByteScale:
        """Choose a scale a channel, so that wide channels and large weights share the loss.

        Parameters
        ----------
        weight : Tensor, shape (out_features, channels)
            What the channels are multiplied with.
        """
        span = (self.high - self.low).clamp(min=_SMALLEST)
        smooth = span**SMOOTHING / weight.abs().amax(dim=0).clamp(min=_SMALLEST) ** (1 - SMOOTHING)
        scale = smooth * (span / smooth).max() / 255
        return ByteScale(scale, torch.round(127.5 - (self.low + self.high) / (2 * scale)))

    def scale_of_all(self) -> ByteScale:
        """Choose one scale for all channels: the one that moves the sample least, clipping included."""
        low, high = self.low.min().clamp(max=0), self.high.max().clamp(min=_SMALLEST)
        candidates = [_scale_between(low, high * share) for share in CLIPPED_SHARES]
        return min(candidates, key=lambda candidate: _squared_error(self.sample, candidate))


def _scale_between(low: Tensor, high: Tensor) -> ByteScale:
    """Spread the 256 bytes evenly from ``low`` to ``high``."""
    scale = (high - low) / 255
    return ByteScale(scale, torch.round(-low / scale))


def _squared_error(x: Tensor, at: ByteScale) -> float:
    """Sum the squares of what is lost when ``x`` becomes bytes."""
    steps = (torch.round(x / at.scale) + at.zero_point).clamp(0, 255)
    return float(((steps - at.zero_point) * at.scale - x).square().sum())


class Int8Linear(nn.Module):
    """``activation(x W^T + b)`` in bytes.

    Parameters
    ----------
    layer : Linear
        In float32; not packed.
    input_scale : ByteScale
        Of what comes in: a scale a channel, or one for all.
    output_scale : ByteScale, optional
        If given, bytes of this one scale come out; else float32.
    """

    def __init__(self, layer: Linear, input_scale: ByteScale, output_scale: ByteScale | None = None) -> None:
        super().__init__()
        # x W^T = bytes (W * scale)^T - zero_point (W * scale)^T: the input's scale goes into the weight, and its zero
        # point into the bias, so that the kernel sees plain bytes
        scaled = layer.weight.detach() * input_scale.scale  # (out, in)
        self._weight_scale = scaled.abs().amax(dim=1).clamp(min=_SMALLEST**2) / largest_weight()  # (out,)
        weight = torch.round(scaled / self._weight_scale.unsqueeze(1)).to(torch.int8)
        self._weight = torch.ops.onednn.qlinear_prepack(weight, [PACKED_ROWS, layer.in_features])
        self._weight_zero_point = torch.zeros(layer.out_features, dtype=torch.int32)
        rounded = weight.float() * self._weight_scale.unsqueeze(1)
        bias = layer.bias.detach() if layer.bias is not None else torch.zeros(layer.out_features)
        self._bias = bias - rounded @ input_scale.zero_point.expand(layer.in_features)
        self._steps = (1 / input_scale.scale).expand(layer.in_features).contiguous()
        # a float becomes an integer by cutting, so half a step more rounds it
        self._offset = input_scale.zero_point.expand(layer.in_features) + 0.5
        self._arguments: tuple[Any, ...] = (
            *((float(output_scale.scale), int(output_scale.zero_point)) if output_scale else (1.0, 0)),
            torch.uint8 if output_scale else torch.float32,
            FUSED_ACTIVATIONS[layer.activation][0],
            [],
            FUSED_ACTIVATIONS[layer.activation][1],
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (T, in_features), numbers or already bytes, to (T, out_features)."""
        if x.dtype != torch.uint8:
            x = self._to_bytes(x)
        out: Tensor = torch.ops.onednn.qlinear_pointwise(
            x, 1.0, 0, self._weight, self._weight_scale, self._weight_zero_point, self._bias, *self._arguments
        )
        return out

    def _to_bytes(self, x: Tensor) -> Tensor:
        # by way of int16: from float straight to uint8 PyTorch converts number by number, four times as slow
        return torch.addcmul(self._offset, x, self._steps).clamp_(0, 255).to(torch.int16).to(torch.uint8)


def observe_inputs(encoder: nn.Module, run: Callable[[], object]) -> dict[str, InputRange]:
    """Note what each :class:`Linear` of ``encoder`` is given while ``run`` runs it.

    Returns
    -------
    dict of str to InputRange
        By the layer's name in ``encoder``.
    """
    ranges: dict[str, InputRange] = {}

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            seen = InputRange.of(arguments[0])
            ranges[name] = ranges[name].merge(seen) if name in ranges else seen

        return hook

    handles = [layer.register_forward_pre_hook(note(name)) for name, layer in _linear_layers(encoder).items()]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return ranges


def quantize_linear_layers(encoder: nn.Module, ranges: dict[str, InputRange]) -> None:
    """Put an :class:`Int8Linear` in the place of every :class:`Linear`.

    Parameters
    ----------
    encoder : Module
        In float32, on the CPU, its linear layers not packed.
    ranges : dict of str to InputRange
        From :func:`observe_inputs`: one for every linear layer.
    """
    between = {  # the second layer of a feed-forward block -> the first, which writes bytes for it
        f"{name}.contract": f"{name}.expand"
        for name, module in encoder.named_modules()
        if isinstance(module, FeedForward) and module.gate_activation is None
    }
    input_scales: dict[str, ByteScale] = {}
    output_scales: dict[str, ByteScale] = {}
    layers = _linear_layers(encoder)
    for name, layer in layers.items():
        if name in between:
            input_scales[name] = output_scales[between[name]] = ranges[name].scale_of_all()
        else:
            input_scales[name] = ranges[name].scale_by_channel(layer.weight.detach())
    for name, layer in layers.items():
        encoder.set_submodule(name, Int8Linear(layer, input_scales[name], output_scales.get(name)))


def _linear_layers(encoder: nn.Module) -> dict[str, Linear]:
    """Find the layers by name."""
    return {name: module for name, module in encoder.named_modules() if isinstance(module, Linear)}
