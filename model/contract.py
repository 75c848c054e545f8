"""The plain records that cross the border between ``app/`` and ``model/``.

An :class:`EncodeInput` and an :class:`OutputSpec` go in, a :class:`Row` comes out. No tensor is among them: arrays
are numpy, so that whoever holds a row holds no piece of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]

HeadReduction = Literal["mean", "max"]
Unit = Literal["token", "word"]
SpecialMode = Literal["keep", "mask", "renormalize"]


@dataclass(frozen=True, slots=True)
class TokenTable:
    """One entry per token of a text, in the order of the axes of its attention maps.

    Attributes
    ----------
    ids : list of int
    texts : list of str
        The piece as the vocabulary spells it (``##bel``, ``Ġthe``).
    starts, ends : list of int
        Code points into the caller's own text; 0, 0 for a token that stands for none of it.
    special : list of bool
        True for what the template added, never for what a user typed.
    segments : list of int or None
        0 = first text, 1 = second text of a pair, None = special or prompt.
    words : list of int or None
        Index into :class:`WordTable`, None = special or prompt.
    """

    ids: list[int]
    texts: list[str]
    starts: list[int]
    ends: list[int]
    special: list[bool]
    segments: list[int | None]
    words: list[int | None]


@dataclass(frozen=True, slots=True)
class WordTable:
    """One entry per word: its text, code point offsets into the caller's text, and segment."""

    texts: list[str]
    starts: list[int]
    ends: list[int]
    segments: list[int]


@dataclass(frozen=True, slots=True)
class EncodeInput:
    """What one text has become: ids ready for the encoder.

    Attributes
    ----------
    input_ids : list of int, length L
        Special tokens included.
    token_type_ids : list of int, length L
        0 for the first text, 1 for the second of a pair.
    num_tokens_total : int
        Tokens before truncation, special tokens included.
    prompt_length : int
        Leading tokens (special ones included) that belong to the prompt; pooling may leave them out.
    tokens, words : TokenTable, WordTable or None
        Present only when somebody asked: they cost more than the ids.
    num_seen : int or None
        Leading tokens that are looked at; those behind them, a query's expansion, only look. None = all.
    kept : tuple of int or None
        Places of the tokens that have a vector in late interaction; None = all.
    """

    input_ids: list[int]
    token_type_ids: list[int]
    num_tokens_total: int
    prompt_length: int = 0
    tokens: TokenTable | None = None
    words: WordTable | None = None
    num_seen: int | None = None
    kept: tuple[int, ...] | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that are processed, special tokens included."""
        return len(self.input_ids)

    @property
    def num_vectors(self) -> int:
        """Vectors that late interaction gives."""
        return len(self.input_ids) if self.kept is None else len(self.kept)

    @property
    def hides_tokens(self) -> bool:
        """Whether some of its tokens are not looked at."""
        return self.num_seen is not None and self.num_seen < len(self.input_ids)

    @property
    def is_truncated(self) -> bool:
        """Whether tokens were cut away."""
        return len(self.input_ids) < self.num_tokens_total


@dataclass(frozen=True, slots=True)
class RolloutSelection:
    """How attention is multiplied through the layers (see :func:`model.maps.rollout_step`).

    Attributes
    ----------
    residual : float
        Share of the identity in each step, 0 to 1: what the residual connections carry past attention.
    heads : "mean" or "max"
        How the heads of a layer become one map.
    layers : tuple of int
        The layers multiplied, first to last without a gap.
    num_heads : int
        Heads of a layer: all of them take part.
    """

    residual: float
    heads: HeadReduction
    layers: tuple[int, ...]
    num_heads: int


@dataclass(frozen=True, slots=True)
class AttentionSelection:
    """Which attention is wanted, and what is made of it, in this order: heads, special tokens, words, sparse rows.

    Attributes
    ----------
    layers, heads : tuple of int
        True numbers, in the order of the answer; of maps and statistics.
    reduce_heads : "mean", "max" or None
        Maps of the heads taken together. Statistics are of single heads all the same.
    unit : "token" or "word"
        What a row and a column of maps and rollout stand for.
    special : "keep", "mask" or "renormalize"
        What happens to the rows and columns of special tokens: nothing; they leave; they leave, and each row is divided
        by what it kept.
    top_k : int or None
        Keep so many weights of each row, the largest.
    min_weight : float
        Keep the weights of each row from here on.
    maps, stats : bool
        The maps themselves; the statistics of each head.
    rollout : RolloutSelection or None
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    reduce_heads: HeadReduction | None = None
    unit: Unit = "token"
    special: SpecialMode = "keep"
    top_k: int | None = None
    min_weight: float = 0.0
    maps: bool = True
    stats: bool = False
    rollout: RolloutSelection | None = None

    @property
    def is_sparse(self) -> bool:
        """Whether maps are rows of their largest weights."""
        return self.top_k is not None or self.min_weight > 0

    @property
    def needs_tables(self) -> bool:
        """Whether a text's token table must be known: which tokens are special, and the words."""
        return self.special != "keep" or self.unit == "word" or self.stats

    @property
    def map_heads(self) -> int:
        """Length of the maps' head axis."""
        return 1 if self.reduce_heads else len(self.heads)

    def heads_of(self, layer: int) -> tuple[int, ...]:
        """Return the heads whose maps a layer must give."""
        if self.rollout is not None and layer in self.rollout.layers:
            return tuple(range(self.rollout.num_heads))
        return self.heads if layer in self.layers and (self.maps or self.stats) else ()

    def num_values(self, num_tokens: int) -> int:
        """Weights that are computed for a text of ``num_tokens`` tokens: layers x heads x L x L."""
        layers = {*self.layers, *(self.rollout.layers if self.rollout else ())}
        return sum(len(self.heads_of(layer)) for layer in layers) * num_tokens * num_tokens

    def row_bound(self, num_units: int) -> int:
        """Return the weights that a row of a sparse map has at most."""
        bound = num_units if self.top_k is None else min(self.top_k, num_units)
        if self.min_weight > 0:  # a row sums to 1, so no more of them are that large; 1e-5 for rounding
            bound = int(min(bound, (1 + 1e-5) / self.min_weight))  # the quotient may be infinite
        return bound


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What a text's row shall hold.

    Attributes
    ----------
    pooled : bool
        The sentence embedding.
    normalize : bool
        Scale the embedding to unit length.
    dimensions : int or None
        Keep the first so many dimensions, then (with ``normalize``) scale again: Matryoshka.
    chunks : tuple of range, or None
        In place of one embedding, one of each of these stretches of tokens. None of them is empty.
    token_states : bool
        The last hidden state of every token.
    logits : bool
        The output of the model's classification head, for folders that have one.
    sparse_vector : bool
        The weights of the vocabulary's tokens, for SPLADE folders.
    token_vectors : bool
        What late interaction compares, for its folders.
    attention : AttentionSelection or None
        Attention maps; None costs nothing.
    """

    pooled: bool = True
    normalize: bool = True
    dimensions: int | None = None
    chunks: tuple[range, ...] | None = None
    token_states: bool = False
    logits: bool = False
    sparse_vector: bool = False
    token_vectors: bool = False
    attention: AttentionSelection | None = None


@dataclass(frozen=True, slots=True)
class SparseVector:
    """A vector as wide as the vocabulary of which only what is above 0 is kept.

    Attributes
    ----------
    index : array, shape (weights,), int32
        Ids of the vocabulary, ascending.
    value : array, shape (weights,), float32
        Their weights.
    """

    index: NDArray[np.int32]
    value: FloatArray


@dataclass(frozen=True, slots=True)
class SparseMaps:
    """Maps as compressed rows: of each row its largest weights, the largest first.

    Attributes
    ----------
    shape : tuple of int
        (layers, heads, queries, keys) of the whole maps; rows stand in C order of the first three.
    row_start : array, shape (rows + 1,), int32
        Row r is ``index[row_start[r]:row_start[r + 1]]``.
    index : array, int32
        Keys.
    weight : array, float32
    row_sum : array, shape (rows,), float64
        Of the whole row: what was left out is this, less the weights.
    """

    shape: tuple[int, int, int, int]
    row_start: NDArray[np.int32]
    index: NDArray[np.int32]
    weight: FloatArray
    row_sum: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TextAttention:
    """What was made of the attention of one text; each part only where it was asked for.

    Attributes
    ----------
    maps : array, shape (layers, heads, n, n), float32
        n units; the head axis has length 1 where heads are taken together.
    sparse : SparseMaps
        In place of ``maps``.
    kept_mass : array, shape (layers, heads, n), float32
        What each row of the maps kept when special tokens left.
    stats : mapping of str to array, shape (layers, heads), float32
        :data:`model.head_statistics.STATISTICS`; NaN where one has no meaning.
    rollout : array, shape (n, n), float32
    rollout_kept_mass : array, shape (n,), float32
    """

    maps: FloatArray | None = None
    sparse: SparseMaps | None = None
    kept_mass: FloatArray | None = None
    stats: Mapping[str, FloatArray] | None = None
    rollout: FloatArray | None = None
    rollout_kept_mass: FloatArray | None = None


@dataclass(slots=True)
class Row:
    """What one text gets back. Each array owns its memory.

    Attributes
    ----------
    embedding : array, shape (dimensions,), float32, or None
    chunks : array, shape (chunks, dimensions), float32, or None
        In its place, where chunks were asked for.
    token_states : array, shape (L, D), float32, or None
    logits : array, shape (classes,), float32, or None
    sparse_vector : SparseVector or None
    token_vectors : array, shape (vectors, dimensions), float32, or None
        Of the tokens that are kept.
    attention : TextAttention or None
    queue_seconds, inference_seconds : float
        How long the text waited, and how long its batch ran. Written by the batcher, read once by the service.
    """

    embedding: FloatArray | None = None
    chunks: FloatArray | None = None
    token_states: FloatArray | None = None
    logits: FloatArray | None = None
    sparse_vector: SparseVector | None = None
    token_vectors: FloatArray | None = None
    attention: TextAttention | None = None
    queue_seconds: float = 0.0
    inference_seconds: float = 0.0

    @property
    def maps(self) -> FloatArray | None:
        """The whole maps, shape (layers, heads, n, n), float32; None where they were not asked for, or are sparse."""
        return None if self.attention is None else self.attention.maps
