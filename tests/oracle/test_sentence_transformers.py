"""Whole model folders against sentence-transformers: pooling, dense modules, prompts, lengths, lower-casing.

Each folder is loaded by both sides, as it is.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util import quantize_embeddings

from model.contract import FloatArray
from model.output_dtype import convert, int8_range
from model.output_types import OutputDtype
from tests.oracle.families import BY_NAME
from tests.oracle.tiny import SIZES, TOLERANCE, WORDS, edit_json, load, save, save_modules, write_json

pytestmark = pytest.mark.oracle

POOLINGS = ("mean", "cls", "max", "lasttoken")
PROMPTS = {"query": "word7 word8: ", "document": ""}

TEXTS = [
    "word1",
    "word2 word3, word4!",
    "",
    "Word5 WORD6 something-unknown word7",
    " ".join(WORDS[10:42]),
    "word1 word2 word3 word4 word5 word6 word7 word8 word9 word10 word11 word12 word13",
    " ".join(WORDS),
]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a tiny BERT folder; tests copy it."""
    return save(BY_NAME["bert"].build(), tmp_path_factory.mktemp("bert"))


@pytest.fixture
def folder(bert: Path, tmp_path: Path) -> Path:
    """Copy the tiny BERT folder, in the layout of sentence-transformers until version 5."""
    return Path(shutil.copytree(bert, tmp_path / "model"))


def save_today(bert: Path, folder: Path, *modules: torch.nn.Module, **options: Any) -> Path:
    """Save BERT and modules in the layout of the installed sentence-transformers."""
    SentenceTransformer(modules=[Transformer(str(bert)), *modules], device="cpu", **options).save(str(folder))
    return folder


def assert_same_embeddings(
    folder: Path, *, normalize: bool = False, prompt: dict[str, str] | None = None
) -> FloatArray:
    """Encode :data:`TEXTS` with both sides and compare; returns ours."""
    prompt = prompt or {}
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, batch_size=3, **prompt)
    ours = load(folder, special_tokens="parse").encode(TEXTS, normalize=normalize, **prompt)
    np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=TOLERANCE)
    return ours


@pytest.mark.parametrize("layout", ["today", "older"])
@pytest.mark.parametrize("mode", POOLINGS)
def test_pooling(bert: Path, folder: Path, tmp_path: Path, mode: str, layout: str) -> None:
    """Each way of pooling, in the configuration files of either age, gives sentence-transformers' embeddings."""
    if layout == "older":
        save_modules(folder, mode=mode)
        assert_same_embeddings(folder)
    else:
        assert_same_embeddings(save_today(bert, tmp_path / "today", Pooling(SIZES["hidden_size"], mode)))


def test_poolings_differ(bert: Path, tmp_path: Path) -> None:
    """No two ways of pooling give the same embeddings, so the comparison above tells them apart."""
    embeddings = [
        load(save_today(bert, tmp_path / mode, Pooling(SIZES["hidden_size"], mode))).encode(TEXTS, normalize=False)
        for mode in POOLINGS
    ]
    for index, left in enumerate(embeddings):
        for right in embeddings[index + 1 :]:
            assert np.abs(left - right).max() > 0.1


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [torch.nn.Tanh(), torch.nn.Identity()], ids=["tanh", "identity"])
def test_dense_and_normalize(bert: Path, tmp_path: Path, activation: torch.nn.Module, bias: bool) -> None:
    """A Dense module, with either activation and with or without a bias, then Normalize."""
    torch.manual_seed(8)
    width = SIZES["hidden_size"]
    modules = (Pooling(width, "mean"), Dense(width, 20, bias=bias, activation_function=activation), Normalize())
    ours = assert_same_embeddings(save_today(bert, tmp_path / "dense", *modules), normalize=True)
    assert ours.shape == (len(TEXTS), 20)


def test_two_dense_modules(bert: Path, tmp_path: Path) -> None:
    """Dense modules run in the order of modules.json."""
    torch.manual_seed(9)
    width = SIZES["hidden_size"]
    modules = (Pooling(width, "cls"), Dense(width, width), Dense(width, 12, activation_function=torch.nn.ReLU()))
    assert assert_same_embeddings(save_today(bert, tmp_path / "dense", *modules)).shape == (len(TEXTS), 12)


