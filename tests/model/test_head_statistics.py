"""Claims about the numbers that describe a head: against loops over rows, and where one has no meaning."""

from __future__ import annotations

import math

import pytest
import torch

from model.head_statistics import STATISTICS, head_statistics
from tests.model.test_maps import KEPT, Rows, make_maps


def describe_slowly(rows: Rows, cls: int | None, separators: list[int], kept: list[int] | None) -> dict[str, float]:
    """Every statistic of one head, one row at a time, as docs/api.md defines it."""
    queries = list(range(len(rows))) if kept is None else kept
    found: dict[str, list[float]] = {name: [] for name in (*STATISTICS, "kept_mass")}
    for query in queries:
        row = rows[query]
        mass = sum(row[key] for key in queries)
        found["kept_mass"].append(mass)
        if cls is not None:
            found["to_cls"].append(row[cls])
        if separators:
            found["to_sep"].append(sum(row[key] for key in separators))
        if mass == 0:
            continue
        p = {key: row[key] / (1 if kept is None else mass) for key in queries}
        entropy = -sum(weight * math.log(weight) for weight in p.values() if weight)
        found["entropy"].append(entropy)
        found["entropy_norm"].append(entropy / math.log(len(p)) if len(p) > 1 else 0.0)
        found["effective_tokens"].append(math.exp(entropy))
        found["confidence"].append(max(p.values()))
        found["mean_distance"].append(sum(weight * abs(query - key) for key, weight in p.items()))
        found["to_self"].append(p[query])
        found["to_prev"].append(p.get(query - 1, 0.0))
        found["to_next"].append(p.get(query + 1, 0.0))
    if kept is None:
        del found["kept_mass"]
    return {name: sum(values) / len(values) if values else math.nan for name, values in found.items()}


@pytest.mark.parametrize(
    ("cls", "separators", "kept"),
    [
        (0, [7], None),
        (0, [7], [1, 2, 3, 4, 5, 6]),
        (0, [3, 7], [1, 2, 4, 5, 6]),  # a pair: the token before the separator is not the next one's previous
        (None, [7], [0, 1, 2, 3, 4, 5, 6]),
        (None, [], None),
        (0, [], [7]),
    ],
)
def test_statistics_are_what_the_documents_say(cls: int | None, separators: list[int], kept: list[int] | None) -> None:
    """Every statistic of every head agrees with loops over rows; those of tokens that are not there are NaN."""
    maps = make_maps(2, 3, 8, 8)
    chosen = None if kept is None else torch.tensor(kept)
    found = head_statistics(maps, cls=cls, separators=separators, kept=chosen)
    for layer in range(2):
        for head in range(3):
            expected = describe_slowly(maps[layer, head].tolist(), cls, separators, kept)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                assert float(found[name][layer, head]) == pytest.approx(value, abs=2e-6, nan_ok=True), name


def test_hidden_mass_is_accounted_for() -> None:
    """What rows put on special tokens before these left is what the kept mass lacks to 1."""
    found = head_statistics(make_maps(3, 8, 8), cls=0, separators=[7], kept=KEPT)
    torch.testing.assert_close(found["to_cls"] + found["to_sep"] + found["kept_mass"], torch.ones(3))


def test_one_token_rows_have_no_spread() -> None:
    """Entropy 0, normalised 0 as well (not 0 / 0), one effective token, all on itself."""
    found = head_statistics(torch.ones(2, 1, 1), cls=0, separators=[])
    values = {name: value.tolist() for name, value in found.items()}
    assert all(math.isnan(value) for value in values.pop("to_sep"))
    ones = ("effective_tokens", "confidence", "to_cls", "to_self")
    assert values == {name: [float(name in ones)] * 2 for name in values}


def test_a_uniform_and_a_certain_head() -> None:
    """Uniform rows: the largest entropy, n effective tokens. One-hot rows: none, and confidence 1."""
    maps = torch.stack([torch.full((6, 6), 1 / 6), torch.eye(6).roll(1, dims=1)])
    found = head_statistics(maps, cls=None, separators=[])
    torch.testing.assert_close(found["entropy"], torch.tensor([math.log(6), 0.0]))
    torch.testing.assert_close(found["entropy_norm"], torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(found["effective_tokens"], torch.tensor([6.0, 1.0]))
    torch.testing.assert_close(found["confidence"], torch.tensor([1 / 6, 1.0]))
    assert found["to_next"][1] == pytest.approx(5 / 6)  # the last row has no next: it looks at the first
    assert found["to_self"][1] == 0


def test_nothing_left_has_no_statistics() -> None:
    """An empty text without its special tokens: every statistic is NaN, and none an error."""
    found = head_statistics(make_maps(3, 2, 2), cls=0, separators=[1], kept=torch.tensor([], dtype=torch.int64))
    assert found.keys() == {*STATISTICS, "kept_mass"}
    assert all(value.shape == (3,) and value.isnan().all() for value in found.values())


def test_rows_that_kept_nothing_count_in_no_average() -> None:
    """One row is all on [SEP]: it has no distribution over the rest, but its mass is known."""
    maps = torch.tensor([[[0.2, 0.4, 0.4], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]])
    kept = [0, 1]
    found = head_statistics(maps, cls=None, separators=[2], kept=torch.tensor(kept))
    expected = describe_slowly(maps[0].tolist(), None, [2], kept)
    assert {name: float(value[0]) for name, value in found.items()} == pytest.approx(expected, nan_ok=True)
    assert float(found["kept_mass"][0]) == pytest.approx(0.3)
    assert float(found["effective_tokens"][0]) > 1.5
    nothing = head_statistics(maps[:, [1, 1, 1]], cls=None, separators=[2], kept=torch.tensor(kept))
    assert nothing["entropy"].isnan().all()
    assert nothing["to_sep"].tolist() == [1.0]


def test_statistics_of_long_rows_are_exact() -> None:
    """512 tokens: sums over a quarter of a million weights are within 1e-4 of those in float64."""
    maps = make_maps(1, 512, 512)
    found = head_statistics(maps, cls=0, separators=[511])
    wide = head_statistics(maps.double(), cls=0, separators=[511])
    for name, value in wide.items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-5, atol=1e-4)
