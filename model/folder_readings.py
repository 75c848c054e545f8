"""How a folder's late interaction model reads texts: its settings in ids of its tokenizer, and whether they fit."""

from __future__ import annotations

import logging
from typing import Any

from tokenizers import Tokenizer as Backend

from model.config import EncoderConfig
from model.errors import CheckpointError
from model.files import read_optional_json, shown
from model.folder import ModelFolder
from model.late_interaction import LateInteraction
from model.readings import Added, Reading, Role

log = logging.getLogger("eyeline.model")

MASK_SPELLINGS = ("[MASK]", "<mask>")
"""Where the tokenizer's files do not name the mask token."""


def make_readings(
    folder: ModelFolder, late: LateInteraction, config: EncoderConfig, backend: Backend
) -> tuple[dict[Role, Reading], dict[str, str]]:
    """Find how a late interaction model reads each role, and the prompts, less the prefixes that they begin with.

    Parameters
    ----------
    folder : ModelFolder
    late : LateInteraction
        Of the folder.
    config : EncoderConfig
        Of its encoder.
    backend : tokenizers.Tokenizer
        Of the folder.

    Raises
    ------
    CheckpointError
        If a token is not there, or a length does not fit the encoder.
    """
    prompts = {"query": "", "document": "", **folder.prompts}
    prefixes: dict[Role, Added | None] = {}
    stated: dict[Role, str | None] = {"query": late.query_prefix, "document": late.document_prefix}
    for role, spelling in stated.items():
        if spelling is None:
            prefixes[role] = _leading_special(prompts[role], backend)
        else:
            prefixes[role] = _token(spelling, backend, late, f"{role}_prefix") if spelling else None
        prefix = prefixes[role]
        if prefix is not None:
            prompts[role] = prompts[role].removeprefix(prefix.spelling)
    stated_lengths: dict[Role, int | None] = {"query": late.query_length, "document": late.document_length}
    lengths = {role: _max_length(role, length, folder, late, config) for role, length in stated_lengths.items()}
    longest = config.max_positions
    filled = late.expansion_length
    if longest is not None and filled > longest:
        raise CheckpointError(
            f"{late.file}: {late.name('expansion_length')} is {filled}, to which queries are filled up, and the "
            f"encoder reads {longest} tokens"
        )
    query = Reading(
        max_length=lengths["query"],
        prefix=prefixes["query"],
        expansion_token=_expansion_token(folder, late, backend) if filled else None,
        expansion_length=filled,
        attend_to_expansion=late.attend_to_expansion,
    )
    _check_windows(query, late, config, backend)
    document = Reading(
        max_length=lengths["document"],
        prefix=prefixes["document"],
        skiplist_ids=_skiplist_ids(late, backend),
    )
    return {"query": query, "document": document}, prompts


def _max_length(
    role: Role, stated: int | None, folder: ModelFolder, late: LateInteraction, config: EncoderConfig
) -> int:
    """Find how many tokens of a text are read: what is stated, or else what the folder allows, if the encoder can."""
    limits = [folder.max_length if stated is None else stated, config.max_positions]
    known = [limit for limit in limits if limit is not None]
    if not known:
        raise CheckpointError(
            f"{late.file} does not state {late.name(f'{role}_length')}, nor anything else how long texts may be, "
            "such as max_seq_length"
        )
    return min(known)


def _leading_special(prompt: str, backend: Backend) -> Added | None:
    """Find the special token that a prompt begins with, the longest where one begins another."""
    found = [
        Added(index, token.content)
        for index, token in backend.get_added_tokens_decoder().items()
        if token.special and token.content and prompt.startswith(token.content)
    ]
    return max(found, key=lambda added: len(added.spelling), default=None)


def _token(spelling: str, backend: Backend, late: LateInteraction, attribute: str) -> Added:
    """Look up the token that an attribute names."""
    index = backend.token_to_id(spelling)
    if index is None:
        raise CheckpointError(f"{late.file}: {late.name(attribute)} {shown(spelling)} is no token of the tokenizer")
    return Added(index, spelling)


def _expansion_token(folder: ModelFolder, late: LateInteraction, backend: Backend) -> Added:
    """Find what queries are filled up with: a token that is named, else the tokenizer's mask token."""
    if late.expansion_token is not None:
        return _token(late.expansion_token, backend, late, "expansion_token")
    named: list[Any] = []
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        value = read_optional_json(folder.transformer / name).get("mask_token")
        named.append(value.get("content") if isinstance(value, dict) else value)
    for spelling in (*named, *MASK_SPELLINGS):
        index = backend.token_to_id(spelling) if isinstance(spelling, str) else None
        if index is not None:
            return Added(index, spelling)
    raise CheckpointError(
        f"{folder.transformer / 'tokenizer_config.json'}: mask_token {shown(named[0])} is no token of the tokenizer, "
        f"nor are {' and '.join(MASK_SPELLINGS)}: queries are filled up with it"
    )


def _skiplist_ids(late: LateInteraction, backend: Backend) -> frozenset[int]:
    """Look up the tokens that have no vector; words that are no token are left out, as in sentence-transformers."""
    ids = {word: backend.token_to_id(word) for word in late.skiplist}
    unknown = [word for word, index in ids.items() if index is None]
    if unknown:
        log.warning(
            "%s: %d words of the skiplist are no tokens, such as %s", late.file, len(unknown), shown(unknown[0])
        )
    return frozenset(index for index in ids.values() if index is not None)


def _check_windows(query: Reading, late: LateInteraction, config: EncoderConfig, backend: Backend) -> None:
    """Refuse an expansion token that would have nothing to look at through a layer's window."""
    if query.expansion_token is None or query.attend_to_expansion:
        return
    last_seen = backend.num_special_tokens_to_add(is_pair=False) + query.num_added - 1
    for layer in config.layers:
        if layer.window is not None and query.expansion_length > last_seen + layer.window + 1:
            raise CheckpointError(
                f"{late.file}: {late.name('expansion_length')} is {query.expansion_length}, which must be at most "
                f"{last_seen + layer.window + 1}: a layer sees {layer.window} tokens to each side, so the last "
                "would see nothing of a short query"
            )
