"""Losses, against what they should be for embeddings whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from training.losses import (
    contrastive_loss,
    cosine_loss,
    matryoshka_similarity_loss,
    mse_loss,
    ranking_loss,
    similarity_loss,
    token_loss,
)


def embeddings(seed: int, *shape: int) -> torch.Tensor:
    """Draw embeddings."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_cosine_loss_is_of_directions_only() -> None:
    """0 for the same direction at any length, 1 at a right angle, 2 for the opposite."""
    east, north = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert [float(cosine_loss(3 * east, other)) for other in (east, north, -east)] == [0, 1, 2]


def test_mse_loss_knows_lengths() -> None:
    """The squared distance: 4 between lengths 1 and 3."""
    assert float(mse_loss(torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0]]))) == 4


def test_similarity_loss_ignores_rotations_and_width() -> None:
    """Teacher and student may have other axes and other numbers of them: only angles between texts count."""
    teacher = embeddings(0, 6, 4)
    rotation = torch.linalg.qr(embeddings(1, 4, 4)).Q
    student = torch.cat((2 * teacher @ rotation, torch.zeros(6, 3)), dim=1)
    assert float(similarity_loss(student, [teacher])) < 1e-12
    assert float(similarity_loss(embeddings(2, 6, 4), [teacher])) > 0.01


def test_similarity_loss_is_the_mean_over_pairs() -> None:
    """Two texts with cosine 1 that should have 0: the squared difference of the one pair."""
    assert float(similarity_loss(torch.ones(2, 2), [torch.eye(2)])) == pytest.approx(1)
    assert float(similarity_loss(torch.ones(1, 2), [torch.eye(2)[:1]])) == pytest.approx(0)


def test_several_teachers_are_averaged() -> None:
    """Cosines 1 and 0 together ask for one half."""
    student = torch.tensor([[1.0, 0.0], [0.5, math.sqrt(0.75)]])
    assert float(similarity_loss(student, [torch.ones(2, 3), torch.eye(2)])) == pytest.approx(0, abs=1e-12)


def test_matryoshka_asks_every_prefix_for_the_whole_teachers_similarities() -> None:
    """The average over the prefixes, each against all of the teacher."""
    student, teacher = embeddings(0, 5, 8), embeddings(1, 5, 8)
    expected = (similarity_loss(student[:, :2], [teacher]) + similarity_loss(student, [teacher])) / 2
    assert float(matryoshka_similarity_loss(student, [teacher], [2, 8])) == pytest.approx(float(expected))


def test_contrastive_loss_is_cross_entropy_over_the_batch() -> None:
    """From the definition, text by text, both ways; hard negatives count for the anchors only."""
    anchors, candidates = embeddings(0, 3, 4), embeddings(1, 5, 4)
    forward = backward = 0.0
    for i in range(3):
        scores = [float(F.cosine_similarity(anchors[i], other, dim=0)) / 0.1 for other in candidates]
        forward += math.log(sum(map(math.exp, scores))) - scores[i]
        scores = [float(F.cosine_similarity(other, candidates[i], dim=0)) / 0.1 for other in anchors]
        backward += math.log(sum(map(math.exp, scores))) - scores[i]
    assert float(contrastive_loss(anchors, candidates, 0.1)) == pytest.approx((forward + backward) / 6, rel=1e-5)
    one_way = contrastive_loss(anchors, candidates, 0.1, both_ways=False)
    assert float(one_way) == pytest.approx(forward / 3, rel=1e-5)


def test_equal_texts_are_no_negatives() -> None:
    """A second copy of the positive does not raise the loss once it is marked; an own positive is never masked."""
    anchors, positives = embeddings(0, 2, 4), embeddings(1, 2, 4)
    candidates = torch.cat((positives, positives[:1]))  # the first positive once more, as a hard negative
    same = torch.tensor([[True, False, True], [False, True, False]])
    plain = contrastive_loss(anchors[:1], positives, 0.1, both_ways=False)
    doubled = contrastive_loss(anchors[:1], candidates, 0.1, both_ways=False)
    marked = contrastive_loss(anchors[:1], candidates, 0.1, same[:1], both_ways=False)
    assert float(marked) == pytest.approx(float(plain))
    assert float(doubled) > float(plain) + 1e-3


def test_token_loss_is_a_share_of_the_teachers_length() -> None:
    """0 for equal states, 1 for states of zeros, whatever the teacher's scale."""
    teacher = embeddings(0, 7, 4)
    assert float(token_loss(teacher, teacher)) == 0
    assert float(token_loss(torch.zeros(7, 4), 30 * teacher)) == pytest.approx(1)
    assert float(token_loss(torch.zeros(2, 2), torch.tensor([[3.0, 0], [0, 4]]))) == pytest.approx(1)


def test_ranking_loss_is_the_divergence_over_all_other_texts() -> None:
    """From the definition: the batch's other vectors and the queue's, never a text's own."""
    student, teacher, known = embeddings(0, 3, 4), embeddings(1, 3, 4), embeddings(2, 5, 4)
    expected = 0.0
    for i in range(3):
        others = torch.cat((teacher[:i], teacher[i + 1 :], known))
        wanted, given = (
            F.softmax(F.cosine_similarity(rows[i].expand(7, 4), others) / 0.1, dim=0) for rows in (teacher, student)
        )
        expected += float((wanted * (wanted / given).log()).sum()) / 3
    assert float(ranking_loss(student, teacher, known, 0.1)) == pytest.approx(expected, rel=1e-4)
    assert float(ranking_loss(2 * teacher, teacher, known, 0.1)) == pytest.approx(0, abs=1e-6)


def test_a_text_alone_has_no_ranking() -> None:
    """The first text of a run that stands alone in its batch: 0, and a gradient of 0."""
    student = embeddings(0, 1, 4).requires_grad_()
    loss = ranking_loss(student, embeddings(1, 1, 4), torch.zeros(0, 4), 0.1)
    torch.autograd.backward(loss)
    assert float(loss.detach()) == 0
    assert student.grad is not None
    assert not student.grad.any()
