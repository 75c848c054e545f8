"""Claims about reading a model folder's description: every quirk, every refusal, each with file and field."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from model.errors import CheckpointError
from model.files import read_json
from model.folder import ModelFolder, read_folder, read_tokenizer
from model.pooling import Pooling
from model.sparse import SpladePooling
from tests.model.folders import IDS, PIECES, SPECIALS, write_dense, write_json, write_modules


def refused(folder: Path, *parts: str) -> None:
    """Reading fails, and the message has all of ``parts``."""
    with pytest.raises(CheckpointError) as caught:
        read_tokenizer(read_folder(folder))
    for part in parts:
        assert part in str(caught.value)
    assert len(str(caught.value)) < 1_000


def test_a_whole_folder_is_read(folder: Path) -> None:
    """Everything the files say, and nothing else."""
    described = read_folder(folder)
    assert described.path == described.transformer == folder
    assert described.config["model_type"] == "bert"
    assert described.pooling == Pooling("mean", include_prompt=True)
    assert described.dense == ()
    assert described.max_length == 32
    assert (described.lowercase, described.prompts, described.default_prompt_name) == (False, {}, None)


def test_the_transformer_may_stand_in_a_folder_of_its_own(folder: Path) -> None:
    """Older models keep it in ``0_Transformer``: config, tokenizer and maximum length are read there."""
    inner = folder / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors", "sentence_bert_config.json"):
        (folder / name).rename(inner / name)
    write_modules(folder, ("Transformer", "0_Transformer"), ("Pooling", "1_Pooling"))
    described = read_folder(folder)
    assert described.transformer == inner
    assert described.max_length == 32
    assert read_tokenizer(described).token_to_id("cat") == IDS["cat"]


# --- JSON ---


def test_what_is_no_folder_is_refused(folder: Path) -> None:
    """A file, or nothing, is not a model."""
    refused(folder / "config.json", "config.json is not a folder")
    refused(folder / "absent", "absent is not a folder")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff\xfe", "is not text in UTF-8"),
        (b"[1]", "holds list, not a JSON object"),
        (b"", "is not valid JSON"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "sentence_bert_config.json", "1_Pooling/config.json"])
def test_broken_json_is_named(folder: Path, name: str, content: bytes, reason: str) -> None:
    """The file and what is wrong with it."""
    (folder / name).write_bytes(content)
    refused(folder, f"{name} {reason}")


def test_a_missing_config_is_named(folder: Path) -> None:
    """Without ``config.json`` there is no model."""
    (folder / "config.json").unlink()
    refused(folder, "config.json is missing")


def test_a_file_that_cannot_be_read_is_told_apart(tmp_path: Path) -> None:
    """A folder where a file should be is neither missing nor broken JSON."""
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json is no regular file"):
        read_json(tmp_path / "config.json")


# --- modules ---


@pytest.mark.parametrize(
    "content", [{"type": "a.Transformer", "path": ""}, [{"type": "a.Transformer"}], [["Transformer", ""]], [1], 5]
)
def test_a_strange_list_of_modules_is_refused(folder: Path, content: object) -> None:
    """Each module needs a type and a path."""
    write_json(folder / "modules.json", content)
    refused(folder, "modules.json is not a list of modules")


@pytest.mark.parametrize("kind", ["CNN", "LSTM", "WordEmbeddings", "LayerNorm"])
def test_an_unknown_module_is_named(folder: Path, kind: str) -> None:
    """What would change the embedding is never left out silently."""
    write_modules(folder, ("Transformer", ""), ("Pooling", "1_Pooling"), (kind, "2_More"))
    refused(folder, "modules.json", repr(kind))


def test_late_interaction_is_no_embedding(folder: Path) -> None:
    """A folder with a dense layer for each token, as PyLate writes it, is not pooled by a mean."""
    write_dense(folder / "1_Dense", {}, activation_function="torch.nn.Identity")
    write_modules(folder, ("Transformer", ""), ("Dense", "1_Dense"))
    assert read_folder(folder).kind == "late_interaction"


def test_pooling_behind_a_dense_layer_is_refused(folder: Path) -> None:
    """Nothing would say what the projection of single tokens is for."""
    write_dense(folder / "1_Dense", {})
    write_modules(folder, ("Transformer", ""), ("Dense", "1_Dense"), ("Pooling", "1_Pooling"))
    refused(folder, "modules.json", "'Dense' before 'Pooling'")


@pytest.mark.parametrize("where", ["", "0_MLMTransformer"])
def test_a_splade_folder_is_read(folder: Path, where: str, caplog: pytest.LogCaptureFixture) -> None:
    """Kind, pooling, maximum length, also where the encoder has a folder of its own; no other pooling is missed."""
    (folder / "1_Pooling/config.json").unlink()
    for name in ("config.json", "sentence_bert_config.json"):
        (folder / where).mkdir(exist_ok=True)
        (folder / name).rename(folder / where / name)
    write_json(folder / "1_SpladePooling/config.json", {"pooling_strategy": "sum", "activation_function": "relu"})
    write_modules(folder, ("MLMTransformer", where), ("SpladePooling", "1_SpladePooling"))
    described = read_folder(folder)
    assert (described.kind, described.pooling_name) == ("sparse", "splade")
    assert described.splade == SpladePooling("sum", "relu")
    assert described.transformer == folder / where
    assert (described.max_length, described.labels, caplog.text) == (32, None, "")


def test_a_splade_folder_without_its_configuration_is_refused(folder: Path) -> None:
    """And so is one that is a classifier as well; modules that do not go together are refused, too."""
    write_modules(folder, ("MLMTransformer", ""), ("SpladePooling", "1_SpladePooling"))
    refused(folder, "1_SpladePooling/config.json is missing")
    write_json(folder / "1_SpladePooling/config.json", {"pooling_strategy": "mean"})
    refused(folder, "1_SpladePooling/config.json", "pooling_strategy 'mean'")
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", {**config, "architectures": ["BertForSequenceClassification"]})
    refused(folder, "config.json", "classification head", "SPLADE")
    write_json(folder / "config.json", config)
    write_modules(folder, ("MLMTransformer", ""), ("Pooling", "1_Pooling"))
    refused(folder, "modules.json", "only SpladePooling")


def test_a_masked_language_model_alone_is_an_embedding_model(folder: Path) -> None:
    """Its head says nothing of SPLADE."""
    write_json(folder / "config.json", {**read_json(folder / "config.json"), "architectures": ["BertForMaskedLM"]})
    assert read_folder(folder).kind == "embedding"


def test_normalising_before_a_dense_module_is_refused(folder: Path) -> None:
    """The order Normalize, Dense gives another vector than Dense, Normalize; only the second is built."""
    write_dense(folder / "2_Dense", {})
    write_modules(folder, ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "3"), ("Dense", "2_Dense"))
    refused(folder, "modules.json", "'Normalize' before 'Dense'")
    write_modules(folder, ("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Normalize", "3"))
    assert len(read_folder(folder).dense) == 1


def test_a_folder_without_modules_is_a_bare_transformer(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """``1_Pooling`` is found without ``modules.json``; without it pooling is mean, and the log says so."""
    (folder / "modules.json").unlink()
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True})
    with caplog.at_level(logging.WARNING):
        assert read_folder(folder).pooling.mode == "cls"
    assert not caplog.records
    (folder / "1_Pooling" / "config.json").unlink()
    with caplog.at_level(logging.WARNING):
        assert read_folder(folder).pooling == Pooling("mean", include_prompt=True)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "1_Pooling" in caplog.text
    assert "mean" in caplog.text


# --- pooling ---


@pytest.mark.parametrize(
    ("raw", "mode"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["max"]}, "max"),
    ],
)
def test_pooling_is_read(folder: Path, raw: dict[str, object], mode: str) -> None:
    """The switches of older files and the name of newer ones."""
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 16, **raw})
    assert read_folder(folder).pooling == Pooling(mode, include_prompt=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len_tokens"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, "cls+max"),
        ({"pooling_mode": "attention"}, "attention"),
        ({"pooling_mode": ["mean", "cls"]}, "mean+cls"),
        ({"pooling_mode_mean_tokens": False}, "none"),
        ({}, "none"),
    ],
)
def test_pooling_that_is_not_built_is_named(folder: Path, raw: dict[str, object], name: str) -> None:
    """Another kind, two kinds together or none at all stop the start."""
    write_json(folder / "1_Pooling" / "config.json", raw)
    refused(folder, "1_Pooling/config.json", f"pooling {name} ")


def test_the_prompt_may_be_left_out(folder: Path) -> None:
    """``include_prompt`` is read; without it the prompt counts."""
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True, "include_prompt": False})
    assert not read_folder(folder).pooling.include_prompt


# --- dense ---


def test_dense_modules_are_read_in_order(folder: Path) -> None:
    """Sizes, bias and activation of each; Tanh where nothing is said, as sentence-transformers has it."""
    write_dense(folder / "2_Dense", {})
    write_dense(
        folder / "3_Dense",
        {},
        in_features=6,
        out_features=4,
        bias=False,
        activation_function="torch.nn.modules.linear.Identity",
    )
    write_modules(folder, ("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Dense", "3_Dense"))
    first, second = read_folder(folder).dense
    assert (first.folder, first.in_features, first.out_features) == (folder / "2_Dense", 16, 6)
    assert (first.bias, first.activation) == (True, "tanh")
    assert (second.in_features, second.out_features, second.bias, second.activation) == (6, 4, False, "identity")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"activation_function": "torch.nn.modules.activation.Mish"}, "activation_function 'mish'"),
        ({"in_features": None}, "does not state in_features"),
        ({"out_features": "many"}, "does not state in_features"),
    ],
)
def test_a_dense_module_that_is_not_built_is_named(folder: Path, changes: dict[str, object], reason: str) -> None:
    """An unknown activation or a missing size names the module's own file."""
    write_dense(folder / "2_Dense", {}, **changes)
    write_modules(folder, ("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"))
    refused(folder, "2_Dense/config.json", reason)


