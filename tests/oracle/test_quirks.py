"""The ways one checkpoint is stored: shards, half precision, prefixes, old tokenizer files, their own padding."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModel, AutoTokenizer, BertTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from model.contract import OutputSpec
from model.embedder import Embedder
from model.tokenizer import Text
from tests.oracle.families import BY_NAME
from tests.oracle.tiny import (
    BERT_SPECIALS,
    WORDS,
    Family,
    assert_same,
    load,
    make_tokenizer,
    random_inputs,
    reference,
    run,
    save,
    save_tokenizer,
)

pytestmark = pytest.mark.oracle

TENSORS = "model.safetensors"


def assert_agrees(family: Family, built: PreTrainedModel, folder: Path) -> Embedder:
    """Load the folder and compare one mixed batch with the model that was saved."""
    inputs = random_inputs(family, seed=11)
    embedder = load(folder)
    for row, answer in zip(run(embedder, inputs, built.config), reference(built, family, inputs), strict=True):
        assert_same(row, answer)
    return embedder


def rename(folder: Path, change: Callable[[str], str]) -> None:
    """Rename every tensor of the folder."""
    tensors = load_file(folder / TENSORS)
    save_file({change(key): tensor for key, tensor in tensors.items()}, folder / TENSORS, {"format": "pt"})


@pytest.mark.parametrize("name", ["bert", "nomic", "modernbert"])
def test_shards(name: str, tmp_path: Path) -> None:
    """A checkpoint cut into many files loads as one file does."""
    family = BY_NAME[name]
    built = family.build()
    save(built, tmp_path, family.specials, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert not (tmp_path / TENSORS).exists()
    assert_agrees(family, built, tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_half_precision_file(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """A checkpoint stored in half precision runs in float32 with the rounded weights."""
    family = BY_NAME[name]
    save(family.build().to(dtype), tmp_path, family.specials)
    assert {tensor.dtype for tensor in load_file(tmp_path / TENSORS).values()} == {dtype}
    rounded = AutoModel.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    assert_agrees(family, rounded, tmp_path)


@pytest.mark.parametrize("prefix", ["bert.", "model.", "0.auto_model.", "auto_model.", "module.", "model.bert."])
def test_bert_prefixes(prefix: str, tmp_path: Path) -> None:
    """Every prefix a BERT checkpoint is stored under is found and stripped."""
    family = BY_NAME["bert"]
    built = family.build()
    save(built, tmp_path)
    rename(tmp_path, lambda key: prefix + key)
    assert_agrees(family, built, tmp_path)


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("roberta", "roberta."),
        ("roberta", "0.auto_model."),
        ("xlm-roberta", "roberta."),
        ("camembert", "roberta."),
        ("distilbert", "distilbert."),
        ("mpnet", "mpnet."),
        ("electra", "electra."),
        ("nomic", "bert."),
        ("modernbert", "model."),
        ("modernbert", "0.auto_model."),
    ],
)
def test_other_prefixes(name: str, prefix: str, tmp_path: Path) -> None:
    """Every prefix another family's checkpoint is stored under is found and stripped."""
    family = BY_NAME[name]
    built = family.build()
    save(built, tmp_path, family.specials)
    rename(tmp_path, lambda key: prefix + key)
    assert_agrees(family, built, tmp_path)


def test_position_ids_in_the_file(tmp_path: Path) -> None:
    """The position buffer that older libraries stored beside the weights changes nothing."""
    family = BY_NAME["roberta"]
    built = family.build()
    save(built, tmp_path, family.specials)
    buffer = {"embeddings.position_ids": built.embeddings.position_ids.clone()}
    save_file({**load_file(tmp_path / TENSORS), **buffer}, tmp_path / TENSORS, {"format": "pt"})
    assert_agrees(family, built, tmp_path)


@torch.no_grad()
def assert_same_texts(
    family: Family, built: PreTrainedModel, folder: Path, tokenizer: PreTrainedTokenizerFast, texts: list[Text]
) -> None:
    """Encode texts and pairs with both sides' tokenizers and compare the hidden states, text by text."""
    embedder = load(folder)
    inputs = embedder.tokenizer.encode(texts)
    rows = embedder.run(inputs, [OutputSpec(normalize=False, token_states=True)] * len(texts))
    for text, item, row in zip(texts, inputs, rows, strict=True):
        parts = (text,) if isinstance(text, str) else text
        encoding = tokenizer(*parts, return_tensors="pt", return_token_type_ids=family.has_token_types)
        assert item.input_ids == encoding["input_ids"][0].tolist()
        hidden = built(**encoding).last_hidden_state[0]
        assert row.token_states is not None
        torch.testing.assert_close(torch.from_numpy(row.token_states), hidden, rtol=0.0, atol=1e-5)


