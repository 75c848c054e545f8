"""The Transformer encoder: embeddings, N layers of attention and feed-forward, on packed tokens.

Everything that tells the families apart is a field of :class:`~model.config.EncoderConfig`. The classes and their
names are those of the two documents in seeds/ and of Vaswani et al. 2017, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.attention import LayerView, MultiHeadAttention, WantedMaps
from model.attention_cores import Attend, attend_fused
from model.batch import PackedBatch
from model.collector import AttentionCollector
from model.config import EncoderConfig, LayerConfig, NormKind
from model.contract import AttentionSelection, TextAttention, TokenTable
from model.linear import ACTIVATION_FUNCTIONS, Linear
from model.positions import PositionalEncoding, RelativeBias


class StdNorm(nn.Module):
    """``weight * (x - mean) / (std + eps) + bias`` with the unbiased std: the norm of both documents in seeds/.

    :class:`torch.nn.LayerNorm` takes the biased std, which is smaller by ``sqrt((D - 1) / D)``, and adds eps under the
    root. Its kernel computes this norm all the same, many times as fast as the formula written out in tensor
    operations: the factor goes into the gain, and ``std / (std + eps)`` scales the rows afterwards.

    Notes
    -----
    Gradients leave out that last factor's own, which is ``eps / std`` of the rest.
    """

    def __init__(self, width: int, eps: float = 1e-6, *, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        width = x.shape[-1]
        factor = math.sqrt((width - 1) / width)
        # Half precision does not see eps next to any std above 0.01, so that there it may as well stand under the root.
        is_unseen = self.eps < 0.01 * torch.finfo(x.dtype).eps
        under_root = self.eps**2 if is_unseen else 1e-30  # for rows of equal numbers; moves no other one
        out, _, inverse = torch.native_layer_norm(x, (width,), self.weight * factor, self.bias, under_root)
        if is_unseen:
            return out
        shrink = (1 / (1 + self.eps * factor * inverse.detach())).to(out.dtype)  # (..., 1)
        return out * shrink if self.bias is None else torch.lerp(self.bias.to(out.dtype), out, shrink)


def make_norm(kind: NormKind, width: int, eps: float, *, bias: bool) -> nn.Module:
    """Build the norm that a config names."""
    if kind == "std":
        return StdNorm(width, eps, bias=bias)
    if kind == "rms":
        return nn.RMSNorm(width, eps)
    return nn.LayerNorm(width, eps, bias=bias)


class TokenEmbedding(nn.Embedding):
    """A row per id, times a constant: ``sqrt(D)`` in the seeds, 1 in most families."""

    def __init__(self, vocab_size: int, width: int, scale: float) -> None:
        super().__init__(vocab_size, width)
        self.scale = scale

    def forward(self, input_ids: Tensor) -> Tensor:
        """Look ids up: (T,) int -> (T, width)."""
        rows: Tensor = super().forward(input_ids)
        return rows if self.scale == 1.0 else rows * self.scale


class Embedding(nn.Module):
    """From ids to the encoder's input: token, plus token type, plus position, normed and projected where asked."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.embedding_width
        self.tokens = TokenEmbedding(config.vocab_size, width, config.embedding_scale)
        self.token_types = nn.Embedding(config.num_token_types, width) if config.num_token_types else None
        self.positions = PositionalEncoding(config, width) if config.has_position_table else None
        self.norm = (
            make_norm(config.norm, width, config.norm_eps, bias=config.norm_bias) if config.embedding_norm else None
        )
        self.dropout = nn.Dropout(config.dropout)
        self.projection = Linear(width, config.hidden_size) if width != config.hidden_size else None

    def forward(self, batch: PackedBatch) -> Tensor:
        """Embed every token of a batch: -> (T, D)."""
        x: Tensor = self.tokens(batch.input_ids)  # (T, E)
        if self.token_types is not None:
            # one row (RoBERTa) says nothing of segments: every token takes it, whatever the tokenizer's template says
            has_segments = self.token_types.num_embeddings > 1
            x = x + (self.token_types(batch.token_type_ids) if has_segments else self.token_types.weight[0])
        if self.positions is not None:
            x = x + self.positions(batch.positions)
        if self.norm is not None:
            x = self.norm(x)
        x = self.dropout(x)
        if self.projection is not None:
            x = self.projection(x)  # (T, D)
        return x


class FeedForward(nn.Module):
    """Two linear layers with an activation between them; with a gate where the activation has one.

    References
    ----------
    Vaswani et al. 2017, section 3.3; gates: Shazeer 2020.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.gate_activation = ACTIVATION_FUNCTIONS[config.activation] if config.is_gated else None
        self.expand = Linear(
            config.hidden_size,
            config.intermediate_size * (2 if config.is_gated else 1),
            bias=config.feed_forward_bias,
            activation=None if config.is_gated else config.activation,
        )
        self.contract = Linear(config.intermediate_size, config.hidden_size, bias=config.feed_forward_bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transform every token by itself: (T, D) -> (T, D)."""
        x = self.expand(x)  # (T, F), gated: (T, 2 F)
        if self.gate_activation is not None:
            x, gate = x.chunk(2, dim=-1)  # each (T, F)
            x = self.gate_activation(x) * gate
        contracted: Tensor = self.contract(self.dropout(x))  # (T, D)
        return contracted


