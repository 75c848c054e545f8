"""What the processor can do at best: the model's matrix products and nothing else.

Every linear layer of every encoder layer is run on random numbers with the fastest kernels that PyTorch has, oneDNN's
on prepacked weights, 2,048 rows at a time. An encoder also looks up embeddings, normalises, attends and pools, so it
cannot reach this; how near it comes says how much is left to gain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from model.linear import PACKED_ROWS, Linear

if TYPE_CHECKING:
    from model.config import EncoderConfig

Product = Callable[[int], Tensor]
"""Runs one layer on so many rows."""


def make_products(config: EncoderConfig, dtype: str) -> list[Product]:
    """Make the products of all layers: query, key and value in one, output, expand, contract.

    Parameters
    ----------
    config : EncoderConfig
    dtype : str
        "float32", "bfloat16" or "int8".
    """
    D, F = config.hidden_size, config.intermediate_size
    sizes = [(D, 3 * D), (D, D), (D, 2 * F if config.is_gated else F), (F, D)] * config.num_hidden_layers
    make = _make_int8 if dtype == "int8" else _make_float
    return [make(in_features, out_features, dtype) for in_features, out_features in sizes]


def run_products(products: list[Product], num_tokens: int) -> None:
    """Run all products for so many tokens."""
    for start in range(0, num_tokens, PACKED_ROWS):
        num_rows = min(PACKED_ROWS, num_tokens - start)
        for product in products:
            product(num_rows)


def _make_float(in_features: int, out_features: int, dtype: str) -> Product:
    number_format: torch.dtype = getattr(torch, dtype)
    layer = Linear(in_features, out_features).to(number_format).eval()
    layer.pack()
    x = torch.randn(PACKED_ROWS, in_features, dtype=number_format)
    return lambda num_rows: layer(x[:num_rows])


def _make_int8(in_features: int, out_features: int, _dtype: str) -> Product:
    """Bytes in and bytes out: any wider output is more to write."""
    weight = torch.randint(-127, 128, (out_features, in_features), dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(weight, [PACKED_ROWS, in_features])
    scales = torch.full((out_features,), 1e-4)
    zero_points = torch.zeros(out_features, dtype=torch.int32)
    bias = torch.zeros(out_features)
    x = torch.randint(0, 256, (PACKED_ROWS, in_features), dtype=torch.uint8)

    def run(num_rows: int) -> Tensor:
        out: Tensor = torch.ops.onednn.qlinear_pointwise(
            x[:num_rows], 1.0, 128, packed, scales, zero_points, bias, 1.0, 128, torch.uint8, "none", [], ""
        )
        return out

    return run
