"""The tokenizer of a model folder, and whether it fits the encoder: no id that has no row, whatever a text is.

What a tokenizer puts around every text is checked when it is loaded, not when the first text meets it: the library
panics at a special token that its template does not describe, and an id without a row ends a CUDA context.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from model.config import EncoderConfig
from model.errors import CheckpointError
from model.files import shown
from model.folder import ModelFolder, read_tokenizer
from model.folder_readings import make_readings
from model.readings import Role
from model.tokenizer import SpecialTokens, Tokenizer, TokenizerConfig

SHORTEST_MAX_LENGTH = 3
"""A model must read at least one token between its special tokens."""


@dataclass(frozen=True, slots=True)
class Additions:
    """What a tokenizer adds to texts and to pairs of texts.

    Attributes
    ----------
    names : frozenset of str
        Special tokens that its templates name and do not describe.
    ids : frozenset of int
        Of those that it describes.
    token_types : frozenset of int
        Of the special tokens and of the texts.
    fault : str or None
        Which template lacks the place of a text, or has one too many.
    """

    names: frozenset[str]
    ids: frozenset[int]
    token_types: frozenset[int]
    fault: str | None = None


def make_tokenizer(folder: ModelFolder, config: EncoderConfig, special_tokens: SpecialTokens) -> Tokenizer:
    """Build the tokenizer and check that it fits the encoder.

    Raises
    ------
    CheckpointError
        If it cannot be read, has ids or token types without a row, adds a token that it does not describe, or nothing
        says how long a text may be, or it is too short for a token of text.
    """
    late = folder.late_interaction
    limits = [limit for limit in (folder.max_length, config.max_positions) if limit is not None]
    if late is None and not limits:
        raise CheckpointError(
            f"{folder.path} does not say how long a text may be: set max_seq_length in sentence_bert_config.json"
        )
    backend = read_tokenizer(folder)
    check_additions(read_additions(backend), config, folder.transformer)
    readings, prompts = ({}, folder.prompts) if late is None else make_readings(folder, late, config, backend)
    tokenizer = Tokenizer(
        backend,
        TokenizerConfig(
            max_length=max(reading.max_length for reading in readings.values()) if readings else min(limits),
            lowercase=folder.lowercase,
            prompts=prompts,
            default_prompt_name=folder.default_prompt_name,
            special_tokens=special_tokens,
            readings=readings,
        ),
    )
    _check_ids(tokenizer.vocab_size - 1, config, folder.transformer)
    lengths: list[tuple[int, int, Role | None]] = [(tokenizer.max_length, 0, None)]
    lengths += [(reading.max_length, reading.num_added, role) for role, reading in readings.items()]
    for length, num_added, role in lengths:
        least = max(SHORTEST_MAX_LENGTH, tokenizer.num_special_tokens + num_added + 1)
        if length < least:
            raise CheckpointError(
                f"{_field_of_length(folder, length, role)} is {length}, which leaves no room for text: with what is "
                f"added to it, it must be {least} tokens at least"
            )
    return tokenizer


def _field_of_length(folder: ModelFolder, length: int, role: Role | None) -> str:
    """Find the file and the field that a longest text comes from."""
    late = folder.late_interaction
    if late is not None and role is not None:
        stated = late.query_length if role == "query" else late.document_length
        if stated == length:
            return f"{late.file}: {late.name(f'{role}_length')}"
    if folder.max_length == length:
        return folder.max_length_field
    return f"{folder.transformer / 'config.json'}: the number of positions"


def read_additions(backend: tokenizers.Tokenizer) -> Additions:
    """Read what a tokenizer adds, from what its library would save of it."""
    if backend.post_processor is None:
        return Additions(frozenset(), frozenset(), frozenset())
    names: set[str] = set()
    ids: set[int] = set()
    token_types: set[int] = set()
    fault: str | None = None
    for processor in _processors(json.loads(backend.post_processor.__getstate__())):
        for field in ("sep", "cls"):  # BERT's and RoBERTa's own kinds: (token, id)
            if field in processor:
                ids.add(processor[field][1])
        described = processor.get("special_tokens", {})
        for token in described.values():
            ids.update(token["ids"])
        if "single" in processor:
            fault = fault or _fault(processor)
        for piece in (*processor.get("single", ()), *processor.get("pair", ())):
            [(kind, fields)] = piece.items()
            token_types.add(fields["type_id"])
            if kind == "SpecialToken" and fields["id"] not in described:
                names.add(fields["id"])
    return Additions(frozenset(names), frozenset(ids), frozenset(token_types), fault)


def _fault(template: Mapping[str, Any]) -> str | None:
    """Find the template that would lose a text in silence, or end the library's call in a panic."""
    places = {
        name: {piece["Sequence"]["id"] for piece in template[name] if "Sequence" in piece}
        for name in ("single", "pair")
    }
    if places["single"] != {"A"}:
        return "single must have a place for the text (A), and none for a second (B)"
    if places["pair"] != {"A", "B"}:
        return "pair must have a place for each of two texts (A and B)"
    return None


def _processors(processor: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Give a post-processor, or those that it is a sequence of."""
    if "processors" not in processor:
        yield processor
    for inner in processor.get("processors", ()):
        yield from _processors(inner)


def check_additions(additions: Additions, config: EncoderConfig, where: Path) -> None:
    """Refuse additions that no row is there for; raises :class:`CheckpointError`."""
    if additions.names:
        raise CheckpointError(
            f"{where}: the tokenizer adds the special token {shown(min(additions.names))}, and does not describe it"
        )
    if additions.fault is not None:
        raise CheckpointError(f"{where / 'tokenizer.json'}: of the post_processor, {additions.fault}")
    _check_ids(max(additions.ids, default=0), config, where)
    # an encoder with a single type, or none, does not ask for it
    if config.num_token_types > 1 and max(additions.token_types, default=0) >= config.num_token_types:
        raise CheckpointError(
            f"{where}: the tokenizer has token types up to {max(additions.token_types)}, "
            f"the table of token types has {config.num_token_types} rows"
        )


def _check_ids(largest: int, config: EncoderConfig, where: Path) -> None:
    if largest >= config.vocab_size:
        raise CheckpointError(
            f"{where}: the tokenizer has ids up to {largest}, the embedding table has {config.vocab_size} rows"
        )
