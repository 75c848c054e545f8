"""The encoder once more, as slow and as plain as the papers write it: one text at a time, no packing, no kernel.

Everything is float64 and loops over heads; positions and masks come from formulas, not from the code under test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from model.config import EncoderConfig, LayerConfig, RotaryConfig
from model.contract import EncodeInput
from tests.model.test_positions import bucket, turned

Parameters = Mapping[str, Tensor]


def slow_encoder(config: EncoderConfig, parameters: Parameters, text: EncodeInput) -> tuple[Tensor, Tensor]:
    """Encode one text: the hidden states (L, D) and the maps (N, H, L, L)."""
    wide = {name: tensor.double() for name, tensor in parameters.items()}
    x = embed(config, wide, text)
    maps = []
    for index, layer in enumerate(config.layers):
        own = {name.removeprefix(f"layers.{index}."): tensor for name, tensor in wide.items()}

        def attention(y: Tensor, layer: LayerConfig = layer, own: Parameters = own) -> Tensor:
            context, weights = attend(config, layer, own, wide, y)
            maps.append(weights)
            return context

        def feed_forward(y: Tensor, own: Parameters = own) -> Tensor:
            expanded = linear(own, "feed_forward.expand", y)
            return linear(own, "feed_forward.contract", activate(config, expanded))

        first = (lambda y, own=own: norm(config, own, "sublayers.0.norm", y)) if layer.attention_norm else identity
        x = connect(config, first, x, attention)
        x = connect(config, lambda y, own=own: norm(config, own, "sublayers.1.norm", y), x, feed_forward)
    return (norm(config, wide, "norm", x) if config.final_norm else x), torch.stack(maps)


def identity(x: Tensor) -> Tensor:
    """No norm."""
    return x


def connect(
    config: EncoderConfig, norm_of: Callable[[Tensor], Tensor], x: Tensor, sublayer: Callable[[Tensor], Tensor]
) -> Tensor:
    """Put the norm where the family has it."""
    if config.norm_placement == "pre":
        return x + sublayer(norm_of(x))
    if config.norm_placement == "residual":
        return x + norm_of(sublayer(x))
    return norm_of(x + sublayer(x))


def linear(parameters: Parameters, name: str, x: Tensor) -> Tensor:
    """X W^T, plus b where there is one."""
    product = x @ parameters[f"{name}.weight"].T
    return product + parameters[f"{name}.bias"] if f"{name}.bias" in parameters else product


def norm(config: EncoderConfig, parameters: Parameters, name: str, x: Tensor) -> Tensor:
    """The three norms, row by row."""
    rows = []
    for row in x:
        if config.norm == "std":
            scaled = (row - row.mean()) / (torch.std(row, unbiased=True) + config.norm_eps)
        elif config.norm == "layer":
            scaled = (row - row.mean()) / math.sqrt(float(torch.var(row, unbiased=False)) + config.norm_eps)
        else:
            scaled = row / math.sqrt(float((row * row).mean()) + config.norm_eps)
        rows.append(scaled * parameters[f"{name}.weight"])
    out = torch.stack(rows)
    return out + parameters[f"{name}.bias"] if f"{name}.bias" in parameters else out


def gelu(x: Tensor) -> Tensor:
    """X times the share of a normal distribution below x."""
    return x / 2 * (1 + torch.erf(x / math.sqrt(2)))


def activate(config: EncoderConfig, x: Tensor) -> Tensor:
    """The activation between the two products; gated ones take the second half as a factor."""
    if config.activation == "geglu":
        return gelu(x[:, : config.intermediate_size]) * x[:, config.intermediate_size :]
    if config.activation == "swiglu":
        first = x[:, : config.intermediate_size]
        return first / (1 + torch.exp(-first)) * x[:, config.intermediate_size :]
    if config.activation == "relu":
        return torch.where(x > 0, x, 0.0)
    if config.activation == "silu":
        return x / (1 + torch.exp(-x))
    if config.activation == "gelu_tanh":
        return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return gelu(x)


def embed(config: EncoderConfig, parameters: Parameters, text: EncodeInput) -> Tensor:
    """Token by token: its row, its type's row, its position's row."""
    rows = []
    for position, (token, kind) in enumerate(zip(text.input_ids, text.token_type_ids, strict=True)):
        row = parameters["embedding.tokens.weight"][token] * config.embedding_scale
        if config.num_token_types:
            row = row + parameters["embedding.token_types.weight"][kind if config.num_token_types > 1 else 0]
        if config.positions in ("learned", "relative"):
            row = row + parameters["embedding.positions.weight"][position + config.position_offset]
        if config.positions == "sinusoidal":
            angles = [position / 10_000 ** (2 * (column // 2) / len(row)) for column in range(len(row))]
            waves = [math.cos(angle) if column % 2 else math.sin(angle) for column, angle in enumerate(angles)]
            row = row + torch.tensor(waves, dtype=torch.float64)
        rows.append(row)
    x = torch.stack(rows)
    if config.embedding_norm:
        x = norm(config, parameters, "embedding.norm", x)
    return linear(parameters, "embedding.projection", x) if config.embedding_size else x


def rotated(heads: Tensor, rotary: RotaryConfig) -> Tensor:
    """Turn one head's queries or keys, each by its position."""
    rows = [turned(row.tolist(), position, rotary) for position, row in enumerate(heads)]
    return torch.tensor(rows, dtype=torch.float64)


def attend(
    config: EncoderConfig, layer: LayerConfig, own: Parameters, shared: Parameters, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Every head by itself: softmax(Q K^T / sqrt(K)) V over the keys that the query may see."""
    query, key, value = linear(own, "self_attention.qkv", x).chunk(3, dim=-1)
    contexts, maps = [], []
    for head in range(config.num_attention_heads):
        columns = slice(head * config.head_size, (head + 1) * config.head_size)
        q, k, v = query[:, columns], key[:, columns], value[:, columns]
        if layer.rotary is not None:
            q, k = rotated(q, layer.rotary), rotated(k, layer.rotary)
        scores = q @ k.T / math.sqrt(config.head_size)
        for i in range(len(x)):
            for j in range(len(x)):
                if config.positions == "relative":
                    number = bucket(j - i, config.relative_num_buckets, config.relative_max_distance)
                    scores[i, j] += shared["relative_bias.weight"][number, head]
                if (layer.window is not None and abs(i - j) > layer.window) or (config.causal and j > i):
                    scores[i, j] = -math.inf
        weights = torch.softmax(scores, dim=-1)
        maps.append(weights)
        contexts.append(weights @ v)
    return linear(own, "self_attention.out", torch.cat(contexts, dim=-1)), torch.stack(maps)
