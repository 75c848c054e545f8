"""What a step makes smaller. Every function takes embeddings of one batch and returns one number, in float32.

``student`` and ``teacher`` are (B, D) embeddings of the same texts in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def cosine_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Average 1 - cosine between a text's two embeddings; both of one width."""
    return (1 - F.cosine_similarity(student.float(), teacher.float(), dim=-1)).mean()


def mse_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Average the squared distance between a text's two embeddings, lengths included; both of one width."""
    return (student.float() - teacher.float()).square().sum(dim=-1).mean()


def similarity_loss(student: Tensor, teachers: Sequence[Tensor]) -> Tensor:
    """Average the squared difference between the student's and the teachers' cosines, over all pairs of a batch.

    Parameters
    ----------
    student : Tensor, shape (B, D)
    teachers : sequence of Tensor, each (B, any width)
        Of several teachers, the average cosine counts.

    Returns
    -------
    Tensor, scalar
        0 for a batch of one text, which has no pair.

    References
    ----------
    Tung and Mori 2019 (similarity-preserving distillation); Park et al. 2019 (relational distillation).
    """
    ours = _cosines(student)
    theirs = torch.stack([_cosines(teacher) for teacher in teachers]).mean(dim=0)
    num_pairs = max(1, student.shape[0] * (student.shape[0] - 1))
    # the diagonal is 1 on both sides, but for rounding, and adds nothing
    return (ours - theirs).square().sum() / num_pairs


def matryoshka_similarity_loss(student: Tensor, teachers: Sequence[Tensor], dimensions: Sequence[int]) -> Tensor:
    """Average :func:`similarity_loss` over the first so many dimensions of the student; the teachers stay whole.

    References
    ----------
    Kusupati et al. 2022.
    """
    return torch.stack([similarity_loss(student[:, :width], teachers) for width in dimensions]).mean()


def token_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Squared distance between the two states of every token, as a share of the teacher's squared length.

    Parameters
    ----------
    student, teacher : Tensor, shape (T, D)
        Final states of the same tokens in the same order.

    References
    ----------
    Jiao et al. 2020 (TinyBERT), which learns hidden states; here those of the last layer alone.
    """
    wanted = teacher.float()
    return (student.float() - wanted).square().sum() / wanted.square().sum()


def ranking_loss(student: Tensor, teacher: Tensor, known: Tensor, temperature: float) -> Tensor:
    """Compare how the student ranks the teacher's vectors of known texts with how the teacher does.

    Parameters
    ----------
    student, teacher : Tensor, shape (B, D)
    known : Tensor, shape (Q, D)
        The teacher's vectors of other texts; the batch's own are ranked too, but for a text's own vector.
    temperature : float
        Cosines are divided by it: the lower, the more the nearest ones count.

    Returns
    -------
    Tensor, scalar
        Kullback-Leibler divergence from the teacher's softmax to the student's, averaged over the batch; 0 for a text
        that has no other.

    References
    ----------
    Fang et al. 2021 (SEED), which keeps such a queue.
    """
    target = F.normalize(teacher.float(), dim=-1)
    ranked = torch.cat((target, F.normalize(known.float(), dim=-1)))  # (B + Q, D)
    itself = torch.eye(len(target), len(ranked), dtype=torch.bool, device=ranked.device)
    never = torch.finfo(torch.float32).min
    wanted = (target @ ranked.T / temperature).masked_fill(itself, never)
    given = (F.normalize(student.float(), dim=-1) @ ranked.T / temperature).masked_fill(itself, never)
    logs = F.log_softmax(given, dim=1), F.log_softmax(wanted, dim=1)
    return F.kl_div(*logs, log_target=True, reduction="batchmean")


def contrastive_loss(
    anchors: Tensor, candidates: Tensor, temperature: float, same: Tensor | None = None, *, both_ways: bool = True
) -> Tensor:
    """Tell each anchor's own candidate from those of the others, and from the hard negatives behind them.

    Parameters
    ----------
    anchors : Tensor, shape (B, D)
    candidates : Tensor, shape (B + negatives, D)
        The first B are the anchors' positives, in order.
    temperature : float
        Cosines are divided by it.
    same : Tensor, shape (B, B + negatives), bool, optional
        True where a candidate is equal to the anchor's own positive or to the anchor, and so no negative.
    both_ways : bool
        Average with the loss of finding the anchor from its positive.

    References
    ----------
    van den Oord et al. 2018 (InfoNCE); Henderson et al. 2017 (in-batch negatives).
    """
    scores = F.normalize(anchors.float(), dim=-1) @ F.normalize(candidates.float(), dim=-1).T / temperature
    own = torch.arange(len(anchors), device=anchors.device)
    if same is not None:
        others = same.clone()
        others[own, own] = False
        scores = scores.masked_fill(others, torch.finfo(scores.dtype).min)
    loss = F.cross_entropy(scores, own)
    if not both_ways:
        return loss
    return (loss + F.cross_entropy(scores[:, : len(anchors)].T, own)) / 2


def _cosines(embeddings: Tensor) -> Tensor:
    """Every text against every other: (B, D) -> (B, B), float32."""
    unit = F.normalize(embeddings.float(), dim=-1)
    return unit @ unit.T