# --- length, case, prompts ---


@pytest.mark.parametrize(
    ("sentence", "tokenizer", "expected"),
    [
        ({"max_seq_length": 20}, {"model_max_length": 10}, 20),
        ({"max_seq_length": None}, {"model_max_length": 10}, 10),
        ({}, {"model_max_length": 10}, 10),
        (None, {"model_max_length": 10}, 10),
        (None, {"model_max_length": 1e30}, None),
        ({"max_seq_length": 20.0}, None, 20),
        (None, {}, None),
        (None, None, None),
    ],
)
def test_the_maximum_length_is_the_sentence_models_first(
    folder: Path, sentence: object, tokenizer: object, expected: int | None
) -> None:
    """``max_seq_length``, else the tokenizer's ``model_max_length``, else nothing: 1e30 is transformers' nothing."""
    (folder / "sentence_bert_config.json").unlink()
    if sentence is not None:
        write_json(folder / "sentence_bert_config.json", sentence)
    if tokenizer is not None:
        write_json(folder / "tokenizer_config.json", tokenizer)
    assert read_folder(folder).max_length == expected


@pytest.mark.parametrize("limit", ["512", [512], True])
def test_a_maximum_length_that_is_no_number_is_named(folder: Path, limit: object) -> None:
    """File, field and value."""
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": limit})
    refused(folder, "sentence_bert_config.json", f"max_seq_length {limit!r}")
    (folder / "sentence_bert_config.json").unlink()
    write_json(folder / "tokenizer_config.json", {"model_max_length": limit})
    refused(folder, "tokenizer_config.json", f"model_max_length {limit!r}")


