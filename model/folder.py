"""What a model folder says about itself: the small JSON files that the Hub and sentence-transformers write.

Nothing is guessed silently: what a folder does not say gets the stated default and a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from model.errors import CheckpointError
from model.files import (
    MAX_TOKENIZER_BYTES,
    inside,
    is_there,
    read_json,
    read_json_value,
    read_optional_json,
    read_text,
    shown,
)
from model.heads import HEAD_ACTIVATIONS, HeadActivation
from model.labels import Labels, ModelKind, read_labels
from model.late_interaction import (
    INLINE_ARCHITECTURE,
    MASK_MODULE,
    LateInteraction,
    find_late_interaction,
)
from model.pooling import POOLING_FUNCTIONS, Pooling, PoolingMode
from model.sparse import MASKED_LM_MODULE, POOLING_MODULE, SpladePooling, find_splade, read_splade

log = logging.getLogger("eyeline.model")

MODULES = ("Transformer", "Pooling", "Dense", "Normalize", MASKED_LM_MODULE, POOLING_MODULE, MASK_MODULE)
"""The modules of sentence-transformers that are served."""

MAX_TOKEN_CHARACTERS = 255
"""Of a special token: a longer one is a mistake, and no text has it."""

_UNBOUNDED = 10**9
"""transformers writes 1e30 for "no maximum"; whatever is above this means none."""

_MOST: Mapping[str, int] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers"), 512),
    **dict.fromkeys(
        (
            *("vocab_size", "hidden_size", "embedding_size", "intermediate_size", "num_attention_heads", "num_labels"),
            *("dim", "hidden_dim", "n_heads", "n_embd", "n_head", "n_inner", "type_vocab_size"),
            *("max_position_embeddings", "n_positions", "max_trained_positions", "pad_vocab_size_multiple"),
        ),
        2**24,
    ),
}
"""Fields of ``config.json`` that say how much there is of something, in every family's spelling, and the most that is
built: several times the largest encoders there are, and nothing that fills the memory before a tensor is read."""


@dataclass(frozen=True, slots=True)
class DenseConfig:
    """One ``2_Dense`` module: where its weights are and what it computes.

    With ``has_residual`` what goes in is added to what comes out, projected where the two differ in width. With
    ``is_inline`` its weight is among the encoder's tensors.
    """

    folder: Path
    in_features: int
    out_features: int
    bias: bool
    activation: HeadActivation
    has_residual: bool = False
    is_inline: bool = False


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Everything a folder states, parsed and checked, no tensor read yet.

    Attributes
    ----------
    path : Path
        The folder that was named.
    transformer : Path
        Where ``config.json`` and the weights are; a sub-folder in some older models.
    config : mapping
        ``config.json``.
    labels : Labels or None
        Of a sequence classifier, which ``config.json`` alone makes a folder; its embedding means nothing.
    splade : SpladePooling or None
        Of a SPLADE model, which its modules make a folder; its embedding means nothing either.
    late_interaction : LateInteraction or None
        Of a late interaction model, which has no embedding, but a vector for each token.
    pooling : Pooling
    dense : tuple of DenseConfig
        In the order in which they run; of a late interaction model on each token.
    max_length : int or None
        Tokens a text may have according to the folder; None = it does not say.
    max_length_field : str
        The file and the field that say so.
    lowercase : bool
    prompts : mapping of str to str
    default_prompt_name : str or None
    """

    path: Path
    transformer: Path
    config: Mapping[str, Any]
    labels: Labels | None
    splade: SpladePooling | None
    late_interaction: LateInteraction | None
    pooling: Pooling
    dense: tuple[DenseConfig, ...]
    max_length: int | None
    lowercase: bool
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    max_length_field: str = ""

    @property
    def kind(self) -> ModelKind:
        """What the folder is served as."""
        if self.labels is not None:
            return self.labels.kind
        if self.late_interaction is not None:
            return "late_interaction"
        return "embedding" if self.splade is None else "sparse"

    @property
    def pooling_name(self) -> str:
        """How the folder pools, in one word."""
        if self.late_interaction is not None:
            return "none"
        return self.pooling.mode if self.splade is None else "splade"

    @property
    def is_inline(self) -> bool:
        """Whether the encoder's tensors may have a projection among them, as the original ColBERT's have."""
        return _is_inline(self.config)


def _is_inline(config: Mapping[str, Any]) -> bool:
    """Whether ``config.json`` names the original ColBERT's architecture."""
    architectures = config.get("architectures")
    return isinstance(architectures, list) and INLINE_ARCHITECTURE in architectures


def _check_sizes(config: Mapping[str, Any], file: Path) -> None:
    """Refuse sizes that nobody could mean, before anything is made of so many."""
    for field_, most in _MOST.items():
        size = config.get(field_)
        if isinstance(size, int | float) and not abs(size) <= most:
            raise CheckpointError(f"{file}: {field_} is {shown(size)}, and at most {most} can be served")


