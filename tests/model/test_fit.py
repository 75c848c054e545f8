"""Claims about the tokenizer of a folder and its encoder: whatever the tokenizer adds or knows has a row."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, processors

from model.embedder import Embedder
from model.errors import CheckpointError
from model.fit import Additions, read_additions
from tests.model.folders import CONFIG, IDS, byte_level, wordpiece, write_bert, write_json

NONE: frozenset[str] = frozenset()


def refused(folder: Path, *parts: str) -> None:
    """Loading fails, and the message has all of ``parts``."""
    with pytest.raises(CheckpointError) as caught:
        Embedder.load(folder, dtype="float32", device="cpu", threads=1)
    for part in parts:
        assert part in str(caught.value)


def change_template(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the post-processor in a folder's ``tokenizer.json``."""
    content = json.loads((folder / "tokenizer.json").read_text())
    change(content["post_processor"])
    write_json(folder / "tokenizer.json", content)


def test_what_a_template_adds_is_read() -> None:
    """Its tokens and types, also where it is one of several processors."""
    template = wordpiece()
    assert read_additions(template) == Additions(NONE, frozenset({IDS["[CLS]"], IDS["[SEP]"]}), frozenset({0, 1}))
    byte = byte_level()
    byte.post_processor = processors.Sequence([processors.ByteLevel(), byte.post_processor])
    assert read_additions(byte) == Additions(NONE, frozenset({0, 2}), frozenset({0}))


@pytest.mark.parametrize("kind", [processors.BertProcessing, processors.RobertaProcessing])
def test_what_other_processors_add_is_read(kind: type) -> None:
    """Two tokens, whose types are the family's own."""
    backend = wordpiece()
    backend.post_processor = kind(("[SEP]", 7), ("[CLS]", 5))
    assert read_additions(backend) == Additions(NONE, frozenset({5, 7}), frozenset())


def test_a_tokenizer_may_add_nothing() -> None:
    """Without a post-processor, or with one that only moves offsets."""
    backend = Backend(models.WordPiece(vocab={"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    assert read_additions(backend) == Additions(NONE, frozenset(), frozenset())
    backend.post_processor = processors.ByteLevel()
    assert read_additions(backend) == Additions(NONE, frozenset(), frozenset())


@pytest.mark.parametrize("part", ["single", "pair"])
def test_a_special_token_that_is_not_described_is_refused(folder: Path, part: str) -> None:
    """The library panics when a text meets it: of a pair, only then."""

    def rename(template: dict[str, Any]) -> None:
        template[part][0]["SpecialToken"]["id"] = "x" * 100_000

    change_template(folder, rename)
    refused(folder, "adds the special token 'xxx", "does not describe it")


def test_a_template_without_descriptions_is_refused(folder: Path) -> None:
    """The first of its tokens is named."""
    change_template(folder, lambda template: template["special_tokens"].clear())
    refused(folder, "adds the special token '[CLS]'")


@pytest.mark.parametrize("count", [0, 1])
def test_a_template_without_the_text_is_refused(folder: Path, count: int) -> None:
    """Every text would get the same embedding, or none."""
    change_template(folder, lambda template: template.update(single=template["single"][:count]))
    refused(folder, "tokenizer.json: of the post_processor, single must have a place for the text (A)")


@pytest.mark.parametrize(("part", "places"), [("single", "B"), ("single", "AB"), ("pair", "A"), ("pair", "B")])
def test_a_template_with_the_wrong_texts_is_refused(folder: Path, part: str, places: str) -> None:
    """The library panics at a second text that is not there, and drops one that has no place without a word."""
    pieces = [{"Sequence": {"id": place, "type_id": 0}} for place in places]
    change_template(folder, lambda template: template.update({part: pieces}))
    refused(folder, "tokenizer.json", f"post_processor, {part} must have a place for")


def test_an_added_token_without_a_row_is_refused(folder: Path) -> None:
    """The last row is taken, the one behind it is not there; on a GPU the next kernel would fail, and all after it."""
    rows = CONFIG["vocab_size"]

    def number(new: int) -> Callable[[dict[str, Any]], None]:
        return lambda template: template["special_tokens"]["[SEP]"].update(ids=[new])

    change_template(folder, number(rows - 1))
    Embedder.load(folder, dtype="float32", device="cpu", threads=1).encode("the cat")
    change_template(folder, number(rows))
    refused(folder, f"ids up to {rows}", f"the embedding table has {rows} rows")


@pytest.mark.parametrize("part", ["single", "pair"])
def test_a_token_type_without_a_row_is_refused(folder: Path, part: str) -> None:
    """Of texts and of special tokens."""

    def change(template: dict[str, Any]) -> None:
        template[part][1]["Sequence"]["type_id"] = 2

    change_template(folder, change)
    refused(folder, "token types up to 2", "the table of token types has 2 rows")


def test_a_model_of_one_type_takes_a_template_of_two(tmp_path: Path) -> None:
    """BERT's template over an encoder that does not tell segments apart: every token takes the one row there is."""
    embedder = Embedder.load(
        write_bert(tmp_path / "model", type_vocab_size=1), dtype="float32", device="cpu", threads=1
    )
    assert embedder.encode([("the cat", "a dog")]).shape == (1, 16)


def test_a_vocabulary_without_rows_is_refused(folder: Path) -> None:
    """A tokenizer of another model."""
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["odd"] = CONFIG["vocab_size"]
    write_json(folder / "tokenizer.json", content)
    refused(folder, f"ids up to {CONFIG['vocab_size']}", "rows")


def test_a_length_without_room_for_text_is_refused(folder: Path) -> None:
    """A token between the special tokens is the least."""
    for limit in (0, 2, -5):
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": limit})
        refused(folder, f"sentence_bert_config.json: max_seq_length is {limit}, which leaves", "it must be 3 tokens")
    (folder / "sentence_bert_config.json").unlink()
    write_json(folder / "tokenizer_config.json", {"model_max_length": 2})
    refused(folder, "tokenizer_config.json: model_max_length is 2", "it must be 3 tokens")
    (folder / "tokenizer_config.json").unlink()
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 3})
    assert Embedder.load(folder, dtype="float32", device="cpu", threads=1).info.max_length == 3
