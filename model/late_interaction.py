"""Late interaction (ColBERT): a vector for each token, and of a query and a document the sum of the best matches.

Three layouts of a folder say how its model reads queries and documents: PyLate's (everything beside the prompts, in
``config_sentence_transformers.json``), that of sentence-transformers' MultiVectorEncoder (beside the Transformer, and
in a module of its own), and the original ColBERT's (``artifact.metadata``, with the projection among the encoder's
tensors).

References: Khattab and Zaharia 2020; names of modules, files and fields as in PyLate, sentence-transformers, ColBERT.
"""

from __future__ import annotations

import logging
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from model.contract import FloatArray
from model.errors import CheckpointError
from model.files import read_optional_json, shown
from model.heads import Dense

log = logging.getLogger("eyeline.model")

MASK_MODULE = "MultiVectorMask"
"""Of sentence-transformers' own layout; PyLate's has no module for it."""

INLINE_ARCHITECTURE = "HF_ColBERT"
INLINE_KEY = "linear.weight"
"""The original ColBERT keeps its projection among the encoder's tensors."""

PYLATE_MODEL_TYPE = "ColBERT"
MULTI_VECTOR_MODEL_TYPE = "MultiVectorEncoder"
"""``model_type`` in ``config_sentence_transformers.json``: PyLate's, and sentence-transformers' own."""

MAX_COUNT = 2**24
"""Of tokens, or of dimensions: what is more was not meant."""

PUNCTUATION = tuple(string.punctuation)

PYLATE_DEFAULTS: Mapping[str, Any] = {
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 32,
    "document_length": 180,
    "do_query_expansion": True,
    "attend_to_expansion_tokens": False,
    "skiplist_words": list(PUNCTUATION),
}
COLBERT_DEFAULTS: Mapping[str, Any] = {
    "query_token_id": "[unused0]",
    "doc_token_id": "[unused1]",
    "query_maxlen": 32,
    "doc_maxlen": 220,
    "attend_to_mask_tokens": False,
    "mask_punctuation": True,
    "dim": 128,
    "similarity": "cosine",
    "interaction": "colbert",
}
"""What each library takes where the folder does not say."""

PYLATE_NAMES: Mapping[str, str] = {
    "query_prefix": "query_prefix",
    "document_prefix": "document_prefix",
    "query_length": "query_length",
    "document_length": "document_length",
    "expansion_length": "query_length",
    "attend_to_expansion": "attend_to_expansion_tokens",
}
COLBERT_NAMES: Mapping[str, str] = {
    "query_prefix": "query_token_id",
    "document_prefix": "doc_token_id",
    "query_length": "query_maxlen",
    "document_length": "doc_maxlen",
    "expansion_length": "query_maxlen",
    "attend_to_expansion": "attend_to_mask_tokens",
}
"""What each library calls the attributes of :class:`LateInteraction`."""


@dataclass(frozen=True, slots=True)
class LateInteraction:
    """How a folder's model reads queries and documents.

    Attributes
    ----------
    file : Path
        Which says so, for errors.
    query_prefix, document_prefix : str or None
        Tokens behind the first special one; "" = none, None = the prompt of that name may begin with one.
    query_length, document_length : int or None
        Tokens that are read; None = as many as the encoder takes.
    expansion_length : int
        Queries are filled up to so many; 0 = they are not.
    expansion_token : str or None
        With this token; None = the tokenizer's mask token.
    attend_to_expansion : bool
        Whether tokens look at the expansion.
    skiplist : tuple of str
        Tokens of documents that have no vector.
    normalize : bool
        Scale each vector to unit length.
    dimensions : int or None
        Of the projection among the encoder's tensors, where there is one.
    names : mapping of str to str
        What the file calls these, where it is another name.
    """

    file: Path
    query_prefix: str | None
    document_prefix: str | None
    query_length: int | None
    document_length: int | None
    expansion_length: int
    expansion_token: str | None
    attend_to_expansion: bool
    skiplist: tuple[str, ...]
    normalize: bool = True
    dimensions: int | None = None
    names: Mapping[str, str] = field(default_factory=dict, compare=False)

    def name(self, attribute: str) -> str:
        """Return what the file calls an attribute."""
        return self.names.get(attribute, attribute)


