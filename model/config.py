"""The sizes and choices that make one :class:`~model.encoder.Encoder` into any of the supported families.

``formats/`` fills an :class:`EncoderConfig` from a checkpoint's own configuration; nothing else knows the families.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NormKind = Literal["std", "layer", "rms"]
"""``std``: both documents in seeds/, ``a * (x - mean) / (unbiased std + eps) + b``; ``layer``: Ba et al. 2016;
``rms``: Zhang and Sennrich 2019."""

NormPlacement = Literal["pre", "residual", "post"]
"""``pre``: x + f(norm(x)); ``residual``: x + norm(f(x)); ``post``: norm(x + f(x))."""

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "geglu", "swiglu"]
"""The last two are gated: the first feed-forward product has 2 F outputs, ``act(first half) * second half``."""

Positions = Literal["none", "sinusoidal", "learned", "rotary", "relative"]
"""``relative`` is MPNet's: a learned table and buckets of distance."""

GATED_ACTIVATIONS = frozenset({"geglu", "swiglu"})

_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_COUNTS = ("max_positions", "embedding_size", "num_token_types", "position_offset", "relative_num_buckets")
_RATES = ("norm_eps", "dropout", "attention_dropout")

MAX_TABLE_VALUES = 2**27
"""Of the one table that is computed instead of read: 512 MB, for 131,072 positions of 1,024 dimensions."""


@dataclass(frozen=True, slots=True)
class RotaryConfig:
    """Rotary positions (Su et al. 2021).

    Attributes
    ----------
    base : float
        The wavelength base, theta.
    fraction : float
        Share of each head that is rotated, from the front; 1 = all of it.
    interleaved : bool
        True rotates (0, 1), (2, 3), ...; False rotates (0, K/2), (1, K/2 + 1), ...
    scaling : float
        Positions are divided by it (linear scaling); 1 = none.
    """

    base: float = 10_000.0
    fraction: float = 1.0
    interleaved: bool = False
    scaling: float = 1.0


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What may differ from layer to layer.

    Attributes
    ----------
    window : int or None
        Tokens a query sees on each side of itself; None = all.
    rotary : RotaryConfig or None
        Set where positions are rotary.
    attention_norm : bool
        False where the first sublayer has no norm (ModernBERT's first layer: the embedding norm stands in for it).
    """

    window: int | None = None
    rotary: RotaryConfig | None = None
    attention_norm: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """Everything the encoder is built from.

    Attributes
    ----------
    vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size : int
        V, D, N, H, F.
    max_positions : int or None
        Longest text in tokens that the positions allow (RoBERTa's 514 rows make 512); None = no limit.
    embedding_size : int or None
        Width of the token embedding where it is not D (ELECTRA); a projection follows.
    num_token_types : int
        Rows of the token type table, 0 = no such table.
    position_offset : int
        Row of the learned table that the first token takes (RoBERTa, MPNet: ``pad_token_id + 1``).
    embedding_scale : float
        Token embeddings are multiplied by it before positions are added (the seeds: ``sqrt(D)``).
    norm_eps : float
        Added to the std (``std``), to the variance (``layer``) or to the mean square (``rms``).
    final_norm, embedding_norm, norm_bias : bool
        A norm after the last layer; a norm after the embeddings; an additive term in every norm.
    attention_bias, attention_out_bias, feed_forward_bias : bool
        Additive terms of the query/key/value, the output and the feed-forward products.
    relative_num_buckets, relative_max_distance : int
        T5-style buckets of ``relative`` positions (MPNet).
    layers : tuple of LayerConfig
        One entry per layer; filled with defaults when empty.
    causal : bool
        Hide the future from every token. Off in every served model; for library users and for documentation.
    dropout, attention_dropout : float
        Used in training only.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    norm: NormKind
    norm_placement: NormPlacement
    norm_eps: float
    activation: Activation
    positions: Positions
    max_positions: int | None = None
    embedding_size: int | None = None
    num_token_types: int = 0
    position_offset: int = 0
    embedding_scale: float = 1.0
    embedding_norm: bool = False
    final_norm: bool = False
    norm_bias: bool = True
    attention_bias: bool = True
    attention_out_bias: bool = True
    feed_forward_bias: bool = True
    relative_num_buckets: int = 32
    relative_max_distance: int = 128
    layers: tuple[LayerConfig, ...] = ()
    causal: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.1

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be built, fill ``layers``."""
        for field in (*_SIZES, *_COUNTS):
            size = getattr(self, field)
            if size is None and field not in _SIZES:
                continue
            if isinstance(size, bool) or not isinstance(size, int):
                raise ValueError(f"{field} is {type(size).__name__}, not a whole number")
            if size < (field in _SIZES):
                raise ValueError(f"{field} {size} is not a size: it must be at least {int(field in _SIZES)}")
        for field in _RATES:
            rate = getattr(self, field)
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
                raise ValueError(f"{field} {rate!r} is not a number from 0 to 1")
        if self.has_position_table and self.max_positions is None:
            raise ValueError(f"positions {self.positions!r} need max_positions")
        if self.positions == "sinusoidal" and self.num_position_rows * self.embedding_width > MAX_TABLE_VALUES:
            raise ValueError(
                f"{self.num_position_rows} positions x {self.embedding_width} dimensions are more than the "
                f"{MAX_TABLE_VALUES} values that a table of positions may have"
            )
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        if not self.layers:
            rotary = RotaryConfig() if self.positions == "rotary" else None
            object.__setattr__(self, "layers", (LayerConfig(rotary=rotary),) * self.num_hidden_layers)
        if len(self.layers) != self.num_hidden_layers:
            raise ValueError(f"{len(self.layers)} layer configs for num_hidden_layers {self.num_hidden_layers}")

    @property
    def has_position_table(self) -> bool:
        """Whether a row for each position is added to the token embeddings."""
        return self.positions in ("sinusoidal", "learned", "relative")

    @property
    def num_position_rows(self) -> int:
        """Rows of the table of positions, those before the first token's among them; 0 where there is no table."""
        return (self.max_positions or 0) + self.position_offset if self.has_position_table else 0

    @property
    def embedding_width(self) -> int:
        """E: width of the tables of embeddings."""
        return self.embedding_size or self.hidden_size

    @property
    def head_size(self) -> int:
        """K = D / H."""
        return self.hidden_size // self.num_attention_heads

    @property
    def is_gated(self) -> bool:
        """Whether the first feed-forward product is twice as wide."""
        return self.activation in GATED_ACTIVATIONS
