"""Claims about distances between heads: they are those of the definition, and order and picture follow them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import model.head_distance as module
from model.contract import FloatArray
from model.head_distance import HeadDistances, WideArray, average_linkage, draw, lay_out, leaf_order

SHAPES = [(2, 3, 1), (2, 3, 2), (1, 4, 7), (2, 3, 40)]


def draw_maps(layers: int, heads: int, length: int, seed: int = 0) -> FloatArray:
    """Attention as peaked as real heads are: softmax of wide normal scores."""
    scores = 4 * np.random.default_rng(seed).standard_normal((layers, heads, length, length))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    maps: FloatArray = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    return maps


def slow_distances(texts: list[FloatArray], hidden: list[list[bool]] | None = None) -> WideArray:
    """The definition, row by row, in Python's floats."""
    num_heads = texts[0].shape[0] * texts[0].shape[1]
    squared = np.zeros((num_heads, num_heads))
    num_rows = 0
    for index, maps in enumerate(texts):
        length = maps.shape[-1]
        seen = [token for token in range(length) if hidden is None or not hidden[index][token]]
        num_rows += len(seen)
        heads = maps.reshape(num_heads, length, length)
        for a, b, query in itertools.product(range(num_heads), range(num_heads), seen):
            p = [float(heads[a, query, key]) for key in seen]
            q = [float(heads[b, query, key]) for key in seen]
            if sum(p) == 0 or sum(q) == 0:
                squared[a, b] += sum(p) != sum(q)
            else:
                shared = sum(math.sqrt(x / sum(p) * y / sum(q)) for x, y in zip(p, q, strict=True))
                squared[a, b] += 1 - shared
    return np.sqrt(np.clip(squared / num_rows, 0, None))


def collect(texts: list[FloatArray], hidden: list[list[bool]] | None = None) -> HeadDistances:
    """Add texts one after the other."""
    collected = HeadDistances(texts[0].shape[0] * texts[0].shape[1])
    for index, maps in enumerate(texts):
        collected.add(maps, None if hidden is None else hidden[index])
    return collected


# --- distances ---


@pytest.mark.parametrize("shape", SHAPES)
def test_distances_are_those_of_the_definition(shape: tuple[int, int, int]) -> None:
    """Over one text and over several, of different lengths."""
    texts = [draw_maps(*shape, seed=1), draw_maps(shape[0], shape[1], 5, seed=2), draw_maps(*shape, seed=3)]
    for some in (texts[:1], texts):
        distances = collect(some).distances()
        np.testing.assert_allclose(distances, slow_distances(some), rtol=0, atol=1e-6)
        np.testing.assert_array_equal(distances, distances.T)
        assert not np.diag(distances).any()
        assert distances.min() >= 0
        assert distances.max() <= 1


