"""Weights that a student takes over from its teacher, where shapes allow.

What a word is, what a head looks for and what a feed-forward neuron detects carry over; how the sublayers add up does
not (most teachers norm after the residual, the students before it or inside), and is what training has to find again.
A student that norms before its sublayers also takes the gains of the norm that feeds the same sublayer of the teacher.

With all-MiniLM-L6-v2 as teacher and 6 layers (agreement with the teacher on training/demo/dev.tsv; 80 steps of 1,000
tokens): products and tokens alone 19.5 before and 86.5 after training, with the gains 70.2 and 91.7. Token vectors
that have been through the teacher's embedding norm are worse with either (67.0 and 84.8 after training).
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
    if student.config.norm_placement == "pre":
        for norm, source in _norm_sources(teacher, layers):
            copied += _copy(ours, theirs, norm, source)
    for index, layer in enumerate(layers):
        attention = student.config.num_attention_heads == teacher.config.num_attention_heads
        for part in ("qkv", "out") if attention else ():
            names = f"layers.{index}.self_attention.{part}", f"layers.{layer}.self_attention.{part}"
            copied += _copy(ours, theirs, *names)
        if not teacher.config.is_gated:
            _inherit_neurons(ours, theirs, index, layer)
            copied += [f"layers.{index}.feed_forward.{part}.{kind}" for part in _FEED_FORWARD for kind in _KINDS]
    return copied


_FEED_FORWARD = ("expand", "contract")
_KINDS = ("weight", "bias")


def _copy(ours: dict[str, Tensor], theirs: dict[str, Tensor], target: str, source: str) -> list[str]:
    """Copy weight and bias of one module; what the teacher does not have stays as it is."""
    kinds = [kind for kind in _KINDS if f"{source}.{kind}" in theirs]
    for kind in kinds:
        ours[f"{target}.{kind}"].copy_(theirs[f"{source}.{kind}"])
    return [f"{target}.{kind}" for kind in kinds]


def _norm_sources(teacher: Encoder, layers: Sequence[int]) -> list[tuple[str, str]]:
    """Pair every norm of a pre-norm student with the teacher's norm whose output the same sublayer reads."""
    pairs = []
    before = {"pre": ("layers.{0}.sublayers.0.norm", "layers.{0}.sublayers.1.norm"),
              "post": ("layers.{1}.sublayers.1.norm", "layers.{0}.sublayers.0.norm")}  # fmt: skip
    placement = teacher.config.norm_placement
    for index, layer in enumerate(layers):
        for number, pattern in enumerate(before.get(placement, ())):
            first = placement == "post" and layer == 0 and number == 0
            source = "embedding.norm" if first else pattern.format(layer, layer - 1)
            pairs.append((f"layers.{index}.sublayers.{number}.norm", source))
    last = f"layers.{layers[-1]}.sublayers.1.norm" if placement == "post" else "norm"
    return [*pairs, ("norm", last)]


def _inherit_tokens(student: Encoder, teacher: Encoder, token_rows: Sequence[int | None]) -> list[str]:
    """Give every token the teacher's vector, in a size that stands up to the sinusoids.

    Where the teacher norms its embeddings, their size means nothing and they are brought to variance 1 behind the
    student's scale; otherwise they keep the size they have behind the teacher's.
    """
    known = [(row, theirs) for row, theirs in enumerate(token_rows) if theirs is not None]
    embedding, table = teacher.embedding, student.embedding.tokens
    vectors = embedding.tokens(torch.tensor([theirs for _, theirs in known]))
    if embedding.projection is not None:
        vectors = embedding.projection(vectors if embedding.norm is None else embedding.norm(vectors))
    if embedding.norm is not None:
        vectors = vectors / vectors.square().mean().sqrt()
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
