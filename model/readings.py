"""How a late interaction model reads a query, and how a document: what is added to a text's tokens, what is left out.

A prefix stands behind the first special token and tells the two apart. A query may be filled up with mask tokens to a
fixed length (its expansion), which have vectors of their own. Of a document some tokens, mostly punctuation, have none.

References: Khattab and Zaharia 2020 (ColBERT), section 3.2; names as in PyLate and sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from model.contract import EncodeInput, TokenTable

T = TypeVar("T")

Role = Literal["query", "document"]

ROLES: Mapping[str, Role] = {"query": "query", "document": "document"}
"""By the name of a prompt."""


@dataclass(frozen=True, slots=True)
class Added:
    """A token that is put among a text's own."""

    id: int
    spelling: str


@dataclass(frozen=True, slots=True)
class Reading:
    """How texts of one role are read.

    Attributes
    ----------
    max_length : int
        Tokens that are read, special tokens and prefix included.
    prefix : Added or None
    expansion_token : Added or None
        What shorter texts are filled up with.
    expansion_length : int
        To so many tokens.
    attend_to_expansion : bool
        Whether tokens look at the expansion; otherwise it only looks at them.
    skiplist_ids : frozenset of int
        Tokens that have no vector.
    """

    max_length: int
    prefix: Added | None = None
    expansion_token: Added | None = None
    expansion_length: int = 0
    attend_to_expansion: bool = False
    skiplist_ids: frozenset[int] = frozenset()

    @property
    def num_added(self) -> int:
        """Tokens that every text of this role has beside those of the template."""
        return 0 if self.prefix is None else 1

    def read(self, item: EncodeInput) -> EncodeInput:
        """Add prefix and expansion to a text as the tokenizer gives it, and say which tokens have a vector."""
        if self.prefix is not None:
            item = _insert(item, min(1, item.num_tokens), [self.prefix])
        num_own = item.num_tokens
        if self.expansion_token is not None and num_own < self.expansion_length:
            item = _insert(item, num_own, [self.expansion_token] * (self.expansion_length - num_own))
            item = replace(item, num_seen=None if self.attend_to_expansion else num_own)
        return self.keep(item)

    def keep(self, item: EncodeInput) -> EncodeInput:
        """Say which tokens have a vector, of token ids that are taken as they are."""
        if not self.skiplist_ids.intersection(item.input_ids):
            return item
        kept = tuple(place for place, token in enumerate(item.input_ids) if token not in self.skiplist_ids)
        return replace(item, kept=kept)


def _insert(item: EncodeInput, place: int, added: list[Added]) -> EncodeInput:
    """Put tokens before the one at ``place``, or at the end; they count as the template's own."""
    ids, types = list(item.input_ids), list(item.token_type_ids)
    ids[place:place] = [token.id for token in added]
    types[place:place] = [0] * len(added)
    return replace(
        item,
        input_ids=ids,
        token_type_ids=types,
        num_tokens_total=item.num_tokens_total + len(added),
        prompt_length=item.prompt_length + len(added) if place < item.prompt_length else item.prompt_length,
        tokens=None if item.tokens is None else _insert_in_table(item.tokens, place, added),
    )


def _insert_in_table(table: TokenTable, place: int, added: list[Added]) -> TokenTable:
    """Describe added tokens as special ones, which stand for none of the text."""
    count = len(added)

    def with_more(column: list[T], more: list[T]) -> list[T]:
        return [*column[:place], *more, *column[place:]]

    return TokenTable(
        ids=with_more(table.ids, [token.id for token in added]),
        texts=with_more(table.texts, [token.spelling for token in added]),
        starts=with_more(table.starts, [0] * count),
        ends=with_more(table.ends, [0] * count),
        special=with_more(table.special, [True] * count),
        segments=with_more(table.segments, [None] * count),
        words=with_more(table.words, [None] * count),
    )
