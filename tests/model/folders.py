"""Model folders small enough to write in a test: a BERT of two layers, its tokenizer, and the files beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = (
    *SPECIALS,
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    "[",
    "]",
    "!",
    ".",
    "'",
    "the",
    "cat",
    "dog",
    "sat",
    "中",
    "文",
    "İ",
)
IDS = {piece: index for index, piece in enumerate(PIECES)}

CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": len(PIECES),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "hidden_act": "gelu",
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}

Tensors = dict[str, Tensor]


def wordpiece(*, lowercase: bool = True, template: bool = True) -> Tokenizer:
    """BERT's tokenizer over :data:`PIECES`; without ``template`` it adds no special token."""
    tokenizer = Tokenizer(models.WordPiece(vocab=IDS, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if template:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", IDS["[CLS]"]), ("[SEP]", IDS["[SEP]"])],
        )
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


BYTE_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")


def byte_level() -> Tokenizer:
    """RoBERTa's kind of tokenizer: one token per byte, a space joined to what follows it by its own byte."""
    vocabulary = {piece: index for index, piece in enumerate([*BYTE_SPECIALS, *sorted(alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    tokenizer.add_special_tokens(list(BYTE_SPECIALS))
    return tokenizer


def alphabet() -> list[str]:
    """The 256 characters that stand for bytes."""
    return pre_tokenizers.ByteLevel.alphabet()


def bert_tensors(config: Mapping[str, Any] = CONFIG, seed: int = 0) -> Tensors:
    """Random weights of a BertModel, large enough that a swapped or missing one shows."""
    width, wide = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], width),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], width),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], width),
        "embeddings.LayerNorm.weight": (width,),
        "embeddings.LayerNorm.bias": (width,),
    }
    for index in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{index}"
        linears = {f"attention.self.{name}": (width, width) for name in ("query", "key", "value")} | {
            "attention.output.dense": (width, width),
            "intermediate.dense": (wide, width),
            "output.dense": (width, wide),
        }
        for name, shape in linears.items():
            shapes[f"{layer}.{name}.weight"], shapes[f"{layer}.{name}.bias"] = shape, shape[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{layer}.{name}.weight"] = shapes[f"{layer}.{name}.bias"] = (width,)
    generator = torch.Generator().manual_seed(seed)
    return {key: 0.4 * torch.randn(shape, generator=generator) for key, shape in shapes.items()}


def write_json(file: Path, content: object) -> Path:
    """Write one JSON file, and the folders it stands in."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def write_tensors(file: Path, tensors: Tensors) -> Path:
    """Write one safetensors file, and the folders it stands in."""
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, file, {"format": "pt"})
    return file


def write_modules(folder: Path, *kinds: tuple[str, str]) -> Path:
    """Write ``modules.json`` from (kind, sub-folder) pairs."""
    entries = [
        {"idx": index, "name": str(index), "path": where, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, where) in enumerate(kinds)
    ]
    return write_json(folder / "modules.json", entries)


def write_bert(folder: Path, *, tensors: Tensors | None = None, **changes: object) -> Path:
    """Write a whole folder as sentence-transformers would; ``changes`` go into ``config.json``."""
    config = {**CONFIG, **changes}
    write_json(folder / "config.json", config)
    write_tensors(folder / "model.safetensors", bert_tensors(config) if tensors is None else tensors)
    wordpiece().save(str(folder / "tokenizer.json"))
    write_modules(folder, ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 32, "do_lower_case": False})
    return folder


def write_dense(folder: Path, tensors: Tensors, **config: object) -> Path:
    """Write a Dense module: 16 in and 6 out unless told otherwise."""
    write_json(folder / "config.json", {"in_features": 16, "out_features": 6, "bias": True, **config})
    write_tensors(folder / "model.safetensors", tensors)
    return folder


def head_tensors(config: Mapping[str, Any] = CONFIG) -> Tensors:
    """Random weights of a BertForMaskedLM's head, whose decoder is the table."""
    width, head = config["hidden_size"], "cls.predictions"
    shapes = {
        f"{head}.bias": (config["vocab_size"],),
        f"{head}.transform.dense.weight": (width, width),
        f"{head}.transform.dense.bias": (width,),
        f"{head}.transform.LayerNorm.weight": (width,),
        f"{head}.transform.LayerNorm.bias": (width,),
    }
    generator = torch.Generator().manual_seed(7)
    return {key: 0.4 * torch.randn(shape, generator=generator) for key, shape in shapes.items()}


def write_splade(folder: Path, tensors: Tensors | None = None, **changes: object) -> Path:
    """Write a folder as a SparseEncoder would; ``tensors`` beside the encoder's, the head's unless told otherwise."""
    head = head_tensors() if tensors is None else tensors
    write_bert(folder, tensors=bert_tensors() | head, **changes)
    write_modules(folder, ("MLMTransformer", ""), ("SpladePooling", "1_SpladePooling"))
    write_json(folder / "1_SpladePooling/config.json", {"pooling_strategy": "max", "activation_function": "relu"})
    return folder
