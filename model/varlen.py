"""Attention over packed texts of any lengths in one call: no groups, no padding, no masks.

CUDA has a kernel for it, in float16 and bfloat16, that takes windows and causality but nothing added to the scores.
Whoever cannot have it runs the attention core group by group, see :mod:`model.batch`.

References: Dao 2023, FlashAttention-2 (https://arxiv.org/abs/2307.08691); :mod:`torch.nn.attention.varlen`.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from model.attention_cores import attend_explicit
from model.batch import TextBounds
from model.config import EncoderConfig
from model.masks import padding_mask

log = logging.getLogger("eyeline")


def attend_varlen(heads: Tensor, bounds: TextBounds, *, window: int | None = None, causal: bool = False) -> Tensor:
    """Let every token look at the tokens of its own text.

    Parameters
    ----------
    heads : Tensor, shape (T, 3, H, K), float16 or bfloat16, on a GPU
        Query, key and value of every token.
    bounds : TextBounds
    window : int or None
        Tokens on each side of a token that it sees; None = all.
    causal : bool
        Whether a token sees none behind it.

    Returns
    -------
    Tensor, shape (T, H * K)
    """
    # imported where it runs: it brings PyTorch's compiler along, 1.4 s that a start on a CPU need not pay
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = heads.unbind(1)  # each (T, H, K)
    left = -1 if window is None else window
    context = varlen_attn(
        query, key, value, bounds.starts, bounds.starts, bounds.longest, bounds.longest,
        window_size=(left, 0 if causal else left), seqused_k=bounds.num_seen,
    )  # fmt: skip
    assert isinstance(context, Tensor)  # a pair only where the logarithms of the sums are asked for as well
    return context.flatten(1)


def has_varlen_kernel(config: EncoderConfig, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernel takes this model here."""
    is_candidate = device.type == "cuda" and dtype != torch.float32 and config.positions != "relative"
    return is_candidate and answers_as_the_formula(config.num_attention_heads, config.head_size, dtype, device)


def answers_as_the_formula(num_heads: int, head_size: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Run the kernel on two small texts, one of them with a token that nobody looks at.

    What it takes depends on the GPU, the size of the heads and PyTorch's version. If it refuses the texts, or gives
    them other vectors than the formula, the log says so.
    """
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn((5, 3, num_heads, head_size), generator=generator).to(device, dtype)
    try:
        ours = attend_varlen(heads, TextBounds.of([2, 3], [2, 2], device))
    except (ImportError, RuntimeError, ValueError) as error:
        log.info("attention runs in groups: the kernel for texts of any lengths refused", extra={"error": str(error)})
        return False
    texts = [(heads[:2], 2), (heads[2:], 2)]  # and how many of each one's tokens are looked at
    formula = torch.cat([_by_formula(text, num_seen) for text, num_seen in texts])
    agrees = torch.allclose(ours.float(), formula, atol=0.05)
    if not agrees:
        log.warning("attention runs in groups: the kernel for texts of any lengths gave wrong vectors")
    return agrees


def _by_formula(heads: Tensor, num_seen: int) -> Tensor:
    """Compute one text's context in float32: (L, 3, H, K) -> (L, H * K)."""
    query, key, value = heads.float().permute(1, 2, 0, 3).unsqueeze(1)  # each (1, H, L, K)
    seen = padding_mask([num_seen], len(heads), heads.device)  # (1, L)
    context, _ = attend_explicit(query, key, value, seen)
    return context[0].transpose(0, 1).flatten(1)
