"""A tiny random BERT as a model folder: everything the server reads, in a few kilobytes, made in a few milliseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("the", "cat", "sat", "on", "mat", "a", "dog", "barked", "query", "passage", "hello", "world")
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,:;!?'-[]"
VOCABULARY = tuple(dict.fromkeys((*SPECIALS, *WORDS, *CHARACTERS, *(f"##{character}" for character in CHARACTERS))))
"""Whole words first; whatever else is spelled in ASCII letters and digits falls into single characters."""

CONFIG: Mapping[str, Any] = {
    "model_type": "bert",
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}


MODULES = (("", "Transformer"), ("1_Pooling", "Pooling"))
SPLADE_MODULES = (("", "MLMTransformer"), ("1_SpladePooling", "SpladePooling"))
LATE_MODULES = (("", "Transformer"), ("1_Dense", "Dense"))
PREFIXES = ("[Q] ", "[D] ")
PYLATE = {
    "model_type": "ColBERT",
    "similarity_fn_name": "MaxSim",
    "query_prefix": PREFIXES[0],
    "document_prefix": PREFIXES[1],
    "query_length": 10,
    "document_length": 20,
    "attend_to_expansion_tokens": False,
    "skiplist_words": [".", ",", "!"],
    "do_query_expansion": True,
}
TOKEN_DIMENSIONS = 8
"""Of the vectors of the tiny late interaction model."""


def make_bert_folder(
    path: Path,
    *,
    max_length: int = 32,
    pooling: str = "mean_tokens",
    prompts: Mapping[str, str] | None = None,
    default_prompt_name: str | None = None,
    seed: int = 0,
    labels: Sequence[str] = (),
    splade: bool = False,
    late: bool = False,
    **changes: Any,
) -> Path:
    """Write a model folder as sentence-transformers does, or as transformers does where there are labels.

    Parameters
    ----------
    path : Path
        Made where it is missing.
    max_length : int
        Tokens that are read of a text, special tokens included.
    pooling : str
        ``mean_tokens``, ``cls_token``, ``max_tokens`` or ``lasttoken``.
    prompts : mapping of str to str, optional
    default_prompt_name : str, optional
    seed : int
        Of the weights: two folders of one seed are alike.
    labels : sequence of str
        Of a classification head: it is then a classifier, or with one label a reranker.
    splade : bool
        Whether it has the head of a masked language model and SPLADE's pooling: it is then a sparse model.
    late : bool
        Whether it projects each token and has :data:`PYLATE`'s fields: it is then a late interaction model.
    **changes
        Fields of ``config.json`` that differ from :data:`CONFIG`.

    Returns
    -------
    Path
        ``path``.
    """
    named = {"id2label": dict(enumerate(labels)), "architectures": ["BertForSequenceClassification"]}
    prefixes = {"vocab_size": len(VOCABULARY) + len(PREFIXES)}
    config = {**CONFIG, **(named if labels else {}), **(prefixes if late else {}), **changes}
    path.mkdir(parents=True, exist_ok=True)
    tensors = make_bert_tensors(config, seed, splade=splade)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    tokenizer = make_wordpiece_tokenizer()
    tokenizer.add_tokens(list(PREFIXES) if late else [])
    tokenizer.save(str(path / "tokenizer.json"))
    kinds = SPLADE_MODULES if splade else LATE_MODULES if late else MODULES
    modules = [
        {"idx": index, "name": str(index), "path": folder, "type": f"sentence_transformers.models.{kind}"}
        for index, (folder, kind) in enumerate(kinds)
    ]
    files: dict[str, Any] = {
        "config.json": config,
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": config["hidden_size"],
            f"pooling_mode_{pooling}": True,
        },
        "config_sentence_transformers.json": {
            "prompts": dict(prompts or {}),
            "default_prompt_name": default_prompt_name,
        },
    }
    if splade:
        del files["1_Pooling/config.json"]
        files["1_SpladePooling/config.json"] = {"pooling_strategy": "max", "activation_function": "relu"}
    if late:
        del files["1_Pooling/config.json"]
        files["config_sentence_transformers.json"] |= PYLATE
        sizes = {"in_features": config["hidden_size"], "out_features": TOKEN_DIMENSIONS}
        files["1_Dense/config.json"] = {**sizes, "bias": False, "activation_function": "torch.nn.Identity"}
    if labels:
        del files["modules.json"], files["1_Pooling/config.json"]
    for name, content in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(json.dumps(content))
    if late:
        weight = np.random.default_rng(seed).standard_normal((TOKEN_DIMENSIONS, config["hidden_size"]))
        save_file({"linear.weight": weight.astype(np.float32)}, path / "1_Dense/model.safetensors")
    return path


def make_bert_tensors(
    config: Mapping[str, Any], seed: int = 0, *, splade: bool = False
) -> dict[str, NDArray[np.float32]]:
    """Draw every tensor of a BertModel, biases and norms included, wide enough that each of them matters."""
    draw = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]

    def normal(*shape: int, spread: float, around: float = 0.0) -> NDArray[np.float32]:
        return (around + spread * draw.standard_normal(shape)).astype(np.float32)

    tensors = {
        "embeddings.word_embeddings.weight": normal(config["vocab_size"], hidden, spread=0.7),
        "embeddings.position_embeddings.weight": normal(config["max_position_embeddings"], hidden, spread=0.7),
        "embeddings.token_type_embeddings.weight": normal(config["type_vocab_size"], hidden, spread=0.7),
    }
    norms = ["embeddings.LayerNorm"]
    products: dict[str, tuple[int, int]] = {}
    for index in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{index}"
        products |= {f"{layer}.attention.self.{name}": (hidden, hidden) for name in ("query", "key", "value")}
        products[f"{layer}.attention.output.dense"] = (hidden, hidden)
        products[f"{layer}.intermediate.dense"] = (inner, hidden)
        products[f"{layer}.output.dense"] = (hidden, inner)
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    if "id2label" in config:
        products |= {"pooler.dense": (hidden, hidden), "classifier": (len(config["id2label"]), hidden)}
    if splade:
        products["cls.predictions.transform.dense"] = (hidden, hidden)
        norms.append("cls.predictions.transform.LayerNorm")
        tensors["cls.predictions.bias"] = normal(config["vocab_size"], spread=1.0, around=-3.0)
    for name, (rows, columns) in products.items():
        tensors[f"{name}.weight"] = normal(rows, columns, spread=1.3 / columns**0.5)
        tensors[f"{name}.bias"] = normal(rows, spread=0.3)
    for name in norms:
        tensors[f"{name}.weight"] = normal(hidden, spread=0.3, around=1.0)
        tensors[f"{name}.bias"] = normal(hidden, spread=0.3)
    return tensors


def make_wordpiece_tokenizer() -> Tokenizer:
    """Build BERT's kind of tokenizer over :data:`VOCABULARY`, with padding and truncation, as published files have."""
    ids = {word: index for index, word in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(vocab=ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.enable_truncation(max_length=8)
    tokenizer.enable_padding(length=8)
    return tokenizer
