"""How folders of late interaction models read texts: what their tokenizers must have, and what becomes of lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend

from model.checkpoint import load_encoder
from model.device import choose_device
from model.errors import CheckpointError
from model.fit import make_tokenizer
from model.folder import read_folder
from model.readings import Added, Reading
from model.tokenizer import Tokenizer
from tests.model.test_late_interaction import edit, own_layout
from tests.tiny import PREFIXES, VOCABULARY, make_bert_folder

Q, D = (Added(len(VOCABULARY) + place, spelling) for place, spelling in enumerate(PREFIXES))
MASK = Added(VOCABULARY.index("[MASK]"), "[MASK]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A late interaction model as PyLate writes it."""
    return make_bert_folder(tmp_path / "late", late=True)


def tokenizer_of(folder: Path) -> Tokenizer:
    """The tokenizer as it is served."""
    described = read_folder(folder)
    config = load_encoder(described, torch.float32, choose_device("cpu")).encoder.config
    return make_tokenizer(described, config, "text")


def refused(folder: Path, *parts: str) -> None:
    """Refused in one sentence with these parts."""
    with pytest.raises(CheckpointError) as caught:
        tokenizer_of(folder)
    for part in parts:
        assert part in str(caught.value)


def pylate(folder: Path, **changes: Any) -> Path:
    """Change fields of PyLate's."""
    return edit(folder / "config_sentence_transformers.json", **changes)


def change_tokenizer(folder: Path, old: str, new: str) -> Path:
    """Spell a token of the tokenizer otherwise."""
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace(json.dumps(old), json.dumps(new)))
    return folder


def test_an_embedding_model_reads_every_text_alike(tmp_path: Path) -> None:
    """Whatever role it is given."""
    tokenizer = tokenizer_of(make_bert_folder(tmp_path / "plain"))
    assert (tokenizer.config.readings, tokenizer.max_length) == ({}, 32)
    assert tokenizer.encode(["the cat"], role="query") == tokenizer.encode(["the cat"])


def test_queries_and_documents_are_read_as_the_folder_says(folder: Path) -> None:
    """Prefix, length, expansion, skiplist; two prompts say which is which."""
    tokenizer = tokenizer_of(folder)
    skipped = frozenset(VOCABULARY.index(word) for word in ".,!")
    assert tokenizer.config.readings == {
        "query": Reading(10, Q, MASK, 10, attend_to_expansion=False),
        "document": Reading(20, D, skiplist_ids=skipped),
    }
    assert tokenizer.config.prompts == {"query": "", "document": ""}
    assert [tokenizer.role(name, None) for name in ("query", "document", "other", None)] == [
        "query",
        *["document"] * 3,
    ]
    assert tokenizer.max_length == 20  # not the 32 of sentence_bert_config.json
    [query] = tokenizer.encode(["the cat."], role="query")
    [document] = tokenizer.encode(["the cat."])
    names = [*VOCABULARY, *PREFIXES]
    assert [names[token] for token in query.input_ids] == [
        *("[CLS]", "[Q] ", "the", "cat", ".", "[SEP]"),
        *["[MASK]"] * 4,
    ]
    assert (query.num_seen, query.kept) == (6, None)
    assert [names[token] for token in document.input_ids] == ["[CLS]", "[D] ", "the", "cat", ".", "[SEP]"]
    assert (document.num_seen, document.kept) == (None, (0, 1, 2, 3, 5))


def test_each_role_has_its_own_length(folder: Path) -> None:
    """The prefix counts; a cut is told, and refused with the role's own limit."""
    tokenizer = tokenizer_of(folder)
    long = "cat " * 30
    for role, length in (("query", 10), ("document", 20)):
        [item] = tokenizer.encode([long], role=role)  # type: ignore[arg-type]
        assert (item.num_tokens, item.num_tokens_total, item.is_truncated, item.num_seen) == (length, 33, True, None)
        with pytest.raises(Exception, match=f"33 tokens, the model reads {length}"):
            tokenizer.encode([long], truncate=False, role=role)  # type: ignore[arg-type]
        [fits] = tokenizer.encode(["cat " * (length - 3)], truncate=False, role=role)  # type: ignore[arg-type]
        assert (fits.num_tokens, fits.is_truncated) == (length, False)
    [whole] = tokenizer.encode([long], role="query", whole=True)
    assert (whole.num_tokens, whole.is_truncated) == (33, False)
    assert tokenizer_of(pylate(folder, query_length=30)).max_length == 30


def test_ids_are_a_documents(folder: Path) -> None:
    """As they are, its prefix among them; punctuation has no vector there either."""
    tokenizer = tokenizer_of(folder)
    [document] = tokenizer.encode(["the cat."])
    assert tokenizer.encode([document.input_ids]) == [document]
    assert tokenizer.from_ids([5] * 30).num_tokens == 20


def test_prompts_stand_between_prefix_and_text(folder: Path) -> None:
    """A prompt that the folder has by the role's name, less a prefix that was written into it."""
    tokenizer = tokenizer_of(pylate(folder, prompts={"query": "[Q] query ", "document": "passage "}))
    assert tokenizer.config.prompts == {"query": "query ", "document": "passage "}
    [item] = tokenizer.encode(["cat"], prompt=tokenizer.prompt("query", None), role="query", details=True)
    assert item.tokens is not None
    assert item.tokens.texts[:5] == ["[CLS]", "[Q] ", "query", "cat", "[SEP]"]
    assert item.prompt_length == 3


