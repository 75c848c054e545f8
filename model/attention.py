"""Multi-head attention on packed tokens, and the maps that people ask for.

The maps do not come from the fused kernel, which gives none, nor from switching the whole model to the explicit path,
which would change everybody's rounding: they are computed once more, in float32, from the same queries and keys, for
the texts, layers and heads that were asked for, after the embedding's own path has run as always.

References: Vaswani et al. 2017, section 3.2; the class ``MultiHeadAttention`` of both documents in seeds/.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.attention_cores import Attend, attend_fused, attention_weights
from model.batch import Group, PackedBatch
from model.config import EncoderConfig, LayerConfig
from model.linear import Linear
from model.masks import padding_mask, text_mask
from model.positions import rotary_tables, rotate
from model.varlen import attend_varlen


@dataclass(frozen=True, slots=True)
class WantedMaps:
    """Which maps of one text a layer shall give: its tokens in the pack, the heads, how many tokens are looked at."""

    start: int
    length: int
    heads: tuple[int, ...]
    num_seen: int | None = None


@dataclass(frozen=True, slots=True)
class LayerView:
    """What one kind of layer needs to know of a batch; layers of the same kind share it.

    Attributes
    ----------
    masks : tuple of (Tensor or None), one per group
        Padding, window, causality and bias together, as the attention core takes them.
    rotary : tuple of Tensor or None
        Cosine and sine, see :func:`~model.positions.rotary_tables`.
    bias : Tensor, shape (H, L, L), or None
        Relative positions.
    window : int or None
    causal : bool
    """

    masks: tuple[Tensor | None, ...]
    rotary: tuple[Tensor, Tensor] | None = None
    bias: Tensor | None = None
    window: int | None = None
    causal: bool = False

    @classmethod
    def of(
        cls, layer: LayerConfig, config: EncoderConfig, batch: PackedBatch, bias: Tensor | None, dtype: torch.dtype
    ) -> LayerView:
        """See ``batch`` as layers of the kind ``layer`` see it."""
        rotary = None
        if layer.rotary is not None:
            rotary = rotary_tables(batch.positions, config.head_size, layer.rotary)
        device = batch.positions.device
        masks = tuple(_group_mask(group, layer.window, config.causal, bias, dtype, device) for group in batch.groups)
        return cls(masks, rotary, bias, layer.window, config.causal)

    def text_scores_mask(self, wanted: WantedMaps, device: torch.device) -> Tensor | None:
        """Return the mask of one text alone, for the heads asked: (L, L), (heads, L, L) or None."""
        length = wanted.length
        mask = text_mask(length, window=self.window, causal=self.causal, device=device)
        if wanted.num_seen is not None and wanted.num_seen < length:
            seen = padding_mask([wanted.num_seen], length, device)  # (1, L)
            mask = seen.expand(length, length) if mask is None else mask & seen
        if self.bias is None:
            return mask
        bias = self.bias[list(wanted.heads), :length, :length].float()  # (heads, L, L)
        return bias if mask is None else torch.where(mask, bias, torch.finfo(bias.dtype).min)


def _group_mask(
    group: Group, window: int | None, causal: bool, bias: Tensor | None, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """Combine everything that hides or favours keys, for one group: bool, or float where there is a bias."""
    mask = text_mask(group.length, window=window, causal=causal, device=device)  # (L, L)
    seen = group.mask if group.seen is None else group.seen
    if seen is not None:
        keys = seen[:, None, None, :]  # (B, 1, 1, L)
        is_narrowed = mask is not None
        mask = keys if mask is None else mask & keys  # (B, 1, 1 or L, L)
        if is_narrowed and group.mask is not None:
            # a padded query may see real keys: its row is thrown away, but it must not be empty (NaN in some kernels)
            mask = mask | ~group.mask[:, None, :, None]
    if bias is None:
        return mask
    bias = bias[:, : group.length, : group.length].to(dtype)  # (H, L, L)
    if mask is None:
        return bias.expand(group.num_texts, -1, -1, -1)  # (B, H, L, L)
    return torch.where(mask, bias, torch.finfo(dtype).min)  # (B or 1, H, L, L)


class MultiHeadAttention(nn.Module):
    """H attentions side by side, on packed tokens.

    Parameters
    ----------
    config : EncoderConfig
    layer : LayerConfig
    attend : Attend
        The attention core, one of those in :mod:`model.attention_cores`; a batch that has bounds instead of groups
        takes :func:`attend_varlen` all the same.

    References
    ----------
    Vaswani et al. 2017, section 3.2.2.
    """

    def __init__(self, config: EncoderConfig, layer: LayerConfig, attend: Attend = attend_fused) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_size = config.head_size
        self.dropout = config.attention_dropout
        self.interleaved = layer.rotary is not None and layer.rotary.interleaved
        self.attend = attend
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size, bias=config.attention_bias)
        self.out = Linear(config.hidden_size, config.hidden_size, bias=config.attention_out_bias)

    def forward(
        self, hidden_states: Tensor, batch: PackedBatch, view: LayerView, wanted: Sequence[WantedMaps] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Let every token look at the tokens of its own text.

        Parameters
        ----------
        hidden_states : Tensor, shape (T, D)
        batch : PackedBatch
        view : LayerView
            The batch as this kind of layer sees it.
        wanted : sequence of WantedMaps
            Maps to give beside the output. They do not change the output.

        Returns
        -------
        Tensor, shape (T, D)
        list of Tensor, each shape (heads, L, L), float32
            One for each of ``wanted``, in that order.
        """
        heads = self.qkv(hidden_states).view(-1, 3, self.num_heads, self.head_size)  # (T, 3, H, K)
        if view.rotary is not None:
            query, key = (rotate(heads[:, i], *view.rotary, interleaved=self.interleaved) for i in (0, 1))
            heads = torch.stack((query, key, heads[:, 2]), dim=1)
        if batch.bounds is None:
            context = self._attend_groups(heads, batch, view)  # (T, D)
        else:
            context = attend_varlen(heads, batch.bounds, window=view.window, causal=view.causal)
        return self.out(context), [self._maps(heads, maps, view) for maps in wanted]

    def _attend_groups(self, heads: Tensor, batch: PackedBatch, view: LayerView) -> Tensor:
        """Run the attention core group by group: (T, 3, H, K) -> (T, D)."""
        groups = zip(batch.groups, view.masks, strict=True)
        contexts = [self._attend_group(heads, group, mask) for group, mask in groups]
        idle = len(heads) - batch.groups[-1].stop
        if idle:
            contexts.append(heads.new_zeros(idle, self.num_heads * self.head_size))
        return contexts[0] if len(contexts) == 1 else torch.cat(contexts)

    def _attend_group(self, heads: Tensor, group: Group, mask: Tensor | None) -> Tensor:
        """Run the attention core for one group: (T, 3, H, K) -> (tokens of the group, D)."""
        query, key, value = group.pad(heads).permute(2, 0, 3, 1, 4)  # each (B, H, L, K)
        context, _ = self.attend(query, key, value, mask, self.dropout if self.training else 0.0)
        return group.pack(context.transpose(1, 2).flatten(2))  # (B, H, L, K) -> (B, L, D) -> packed

    def _maps(self, heads: Tensor, wanted: WantedMaps, view: LayerView) -> Tensor:
        """Compute the maps of one text once more, in float32: (T, 3, H, K) -> (heads, L, L)."""
        text = heads[wanted.start : wanted.start + wanted.length]
        query, key = text[:, :2, list(wanted.heads)].float().permute(1, 2, 0, 3)  # each (heads, L, K)
        return attention_weights(query, key, view.text_scores_mask(wanted, heads.device))