@pytest.mark.parametrize(
    ("file", "field", "value"),
    [
        ("config.json", "vocab_size", 10**400),
        ("config.json", "hidden_size", -(10**400)),
        ("config.json", "num_hidden_layers", float("inf")),
        ("sentence_bert_config.json", "max_seq_length", -(10**400)),
    ],
)
def test_a_number_beyond_all_floats_is_named(folder: Path, file: str, field: str, value: float) -> None:
    """JSON knows no largest number: the field and the beginning of its value, not an error of our own message."""
    write_json(folder / file, {**read_json(folder / file), field: value})
    refused(folder, file, f"{field} ", repr(value)[:20])


@pytest.mark.parametrize("lower", [True, False])
def test_lower_casing_is_read(folder: Path, lower: bool) -> None:
    """``do_lower_case`` of ``sentence_bert_config.json``."""
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 32, "do_lower_case": lower})
    assert read_folder(folder).lowercase is lower


def test_prompts_are_read(folder: Path) -> None:
    """Names, texts and the default; a prompt that is null is none."""
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": {"query": "find: ", "document": "", "broken": None}, "default_prompt_name": "query"},
    )
    described = read_folder(folder)
    assert described.prompts == {"query": "find: ", "document": ""}
    assert described.default_prompt_name == "query"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({"prompts": ["query"]}, "prompts is list"),
        ({"prompts": {"query": "q"}, "default_prompt_name": "passage"}, "default_prompt_name 'passage'"),
        ({"default_prompt_name": "query"}, "default_prompt_name 'query'"),
        ({"prompts": {"p" * 9_999: "q"}, "default_prompt_name": "d" * 9_999}, "default_prompt_name 'dddd"),
    ],
)
def test_strange_prompts_are_refused(folder: Path, raw: object, reason: str) -> None:
    """A default that names no prompt would fail every request: it stops the start."""
    write_json(folder / "config_sentence_transformers.json", raw)
    refused(folder, "config_sentence_transformers.json", reason)


