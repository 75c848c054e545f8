"""Turn a ``torch.save`` state dict of one of the seeds' encoders into a model folder like any other.

Done once, by hand: the server reads safetensors only. Sizes come from the shapes of the tensors; what a state dict
cannot tell (heads, tokenizer, pooling, ...) is an argument, never a guess.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from model.config import EncoderConfig
from model.errors import CheckpointError
from model.formats import Format
from model.formats.bert import ACTIVATIONS
from model.formats.seeds import (
    NORM_EPS,
    SEED_0,
    SEED_0_NAMES,
    SEED_2,
    SEED_2_NAMES,
    TOKEN_TABLE,
    WHOLE_MODEL_KEYS,
    SeedNames,
)
from model.pooling import PoolingMode
from model.positions import sinusoids

StateDict = dict[str, Tensor]

POOLING_MODES: dict[PoolingMode, str] = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""Pooling -> its switch in ``1_Pooling/config.json``."""

WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Where training loops put the state dict inside what they save."""

MODULE_PREFIXES = ("module.", "_orig_mod.")
"""What ``DataParallel`` and ``torch.compile`` put before every key."""

TOKEN_TABLES = (TOKEN_TABLE, "src_embed.0.lut.weight", "src_embed.0.embedding.weight")
"""Names the token embedding is known by: the seeds', The Annotated Transformer's, and seed 2's layer inside that."""

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

