"""Claims about positions, against the formulas written out value by value."""

from __future__ import annotations

import cmath
import itertools
import math

import pytest
import torch
from torch import Tensor

from model.config import EncoderConfig, RotaryConfig
from model.positions import (
    PositionalEncoding,
    RelativeBias,
    relative_buckets,
    rotary_tables,
    rotate,
    sinusoids,
)


def make_config(**changes: object) -> EncoderConfig:
    """A small encoder's configuration."""
    sizes: dict[str, object] = {
        "vocab_size": 11,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "norm": "layer",
        "norm_placement": "post",
        "norm_eps": 1e-6,
        "activation": "gelu",
        "positions": "learned",
        "max_positions": 10,
    }
    return EncoderConfig(**{**sizes, **changes})


@pytest.mark.parametrize(("rows", "width"), [(1, 2), (7, 8), (40, 6), (12, 5)])
def test_sinusoids_are_the_papers_formula(rows: int, width: int) -> None:
    """sin(p / 10000^(2i/D)) in even columns, cos of the same in odd ones; an odd width ends with a sine."""
    table = sinusoids(rows, width)
    assert table.shape == (rows, width)
    assert table.dtype == torch.float32
    for position, column in itertools.product(range(rows), range(width)):
        angle = position / 10_000.0 ** (2 * (column // 2) / width)
        expected = math.cos(angle) if column % 2 else math.sin(angle)
        assert abs(float(table[position, column]) - expected) < 1e-5


def test_sinusoids_stay_right_far_from_the_start() -> None:
    """At position 5,000 the table is off by no more than a float32 phase is."""
    table = sinusoids(5001, 64)
    expected = [math.sin(5000 / 10_000 ** (2 * i / 64)) for i in range(32)]
    torch.testing.assert_close(table[5000, 0::2], torch.tensor(expected), rtol=0, atol=2e-3)


def test_sinusoids_are_real_even_while_modules_are_built_without_memory() -> None:
    """Under torch's meta device, as while a checkpoint is loaded, the fixed table still holds its numbers."""
    with torch.device("meta"):
        encoding = PositionalEncoding(make_config(positions="sinusoidal"), 8)
    torch.testing.assert_close(encoding.weight, sinusoids(10, 8), rtol=0, atol=0)


def test_the_fixed_table_is_no_parameter() -> None:
    """Sinusoids are neither trained nor stored; a learned table is both."""
    fixed = PositionalEncoding(make_config(positions="sinusoidal"), 8)
    learned = PositionalEncoding(make_config(positions="learned"), 8)
    assert list(fixed.parameters()) == []
    assert fixed.state_dict() == {}
    assert [tuple(parameter.shape) for parameter in learned.parameters()] == [(10, 8)]


@pytest.mark.parametrize("positions", ["learned", "relative"])
def test_a_learned_table_starts_at_its_offset(positions: str) -> None:
    """The first token takes row ``position_offset``; the table has that many rows more."""
    encoding = PositionalEncoding(make_config(positions=positions, position_offset=2), 8)
    assert encoding.weight.shape == (12, 8)
    torch.testing.assert_close(encoding(torch.tensor([0, 9])), encoding.weight[[2, 11]], rtol=0, atol=0)


def turned(vector: list[float], position: float, rotary: RotaryConfig) -> list[float]:
    """Rotate one head's vector as complex numbers: pair i times e^(i p theta_i)."""
    rotated = int(len(vector) * rotary.fraction)
    half = rotated // 2
    out = list(vector)
    for pair in range(half):
        first, second = (2 * pair, 2 * pair + 1) if rotary.interleaved else (pair, pair + half)
        angle = position / rotary.scaling * rotary.base ** (-2 * pair / rotated)
        number = complex(vector[first], vector[second]) * cmath.exp(1j * angle)
        out[first], out[second] = number.real, number.imag
    return out


ROTARIES = [
    RotaryConfig(base=base, fraction=fraction, interleaved=interleaved, scaling=scaling)
    for base, fraction, interleaved, scaling in itertools.product(
        (10_000.0, 160.0), (1.0, 0.5), (False, True), (1.0, 2.5)
    )
]
rotaries = pytest.mark.parametrize("rotary", ROTARIES, ids=str)


def rotate_at(heads: Tensor, positions: Tensor, rotary: RotaryConfig) -> Tensor:
    """Both steps of the module."""
    cosine, sine = rotary_tables(positions, heads.shape[-1], rotary)
    return rotate(heads, cosine, sine, interleaved=rotary.interleaved)


@rotaries
def test_rotation_is_a_complex_product(rotary: RotaryConfig) -> None:
    """Every pair of coordinates is multiplied by e^(i p theta), neighbours or halves; the rest of a head is kept."""
    positions = torch.tensor([0, 1, 7, 31])
    heads = torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(1))
    actual = rotate_at(heads, positions, rotary)
    expected = [
        [turned(heads[token, head].tolist(), int(positions[token]), rotary) for head in range(2)] for token in range(4)
    ]
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=0, atol=1e-5)
    kept = int(8 * rotary.fraction)
    torch.testing.assert_close(actual[..., kept:], heads[..., kept:], rtol=0, atol=0)


