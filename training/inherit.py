"""Weights that a student takes over from its teacher, where shapes allow.

What a word is, what a head looks for and what a feed-forward neuron detects carry over; how the sublayers add up does
not (most teachers norm after the residual, the students before it or inside), and is what training has to find again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from model.encoder import Encoder
from training.errors import RunError


def spread_layers(num_teacher_layers: int, num_student_layers: int) -> tuple[int, ...]:
    """Choose which layer of the teacher each layer of the student begins as: first, last and evenly between."""
    if num_student_layers == 1:
        return (0,)
    step = (num_teacher_layers - 1) / (num_student_layers - 1)
    return tuple(round(index * step) for index in range(num_student_layers))


@torch.no_grad()
def inherit(student: Encoder, teacher: Encoder, layers: Sequence[int], token_rows: Sequence[int | None]) -> list[str]:
    """Copy what fits from the teacher into the student.

    Parameters
    ----------
    student, teacher : Encoder
        The teacher unpacked.
    layers : sequence of int
        For each layer of the student, the layer of the teacher that it begins as.
    token_rows : sequence of int or None
        For each token of the student, the teacher's id of it; None = the teacher does not have it.

    Returns
    -------
    list of str
        The student's parameters that were set, in whole or in part.

    Raises
    ------
    RunError
        If ``layers`` does not name a layer of the teacher for every layer of the student.
    """
    count = teacher.config.num_hidden_layers
    if len(layers) != student.config.num_hidden_layers or not all(0 <= layer < count for layer in layers):
        raise RunError(
            f"teacher layers {list(layers)}: one from 0 to {count - 1} is needed for each of the student's "
            f"{student.config.num_hidden_layers} layers"
        )
    if teacher.config.hidden_size != student.config.hidden_size:
        return []
    copied = _inherit_tokens(student, teacher, token_rows)
    ours, theirs = student.state_dict(), teacher.state_dict()
    for index, layer in enumerate(layers):
        attention = student.config.num_attention_heads == teacher.config.num_attention_heads
        for part in ("qkv", "out") if attention else ():
            copied += _copy(ours, theirs, index, layer, f"self_attention.{part}")
        if not teacher.config.is_gated:
            _inherit_neurons(ours, theirs, index, layer)
            copied += [f"layers.{index}.feed_forward.{part}.{kind}" for part in _FEED_FORWARD for kind in _KINDS]
    return copied


_FEED_FORWARD = ("expand", "contract")
_KINDS = ("weight", "bias")


def _copy(ours: dict[str, Tensor], theirs: dict[str, Tensor], index: int, layer: int, part: str) -> list[str]:
    """Copy weight and bias of one product; a bias the teacher does not have stays as it is."""
    names = [f"{part}.{kind}" for kind in _KINDS if f"layers.{layer}.{part}.{kind}" in theirs]
    for name in names:
        ours[f"layers.{index}.{name}"].copy_(theirs[f"layers.{layer}.{name}"])
    return [f"layers.{index}.{name}" for name in names]


def _inherit_tokens(student: Encoder, teacher: Encoder, token_rows: Sequence[int | None]) -> list[str]:
    """Give every token the vector that the teacher's first layer sees for it, without its position.

    That includes the teacher's token type and embedding norm, which the student does not have; the scale that the
    student multiplies by is divided out.
    """
    known = [(row, theirs) for row, theirs in enumerate(token_rows) if theirs is not None]
    embedding = teacher.embedding
    vectors = embedding.tokens(torch.tensor([theirs for _, theirs in known]))
    if embedding.token_types is not None:
        vectors = vectors + embedding.token_types.weight[0]
    if embedding.norm is not None:
        vectors = embedding.norm(vectors)
    if embedding.projection is not None:
        vectors = embedding.projection(vectors)
    table = student.embedding.tokens
    table.weight[[row for row, _ in known]] = vectors / table.scale
    return ["embedding.tokens.weight"]


def _inherit_neurons(ours: dict[str, Tensor], theirs: dict[str, Tensor], index: int, layer: int) -> None:
    """Copy feed-forward neurons, those with the largest weights in and out first, as many as there is room for."""
    source, target = f"layers.{layer}.feed_forward", f"layers.{index}.feed_forward"
    expand, contract = theirs[f"{source}.expand.weight"], theirs[f"{source}.contract.weight"]  # (F, D), (D, F)
    room = min(len(expand), len(ours[f"{target}.expand.weight"]))
    strength = expand.norm(dim=1) * contract.norm(dim=0)
    # in their own order, so that a student of the teacher's width begins as a plain copy
    kept = strength.argsort(descending=True, stable=True)[:room].sort().values
    ours[f"{target}.expand.weight"][:room] = expand[kept]
    ours[f"{target}.contract.weight"][:, :room] = contract[:, kept]
    if f"{source}.expand.bias" in theirs:
        ours[f"{target}.expand.bias"][:room] = theirs[f"{source}.expand.bias"][kept]
        ours[f"{target}.contract.bias"].copy_(theirs[f"{source}.contract.bias"])
