"""The encoder: PyTorch and tokens, nothing of HTTP, asyncio, environment variables or metrics.

Dimension key, used in every docstring and shape comment of this package:

===  =====================================================================
B    texts in the batch
L    tokens per text (of the longest text, where a tensor is padded)
T    tokens in the batch, packed: the sum of the lengths, no padding
D    hidden size
H    attention heads
K    head size, ``D / H``
F    feed-forward size
N    layers
V    vocabulary size
===  =====================================================================

Attention maps are ``(N, H, L, L)``: row = query (who looks), column = key (looked at).
Masks are boolean, True = may be seen.
"""
