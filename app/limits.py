"""What one request may hold, and for attention that is too large, what would fit.

Everything is counted after tokenizing and before any forward pass, but for the weights of sparse vectors: how many of
them are above 0 is known only then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from app.errors import AnswerTooLargeError, AttentionTooLargeError
from model.contract import AttentionSelection, EncodeInput, Row, SpecialMode, Unit
from model.head_statistics import STATISTICS
from model.maps import num_units

MAX_WAYS_OUT = 3
MAX_CHANGES = 3
"""A way out is so many changes of a request at most."""

SPARSE_WEIGHT_VALUES = 3
"""A weight of a sparse vector is so many numbers of an answer: with its index and the two names it takes 34 bytes; a
number of a vector takes 11."""

FEW_WEIGHTS = 16
"""``top_k`` of a way out: the 16 largest weights of a row hold 84 % of its mass on average (128 tokens)."""

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may hold.

    Attributes
    ----------
    max_texts, max_text_characters : int
    max_attention_values_list, max_attention_values_binary : int
        Numbers of attention in one answer, as JSON lists and in any other form.
    max_attention_values_computed : int
        Attention weights computed for one request, whatever becomes of them.
    max_token_values : int
        Numbers in an answer that holds a vector for each token, or sparse vectors; a weight of those is
        :data:`SPARSE_WEIGHT_VALUES`.
    """

    max_texts: int
    max_text_characters: int
    max_attention_values_list: int
    max_attention_values_binary: int
    max_attention_values_computed: int
    max_token_values: int = 4_000_000


def check_token_states(num_tokens: int, dimensions: int, limits: Limits) -> None:
    """Refuse an answer with a vector for each token that would hold too many numbers.

    Raises
    ------
    AnswerTooLargeError
    """
    if num_tokens * dimensions > limits.max_token_values:
        raise AnswerTooLargeError(
            f"{num_tokens} tokens of {dimensions} numbers are {num_tokens * dimensions}, an answer may hold "
            f"{limits.max_token_values}: send fewer or shorter texts",
            param="texts",
            limit=limits.max_token_values,
            actual=num_tokens * dimensions,
        )


def check_sparse_vectors(rows: Sequence[Row], limits: Limits) -> None:
    """Refuse an answer of sparse vectors that would hold too many weights.

    After the texts have run, as any weight may turn out to be 0: before, all that is known is the vocabulary's size,
    which is hundreds of times more.

    Raises
    ------
    AnswerTooLargeError
    """
    num_weights = num_sparse_weights(rows)
    limit = limits.max_token_values // SPARSE_WEIGHT_VALUES
    if num_weights > limit:
        raise AnswerTooLargeError(
            f"the sparse vectors of {len(rows)} texts have {num_weights} weights, an answer may hold {limit}: send "
            "fewer texts",
            param="texts",
            limit=limit,
            actual=num_weights,
        )


def num_sparse_weights(rows: Sequence[Row]) -> int:
    """Count the weights of sparse vectors."""
    return sum(row.sparse_vector.index.size for row in rows if row.sparse_vector is not None)


def check_whole(texts: Sequence[str], limits: Limits) -> None:
    """Refuse texts that are too long together to be answered token by token, with nothing cut away.

    Raises
    ------
    AnswerTooLargeError
    """
    characters = sum(map(len, texts))
    if characters > limits.max_text_characters:
        raise AnswerTooLargeError(
            f"texts that are answered token by token may have {limits.max_text_characters} characters together, "
            f"these have {characters}",
            param="texts",
            limit=limits.max_text_characters,
            actual=characters,
        )


def check_attention(
    selection: AttentionSelection, texts: Mapping[int, EncodeInput], limits: Limits, *, as_list: bool
) -> None:
    """Refuse attention that takes too much to compute or to send.

    Parameters
    ----------
    selection : AttentionSelection
    texts : mapping of int to EncodeInput
        The texts that are asked for, by their place in the request.
    limits : Limits
    as_list : bool
        Whether the numbers leave as JSON lists.

    Raises
    ------
    AttentionTooLargeError
        With up to three ways out that would fit, those that lose least first.
    """
    if not texts:
        return
    ask = _Ask(selection, _Sizes.of(texts), as_list)
    if ask.num_computed() > limits.max_attention_values_computed:
        what, which = "the maps behind this have {} values, a request may have {} computed", "computed"
    elif ask.num_sent() > ask.sent_limit(limits):
        what, which = "the attention asked for has {} values, an answer of this form may hold {}", "sent"
    else:
        return

    def measure(one: _Ask) -> tuple[int, int]:
        if which == "computed":
            return one.num_computed(), limits.max_attention_values_computed
        return one.num_sent(), one.sent_limit(limits)

    actual, bound = measure(ask)
    ways = [f"{', '.join(labels)} gives {measure(other)[0]}" for labels, other in _ways_out(ask, limits)]
    raise AttentionTooLargeError(
        f"{what.format(actual, bound)}: {'; '.join(ways) or 'ask for fewer items, or send shorter texts'}",
        param="attention",
        limit=bound,
        actual=actual,
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    """How long the texts are: in tokens, and in the units that rows and columns may stand for, counted once each."""

    texts: Mapping[int, EncodeInput]
    tokens: Counts
    counted: dict[tuple[Unit, SpecialMode], Counts] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Mapping[int, EncodeInput]) -> _Sizes:
        return cls(texts, np.array([text.num_tokens for text in texts.values()], dtype=np.int64))

    def units(self, unit: Unit, special: SpecialMode) -> Counts:
        """Count the units of each text."""
        if (unit, special) not in self.counted:
            counts = [num_units(text, unit, special) for text in self.texts.values()]
            self.counted[unit, special] = np.array(counts, dtype=np.int64)
        return self.counted[unit, special]