def read_folder(path: Path) -> ModelFolder:
    """Read the description of a model.

    Raises
    ------
    CheckpointError
        One sentence that names the file and the field.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a folder")
    modules = _modules(path)
    encoders = ("Transformer", MASKED_LM_MODULE)
    transformer = next((where for kind, where in modules if kind in encoders), path)
    sentence = read_optional_json(transformer / "sentence_bert_config.json")
    prompts, default_prompt_name = _prompts(path / "config_sentence_transformers.json")
    config = read_json(transformer / "config.json")
    _check_sizes(config, transformer / "config.json")
    labels = read_labels(config, transformer / "config.json")
    place = find_splade(modules, sentence, path / "modules.json")
    if labels is not None and place is not None:
        raise CheckpointError(f"{transformer / 'config.json'}: a classification head is not supported with SPLADE")
    late = find_late_interaction(path, modules, is_inline=_is_inline(config))
    if labels is not None and late is not None:
        raise CheckpointError(
            f"{transformer / 'config.json'}: a classification head is not supported with late interaction"
        )
    has_pooling = labels is None and place is None and late is None
    max_length, max_length_field = _max_length(transformer, sentence)
    return ModelFolder(
        path=path,
        transformer=transformer,
        config=config,
        labels=labels,
        splade=None if place is None else read_splade(read_json(place / "config.json"), place / "config.json"),
        late_interaction=late,
        pooling=_pooling(path, modules) if has_pooling else Pooling(),
        dense=_all_dense(modules, late, transformer, config),
        max_length=max_length,
        max_length_field=max_length_field,
        lowercase=bool(sentence.get("do_lower_case", False)),
        prompts=prompts,
        default_prompt_name=default_prompt_name,
    )


def _modules(path: Path) -> list[tuple[str, Path]]:
    """List the modules of the folder: (kind, sub-folder). Empty where ``modules.json`` is missing."""
    file = path / "modules.json"
    if not is_there(file):
        return []
    entries = cast(Any, read_json_value(file))
    try:
        named = [(str(entry["type"]).rsplit(".", 1)[-1], entry["path"]) for entry in entries]
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is not a list of modules with type and path") from error
    modules = [(kind, inside(path, where, file)) for kind, where in named]
    for kind, _ in modules:
        if kind not in MODULES:
            raise CheckpointError(f"{file}: module {shown(kind)} is not supported, only {', '.join(MODULES)}")
    kinds = [kind for kind, _ in modules]
    if "Dense" in kinds and "Pooling" in kinds[kinds.index("Dense") :]:
        raise CheckpointError(f"{file}: module 'Dense' before 'Pooling' is not supported, only after it, or without it")
    if "Dense" in kinds and "Normalize" in kinds[: len(kinds) - kinds[::-1].index("Dense")]:
        raise CheckpointError(f"{file}: module 'Normalize' before 'Dense' is not supported, only after it")
    return modules


def _prompts(file: Path) -> tuple[dict[str, str], str | None]:
    """Read the prompts by name, and the name of the default."""
    raw = read_optional_json(file)
    named = raw.get("prompts") or {}
    if not isinstance(named, dict):
        raise CheckpointError(f"{file}: prompts is {type(named).__name__}, not a JSON object")
    prompts = {name: text for name, text in named.items() if isinstance(text, str)}
    default = raw.get("default_prompt_name")
    if default is not None and not (isinstance(default, str) and default in prompts):
        raise CheckpointError(
            f"{file}: default_prompt_name {shown(default)} is not one of the prompts {shown(sorted(prompts))}"
        )
    return prompts, default


def _pooling(path: Path, modules: list[tuple[str, Path]]) -> Pooling:
    """Read how the folder pools; mean, with a warning, where it does not say."""
    where = next((where for kind, where in modules if kind == "Pooling"), path / "1_Pooling")
    file = where / "config.json"
    if not is_there(file):
        log.warning("%s is missing: pooling is mean, the default", file)
        return Pooling()
    raw = read_json(file)
    flags = {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_lasttoken": "lasttoken",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens": "weightedmean",
    }
    named = raw.get("pooling_mode")
    if not isinstance(named, str | list | None):
        raise CheckpointError(f"{file}: pooling_mode is {type(named).__name__}, neither a name nor a list of names")
    modes = [named] if isinstance(named, str) else named or [mode for flag, mode in flags.items() if raw.get(flag)]
    if len(modes) != 1 or str(modes[0]) not in POOLING_FUNCTIONS:
        supported = ", ".join(POOLING_FUNCTIONS)
        raise CheckpointError(
            f"{file}: pooling {'+'.join(map(str, modes))[:80] or 'none'} is not supported, only {supported}"
        )
    return Pooling(cast(PoolingMode, modes[0]), bool(raw.get("include_prompt", True)))


def _all_dense(
    modules: list[tuple[str, Path]], late: LateInteraction | None, transformer: Path, config: Mapping[str, Any]
) -> tuple[DenseConfig, ...]:
    """Read every Dense module, and the projection of the original ColBERT, which has no module."""
    if late is not None and late.dimensions is not None:
        width = config.get("hidden_size", config.get("dim"))
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise CheckpointError(f"{transformer / 'config.json'}: hidden_size {shown(width)} is no number of columns")
        return (DenseConfig(transformer, width, late.dimensions, False, "identity", is_inline=True),)
    return tuple(_dense(where, is_late=late is not None) for kind, where in modules if kind == "Dense")


def _dense(folder: Path, *, is_late: bool) -> DenseConfig:
    """Read one Dense module's sizes and activation."""
    file = folder / "config.json"
    raw = read_json(file)
    if is_late and "activation_function" not in raw:  # the libraries have different defaults
        raise CheckpointError(f"{file} does not state activation_function")
    named = str(raw.get("activation_function", "torch.nn.modules.activation.Tanh")).rsplit(".", 1)[-1].lower()
    activation = next((known for known in HEAD_ACTIVATIONS if known == named), None)
    if activation is None:
        raise CheckpointError(f"{file}: activation_function {shown(named)} is not supported")
    try:
        sizes = int(raw["in_features"]), int(raw["out_features"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{file} does not state in_features and out_features") from error
    if not all(1 <= size <= _MOST["hidden_size"] for size in sizes):
        raise CheckpointError(f"{file}: in_features and out_features must be from 1 to {_MOST['hidden_size']}")
    return DenseConfig(folder, *sizes, bool(raw.get("bias", True)), activation, bool(raw.get("use_residual", False)))


def _max_length(transformer: Path, sentence: Mapping[str, Any]) -> tuple[int | None, str]:
    """Find the longest text in tokens, and who says so: ``max_seq_length`` first, the tokenizer's own limit second."""
    file, field = transformer / "sentence_bert_config.json", "max_seq_length"
    limit = sentence.get(field)
    if limit is None:
        file, field = transformer / "tokenizer_config.json", "model_max_length"
        limit = read_optional_json(file).get(field)
    if limit is None:
        return None, ""
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        raise CheckpointError(f"{file}: {field} {shown(limit)} is not a number")
    if limit != limit or limit < -_UNBOUNDED:
        raise CheckpointError(f"{file}: {field} {shown(limit)} is no number of tokens")
    return (int(limit) if limit < _UNBOUNDED else None), f"{file}: {field}"


def read_tokenizer(folder: ModelFolder) -> tokenizers.Tokenizer:
    """Load ``tokenizer.json``, or make a WordPiece tokenizer from ``vocab.txt``.

    Raises
    ------
    CheckpointError
        If neither is there, or the one that is there cannot be read.
    """
    file, vocab = folder.transformer / "tokenizer.json", folder.transformer / "vocab.txt"
    source = file if is_there(file) else vocab
    if not is_there(source):
        raise CheckpointError(f"{folder.transformer} has neither tokenizer.json nor vocab.txt")
    text = read_text(source, MAX_TOKENIZER_BYTES)
    try:
        if source is file:
            return Backend.from_str(text)
        return _wordpiece(vocab, text.splitlines(), folder.transformer / "tokenizer_config.json")
    except CheckpointError:
        raise
    except Exception as error:  # tokenizers raises plain Exception for every kind of broken file
        raise CheckpointError(f"{source} is not a tokenizer that can be read") from error


def _wordpiece(vocab: Path, words: Sequence[str], described: Path) -> tokenizers.Tokenizer:
    """Build BERT's tokenizer from its word list, as ``tokenizer_config.json`` describes it, where there is one."""
    raw = read_optional_json(described)

    def token(name: str, default: str) -> str:
        value = raw.get(name, default)
        spelled = value.get("content") if isinstance(value, dict) else value
        if not isinstance(spelled, str) or not 1 <= len(spelled) <= MAX_TOKEN_CHARACTERS:
            limits = f"1 to {MAX_TOKEN_CHARACTERS} characters"
            raise CheckpointError(f"{described}: {name} {shown(value)} is not a token of {limits}")
        return spelled

    ids = {word: index for index, word in enumerate(words)}
    unknown, start, end = token("unk_token", "[UNK]"), token("cls_token", "[CLS]"), token("sep_token", "[SEP]")
    for name in (unknown, start, end):
        if name not in ids:
            raise CheckpointError(f"{vocab} does not list the special token {shown(name)}")
    built = Backend(models.WordPiece(vocab=ids, unk_token=unknown, max_input_chars_per_word=100))
    built.normalizer = normalizers.BertNormalizer(
        lowercase=bool(raw.get("do_lower_case", True)),
        strip_accents=raw.get("strip_accents"),
        handle_chinese_chars=bool(raw.get("tokenize_chinese_chars", True)),
    )
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    built.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} $B:1 {end}:1",
        special_tokens=[(start, ids[start]), (end, ids[end])],
    )
    built.decoder = decoders.WordPiece()
    optional = (("pad_token", "[PAD]"), ("mask_token", "[MASK]"))
    others = [token(*named) for named in optional if raw.get(*named) is not None]  # null says that there is none
    built.add_special_tokens([unknown, start, end, *(name for name in others if name in ids)])
    return built