def test_blocks_do_not_change_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few weights are widened at a time, the distances are the same."""
    texts = [draw_maps(2, 3, 23), draw_maps(2, 3, 9, seed=1)]
    hidden = [[token % 5 == 0 for token in range(maps.shape[-1])] for maps in texts]
    whole = collect(texts, hidden).distances()
    monkeypatch.setattr(module, "BLOCK_VALUES", 6 * 18 * 4)
    np.testing.assert_allclose(collect(texts, hidden).distances(), whole, rtol=0, atol=1e-9)
    monkeypatch.setattr(module, "BLOCK_VALUES", 1)
    np.testing.assert_allclose(collect(texts, hidden).distances(), whole, rtol=0, atol=1e-9)


def test_every_row_weighs_the_same() -> None:
    """A text of 30 tokens counts ten times as much as one of 3; the order of the texts does not matter."""
    long, short = draw_maps(1, 3, 30), draw_maps(1, 3, 3, seed=1)
    both = collect([long, short])
    assert both.num_rows == 33
    squared = (30 * collect([long]).distances() ** 2 + 3 * collect([short]).distances() ** 2) / 33
    np.testing.assert_allclose(both.distances() ** 2, squared, rtol=0, atol=1e-9)
    np.testing.assert_allclose(both.distances(), collect([short, long]).distances(), rtol=0, atol=1e-9)


def test_the_ends_of_the_scale() -> None:
    """Like heads are at 0, to the last digit that matters; heads that never share a token are at 1."""
    same = draw_maps(1, 1, 50)
    apart = np.zeros((1, 2, 50, 50), dtype=np.float32)
    apart[0, 0, :, 3] = 1
    apart[0, 1, :, 7] = 1
    distances = collect([np.concatenate([same, same, apart], axis=1)]).distances()
    assert distances[0, 1] < 1e-7
    assert distances[2, 3] == 1
    assert 0.5 < distances[0, 2] < 1


def test_hidden_tokens_leave_and_rows_are_scaled_again() -> None:
    """Rows and columns of hidden tokens do not count: the rest is compared as if it were all."""
    texts = [draw_maps(2, 2, 9), draw_maps(2, 2, 4, seed=1)]
    hidden = [[True, *[False] * 6, False, True], [True, False, False, True]]
    distances = collect(texts, hidden).distances()
    np.testing.assert_allclose(distances, slow_distances(texts, hidden), rtol=0, atol=1e-6)
    assert np.abs(distances - collect(texts).distances()).max() > 0.01


def test_a_row_that_keeps_nothing() -> None:
    """It is at 0 from another that keeps nothing, and at 1 from any that keeps something: no NaN."""
    maps = np.zeros((1, 3, 3, 3), dtype=np.float32)
    maps[0, 0, :, 0] = maps[0, 1, :, 0] = 1  # all on the hidden token
    maps[0, 2, :, 1] = 1
    hidden = [True, False, False]
    distances = collect([maps], [hidden]).distances()
    np.testing.assert_allclose(distances, [[0, 0, 1], [0, 0, 1], [1, 1, 0]], rtol=0, atol=1e-9)
    np.testing.assert_allclose(distances, slow_distances([maps], [hidden]), rtol=0, atol=1e-9)


def test_without_a_row_there_is_nothing_to_compare() -> None:
    """No text, or texts of nothing but hidden tokens, are an error and no table of zeros."""
    collected = HeadDistances(4)
    collected.add(draw_maps(2, 2, 2), [True, True])
    assert collected.num_rows == 0
    with pytest.raises(ValueError, match="nothing to compare"):
        collected.distances()


# --- order ---


def points_to_distances(points: WideArray) -> WideArray:
    """Distances of points in space."""
    distances: WideArray = np.linalg.norm(points[:, None] - points[None], axis=-1)
    return distances


def slow_linkage(distances: WideArray) -> list[tuple[frozenset[int], float]]:
    """Average linkage by its definition: the mean over all items of both clusters, computed anew each time."""
    clusters = [frozenset({index}) for index in range(len(distances))]
    joined = []
    while len(clusters) > 1:

        def apart(pair: tuple[frozenset[int], frozenset[int]]) -> float:
            return float(np.mean([distances[a, b] for a in pair[0] for b in pair[1]]))

        nearest = min(itertools.combinations(clusters, 2), key=apart)
        joined.append((nearest[0] | nearest[1], apart(nearest)))
        clusters = [cluster for cluster in clusters if cluster not in nearest] + [joined[-1][0]]
    return joined


@pytest.mark.parametrize("size", [1, 2, 3, 12, 30])
def test_clusters_are_those_of_average_linkage(size: int) -> None:
    """The same clusters at the same heights as by the definition, each in one piece of the order."""
    distances = points_to_distances(np.random.default_rng(size).standard_normal((size, 4)))
    merges, expected = average_linkage(distances), slow_linkage(distances)
    order = leaf_order(distances)
    assert sorted(order) == list(range(size))
    assert [frozenset(merge.joined) for merge in merges] == [cluster for cluster, _ in expected]
    np.testing.assert_allclose([merge.height for merge in merges], [height for _, height in expected], atol=1e-12)
    for cluster, _ in expected:
        places = [order.index(item) for item in cluster]
        assert max(places) - min(places) == len(cluster) - 1


def test_groups_stand_together() -> None:
    """Three groups that were shuffled come out one after the other."""
    rng = np.random.default_rng(0)
    group = rng.permutation(np.repeat([0, 1, 2], 8))
    distances = points_to_distances(np.eye(3)[group] + 0.05 * rng.standard_normal((24, 3)))
    ordered = group[leaf_order(distances)]
    assert (np.diff(ordered) != 0).sum() == 2


def test_points_on_a_line_are_read_along_it() -> None:
    """Clusters are turned so that near ends meet: a line comes out in its order, forwards or backwards."""
    line = np.array([0.0, 1.0, 2.1, 5.0, 6.0, 7.2, 20.0, 21.0])
    shuffled = np.random.default_rng(3).permutation(8)
    distances = points_to_distances(line[shuffled][:, None])
    along = shuffled[leaf_order(distances)].tolist()
    assert along in (list(range(8)), list(range(8))[::-1])


def test_distances_are_not_written_to() -> None:
    """Ordering and placing leave their argument as it was."""
    distances = points_to_distances(np.random.default_rng(1).standard_normal((9, 3)))
    before = distances.copy()
    leaf_order(distances)
    lay_out(distances)
    np.testing.assert_array_equal(distances, before)


# --- picture ---


@pytest.mark.parametrize("size", [2, 3, 20])
def test_what_lies_in_a_plane_is_laid_out_exactly(size: int) -> None:
    """Distances of points in a plane are those of the picture, and the two axes hold all of them."""
    points = np.random.default_rng(size).standard_normal((size, 2))
    coordinates, explained = lay_out(points_to_distances(points))
    np.testing.assert_allclose(points_to_distances(coordinates), points_to_distances(points), rtol=0, atol=1e-9)
    np.testing.assert_allclose(coordinates.mean(axis=0), 0, atol=1e-9)
    assert explained == pytest.approx(1)
    assert np.ptp(coordinates[:, 0]) >= 0


def test_the_share_explained_is_that_of_the_squared_distances() -> None:
    """It is what the picture's squared distances are of the true ones, and less than all in more dimensions."""
    distances = points_to_distances(np.random.default_rng(5).standard_normal((15, 6)) * [3, 2, 1, 1, 0.5, 0.5])
    coordinates, explained = lay_out(distances)
    assert explained == pytest.approx((points_to_distances(coordinates) ** 2).sum() / (distances**2).sum())
    assert 0.5 < explained < 0.95
    assert (coordinates[:, 0] ** 2).sum() > (coordinates[:, 1] ** 2).sum()


