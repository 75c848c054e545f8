"""SPLADE models against sentence-transformers' SparseEncoder: each folder is loaded by both sides, as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sparse_encoder.modules import SpladePooling

from model.contract import FloatArray
from model.embedder import Embedder
from tests.oracle.families import BY_NAME, FAMILIES
from tests.oracle.tiny import TOLERANCE, WORDS, Family, edit_json, load, make_tokenizer, save_tokenizer, write_json

pytestmark = pytest.mark.oracle

TEXTS = [
    "word1",
    "word2 word3, word4!",
    "",
    "word7 something-unknown",
    " ".join(WORDS[10:42]),
    " ".join(WORDS),
    "word1",
]

MASKED_LMS = [
    pytest.param(family, head, id=head)
    for family in FAMILIES
    for head in family.heads
    if head.endswith("ForMaskedLM") and family.name != "camembert"  # RoBERTa's classes under another name
]


def save_splade(
    built: transformers.PreTrainedModel,
    folder: Path,
    family: Family,
    strategy: str = "max",
    activation: str = "relu",
) -> Path:
    """Save a folder as today's SparseEncoder does."""
    plain = folder / "plain"
    built.save_pretrained(plain)
    save_tokenizer(make_tokenizer(family.specials), plain, family.specials)
    types = ["token_type_ids"] if family.has_token_types else []
    names = {"model_input_names": ["input_ids", *types, "attention_mask"]}
    edit_json(plain / "tokenizer_config.json", lambda config: config.update(names))
    modules = [Transformer(str(plain), transformer_task="fill-mask"), SpladePooling(strategy, activation)]
    SparseEncoder(modules=modules, device="cpu").save_pretrained(str(folder / "splade"))
    return folder / "splade"


def sparse_vectors(embedder: Embedder, texts: list[str]) -> FloatArray:
    """Our vectors of texts, run as one batch: (texts, vocabulary)."""
    inputs = embedder.tokenizer.encode(texts)
    vectors = np.zeros((len(texts), embedder.info.vocab_size), dtype=np.float32)
    for vector, row in zip(vectors, embedder.run(inputs, [embedder.own_output] * len(inputs)), strict=True):
        assert row.sparse_vector is not None
        assert (np.diff(row.sparse_vector.index) > 0).all()
        assert (row.sparse_vector.value > 0).all()
        vector[row.sparse_vector.index] = row.sparse_vector.value
    return vectors


def assert_same_vectors(folder: Path, rtol: float = 0.0) -> Embedder:
    """Encode :data:`TEXTS` with both sides and compare; returns our side."""
    embedder = load(folder, special_tokens="parse")
    assert embedder.info.kind == "sparse"
    theirs = SparseEncoder(str(folder), device="cpu").encode(TEXTS, batch_size=3).to_dense().numpy()
    assert 0.05 < (theirs > 0).mean() < 0.95  # some are 0, some are not
    np.testing.assert_allclose(sparse_vectors(embedder, TEXTS), theirs, rtol=rtol, atol=TOLERANCE)
    return embedder


@pytest.mark.parametrize(("family", "head"), MASKED_LMS)
def test_every_family(family: Family, head: str, tmp_path: Path) -> None:
    """The weights of every family with a head are SparseEncoder's own, and every parameter of the model is counted."""
    built = family.build(head)
    embedder = assert_same_vectors(save_splade(built, tmp_path, family))
    assert embedder.info.num_parameters == sum(parameter.numel() for parameter in built.parameters())
    assert embedder.info.num_ignored_tensors == 0


@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
@pytest.mark.parametrize("strategy", ["max", "sum"])
def test_every_pooling(strategy: str, activation: str, tmp_path: Path) -> None:
    """The largest weight or the sum, damped once or twice; special tokens count, padding does not."""
    family = BY_NAME["bert"]
    assert_same_vectors(save_splade(family.build("BertForMaskedLM"), tmp_path, family, strategy, activation), rtol=1e-6)


OPTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "untied": ("bert", "BertForMaskedLM", {"tie_word_embeddings": False}),
    "untied distilbert": ("distilbert", "DistilBertForMaskedLM", {"tie_word_embeddings": False}),
    "relu": ("bert", "BertForMaskedLM", {"hidden_act": "relu", "layer_norm_eps": 0.1}),
    "gelu_new": ("bert", "BertForMaskedLM", {"hidden_act": "gelu_new"}),
    "activation of distilbert": ("distilbert", "DistilBertForMaskedLM", {"activation": "relu"}),
    "roberta's own gelu": ("roberta", "RobertaForMaskedLM", {"hidden_act": "relu"}),
    "modernbert's biases": (
        "modernbert",
        "ModernBertForMaskedLM",
        {"classifier_bias": True, "norm_bias": True, "decoder_bias": False, "classifier_activation": "silu"},
    ),
}


@pytest.mark.parametrize(("name", "head", "options"), OPTIONS.values(), ids=OPTIONS)
def test_options_of_the_head(name: str, head: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Activation, norm, biases, and whether the decoder is the table, are taken from the configuration."""
    family = replace(BY_NAME[name], options={**BY_NAME[name].options, **options})
    assert_same_vectors(save_splade(family.build(head), tmp_path, family))


def test_the_layout_until_version_5_4(tmp_path: Path) -> None:
    """As published SPLADE models have it: MLMTransformer, its own maximum length, the width beside the pooling; and
    the decoder written out beside the table that it is.
    """
    family = BY_NAME["bert"]
    folder = save_splade(family.build("BertForMaskedLM"), tmp_path, family)
    tensors = load_file(folder / "model.safetensors")
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    package = "sentence_transformers.sparse_encoder.models"
    modules = [("", f"{package}.MLMTransformer"), ("1_SpladePooling", f"{package}.SpladePooling")]
    write_json(
        folder / "modules.json",
        [{"idx": index, "name": str(index), "path": path, "type": kind} for index, (path, kind) in enumerate(modules)],
    )
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 20, "do_lower_case": False})
    pooling = {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": 95}
    write_json(folder / "1_SpladePooling/config.json", pooling)
    assert assert_same_vectors(folder).tokenizer.max_length == 20


def test_a_decoder_that_differs_is_no_guess(tmp_path: Path) -> None:
    """A decoder that is not the table, and a configuration that says it is: refused by the names of both. With the
    configuration mended the decoder is read, as there.
    """
    family = replace(BY_NAME["bert"], options={"tie_word_embeddings": False})
    folder = save_splade(family.build("BertForMaskedLM"), tmp_path, family)
    edit_json(folder / "config.json", lambda config: config.update(tie_word_embeddings=True))
    with pytest.raises(Exception, match=r"cls\.predictions\.decoder\.weight.*tie_word_embeddings"):
        load(folder)
    edit_json(folder / "config.json", lambda config: config.update(tie_word_embeddings=False))
    assert_same_vectors(folder)


def test_half_precision_stays_near(tmp_path: Path) -> None:
    """In bfloat16 and int8 the vectors point where they do in float32."""
    family = BY_NAME["bert"]
    folder = save_splade(family.build("BertForMaskedLM"), tmp_path, family)
    exact = sparse_vectors(load(folder), TEXTS)
    for dtype, lowest in (("bfloat16", 0.999), ("int8", 0.98)):
        near = sparse_vectors(Embedder.load(folder, dtype=dtype, threads=1), TEXTS)
        cosines = (exact * near).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(near, axis=1)
        assert cosines.min() > lowest