FAMILIES = ((SEED_0, SEED_0_NAMES), (SEED_2, SEED_2_NAMES))


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was made of a state dict.

    Attributes
    ----------
    format : Format
        The family its names belong to.
    config : EncoderConfig
        The encoder it describes.
    unused : tuple of str
        Known keys that the encoder does not need (decoder, generator, position buffers).
    """

    format: Format
    config: EncoderConfig
    unused: tuple[str, ...]


def convert_state_dict(
    file: Path,
    destination: Path,
    *,
    num_attention_heads: int,
    tokenizer: Path,
    pooling: str = "mean",
    max_length: int = 512,
    pad_token_id: int = 0,
    activation: str = "relu",
) -> Conversion:
    """Write ``destination``, a folder that loads like one from the Hub, from the state dict in ``file``.

    Parameters
    ----------
    file : Path
        Written by ``torch.save``: a state dict, or a dict that holds one as ``state_dict``, ``model_state_dict`` or
        ``model``. Read with ``weights_only=True``, so nothing in it is executed.
    destination : Path
        New, or an empty folder. It appears whole or not at all.
    num_attention_heads : int
        H; must divide the hidden size.
    tokenizer : Path
        A ``tokenizer.json`` whose ids all have a row in the token embedding.
    pooling : {"mean", "cls", "max", "lasttoken"}
    max_length : int
        Tokens after which a text is cut, special tokens included.
    pad_token_id : int
        A row of the token embedding.
    activation : str
        As ``hidden_act`` in a ``config.json`` spells it.

    Returns
    -------
    Conversion

    Raises
    ------
    CheckpointError
        With the file, and the key where there is one. Nothing has been written.
    """
    _refuse_taken(destination)
    family, names, tensors, unused = _recognise(_read(file), file)
    raw = {
        "model_type": family.model_types[0],
        "vocab_size": tensors[TOKEN_TABLE].shape[0],
        "hidden_size": tensors[TOKEN_TABLE].shape[1],
        "num_hidden_layers": _num_layers(tensors),
        "num_attention_heads": num_attention_heads,
        "intermediate_size": _intermediate_size(tensors, names, file),
        "hidden_act": activation,
        "norm_eps": NORM_EPS,
        "max_position_embeddings": max_length,
        "pad_token_id": pad_token_id,
        "embedding_scale": "sqrt",
    }
    _check_arguments(raw, pooling, file)
    try:
        config = family.encoder_config(raw)
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}.") from error
    _check_tensors(tensors, family, config, file)
    _check_tokenizer(tokenizer, config.vocab_size)
    documents = folder_documents(raw, pooling)
    _write_folder(destination, documents, tensors, tokenizer)
    return Conversion(family, config, unused)


def folder_documents(raw: Mapping[str, Any], pooling: str, *, lowercase: bool = False) -> dict[str, Any]:
    """Say what a folder of one of the seeds' families tells about itself: file name -> JSON document.

    Parameters
    ----------
    raw : mapping
        ``config.json``, with every size.
    pooling : {"mean", "cls", "max", "lasttoken"}
    lowercase : bool
        Texts are lower-cased before the tokenizer sees them.
    """
    return {
        "config.json": dict(raw),
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": raw["hidden_size"],
            **{switch: mode == pooling for mode, switch in POOLING_MODES.items()},
            "include_prompt": True,
        },
        "sentence_bert_config.json": {"max_seq_length": raw["max_position_embeddings"], "do_lower_case": lowercase},
    }


def _refuse_taken(destination: Path) -> None:
    """Refuse to write over anything but an empty folder."""
    if destination.is_dir():
        if any(destination.iterdir()):
            raise CheckpointError(f"{destination} is not empty; choose a folder that does not exist.")
    elif destination.exists() or destination.is_symlink():
        raise CheckpointError(f"{destination} exists and is not a folder.")


def _read(file: Path) -> StateDict:
    """Load the file and find the state dict in it, without prefixes that wrap a whole model."""
    if not file.is_file():
        raise CheckpointError(f"{file} is not a file.")
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load lets whatever its readers raise through: pickle, zip, struct, runtime
        # torch's own message recommends to switch the safety off, so it is not passed on
        raise CheckpointError(
            f"{file} cannot be read as tensors alone ({type(error).__name__}); "
            "save the model with torch.save(model.state_dict(), file)."
        ) from error
    if isinstance(saved, Mapping):
        saved = next((saved[name] for name in WRAPPERS if isinstance(saved.get(name), Mapping)), saved)
    if not isinstance(saved, Mapping) or not saved:
        raise CheckpointError(f"{file} holds no state dict, but {type(saved).__name__}.")
    for key, value in saved.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise CheckpointError(f"{file}: {key!r} is not a tensor but {type(value).__name__}.")
    tensors: StateDict = {key: value.detach() for key, value in saved.items()}
    for prefix in MODULE_PREFIXES * 2:  # either may wrap the other
        if all(key.startswith(prefix) for key in tensors):
            tensors = {key.removeprefix(prefix): value for key, value in tensors.items()}
    return tensors


def _recognise(tensors: StateDict, file: Path) -> tuple[Format, SeedNames, StateDict, tuple[str, ...]]:
    """Find the family by its names, and spell the encoder's keys as its folder does.

    Returns
    -------
    tuple
        The family, its names, the encoder's tensors, and the keys that were left out.
    """
    kept: StateDict = {}
    unused: list[str] = []
    origin: dict[str, str] = {}
    for key, tensor in tensors.items():
        if any(re.fullmatch(pattern, key) for pattern in WHOLE_MODEL_KEYS):
            unused.append(key)
        elif key == "pe" or key.endswith(".pe"):
            _check_sinusoids(tensor, key, file)
            unused.append(key)
        else:
            name = TOKEN_TABLE if key in TOKEN_TABLES else key.removeprefix("encoder.")
            if name in kept:
                raise CheckpointError(f"{file}: {origin[name]!r} and {key!r} are both {name!r}; only one may be there.")
            kept[name], origin[name] = tensor, key
    if TOKEN_TABLE not in kept:
        others = " or ".join(f"'{name}'" for name in TOKEN_TABLES[1:])
        raise CheckpointError(
            f"{file} has no token embedding: expected the key '{TOKEN_TABLE}' (or {others}); "
            "save it together with the encoder."
        )
    if kept[TOKEN_TABLE].ndim != 2:
        raise CheckpointError(
            f"{file}: {origin[TOKEN_TABLE]!r} has shape {tuple(kept[TOKEN_TABLE].shape)}, not (V, D)."
        )
    return *_family(kept, file), kept, tuple(unused)


def _family(tensors: StateDict, file: Path) -> tuple[Format, SeedNames]:
    """Tell the two documents apart by what they call self-attention."""
    found = [
        (family, names)
        for family, names in FAMILIES
        if any(re.match(rf"layers\.\d+\.{names.attention}\.linears\.", key) for key in tensors)
    ]
    if len(found) != 1:
        first, second = (f"'layers.0.{names.attention}.linears.0.weight'" for _, names in FAMILIES)
        which = "both" if found else "neither"
        raise CheckpointError(f"{file}: expected either {first} (seed 0) or {second} (seed 2), found {which}.")
    return found[0]


def _check_sinusoids(tensor: Tensor, key: str, file: Path) -> None:
    """Refuse a position buffer that is not the table of sinusoids the encoder will add.

    Notes
    -----
    Tolerance 1e-5, plus what a float32 phase may be off by, which grows with the position (measured between the usual
    ways to write the formula: up to 1.2e-7 a row), plus the rounding of a narrower dtype.
    """
    rows = tensor.squeeze()  # (1, P, D) or (P, 1, D) -> (P, D)
    if rows.ndim != 2 or tensor.dtype not in DTYPES:
        raise CheckpointError(f"{file}: {key!r} of shape {tuple(tensor.shape)} is not a table of sinusoids.")
    position = torch.arange(rows.shape[0]).unsqueeze(1)  # (P, 1)
    tolerance = 1e-5 + 2.5e-7 * position + torch.finfo(tensor.dtype).eps
    difference = (rows.double() - sinusoids(rows.shape[0], rows.shape[1])).abs()
    if not bool((difference <= tolerance).all()):
        raise CheckpointError(
            f"{file}: {key!r} is not the sinusoidal table of Vaswani et al. 2017 "
            f"(differs by {float(difference.max()):.2g}); other positions are not supported."
        )


def _num_layers(tensors: StateDict) -> int:
    """Count the layers; a gap in their numbers shows up later as a missing key."""
    return len({match[1] for key in tensors if (match := re.match(r"layers\.(\d+)\.", key))})


def _intermediate_size(tensors: StateDict, names: SeedNames, file: Path) -> int:
    """Read F from the first layer's first feed-forward product."""
    key = f"layers.0.{names.expand}.weight"
    if key not in tensors:
        raise CheckpointError(f"{file}: required key {key!r} is missing.")
    if tensors[key].ndim != 2:
        raise CheckpointError(f"{file}: {key!r} has shape {tuple(tensors[key].shape)}, not (F, D).")
    return tensors[key].shape[0]