def find_late_interaction(
    path: Path, modules: Sequence[tuple[str, Path]], *, is_inline: bool
) -> LateInteraction | None:
    """Find how a folder's model reads queries and documents; None for one that is no late interaction model.

    Parameters
    ----------
    path : Path
    modules : sequence of (kind, sub-folder)
        Of ``modules.json``.
    is_inline : bool
        Whether ``config.json`` names the original ColBERT's architecture.

    Raises
    ------
    CheckpointError
        If modules do not go together, or a value is not built here.
    """
    kinds = [kind for kind, _ in modules]
    file = path / "config_sentence_transformers.json"
    stated = read_optional_json(file)
    is_multi_vector_encoder = stated.get("model_type") == MULTI_VECTOR_MODEL_TYPE or MASK_MODULE in kinds
    is_named = stated.get("model_type") == PYLATE_MODEL_TYPE
    is_projected = "Dense" in kinds and "Pooling" not in kinds
    if is_inline and kinds in ([], ["Transformer"]):
        return _read_colbert(read_optional_json(path / "artifact.metadata"), path / "artifact.metadata")
    if not is_named and not is_multi_vector_encoder and not is_projected:
        return None
    first = kinds.index("Transformer") if "Transformer" in kinds else -1
    num_dense = kinds.count("Dense")
    rest = kinds[first + 1 + num_dense :]
    if (
        first != 0
        or kinds[1 : 1 + num_dense] != ["Dense"] * num_dense
        or sorted(rest)
        not in (
            [],
            ["Normalize"],
            [MASK_MODULE],
            [MASK_MODULE, "Normalize"],
        )
    ):
        raise CheckpointError(
            f"{path / 'modules.json'}: modules {shown(kinds)} are not supported: a late interaction model has a "
            f"Transformer, Dense for each token, then perhaps {MASK_MODULE} and Normalize, and nothing else"
        )
    if stated.get("similarity_fn_name") not in (None, "MaxSim", "maxsim"):
        raise _unsupported(file, "similarity_fn_name", stated["similarity_fn_name"], "only MaxSim")
    if is_multi_vector_encoder:
        where = dict(modules).get(MASK_MODULE, path / MASK_MODULE) / "config.json"
        transformer = dict(modules)["Transformer"] / "sentence_bert_config.json"
        read, marked = read_optional_json(transformer), read_optional_json(where)
        return _read_multi_vector(read, transformer, marked, where, normalize="Normalize" in kinds)
    if not num_dense:
        raise CheckpointError(
            f"{path / 'modules.json'}: a late interaction model without a Dense module is not supported: "
            "PyLate would project its tokens at random"
        )
    return _read_pylate(stated, file)


def _read_pylate(raw: Mapping[str, Any], file: Path) -> LateInteraction:
    """Read PyLate's fields."""
    fields = _Fields(raw, file, PYLATE_DEFAULTS)
    late = _read_flat(fields, PYLATE_NAMES)
    expands = fields.flag("do_query_expansion")
    skiplist = fields.texts("skiplist_words")
    return replace(late, expansion_length=late.expansion_length if expands else 0, skiplist=skiplist)


def _read_colbert(raw: Mapping[str, Any], file: Path) -> LateInteraction:
    """Read the original ColBERT's fields."""
    if not raw:
        raise CheckpointError(f"{file} is missing or empty: it says how a model of architecture HF_ColBERT reads texts")
    fields = _Fields(raw, file, COLBERT_DEFAULTS)
    for name, only in (("similarity", "cosine"), ("interaction", "colbert")):
        if fields.text(name) != only:
            raise _unsupported(file, name, raw[name], f"only {only}")
    late = _read_flat(fields, COLBERT_NAMES)
    skiplist = PUNCTUATION if fields.flag("mask_punctuation") else ()
    return replace(late, skiplist=skiplist, dimensions=fields.count("dim"))


def _read_flat(fields: _Fields, names: Mapping[str, str]) -> LateInteraction:
    """Read what both layouts state, each by its own names; a query is filled up to as many tokens as are read of it."""
    length = fields.count(names["query_length"])
    return LateInteraction(
        file=fields.file,
        query_prefix=fields.text(names["query_prefix"]),
        document_prefix=fields.text(names["document_prefix"]),
        query_length=length,
        document_length=fields.count(names["document_length"]),
        expansion_length=length,
        expansion_token=None,
        attend_to_expansion=fields.flag(names["attend_to_expansion"]),
        skiplist=(),
        names=names,
    )