@rotaries
def test_rotation_keeps_the_norm(rotary: RotaryConfig) -> None:
    """No position makes a query or key longer or shorter."""
    heads = torch.randn(50, 3, 16, generator=torch.Generator().manual_seed(2))
    actual = rotate_at(heads, torch.arange(50) * 9, rotary)
    torch.testing.assert_close(actual.norm(dim=-1), heads.norm(dim=-1), rtol=1e-5, atol=1e-5)


@rotaries
def test_a_score_depends_on_the_distance_alone(rotary: RotaryConfig) -> None:
    """The product of a query at p + d and a key at p is the same for every p, and differs from that of another d."""
    generator = torch.Generator().manual_seed(3)
    query, key = torch.randn(2, 1, 1, 8, generator=generator)

    def score(at_query: int, at_key: int) -> float:
        first = rotate_at(query, torch.tensor([at_query]), rotary)
        second = rotate_at(key, torch.tensor([at_key]), rotary)
        return float((first * second).sum())

    for distance in (-5, 0, 3):
        scores = [score(start + distance, start) for start in (5, 6, 20, 55)]
        assert max(scores) - min(scores) < 1e-4
    assert abs(score(8, 5) - score(5, 8)) > 1e-3


def test_rotation_keeps_the_dtype() -> None:
    """bfloat16 queries stay bfloat16, though the angle is float32."""
    heads = torch.randn(3, 1, 8).bfloat16()
    actual = rotate_at(heads, torch.tensor([0, 300, 511]), RotaryConfig())
    assert actual.dtype == torch.bfloat16
    exact = rotate_at(heads.float(), torch.tensor([0, 300, 511]), RotaryConfig())
    torch.testing.assert_close(actual.float(), exact, rtol=1e-2, atol=1e-2)


def bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    """The bucket of key - query in whole numbers: no logarithm, so nothing is rounded.

    Beyond ``exact``, step k begins where (size / exact) ** steps >= (max_distance / exact) ** k.
    """
    half = num_buckets // 2
    exact, size = half // 2, abs(distance)
    first = half if distance > 0 else 0
    if size < exact:
        return first + size
    steps, k = half - exact, 0
    while k + 1 < steps and size**steps * exact ** (k + 1) >= max_distance ** (k + 1) * exact**steps:
        k += 1
    return first + exact + k


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (16, 40)])
def test_buckets_are_t5s(num_buckets: int, max_distance: int) -> None:
    """Every distance up to beyond the largest falls into the bucket that exact arithmetic gives it."""
    length = 2 * max_distance
    buckets = relative_buckets(length, num_buckets, max_distance)
    expected = [[bucket(key - query, num_buckets, max_distance) for key in range(length)] for query in range(length)]
    assert buckets.tolist() == expected
    assert set(buckets.flatten().tolist()) == set(range(num_buckets)) - {num_buckets // 2}


def test_the_bias_is_the_buckets_row_for_each_head() -> None:
    """bias[h, q, k] is the table's entry for the bucket of k - q and head h."""
    config = make_config(positions="relative", relative_num_buckets=16, relative_max_distance=40)
    bias = RelativeBias(config)
    values, table = bias(20).tolist(), bias.weight.tolist()
    assert [len(values), len(values[0]), len(values[0][0])] == [2, 20, 20]
    for head, query, key in itertools.product(range(2), range(20), range(20)):
        assert values[head][query][key] == table[bucket(key - query, 16, 40)][head]
