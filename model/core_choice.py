"""Chooses the attention core, and how texts are laid side by side for it, by path, number format and device."""

from __future__ import annotations

from typing import Literal

import torch

from model.attention_cores import LONG_TEXT, VECTOR, Attend, attend_alone, attend_explicit, attend_fused
from model.batch import GROUPING, Grouping
from model.config import EncoderConfig
from model.varlen import has_varlen_kernel

AttentionPath = Literal["fused", "explicit"]
"""``fused``: whatever is fastest; ``explicit``: step by step, as the formula reads."""


def choose_core(path: AttentionPath, dtype: torch.dtype, device: torch.device) -> Attend:
    """Choose the core that an encoder is built with."""
    if path == "explicit":
        return attend_explicit
    return attend_alone if device.type == "cpu" and dtype == torch.bfloat16 else attend_fused


def choose_grouping(
    path: AttentionPath, config: EncoderConfig, dtype: torch.dtype, device: torch.device, *, is_int8: bool
) -> Grouping | None:
    """Choose how the core of :func:`choose_core` gets its texts; None where a kernel takes texts of any lengths."""
    if is_int8:  # rounding that differs with a group's padding would tip a byte over, and many behind it
        return Grouping(max_padding=0.0)
    if path == "explicit":
        return GROUPING
    if device.type == "cuda":
        return None if has_varlen_kernel(config, dtype, device) else GROUPING
    has_masks = config.causal or config.positions == "relative" or any(layer.window for layer in config.layers)
    is_alone = choose_core(path, dtype, device) is attend_alone and not has_masks
    return Grouping(align=VECTOR, alone_from=LONG_TEXT if is_alone else None)
