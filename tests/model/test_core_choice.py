"""Which attention core runs, and how texts lie for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from model.attention_cores import LONG_TEXT, VECTOR, Attend, attend_alone, attend_explicit, attend_fused
from model.batch import GROUPING, Grouping
from model.core_choice import AttentionPath, choose_core, choose_grouping
from tests.model.test_encoder import CONFIGS

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ALONE = Grouping(align=VECTOR, alone_from=LONG_TEXT)


@pytest.mark.parametrize(
    ("path", "dtype", "device", "core"),
    [
        ("fused", torch.float32, CPU, attend_fused),
        ("fused", torch.bfloat16, CPU, attend_alone),
        ("fused", torch.float16, CPU, attend_fused),
        ("fused", torch.bfloat16, GPU, attend_fused),
        ("explicit", torch.bfloat16, CPU, attend_explicit),
        ("explicit", torch.bfloat16, GPU, attend_explicit),
    ],
)
def test_the_core_is_the_fastest_unless_the_formula_is_asked_for(
    path: AttentionPath, dtype: torch.dtype, device: torch.device, core: Attend
) -> None:
    """Long texts attend by products in bfloat16 on a CPU, and nowhere else."""
    assert choose_core(path, dtype, device) is core


@pytest.mark.parametrize("has_kernel", [True, False])
@pytest.mark.parametrize(
    ("path", "dtype", "device", "is_int8", "expected"),
    [
        ("fused", torch.float32, CPU, False, Grouping(align=VECTOR)),
        ("fused", torch.bfloat16, CPU, False, ALONE),
        ("fused", torch.float32, CPU, True, Grouping(max_padding=0.0)),
        ("explicit", torch.float32, CPU, True, Grouping(max_padding=0.0)),
        ("explicit", torch.bfloat16, CPU, False, GROUPING),
        ("explicit", torch.bfloat16, GPU, False, GROUPING),
        ("fused", torch.bfloat16, GPU, False, "by the kernel"),
    ],
)
def test_texts_lie_as_the_core_likes_them(
    monkeypatch: pytest.MonkeyPatch,
    path: AttentionPath,
    dtype: torch.dtype,
    device: torch.device,
    is_int8: bool,
    expected: Grouping | str,
    has_kernel: bool,
) -> None:
    """Without groups where a GPU's kernel takes any lengths, without padding in bytes, long ones alone in bfloat16."""
    monkeypatch.setattr("model.core_choice.has_varlen_kernel", lambda *_: has_kernel)
    if expected == "by the kernel":
        expected = None if has_kernel else GROUPING
    assert choose_grouping(path, CONFIGS["bert"], dtype, device, is_int8=is_int8) == expected


def test_texts_with_masks_are_not_alone() -> None:
    """Products take no mask: relative positions, causal attention and windows stay with the fused kernel."""
    bert = CONFIGS["bert"]
    windowed = replace(bert, layers=tuple(replace(layer, window=4) for layer in bert.layers))
    for config in (CONFIGS["mpnet"], replace(bert, causal=True), windowed):
        grouping = choose_grouping("fused", config, torch.bfloat16, CPU, is_int8=False)
        assert grouping == Grouping(align=VECTOR)
    assert choose_grouping("fused", bert, torch.bfloat16, CPU, is_int8=False) == ALONE