def test_older_dense_and_normalize(folder: Path) -> None:
    """Dense and Normalize in a hand-written older layout, their folders numbered as they were then."""
    width = SIZES["hidden_size"]
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3_Normalize", "Normalize")]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    (folder / "2_Dense").mkdir()
    torch.manual_seed(10)
    Dense(width, 24).save(str(folder / "2_Dense"))
    sizes = {"in_features": width, "out_features": 24, "bias": True}
    write_json(folder / "2_Dense/config.json", {**sizes, "activation_function": "torch.nn.modules.activation.Tanh"})
    assert assert_same_embeddings(folder, normalize=True).shape == (len(TEXTS), 24)


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize("mode", POOLINGS)
def test_prompts(bert: Path, tmp_path: Path, mode: str, include_prompt: bool) -> None:
    """A prompt by name and one by text, pooled with the text or left out of pooling."""
    pooling = Pooling(SIZES["hidden_size"], mode, include_prompt=include_prompt)
    folder = save_today(bert, tmp_path / "prompts", pooling, prompts=PROMPTS)
    plain = assert_same_embeddings(folder)
    for prompt in ({"prompt_name": "query"}, {"prompt": "word20 "}):
        assert np.abs(assert_same_embeddings(folder, prompt=prompt) - plain).max() > 0.1
    assert np.array_equal(assert_same_embeddings(folder, prompt={"prompt_name": "document"}), plain)


def test_default_prompt(bert: Path, tmp_path: Path) -> None:
    """The folder's default prompt is put before every text."""
    pooling = Pooling(SIZES["hidden_size"], "mean")
    options = {"prompts": PROMPTS, "default_prompt_name": "query"}
    default = assert_same_embeddings(save_today(bert, tmp_path / "default", pooling, **options))
    plain = assert_same_embeddings(save_today(bert, tmp_path / "plain", pooling, prompts=PROMPTS))
    assert np.abs(default - plain).max() > 0.1


@pytest.mark.parametrize("where", ["sentence_bert_config.json", "tokenizer_config.json"])
def test_max_seq_length(folder: Path, where: str) -> None:
    """Texts are cut to the folder's own length, in the file of older folders and in that of today's."""
    uncut = assert_same_embeddings(folder)
    if where == "tokenizer_config.json":
        edit_json(folder / where, lambda raw: raw.update(model_max_length=12))
    else:
        write_json(folder / where, {"max_seq_length": 12, "do_lower_case": False})
    cut = assert_same_embeddings(folder)
    changed = np.abs(cut - uncut).max(axis=1) > 0.01
    assert changed.tolist() == [False, False, False, False, True, True, True]


def test_position_limit(folder: Path) -> None:
    """Where no file states a length, texts are cut to what the position table allows."""
    edit_json(folder / "tokenizer_config.json", lambda raw: raw.pop("model_max_length", None))
    long = " ".join(WORDS * 2)
    theirs = SentenceTransformer(str(folder), device="cpu").encode([long])
    ours = load(folder).encode([long], normalize=False)
    np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=TOLERANCE)


@pytest.mark.parametrize("lower", [True, False])
def test_do_lower_case(folder: Path, lower: bool) -> None:
    """do_lower_case of sentence_bert_config.json lower-cases before a tokenizer that does not."""
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 100, "do_lower_case": lower})
    assert_same_embeddings(folder)
    embedder = load(folder)
    upper, plain = embedder.encode(["WORD5 Word6", "word5 word6"])
    assert np.allclose(upper, plain, atol=TOLERANCE) == lower


@pytest.mark.parametrize("special_tokens", ["text", "parse"])
def test_special_tokens_in_a_text(folder: Path, special_tokens: Literal["text", "parse"]) -> None:
    """A typed [SEP] is the special token for sentence-transformers and with "parse", and only then."""
    text = "word1 [SEP] word2"
    theirs = SentenceTransformer(str(folder), device="cpu").encode([text])
    ours = load(folder, special_tokens=special_tokens).encode([text], normalize=False)
    assert np.allclose(ours, theirs, rtol=0.0, atol=TOLERANCE) == (special_tokens == "parse")


@pytest.mark.parametrize("output_dtype", ["binary", "ubinary"])
def test_packed_bits_are_theirs(output_dtype: OutputDtype) -> None:
    """An index that was filled with their bits is searched with ours."""
    vectors = np.random.default_rng(0).standard_normal((20, 64)).astype(np.float32)
    np.testing.assert_array_equal(convert(vectors, output_dtype), quantize_embeddings(vectors, output_dtype))


def test_int8_is_theirs_to_within_two_steps() -> None:
    """With our range given to them: they round down where we round, and their zero is -1, ours is 0."""
    vectors = np.random.default_rng(0).standard_normal((20, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ranges = np.array([[-int8_range(64)] * 64, [int8_range(64)] * 64], np.float32)
    theirs = quantize_embeddings(vectors, "int8", ranges=ranges)
    higher = convert(vectors, "int8").astype(int) - theirs
    assert set(np.unique(higher)) <= {0, 1, 2}
    assert quantize_embeddings(np.zeros((1, 64), np.float32), "int8", ranges=ranges)[0, 0] == -1