PAIRS = [("word1 word2", "word3"), ("word4", "word5 word6 word7"), "word8 word9"]


@pytest.mark.parametrize("name", ["bert", "roberta", "electra", "mpnet", "modernbert"])
def test_pairs(name: str, tmp_path: Path) -> None:
    """Pairs of texts get transformers' ids, token types where the family has them, and hidden states."""
    family = BY_NAME[name]
    built = family.build()
    save(built, tmp_path, family.specials)
    assert_same_texts(family, built, tmp_path, AutoTokenizer.from_pretrained(tmp_path), PAIRS)


def test_token_types_a_family_does_not_have(tmp_path: Path) -> None:
    """A tokenizer that numbers the second text 1 does not make a RoBERTa with one token type look past its table."""
    family = BY_NAME["roberta"]
    built = family.build()
    save(built, tmp_path, family.specials)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    for piece in tokenizer["post_processor"]["pair"][-2:]:
        next(iter(piece.values()))["type_id"] = 1
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert load(tmp_path).tokenizer.encode([PAIRS[0]])[0].token_type_ids[-1] == 1
    assert_same_texts(family, built, tmp_path, AutoTokenizer.from_pretrained(tmp_path), PAIRS)


PIECES = (*BERT_SPECIALS, "the", "cat", "##s", "sat", "caf", "##e", "café", "a", "b", "##b", "!", ",", "中", "文")
TEXTS = ["the cats sat!", "The CAT", "café, cafe", "Café", "中文 ab", "abb zzz", "", "the [SEP] cat"]


@pytest.mark.parametrize("lower", [True, False], ids=["uncased", "cased"])
def test_vocab_txt(lower: bool, tmp_path: Path) -> None:
    """A folder with vocab.txt and no tokenizer.json tokenizes as transformers' BertTokenizer does."""
    family = BY_NAME["bert"]
    built = family.build()
    save(built, tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": lower, "model_max_length": 140})
    )
    theirs = BertTokenizer(vocab=str(tmp_path / "vocab.txt"), do_lower_case=lower)
    embedder = load(tmp_path, special_tokens="parse")
    for text, item in zip(TEXTS, embedder.tokenizer.encode(TEXTS), strict=True):
        assert item.input_ids == theirs(text)["input_ids"], text
    assert_same_texts(family, built, tmp_path, theirs, ["the cats sat!", ("The CAT", "Café")])


def test_fixed_padding_and_truncation_of_the_tokenizer_file(tmp_path: Path) -> None:
    """Padding to 128 and truncation at 16 in tokenizer.json, such as all-MiniLM's file carries, are both cleared."""
    family = BY_NAME["bert"]
    built = family.build()
    plain = save(built, tmp_path / "plain")
    fixed = Path(shutil.copytree(plain, tmp_path / "fixed"))
    tokenizer = Tokenizer.from_file(str(fixed / "tokenizer.json"))
    tokenizer.enable_padding(length=128, pad_id=0, pad_token="[PAD]")
    tokenizer.enable_truncation(16)
    tokenizer.save(str(fixed / "tokenizer.json"))
    texts = ["word1 word2", " ".join(WORDS[:40])]
    assert [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)] == [128, 128]
    assert_same_texts(family, built, fixed, AutoTokenizer.from_pretrained(plain), texts)
    assert [item.num_tokens for item in load(fixed).tokenizer.encode(texts)] == [4, 42]


def test_lowercase_in_the_tokenizer_file(tmp_path: Path) -> None:
    """A normaliser in tokenizer.json is kept."""
    family = BY_NAME["bert"]
    built = family.build()
    save(built, tmp_path)
    save_tokenizer(make_tokenizer(lowercase=True), tmp_path)
    texts = ["WORD1 Word2", "word1 word2"]
    assert_same_texts(family, built, tmp_path, AutoTokenizer.from_pretrained(tmp_path), texts)
    first, second = load(tmp_path).tokenizer.encode(texts)
    assert first.input_ids == second.input_ids
