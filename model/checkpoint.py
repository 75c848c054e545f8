"""From tensors on disk to an encoder in memory: read, verify, and refuse whatever does not fit to the letter.

Only safetensors is read. Every tensor in the files must be used, be known and unused, or the start fails; random
weights never serve.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from model.attention_cores import Attend, attend_fused
from model.encoder import Encoder
from model.errors import CheckpointError
from model.files import check_file, inside, is_there, read_json, read_text, shown
from model.folder import DenseConfig, ModelFolder
from model.formats import Format, RawConfig, Sources, weight_and_bias
from model.formats.registry import find_format
from model.heads import Classifier, ClassifierConfig, Dense, MaskedLMConfig, MaskedLMHead
from model.late_interaction import INLINE_KEY
from model.linear import pack_linear_layers
from model.sparse import Splade

log = logging.getLogger("eyeline.model")

Described = TypeVar("Described")

TOKEN_TABLE = "embedding.tokens.weight"
"""Our name for the table of token embeddings."""

COMMON_PREFIXES = ("0.auto_model.", "auto_model.", "model.", "module.")
"""What wrappers put before a family's own names."""

MAX_REASON_CHARACTERS = 300
"""A reason may repeat a value of the file, which may be of any length."""


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """An encoder and what there is to say about its checkpoint.

    Attributes
    ----------
    encoder : Encoder
        In evaluation mode, no gradients; its linear layers packed, unless asked otherwise, where the device has a
        kernel for that.
    format : Format
    classifier : Classifier or None
        In float32; where the folder has labels.
    splade : Splade or None
        Of a SPLADE folder; its head in the encoder's number format, its decoder mostly the encoder's own table.
    num_parameters : int
    ignored_keys : tuple of str
        Tensors that are known and not used.
    """

    encoder: Encoder
    format: Format
    classifier: Classifier | None
    splade: Splade | None
    num_parameters: int
    ignored_keys: tuple[str, ...]


def load_encoder(
    folder: ModelFolder,
    dtype: torch.dtype,
    device: torch.device,
    attend: Attend = attend_fused,
    *,
    pack: bool = True,
) -> LoadedEncoder:
    """Build the encoder that a folder describes, with the folder's weights.

    Parameters
    ----------
    folder : ModelFolder
    dtype : torch.dtype
    device : torch.device
    attend : Attend
    pack : bool
        Lay the linear layers of the encoder, and of a masked language model's head, out for serving; False keeps
        weights that can be trained, or put into bytes. A classification head is laid out in any case: int8 leaves it.

    Raises
    ------
    CheckpointError
        One sentence with the file and the key: an unknown family, a missing or unknown tensor, a wrong shape, a
        number that is not finite, a truncated file, a checksum that does not match.
    """
    verify_checksums(folder.path)
    config_file = folder.transformer / "config.json"
    files = tensor_files(folder.transformer)
    found = find_format(folder.config, str(config_file))
    config = _described(found.encoder_config, folder, config_file)
    head = _classifier_config(found, folder, config_file)
    masked_lm_config = _masked_lm_config(found, folder, config_file)
    tensors, twins = _strip_names(files, found)
    inline = tensors.pop(INLINE_KEY, None) if folder.is_inline else None
    sources = found.sources(config)
    head_sources = {} if head is None else _classifier_sources(head)
    if masked_lm_config is not None:
        head_sources = _masked_lm_sources(masked_lm_config, sources[TOKEN_TABLE], tensors)
    ignored = (*_check_keys(found, [*sources.values(), *head_sources.values()], tensors), *twins)
    if inline is not None and not any(dense.is_inline for dense in folder.dense):
        ignored = (*ignored, inline[0])
    if twins:
        why = "are one tensor once the prefixes of their names are removed"
        _check_twins(_Reader({key: (key, file) for key, file in files.items()}), twins, why)
    with torch.device("meta"), _WithoutInitialization():
        encoder = Encoder(config, attend)
    reader = _Reader(tensors)
    state = _read_state(encoder, sources, reader, dtype, device)
    _check_ranges(found, reader)
    encoder.load_state_dict(state, strict=True, assign=True)
    encoder.to(device=device, dtype=dtype)  # buffers: the fixed position table is not in the checkpoint
    encoder.eval().requires_grad_(requires_grad=False)
    if pack:
        pack_linear_layers(encoder)
    if ignored:
        log.info("%s: %d tensors are known and not used, such as %s", folder.path, len(ignored), ignored[0])
    num_parameters = sum(tensor.numel() for tensor in state.values())
    classifier = None
    if head is not None and folder.labels is not None:
        with torch.device("meta"), _WithoutInitialization():
            classifier = Classifier(head, config.hidden_size, len(folder.labels.names))
        _load_head(classifier, head_sources, reader, device)
        num_parameters += sum(parameter.numel() for parameter in classifier.parameters())
        pack_linear_layers(classifier)
    splade = None
    if masked_lm_config is not None and folder.splade is not None:
        masked_lm, num_own = _load_masked_lm(masked_lm_config, head_sources, encoder, reader, pack=pack)
        splade = Splade(masked_lm, folder.splade)
        num_parameters += num_own
    return LoadedEncoder(encoder, found, classifier, splade, num_parameters, ignored)