# --- tokenizer ---


def test_no_tokenizer_is_named(folder: Path) -> None:
    """Both names that were looked for are in the message."""
    (folder / "tokenizer.json").unlink()
    refused(folder, "neither tokenizer.json nor vocab.txt")


@pytest.mark.parametrize("content", ["{", "{}", '{"version": "1.0", "model": {"type": "Unheard"}}'])
def test_a_broken_tokenizer_is_named(folder: Path, content: str) -> None:
    """No JSON, no tokenizer, or a kind nobody knows."""
    (folder / "tokenizer.json").write_text(content)
    refused(folder, "tokenizer.json is not a tokenizer that can be read")


def vocabulary(folder: Path, pieces: tuple[str, ...] = PIECES, **config: object) -> ModelFolder:
    """The folder with ``vocab.txt`` in place of ``tokenizer.json``."""
    (folder / "tokenizer.json").unlink(missing_ok=True)
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    write_json(folder / "tokenizer_config.json", config)
    return read_folder(folder)


def test_a_word_list_makes_berts_tokenizer(folder: Path) -> None:
    """``vocab.txt`` alone: lower-cased, accents stripped, Han apart, template for texts and pairs."""
    backend = read_tokenizer(vocabulary(folder))
    assert backend.encode("The CÁT 中文!").tokens == ["[CLS]", "the", "cat", "中", "文", "!", "[SEP]"]
    pair = backend.encode("cat", "dog")
    assert pair.tokens == ["[CLS]", "cat", "[SEP]", "dog", "[SEP]"]
    assert pair.type_ids == [0, 0, 0, 1, 1]
    assert {str(token.content) for token in backend.get_added_tokens_decoder().values()} == set(SPECIALS)
    assert backend.encode("a" * 101).tokens == ["[CLS]", "[UNK]", "[SEP]"]


def test_the_tokenizers_own_settings_are_kept(folder: Path) -> None:
    """``do_lower_case`` and ``tokenize_chinese_chars`` of ``tokenizer_config.json``."""
    cased = read_tokenizer(vocabulary(folder, do_lower_case=False, tokenize_chinese_chars=False))
    assert cased.encode("CAT cat 中文").tokens == ["[CLS]", "[UNK]", "cat", "[UNK]", "[SEP]"]
    accents = read_tokenizer(vocabulary(folder, strip_accents=False))
    assert accents.encode("cát").tokens == ["[CLS]", "[UNK]", "[SEP]"]


def test_special_tokens_may_have_other_names(folder: Path) -> None:
    """As a string or as transformers' record with ``content``."""
    pieces = ("<pad>", "<unk>", "<s>", "</s>", "cat")
    names: dict[str, object] = {"unk_token": "<unk>", "cls_token": {"content": "<s>"}, "sep_token": "</s>"}
    backend = read_tokenizer(vocabulary(folder, pieces, **names))
    assert backend.encode("cat zebra").tokens == ["<s>", "cat", "<unk>", "</s>"]


@pytest.mark.parametrize("name", ["[UNK]", "[CLS]", "[SEP]"])
def test_a_word_list_without_a_special_token_is_refused(folder: Path, name: str) -> None:
    """The list and the token are named."""
    described = vocabulary(folder, tuple(piece for piece in PIECES if piece != name))
    with pytest.raises(CheckpointError, match=r"vocab\.txt does not list the special token") as caught:
        read_tokenizer(described)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["unk_token", "cls_token", "sep_token", "pad_token", "mask_token"])
@pytest.mark.parametrize("value", ["x" * 100_000, "", 5, True, [], {}, {"content": None}, {"content": "x" * 256}])
def test_a_special_token_that_is_none_is_refused(folder: Path, name: str, value: object) -> None:
    """Of absurd length or type: the file, the field and some of the value, in a sentence of bounded length."""
    described = vocabulary(folder, **{name: value})
    with pytest.raises(CheckpointError, match=rf"tokenizer_config\.json: {name} .* is not a token") as caught:
        read_tokenizer(described)
    assert len(str(caught.value)) < 1_000


def test_a_model_may_do_without_two_special_tokens(folder: Path) -> None:
    """Padding and masks, which no text needs; the other three stand in every text, and null is refused."""
    backend = read_tokenizer(vocabulary(folder, pad_token=None, mask_token=None))
    assert {str(token.content) for token in backend.get_added_tokens_decoder().values()} == {"[UNK]", "[CLS]", "[SEP]"}
    refused(vocabulary(folder, cls_token=None).path, "tokenizer_config.json", "cls_token None")
