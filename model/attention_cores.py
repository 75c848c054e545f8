"""The attention core, scaled dot-product attention: three functions of one signature.

:func:`attend_fused` is the kernel that PyTorch has for the device, :func:`attend_products` is faster in bfloat16 on a
CPU, :func:`attend_explicit` reads as the formula does. What GPUs have for texts of any lengths takes other parameters:
:mod:`model.varlen`.

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


KEY_BLOCK = 32
"""oneDNN multiplies bfloat16 in blocks of so many columns: 36 keys take longer than 64."""

FEWEST_QUERIES = 128
"""Queries from which :func:`attend_products` is worth its many small operations: about 0.1 ms."""

FREE_SLOTS = 64
"""Queries that it computes in that time."""

MAX_SCORES = 2**22
"""Scores that :func:`attend_products` holds at a time, 8 MB: all of four texts of 256 tokens and 12 heads."""


def attend_products(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor | None]:
    """Attend with batched products of oneDNN, which are faster in bfloat16 than the fused kernel of a CPU.

    They use instructions that PyTorch's kernel does not, and are a few calls, where that one multiplies anew for each
    text, head and block of queries. Scores are rounded to bfloat16 on the way, as in that kernel they are not. Of long
    texts some queries' scores are computed at a time. Few short texts go to the fused kernel all the same, and so does
    what is to have dropout. For inference: nothing here has a gradient.

    Parameters and returns as :func:`attend_fused`.
    """
    num_texts, num_heads, length, width = query.shape
    if dropout or num_texts * length < FEWEST_QUERIES:
        return attend_fused(query, key, value, mask, dropout)
    slots = length + -length % KEY_BLOCK
    lowest = torch.finfo(query.dtype).min
    # One column more of both says what a key's score is lowered by: it costs less than a pass over the scores. It is
    # two, since bfloat16 is multiplied in pairs.
    queries, keys = query.new_zeros(2, num_texts, num_heads, slots, width + 2)
    values = query.new_zeros(num_texts, num_heads, slots, width)
    queries[:, :, :length, :width], keys[:, :, :length, :width], values[:, :, :length] = query, key, value
    queries[..., width] = 1.0
    keys[:, :, length:, width] = lowest
    bias = None  # (B or 1, H or 1, L, slots), of what is not the same for every query
    if mask is not None:
        mask = mask[(None,) * (4 - mask.dim())]
        lowered = query.new_zeros(()).where(mask, lowest) if mask.dtype == torch.bool else mask
        if mask.shape[1:3] == (1, 1):
            keys[:, :, :length, width] = lowered[:, :, 0]
        else:
            bias = F.pad(lowered, (0, slots - length))
    context = torch.empty_like(query)
    step = max(KEY_BLOCK, MAX_SCORES // (num_texts * num_heads * slots))
    for start in range(0, length, step):
        stop = min(start + step, length)
        some, every = queries[:, :, start:stop].flatten(0, 1), keys.flatten(0, 1)
        scores = torch.baddbmm(query.new_zeros(()), some, every.transpose(1, 2), beta=0, alpha=width**-0.5)
        if bias is not None:
            scores.view(num_texts, num_heads, stop - start, slots).add_(bias[:, :, start:stop])
        torch.softmax(scores, dim=-1, out=scores)  # (B * H, some of L, slots)
        part = torch.bmm(scores, values.flatten(0, 1))
        context[:, :, start:stop] = part.view(num_texts, num_heads, stop - start, width)
    return context, None


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