def test_the_picture_is_never_mirrored() -> None:
    """Of each axis the largest coordinate is positive, and of two equally large ones the first, whatever rounding."""
    for seed in range(20):
        coordinates, _ = lay_out(points_to_distances(np.random.default_rng(seed).standard_normal((10, 3))))
        for axis in coordinates.T:
            assert axis.max() == np.abs(axis).max()
    for distance in np.random.default_rng(0).random(20):
        coordinates, _ = lay_out(np.array([[0, distance], [distance, 0]]))
        assert coordinates[0, 0] == pytest.approx(distance / 2)


def test_one_head_and_equal_heads_are_at_one_point() -> None:
    """Where there is no distance to show, all is at the origin and nothing is missing."""
    for size in (1, 2, 5):
        coordinates, explained = lay_out(np.zeros((size, size)))
        assert coordinates.shape == (size, 2)
        assert not coordinates.any()
        assert explained == 1
        assert sorted(leaf_order(np.zeros((size, size)))) == list(range(size))


def test_distances_of_heads_can_be_laid_out() -> None:
    """They are Euclidean: with as many axes as heads nothing would be lost, so no eigenvalue is negative."""
    distances = collect([draw_maps(3, 4, 17)]).distances()
    centred = -0.5 * distances**2
    centred -= centred.mean(0)
    centred -= centred.mean(1, keepdims=True)
    assert np.linalg.eigvalsh(centred).min() > -1e-12


def test_a_picture_has_its_distances_order_and_layout() -> None:
    """What is drawn is what the parts give by themselves."""
    distances = collect([draw_maps(2, 3, 11)]).distances()
    picture = draw(distances)
    layout, explained = lay_out(distances)
    np.testing.assert_array_equal(picture.distances, distances)
    np.testing.assert_array_equal(picture.layout, layout)
    assert (picture.order, picture.explained) == (leaf_order(distances), explained)