@dataclass(frozen=True, slots=True)
class _Ask:
    """A request's attention, as far as its size goes."""

    selection: AttentionSelection
    sizes: _Sizes
    as_list: bool

    def sent_limit(self, limits: Limits) -> int:
        """Return how many numbers the answer may hold."""
        return limits.max_attention_values_list if self.as_list else limits.max_attention_values_binary

    def num_computed(self) -> int:
        """Count the weights that are computed: on all tokens, whatever becomes of them."""
        return self.selection.num_values(1) * int((self.sizes.tokens**2).sum())

    def num_sent(self) -> int:
        """Count the numbers in the answer: their real shapes, statistics and kept mass included."""
        selection = self.selection
        units = self.sizes.units(selection.unit, selection.special)
        is_hidden = selection.special != "keep"
        total = 0
        if selection.maps:
            rows = len(selection.layers) * selection.map_heads * units
            width = units
            if selection.is_sparse:
                width = 2 * np.minimum(units, selection.row_bound(int(units.max(initial=0)))) + 1
            total += int((rows * (width + is_hidden)).sum())
        if selection.stats:
            per_head = len(STATISTICS) + is_hidden
            total += len(units) * len(selection.layers) * len(selection.heads) * per_head
        if selection.rollout is not None:
            total += int((units * (units + is_hidden)).sum())
        return total

    def fits(self, limits: Limits) -> bool:
        """Whether this would be served."""
        return self.num_computed() <= limits.max_attention_values_computed and self.num_sent() <= self.sent_limit(
            limits
        )


Change = Callable[[_Ask], _Ask]


def _changes(ask: _Ask, limits: Limits) -> Iterator[tuple[str, Change]]:
    """List what a caller may change, as the request spells it: first what loses least."""
    selection, texts = ask.selection, ask.sizes.texts

    def select(label: str, **fields: object) -> tuple[str, Change]:
        return label, lambda one: replace(one, selection=replace(one.selection, **fields))

    if ask.as_list:
        label = (
            "Accept: application/vnd.safetensors or encoding=base64 "
            f"(which may hold {limits.max_attention_values_binary})"
        )
        yield label, lambda one: replace(one, as_list=False)
    if len(selection.layers) > 1:
        last = selection.rollout.layers[-1] if selection.rollout else max(selection.layers)
        yield select("layers=[-1]", layers=(last,))
    if selection.maps and selection.map_heads > 1:
        yield select("reduce_heads=mean", reduce_heads="mean")
    if selection.maps and (selection.top_k is None or selection.top_k > FEW_WEIGHTS):
        yield select(f"top_k={FEW_WEIGHTS}", top_k=FEW_WEIGHTS)
    if selection.unit == "token":
        yield select("unit=word", unit="word")
    if len(selection.heads) > 1:
        yield select(f"heads=[{selection.heads[0]}]", heads=selection.heads[:1])
    if len(texts) > 1:
        first = min(texts)
        yield f"items=[{first}]", lambda one: replace(one, sizes=_Sizes.of({first: texts[first]}))
    if selection.rollout is not None:
        yield select("rollout=null", rollout=None)
    if selection.maps:
        label = "maps=false" if selection.stats or selection.rollout else "maps=false with stats=true"
        yield select(label, maps=False, stats=selection.stats or selection.rollout is None)


def _ways_out(ask: _Ask, limits: Limits) -> Iterator[tuple[tuple[str, ...], _Ask]]:
    """Find the smallest sets of changes after which the request fits."""
    changes = list(_changes(ask, limits))
    found: list[set[str]] = []
    for size in range(1, MAX_CHANGES + 1):
        for chosen in combinations(changes, size):
            labels = tuple(label for label, _ in chosen)
            if any(fewer <= set(labels) for fewer in found):
                continue
            changed = ask
            for _, change in chosen:
                changed = change(changed)
            if changed.fits(limits):
                found.append(set(labels))
                yield labels, changed
                if len(found) == MAX_WAYS_OUT:
                    return