def _classifier_config(found: Format, folder: ModelFolder, file: Path) -> ClassifierConfig | None:
    """Let the family read the classification head of a folder that has labels."""
    if folder.labels is None:
        return None
    if found.classifier is None:
        raise CheckpointError(f"{file}: a {found.name} model with a classification head is not supported")
    return _described(found.classifier, folder, file)


def _classifier_sources(head: ClassifierConfig) -> Sources:
    """Map every parameter of a classification head."""
    sources = weight_and_bias("dense", head.dense, bias=head.dense_bias) | weight_and_bias("out", head.out)
    return sources | (weight_and_bias("norm", head.norm, bias=head.norm_bias) if head.norm else {})


def _masked_lm_config(found: Format, folder: ModelFolder, file: Path) -> MaskedLMConfig | None:
    """Let the family read the masked language model's head of a SPLADE folder."""
    if folder.splade is None:
        return None
    if found.masked_lm is None:
        raise CheckpointError(f"{file}: a {found.name} model with the head of a masked language model is not supported")
    return _described(found.masked_lm, folder, file)


def _masked_lm_sources(head: MaskedLMConfig, table: tuple[str, ...], tensors: Container[str]) -> Sources:
    """Map every parameter of a masked language model's head; a tied decoder to the table of token embeddings.

    The bias has two names in some families, of which a file may have either; of an untied decoder its own comes first.
    """
    sources = weight_and_bias("dense", head.dense, bias=head.dense_bias)
    sources |= weight_and_bias("norm", head.norm, bias=head.norm_bias)
    sources["decoder.weight"] = table if head.is_tied else (f"{head.decoder}.weight",)
    if head.bias is not None:
        names = (f"{head.decoder}.bias", head.bias)
        sources["decoder.bias"] = (next((name for name in names if name in tensors), head.bias),)
    return sources


def _load_masked_lm(
    config: MaskedLMConfig, sources: Sources, encoder: Encoder, reader: _Reader, *, pack: bool
) -> tuple[MaskedLMHead, int]:
    """Load a masked language model's head in the encoder's number format; returns its own parameters as well.

    Raises
    ------
    CheckpointError
        If the decoder is tied, and the file has one that differs.
    """
    table = encoder.embedding.tokens.weight  # (V, E)
    with torch.device("meta"), _WithoutInitialization():
        head = MaskedLMHead(config, encoder.config.hidden_size, table.shape[1], table.shape[0])
    shared: dict[str, Tensor] = {}
    if config.is_tied:
        shared["decoder.weight"] = table
        twins = {f"{config.decoder}.weight": sources["decoder.weight"][0]}
        if config.bias is not None:
            twins[f"{config.decoder}.bias"] = config.bias
        _check_twins(reader, twins, "are one tensor where config.json has tie_word_embeddings")
    state = _read_state(head, sources, reader, table.dtype, table.device, shared)
    num_own = sum(tensor.numel() for ours, tensor in state.items() if ours not in shared)
    head.load_state_dict(state, strict=True, assign=True)
    head.eval().requires_grad_(requires_grad=False)
    if pack:
        pack_linear_layers(head)
    return head, num_own


def load_dense(config: DenseConfig, device: torch.device) -> Dense:
    """Load one Dense module, in float32.

    Raises
    ------
    CheckpointError
        As :func:`load_encoder`.
    """
    with torch.device("meta"), _WithoutInitialization():
        dense = Dense(
            config.in_features,
            config.out_features,
            bias=config.bias,
            activation=config.activation,
            has_residual=config.has_residual,
        )
    files = {
        key: (key, file)
        for key, file in tensor_files(config.folder).items()
        if not config.is_inline or key == INLINE_KEY
    }
    sources: Sources = {key: (key,) for key in dense.state_dict()}
    for key, (_, file) in files.items():
        if key not in sources:
            raise CheckpointError(f"{file}: tensor {shown(key)} is in no list of a Dense module")
    for key in sources:
        if key not in files:
            raise CheckpointError(f"{config.folder}: tensor {key!r} is missing")
    _load_head(dense, sources, _Reader(files), device)
    return dense