def _read_multi_vector(
    raw: Mapping[str, Any], file: Path, mask: Mapping[str, Any], mask_file: Path, *, normalize: bool
) -> LateInteraction:
    """Read the fields of sentence-transformers' MultiVectorEncoder: lengths, expansion, and the mask's own."""
    for name, only in (("skiplist_tasks", ["document"]), ("keep_only_token_ids", None)):
        if mask.get(name, only) != only:
            raise _unsupported(mask_file, name, mask[name], f"only {only}")
    expansion = raw.get("query_expansion")
    if not isinstance(expansion, dict | None):
        raise _unsupported(file, "query_expansion", expansion, "only a JSON object")
    lengths = _Fields(raw, file, {})
    query_length = lengths.count_or_none("query_length")
    expanded = _Fields(expansion or {}, file, {"attend": False})
    filled, strategy = 0, None
    if expansion is not None:
        filled = expanded.count("length")
        strategy = expansion.get("strategy")
        if strategy not in ("fixed", "min"):
            raise _unsupported(file, "query_expansion.strategy", strategy, "only fixed and min")
        if strategy == "fixed":
            query_length = filled
        elif query_length is not None:
            query_length = max(query_length, filled)
    return LateInteraction(
        file=file,
        query_prefix=None,
        document_prefix=None,
        query_length=query_length,
        document_length=lengths.count_or_none("document_length"),
        expansion_length=filled,
        expansion_token=expanded.text("token") if expanded.raw.get("token") is not None else None,
        attend_to_expansion=expansion is not None and expanded.flag("attend"),
        skiplist=_Fields(mask, mask_file, {"skiplist_words": []}).texts("skiplist_words"),
        normalize=normalize,
        names={
            "query_length": "query_expansion.length" if strategy == "fixed" else "query_length",
            "expansion_length": "query_expansion.length",
            "expansion_token": "query_expansion.token",
        },
    )


@dataclass(frozen=True, slots=True)
class _Fields:
    """Reads the fields of one JSON object, with a default and a warning where one is not stated."""

    raw: Mapping[str, Any]
    file: Path
    defaults: Mapping[str, Any]

    def _value(self, name: str) -> object:
        """Return a field; null is as good as nothing."""
        value = self.raw.get(name)
        if value is None and name in self.defaults:
            value = self.defaults[name]
            log.warning("%s does not state %s: it is %s, the default", self.file, name, shown(value))
        return value

    def text(self, name: str) -> str:
        value = self._value(name)
        if not isinstance(value, str):
            raise _unsupported(self.file, name, value, "only a text")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._value(name)
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise _unsupported(self.file, name, value, "only a list of texts")
        return tuple(value)

    def flag(self, name: str) -> bool:
        value = self._value(name)
        if not isinstance(value, bool):
            raise _unsupported(self.file, name, value, "only true and false")
        return value

    def count(self, name: str) -> int:
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_COUNT:
            raise _unsupported(self.file, name, value, f"only a number from 1 to {MAX_COUNT}")
        return value

    def count_or_none(self, name: str) -> int | None:
        return None if self.raw.get(name) is None else self.count(name)


def _unsupported(file: Path, name: str, value: object, known: str) -> CheckpointError:
    return CheckpointError(f"{file}: {name} {shown(value)} is not supported, {known}")


class LateInteractionHead:
    """From the states of tokens to the vectors that are compared.

    Parameters
    ----------
    dense : sequence of Dense
        In the order in which they run, on each token.
    normalize : bool
        Scale each vector to unit length.
    """

    def __init__(self, dense: Sequence[Dense], *, normalize: bool) -> None:
        self._dense = tuple(dense)
        self._normalize = normalize

    def vectors(self, hidden_states: Tensor, places: Sequence[Sequence[int]]) -> list[FloatArray]:
        """Project the tokens at these places.

        Parameters
        ----------
        hidden_states : Tensor, shape (T, D)
        places : sequence of sequences of int
            Rows of ``hidden_states``, of each text.

        Returns
        -------
        list of array, each shape (places, dimensions), float32
        """
        rows = torch.tensor([row for some in places for row in some], dtype=torch.int64, device=hidden_states.device)
        states = hidden_states.index_select(0, rows).float()  # (rows, D)
        # A kernel of a CPU may sum rows that fill no block in another order (BLOCK_ROWS of model/heads.py), so that a
        # document's vectors would depend on its neighbours, and equal documents not score equal: each is a product of
        # its own. Of rows filled up to blocks, as classifiers have them, there would be many products for a document.
        sizes = [*map(len, places)] if states.device.type == "cpu" else [len(rows)]
        projected = torch.cat([self._project(part) for part in torch.split(states, sizes)])  # (rows, dimensions)
        if self._normalize:
            projected = F.normalize(projected, dim=-1)
        found = projected.cpu().numpy()
        bounds = np.cumsum([0, *map(len, places)])
        return [found[start:stop].copy() for start, stop in pairwise(bounds)]

    def _project(self, states: Tensor) -> Tensor:
        for dense in self._dense:
            states = dense(states)
        return states


def max_sim(query: FloatArray, document: FloatArray) -> float:
    """Sum, over the vectors of a query, the largest product with one of a document's; 0 where either has none.

    Of vectors that are not scaled to unit length a product may be more than a float32 holds: then it is not finite.

    Parameters
    ----------
    query : array, shape (n, dimensions), float32
    document : array, shape (m, dimensions), float32
    """
    if not len(query) or not len(document):
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        return float((query @ document.T).max(axis=1).sum(dtype=np.float64))
