"""The attention core, scaled dot-product attention: three functions of one signature.

:func:`attend_fused` is the kernel that PyTorch has for the device, :func:`attend_alone` is faster in bfloat16 on a CPU
for long texts, :func:`attend_explicit` reads as the formula does. What GPUs have for texts of any lengths takes other
parameters: :mod:`model.varlen`.

References: Vaswani et al. 2017, section 3.2.1; the functions ``attention`` of both documents in seeds/.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], tuple[Tensor, Tensor | None]]
"""(query, key, value, mask, dropout) -> (context, weights or None): see :func:`attend_fused`."""


VECTOR = 16
"""Keys that a CPU's fused kernel takes at a time. What is over it takes one by one: 29 keys take longer than 32."""


def attend_fused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor | None]:
    """Attend with the fused kernel of the device.

    Parameters
    ----------
    query, key, value : Tensor, shape (B, H, L, K)
    mask : Tensor, broadcastable to (B, H, L, L), or None
        bool, True = may be seen, with at least one True in each row; or float, added to the scores.
    dropout : float
        Share of the weights that is dropped; 0 when serving.

    Returns
    -------
    context : Tensor, shape (B, H, L, K)
    weights : None
        A fused kernel never has them in one place.
    """
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout), None


LONG_TEXT = 112
"""Tokens from which :func:`attend_alone` is faster than the fused kernel."""

MAX_SCORES = 2**22
"""Scores that :func:`attend_alone` may hold, 8 MB: of texts up to 512 tokens with 16 heads."""


def attend_alone(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor | None]:
    """Attend with two products over all heads, if this is one long text without a mask; else as :func:`attend_fused`.

    oneDNN's products use instructions of bfloat16 that PyTorch's kernel does not, and are two calls, where that one
    multiplies anew for each head and block of queries. Scores are rounded to bfloat16 on the way, as in that kernel
    they are not. For inference: nothing here has a gradient.

    Parameters and returns as :func:`attend_fused`.
    """
    num_texts, num_heads, length, width = query.shape
    slots = rounded_length(length)
    is_suited = num_texts == 1 and length >= LONG_TEXT and num_heads * slots**2 <= MAX_SCORES
    if not is_suited or mask is not None or dropout:
        return attend_fused(query, key, value, mask, dropout)
    rows = query.new_zeros(3, num_heads, slots, width)
    for padded, own in zip(rows, (query, key, value), strict=True):
        padded[:, :length] = own[0]
    queries, keys, values = rows
    scores = torch.baddbmm(query.new_zeros(()), queries, keys.transpose(1, 2), beta=0, alpha=width**-0.5)
    scores[:, :, length:] = torch.finfo(scores.dtype).min
    torch.softmax(scores, dim=-1, out=scores)  # (H, slots, slots)
    return torch.bmm(scores, values)[None, :, :length], None


def rounded_length(length: int) -> int:
    """Round up to one of a few lengths, four from each power of two to the next, all multiples of 32.

    oneDNN compiles both products for every length that it meets: about 1 ms and 1.5 MB, kept for as long as the process
    lives. It multiplies in blocks of 32, so that 188 tokens take longer than 192.
    """
    step = max(32, 1 << max(0, (length - 1).bit_length() - 3))
    return length + -length % step


def attend_explicit(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor | None]:
    """Attend step by step, as the formula reads: softmax(Q K^T / sqrt(K)) V.

    Parameters and ``context`` as :func:`attend_fused`.

    Returns
    -------
    context : Tensor, shape (B, H, L, K)
    weights : Tensor, shape (B, H, L, L)
        Before dropout; each row sums to 1.
    """
    weights = attention_weights(query, key, mask)
    dropped = F.dropout(weights, dropout) if dropout else weights
    return dropped @ value, weights


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute softmax(Q K^T / sqrt(K)).

    Parameters
    ----------
    query, key : Tensor, shape (..., L, K)
    mask : Tensor, broadcastable to (..., L, L), or None
        As in :func:`attend_fused`.

    Returns
    -------
    Tensor, shape (..., L, L), same dtype as ``query``
    """
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # (..., L, L)
    if mask is not None:
        # the lowest finite number, not -inf: a row that sees nothing becomes uniform instead of NaN
        lowest = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(dim=-1)