def _load_head(head: nn.Module, sources: Sources, reader: _Reader, device: torch.device) -> None:
    """Load what stands on the encoder, in float32."""
    head.load_state_dict(_read_state(head, sources, reader, torch.float32, device), strict=True, assign=True)
    head.eval().requires_grad_(requires_grad=False)


class _WithoutInitialization(TorchFunctionMode):
    """Makes the functions of ``torch.nn.init`` do nothing: a checkpoint overwrites what they would draw.

    On the meta device they compute nothing anyhow, but ``normal_`` loads PyTorch's compiler to find that out, which
    takes a second.
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        options = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return options["tensor"]
        return func(*args, **options)


def verify_checksums(folder: Path) -> None:
    """Compare every file that ``SHA256SUMS`` lists, where there is such a file.

    Raises
    ------
    CheckpointError
        If a listed file is missing or differs.
    """
    sums = folder / "SHA256SUMS"
    if not is_there(sums):
        return
    seen: set[Path] = set()
    for line in read_text(sums).splitlines():
        if not line.strip():
            continue
        digest, _, name = line.partition(" ")
        file = inside(folder, name.strip().removeprefix("*"), sums)
        if not file.is_file():
            raise CheckpointError(f"{file} is listed in {sums.name} and is missing")
        if file in seen:  # a list that is read at once could else take hours to go through
            raise CheckpointError(f"{sums} lists {file.name} twice")
        seen.add(file)
        with file.open("rb") as stream:
            actual = hashlib.file_digest(stream, "sha256").hexdigest()
        if actual != digest:
            raise CheckpointError(
                f"{file} does not match its SHA-256 in {sums.name}: {actual[:12]}..., not {digest[:12]}..."
            )


def tensor_files(folder: Path) -> dict[str, Path]:
    """Find every tensor of a folder: name -> file, from one safetensors file or from a sharded set.

    Raises
    ------
    CheckpointError
        If there is no safetensors file, a shard is missing, or a file cannot be read.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if is_there(single):
        return dict.fromkeys(_keys(single), single)
    if is_there(index):
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{index}: weight_map is no list of tensors and their files")
        shards = {inside(folder, name, index) for name in weight_map.values()}
        files = {key: shard for shard in sorted(shards) for key in _keys(shard)}
        for key in weight_map:
            if key not in files:
                raise CheckpointError(f"{index}: tensor {shown(key)} is in none of its files")
        return files
    pickled = next(
        (name for name in ("pytorch_model.bin", "pytorch_model.bin.index.json") if (folder / name).exists()), ""
    )
    hint = f" (only {pickled}, which is a pickle; save the model as safetensors)" if pickled else ""
    raise CheckpointError(f"{folder} has no model.safetensors{hint}")


def _keys(file: Path) -> list[str]:
    """Names of the tensors in one file."""
    check_file(file)
    try:
        with safe_open(str(file), framework="pt") as opened:
            return list(opened.keys())
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file} is truncated or no safetensors file: {str(error)[:MAX_REASON_CHARACTERS]}"
        ) from error


def _described(read: Callable[[RawConfig], Described], folder: ModelFolder, file: Path) -> Described:
    """Let the family read a part of ``config.json``."""
    try:
        return read(folder.config)
    except KeyError as error:
        raise CheckpointError(f"{file}: field {shown(error.args[0])} is missing") from error
    except (ValueError, TypeError, ArithmeticError, AttributeError) as error:
        raise CheckpointError(f"{file}: {str(error)[:MAX_REASON_CHARACTERS]}") from error


def _strip(key: str, found: Format) -> str:
    """Remove a wrapper's prefix, then the family's."""
    for prefixes in (COMMON_PREFIXES, found.prefixes):
        prefix = next((prefix for prefix in prefixes if key.startswith(prefix)), "")
        key = key[len(prefix) :]
    return key


def _strip_names(files: Mapping[str, Path], found: Format) -> tuple[dict[str, tuple[str, Path]], dict[str, str]]:
    """Remove the prefixes of all names.

    Returns
    -------
    dict
        Stripped name -> the file's name of the tensor, and the file.
    dict
        Names that are another one's once stripped, and that other one.
    """
    tensors: dict[str, tuple[str, Path]] = {}
    twins: dict[str, str] = {}
    for key, file in files.items():
        first, _ = tensors.setdefault(_strip(key, found), (key, file))
        if first != key:
            twins[key] = first
    return tensors, twins