def test_the_default_prompt_says_the_role_where_none_is_named(folder: Path) -> None:
    """As it says the prompt; a prompt that is given as a text names none."""
    tokenizer = tokenizer_of(pylate(folder, prompts={"query": "query "}, default_prompt_name="query"))
    assert [tokenizer.role(name, None) for name in (None, "document")] == ["query", "document"]
    assert [tokenizer.role(None, text) for text in ("passage ", "")] == ["document", "document"]


def test_no_prefix_is_no_token(folder: Path) -> None:
    """An empty one is left out."""
    tokenizer = tokenizer_of(pylate(folder, query_prefix="", document_prefix=""))
    [item] = tokenizer.encode(["cat"])
    assert item.num_tokens == 3
    assert tokenizer.config.readings["query"].prefix is None


def test_a_prefix_that_is_no_token_is_refused(folder: Path) -> None:
    """PyLate would give it a random vector."""
    refused(pylate(folder, query_prefix="[X] "), "config_sentence_transformers.json", "query_prefix '[X] '")
    refused(pylate(folder, query_prefix="[Q] ", document_prefix="[Y] "), "document_prefix '[Y] '")


def test_the_mask_token_is_found_by_its_name(folder: Path) -> None:
    """Of the tokenizer's own files first; without any a folder that needs one is refused."""
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": "cat"}))
    assert tokenizer_of(folder).config.readings["query"].expansion_token == Added(VOCABULARY.index("cat"), "cat")
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": {"content": "dog"}}))
    assert tokenizer_of(folder).config.readings["query"].expansion_token == Added(VOCABULARY.index("dog"), "dog")
    (folder / "tokenizer_config.json").unlink()
    (folder / "special_tokens_map.json").write_text(json.dumps({"mask_token": "sat"}))
    assert tokenizer_of(folder).config.readings["query"].expansion_token == Added(VOCABULARY.index("sat"), "sat")
    (folder / "special_tokens_map.json").unlink()
    refused(change_tokenizer(folder, "[MASK]", "[MSK]"), "tokenizer_config.json: mask_token None", "[MASK] and <mask>")
    assert tokenizer_of(pylate(folder, do_query_expansion=False)).config.readings["query"].expansion_token is None


def test_words_of_the_skiplist_that_are_no_tokens_are_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And left out, so that they do not stand for every unknown token."""
    tokenizer = tokenizer_of(pylate(folder, skiplist_words=["!", "~~"]))
    assert tokenizer.config.readings["document"].skiplist_ids == {VOCABULARY.index("!")}
    assert "1 words of the skiplist are no tokens, such as '~~'" in caplog.text


def test_lengths_are_held_to_what_the_encoder_reads(folder: Path) -> None:
    """Documents are cut there; a query that would be filled up beyond is refused; so is one without room for text."""
    assert tokenizer_of(pylate(folder, document_length=500)).config.readings["document"].max_length == 64
    refused(
        pylate(folder, query_length=65), "config_sentence_transformers.json: query_length is 65", "the encoder reads 64"
    )
    tokenizer = tokenizer_of(pylate(folder, do_query_expansion=False))
    assert tokenizer.config.readings["query"].max_length == 64
    refused(pylate(folder, query_length=3), "config_sentence_transformers.json: query_length is 3, which", "must be 4")
    refused(pylate(folder, query_length=10, document_length=3), "document_length is 3, which", "must be 4")
    pylate(folder, document_length=20)
    assert tokenizer_of(pylate(folder, query_length=4)).config.readings["query"].max_length == 4


def test_own_layouts_prefixes_are_special_tokens_of_its_prompts(folder: Path) -> None:
    """The longest that a prompt begins with; the rest of the prompt is text. Without lengths the model's own holds."""
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens(["[Q]", *PREFIXES])
    backend.save(str(folder / "tokenizer.json"))
    edit(folder / "config.json", vocab_size=backend.get_vocab_size())
    tensors = make_bert_folder(folder.parent / "wider", vocab_size=backend.get_vocab_size())
    (tensors / "model.safetensors").replace(folder / "model.safetensors")
    own_layout(folder)
    prompts = {"query": "[Q] query: ", "document": "passage: "}
    edit(folder / "config_sentence_transformers.json", prompts=prompts)
    tokenizer = tokenizer_of(folder)
    assert tokenizer.config.prompts == {"query": "query: ", "document": "passage: "}
    readings = tokenizer.config.readings
    assert (readings["query"].prefix, readings["document"].prefix) == (Q, None)
    assert (readings["query"].max_length, readings["document"].max_length, readings["query"].expansion_token) == (
        32,
        32,
        None,
    )
    edit(folder / "sentence_bert_config.json", query_expansion={"strategy": "fixed", "length": 9, "token": "cat"})
    assert tokenizer_of(folder).config.readings["query"].expansion_token == Added(VOCABULARY.index("cat"), "cat")
    edit(folder / "sentence_bert_config.json", query_expansion={"strategy": "fixed", "length": 9, "token": "~~"})
    refused(folder, "sentence_bert_config.json: query_expansion.token '~~'")


def test_a_tokenizer_with_more_ids_than_rows_is_refused(tmp_path: Path) -> None:
    """Some of its tokens would have no embedding."""
    path = make_bert_folder(tmp_path / "late", late=True, vocab_size=len(VOCABULARY))
    refused(path, f"ids up to {len(VOCABULARY) + 1}", f"has {len(VOCABULARY)} rows")