def _check_arguments(raw: Mapping[str, Any], pooling: str, file: Path) -> None:
    """Refuse what no encoder of this state dict can be."""
    if pooling not in POOLING_MODES:
        raise CheckpointError(f"pooling {pooling!r} is not supported, only {', '.join(POOLING_MODES)}.")
    if raw["hidden_act"] not in ACTIVATIONS:
        raise CheckpointError(f"activation {raw['hidden_act']!r} is not supported, only {', '.join(ACTIVATIONS)}.")
    for field in ("num_attention_heads", "max_position_embeddings"):
        if raw[field] < 1:
            raise CheckpointError(f"{field} {raw[field]} must be at least 1.")
    if raw["hidden_size"] % raw["num_attention_heads"]:
        raise CheckpointError(
            f"{file}: {raw['num_attention_heads']} attention heads do not divide "
            f"the hidden size {raw['hidden_size']} of {TOKEN_TABLE!r}."
        )
    if not 0 <= raw["pad_token_id"] < raw["vocab_size"]:
        raise CheckpointError(
            f"{file}: pad_token_id {raw['pad_token_id']} has no row in {TOKEN_TABLE!r}, which has {raw['vocab_size']}."
        )


def _expected_shapes(family: Format, config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Say which keys the folder must have, and their shapes."""
    hidden, wide = config.hidden_size, config.intermediate_size
    weights: dict[str, tuple[int, ...]] = {
        "tokens": (config.vocab_size, hidden),
        "qkv": (hidden, hidden),  # each of the three that are stacked
        "out": (hidden, hidden),
        "expand": (wide, hidden),
        "contract": (hidden, wide),
        "norm": (hidden,),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for ours, theirs in family.sources(config).items():
        *_, part, kind = ours.split(".")
        shapes |= dict.fromkeys(theirs, weights[part] if kind == "weight" else weights[part][:1])
    return shapes


def _check_tensors(tensors: StateDict, family: Format, config: EncoderConfig, file: Path) -> None:
    """Refuse a missing or unknown key, a wrong shape, a dtype that is not a float, a value that is not finite."""
    shapes = _expected_shapes(family, config)
    for key in shapes:
        if key not in tensors:
            raise CheckpointError(f"{file}: required key {key!r} is missing.")
    for key, tensor in tensors.items():
        if key not in shapes:
            raise CheckpointError(f"{file}: key {key!r} is not part of the {family.name} encoder.")
        if tuple(tensor.shape) != shapes[key]:
            raise CheckpointError(f"{file}: {key!r} has shape {tuple(tensor.shape)}, expected {shapes[key]}.")
        if tensor.dtype not in DTYPES:
            raise CheckpointError(f"{file}: {key!r} is {tensor.dtype}, not a floating-point weight.")
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{file}: {key!r} holds values that are not finite.")


def _check_tokenizer(tokenizer: Path, vocab_size: int) -> None:
    """Refuse a file that is no tokenizer, or one with ids beyond the token embedding."""
    try:
        vocabulary = Tokenizer.from_file(str(tokenizer)).get_vocab(with_added_tokens=True)
    except Exception as error:  # the Rust side raises bare Exception for every fault of a file
        raise CheckpointError(f"{tokenizer} is not a tokenizer.json: {error}.") from error
    largest = max(vocabulary.values(), default=-1)
    if largest >= vocab_size:
        raise CheckpointError(
            f"{tokenizer} has token ids up to {largest}, but {TOKEN_TABLE!r} has {vocab_size} rows, from 0."
        )


def _write_folder(destination: Path, documents: Mapping[str, Any], tensors: StateDict, tokenizer: Path) -> None:
    """Write every file into a temporary folder beside ``destination``, then rename it."""
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
        try:
            temporary.chmod(0o755)  # mkdtemp hides it from everyone else, the server may be someone else
            # contiguous copies: tied weights share memory, which safetensors refuses
            copies = {key: tensor.clone(memory_format=torch.contiguous_format) for key, tensor in tensors.items()}
            save_file(copies, temporary / "model.safetensors", metadata={"format": "pt"})
            shutil.copyfile(tokenizer, temporary / "tokenizer.json")
            for name, document in documents.items():
                (temporary / name).parent.mkdir(exist_ok=True)
                (temporary / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
            os.rename(temporary, destination)  # replaces an empty folder, fails on any other
        finally:
            shutil.rmtree(temporary, ignore_errors=True)  # gone already where all went well
    except OSError as error:
        raise CheckpointError(f"{destination} could not be written: {error}.") from error