def _check_twins(reader: _Reader, twins: Mapping[str, str], why: str) -> None:
    """Refuse two names of one tensor where both are there and hold different numbers; compared bit by bit."""
    for one, other in twins.items():
        if one in reader and other in reader and not _is_same(reader[one], reader[other]):
            raise CheckpointError(f"{reader.file(one)}: tensors {shown(one)} and {shown(other)} {why}, and they differ")


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are alike in everything; of any number format, some of which PyTorch does not compare."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))


def _check_keys(
    found: Format, sources: Sequence[tuple[str, ...]], tensors: Mapping[str, tuple[str, Path]]
) -> tuple[str, ...]:
    """Refuse missing and unknown tensors; return the known ones that are not used."""
    required = {key for keys in sources for key in keys}
    for key in sorted(required):
        if key not in tensors:
            file = next(iter(tensors.values()))[1] if tensors else "the checkpoint"
            raise CheckpointError(f"{file}: tensor {key!r} is missing, and every {found.name} model has it")
    ignored = []
    for key, (name, file) in tensors.items():
        if key in required or key in found.ranges:
            continue
        if not any(re.fullmatch(pattern, key) for pattern in found.ignored):
            raise CheckpointError(f"{file}: tensor {shown(name)} is in no list of the {found.name} format")
        ignored.append(name)
    return tuple(ignored)


class _Reader:
    """Reads single tensors, keeping each file open once."""

    def __init__(self, tensors: Mapping[str, tuple[str, Path]]) -> None:
        self._tensors = tensors
        self._opened: dict[Path, safe_open] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._tensors

    def file(self, key: str) -> Path:
        """Which file holds the tensor."""
        return self._tensors[key][1]

    def __getitem__(self, key: str) -> Tensor:
        name, file = self._tensors[key]
        if file not in self._opened:
            self._opened[file] = safe_open(str(file), framework="pt")
        try:
            tensor: Tensor = self._opened[file].get_tensor(name)  # type: ignore[no-untyped-call]  # a compiled method
        except (SafetensorError, OSError, AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(f"{file}: tensor {shown(key)} is of a kind that PyTorch does not read") from error
        return tensor


def _read_state(
    module: nn.Module,
    sources: Mapping[str, tuple[str, ...]],
    reader: _Reader,
    dtype: torch.dtype,
    device: torch.device,
    shared: Mapping[str, Tensor] = MappingProxyType({}),
) -> dict[str, Tensor]:
    """Read every parameter of ``module``: stacked, checked, in its final dtype and place.

    Those of ``shared`` are in memory already, as another module's, and stay where they are.
    """
    state = dict(shared)
    for ours, expected in module.state_dict().items():
        if ours in shared:
            continue
        if ours not in sources:
            raise CheckpointError(f"no tensor is named for {ours!r}: the format is incomplete (a bug)")
        parts = [reader[key] for key in sources[ours]]
        for key, part in zip(sources[ours], parts, strict=True):
            _check_tensor(key, reader.file(key), part, expected, len(parts))
        stacked = parts[0] if len(parts) == 1 else torch.cat(parts)
        # Copied in any case: a tensor as read is the mapped file itself, and whoever wrote over the file later would
        # change the model that is served, or end the process.
        state[ours] = stacked.to(device=device, dtype=dtype, copy=True)
    return state


def _check_tensor(key: str, file: Path, part: Tensor, whole: Tensor, num_parts: int) -> None:
    """Refuse a wrong shape, a wrong kind, a number that is not finite."""
    expected = (whole.shape[0] // num_parts, *whole.shape[1:])
    if tuple(part.shape) != expected:
        raise CheckpointError(
            f"{file}: tensor {shown(key)} has shape {shown(tuple(part.shape))}, the config says {expected}"
        )
    if not part.is_floating_point() or part.itemsize == 1:  # of a float in a byte, nothing here knows the scale
        raise CheckpointError(f"{file}: tensor {shown(key)} holds {part.dtype}, not floating-point numbers")
    if not bool(torch.isfinite(part).all()):
        raise CheckpointError(f"{file}: tensor {shown(key)} has a value that is not finite")


def _check_ranges(found: Format, reader: _Reader) -> None:
    """Refuse a position buffer that does not count upwards from the family's first position."""
    for key, first in found.ranges.items():
        if key not in reader:
            continue
        ids = reader[key].flatten()
        if not torch.equal(ids.long(), torch.arange(first, first + ids.numel())):
            raise CheckpointError(f"{reader.file(key)}: tensor {shown(key)} does not count {first}, {first + 1}, ...")