class SublayerConnection(nn.Module):
    """A residual connection around a sublayer, with a norm before, inside or after it.

    Parameters
    ----------
    config : EncoderConfig
        ``norm_placement``: "pre" x + f(norm(x)), the second document in seeds/; "residual" x + norm(f(x)), the first;
        "post" norm(x + f(x)), Vaswani et al. 2017, section 3.1.
    has_norm : bool
        False leaves the norm out.
    """

    def __init__(self, config: EncoderConfig, *, has_norm: bool = True) -> None:
        super().__init__()
        self.placement = config.norm_placement
        self.norm = (
            make_norm(config.norm, config.hidden_size, config.norm_eps, bias=config.norm_bias)
            if has_norm
            else nn.Identity()
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Add ``sublayer`` to ``x``: (T, D) -> (T, D)."""
        out: Tensor
        if self.placement == "pre":
            out = x + self.dropout(sublayer(self.norm(x)))
        elif self.placement == "residual":
            out = x + self.dropout(self.norm(sublayer(x)))
        else:
            out = self.norm(x + self.dropout(sublayer(x)))
        return out


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each in its :class:`SublayerConnection`."""

    def __init__(self, config: EncoderConfig, layer: LayerConfig, attend: Attend) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, layer, attend)
        self.feed_forward = FeedForward(config)
        self.sublayers = nn.ModuleList(
            [SublayerConnection(config, has_norm=layer.attention_norm), SublayerConnection(config)]
        )

    def forward(
        self, x: Tensor, batch: PackedBatch, view: LayerView, wanted: Sequence[WantedMaps] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Run both sublayers. Parameters and returns as :meth:`~model.attention.MultiHeadAttention.forward`."""
        maps: list[Tensor] = []

        def attention(y: Tensor) -> Tensor:
            nonlocal maps
            context: Tensor
            context, maps = self.self_attention(y, batch, view, wanted)
            return context

        x = self.sublayers[0](x, attention)
        x = self.sublayers[1](x, self.feed_forward)
        return x, maps


@dataclass(frozen=True, slots=True)
class EncoderOutput:
    """What the encoder gives for a batch.

    Attributes
    ----------
    last_hidden_state : Tensor, shape (T, D)
        Packed as the batch is.
    attentions : list of (TextAttention or None), one per text in packed order
        None where not asked.
    """

    last_hidden_state: Tensor
    attentions: list[TextAttention | None]


class Encoder(nn.Module):
    """N encoder layers on top of the embeddings.

    Parameters
    ----------
    config : EncoderConfig
    attend : Attend
        The attention core of every layer: see :mod:`model.attention_cores`. All give the same embeddings to within
        rounding. The default is the fused kernel; the explicit one is for reading and for tests.
    """

    def __init__(self, config: EncoderConfig, attend: Attend = attend_fused) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.relative_bias = RelativeBias(config) if config.positions == "relative" else None
        self.layers = nn.ModuleList([EncoderLayer(config, layer, attend) for layer in config.layers])
        self.norm = (
            make_norm(config.norm, config.hidden_size, config.norm_eps, bias=config.norm_bias)
            if config.final_norm
            else None
        )

    def forward(
        self,
        batch: PackedBatch,
        attentions: Sequence[AttentionSelection | None] | None = None,
        tables: Sequence[TokenTable | None] | None = None,
    ) -> EncoderOutput:
        """Encode a batch.

        Parameters
        ----------
        batch : PackedBatch
        attentions : sequence of (AttentionSelection or None), one per text in packed order, optional
            Which attention to give. It costs only the texts that ask, and changes no hidden state.
        tables : sequence of (TokenTable or None), likewise, optional
            Needed of the texts whose selection is about special tokens or words.
        """
        x = self.embedding(batch)  # (T, D)
        views = self._views(batch, x.dtype)
        collectors = _collectors(batch, attentions, tables)
        for index, (layer, kind) in enumerate(zip(self.layers, self.config.layers, strict=True)):
            askers = [collector for collector in collectors.values() if collector.selection.heads_of(index)]
            x, maps = layer(x, batch, views[kind], [collector.wanted(index) for collector in askers])
            _hand_over(index, maps, askers)
            del maps  # or two layers' maps would be held at once
        if self.norm is not None:
            x = self.norm(x)
        return EncoderOutput(
            x, [collectors[text].finish() if text in collectors else None for text in range(len(batch.lengths))]
        )

    def _views(self, batch: PackedBatch, dtype: torch.dtype) -> dict[LayerConfig, LayerView]:
        """Prepare masks and rotations once for each kind of layer."""
        bias = None
        if self.relative_bias is not None:
            bias = self.relative_bias(max(group.length for group in batch.groups))
        return {kind: LayerView.of(kind, self.config, batch, bias, dtype) for kind in set(self.config.layers)}


def _collectors(
    batch: PackedBatch,
    attentions: Sequence[AttentionSelection | None] | None,
    tables: Sequence[TokenTable | None] | None,
) -> dict[int, AttentionCollector]:
    """Give each text that asks for attention, known by its place in the pack, what collects it."""
    device, starts, lengths = batch.positions.device, batch.starts, batch.lengths
    return {
        text: AttentionCollector(
            selection, starts[text], lengths[text], tables[text] if tables else None, device, batch.num_seen[text]
        )
        for text, selection in enumerate(attentions or ())
        if selection is not None
    }


def _hand_over(layer: int, maps: Sequence[Tensor], askers: Sequence[AttentionCollector]) -> None:
    """Give each asker its maps; a function of its own, so that no name outlives them."""
    for collector, weights in zip(askers, maps, strict=True):
        collector.take(layer, weights)
