"""The plain records that cross the border between ``app/`` and ``model/``.

An :class:`EncodeInput` and an :class:`OutputSpec` go in, a :class:`Row` comes out. No tensor is among them: arrays
are numpy, so that whoever holds a row holds no piece of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


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
    """

    input_ids: list[int]
    token_type_ids: list[int]
    num_tokens_total: int
    prompt_length: int = 0
    tokens: TokenTable | None = None
    words: WordTable | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that are processed, special tokens included."""
        return len(self.input_ids)

    @property
    def is_truncated(self) -> bool:
        """Whether tokens were cut away."""
        return len(self.input_ids) < self.num_tokens_total


@dataclass(frozen=True, slots=True)
class AttentionSelection:
    """Which maps are wanted: true layer and head numbers, in the order of the answer."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]

    def num_values(self, num_tokens: int) -> int:
        """Weights in the maps of a text of ``num_tokens`` tokens: layers x heads x L x L."""
        return len(self.layers) * len(self.heads) * num_tokens * num_tokens


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
    token_states : bool
        The last hidden state of every token.
    logits : bool
        The output of the model's classification head, for folders that have one.
    attention : AttentionSelection or None
        Attention maps; None costs nothing.
    """

    pooled: bool = True
    normalize: bool = True
    dimensions: int | None = None
    token_states: bool = False
    logits: bool = False
    attention: AttentionSelection | None = None


@dataclass(slots=True)
class Row:
    """What one text gets back. Each array owns its memory.

    Attributes
    ----------
    embedding : array, shape (dimensions,), float32, or None
    token_states : array, shape (L, D), float32, or None
    logits : array, shape (classes,), float32, or None
    attention : array, shape (layers, heads, L, L), float32, or None
        Rows sum to 1.
    queue_seconds, inference_seconds : float
        How long the text waited, and how long its batch ran. Written by the batcher, read once by the service.
    """

    embedding: FloatArray | None = None
    token_states: FloatArray | None = None
    logits: FloatArray | None = None
    attention: FloatArray | None = None
    queue_seconds: float = 0.0
    inference_seconds: float = 0.0
