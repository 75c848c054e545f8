"""Claims about turning a state dict into a model folder."""

from __future__ import annotations

import json
import math
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor

from model.convert import Conversion, convert_state_dict
from model.embedder import Embedder
from model.errors import CheckpointError

REFERENCE = Path(__file__).parents[1] / "reference"
StateDict = dict[str, Tensor]
documents = pytest.mark.parametrize("document", ["seed-0", "seed-2"])


def reference(document: str) -> StateDict:
    """The state dict of the original encoder."""
    return torch.load(REFERENCE / f"{document}.pt", weights_only=True)


def write_tokenizer(path: Path, num_tokens: int = 97) -> Path:
    """Save a tokenizer of so many whole words, split at spaces."""
    vocabulary = {f"word{number}": number for number in range(num_tokens)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="word1"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(path))
    return path


@pytest.fixture
def convert(tmp_path: Path) -> Callable[..., Conversion]:
    """Save what it is given and convert it into ``tmp_path / "folder"``."""
    write_tokenizer(tmp_path / "words.json")

    def run(saved: object, **changes: object) -> Conversion:
        file = tmp_path / "model.pt"
        torch.save(saved, file)
        arguments: dict[str, Any] = {"num_attention_heads": 8, "tokenizer": tmp_path / "words.json", **changes}
        return convert_state_dict(file, tmp_path / "folder", **arguments)

    return run


def sinusoid_table(num_rows: int, width: int) -> Tensor:
    """The formula of Vaswani et al. 2017 value by value in float64, as slow as it is plain."""
    angle = [[row / 10_000 ** (2 * (column // 2) / width) for column in range(width)] for row in range(num_rows)]
    values = [[(math.cos if c % 2 else math.sin)(angle[r][c]) for c in range(width)] for r in range(num_rows)]
    return torch.tensor(values, dtype=torch.float32)


def annotated_transformer(num_rows: int = 300) -> StateDict:
    """A translation model saved whole: the encoder of seed 2's reference among everything else."""
    whole: StateDict = {}
    for key, tensor in reference("seed-2").items():
        if key == "embedding.embedding.weight":
            whole["src_embed.0.lut.weight"] = tensor
            whole["tgt_embed.0.lut.weight"] = tensor
        else:
            whole[f"encoder.{key}"] = tensor
            whole[f"decoder.{key}"] = tensor + 1
            whole[f"decoder.{key.replace('self_attn', 'src_attn')}"] = tensor + 1
    whole["src_embed.1.pe"] = whole["tgt_embed.1.pe"] = sinusoid_table(num_rows, 64).unsqueeze(0)
    whole["generator.proj.weight"] = torch.zeros(97, 64)
    whole["generator.proj.bias"] = torch.zeros(97)
    return whole


def assert_nothing_written(tmp_path: Path) -> None:
    """Neither the folder nor a temporary one is there."""
    assert {path.name for path in tmp_path.iterdir()} <= {"model.pt", "words.json"}


@documents
def test_the_folder_holds_the_tensors_bit_for_bit(
    convert: Callable[..., Conversion], tmp_path: Path, document: str
) -> None:
    """Every tensor of the state dict is in model.safetensors under its name, unchanged."""
    convert(reference(document))
    written = load_file(tmp_path / "folder" / "model.safetensors")
    assert written.keys() == reference(document).keys()
    assert all(torch.equal(written[key], tensor) for key, tensor in reference(document).items())


@documents
def test_the_configuration_is_read_from_the_shapes(
    convert: Callable[..., Conversion], tmp_path: Path, document: str
) -> None:
    """config.json has the sizes the tensors have and the arguments the caller gave."""
    conversion = convert(reference(document), max_length=40, pad_token_id=3, activation="gelu")
    assert json.loads((tmp_path / "folder" / "config.json").read_text()) == {
        "model_type": document,
        "vocab_size": 97,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "intermediate_size": 128,
        "hidden_act": "gelu",
        "norm_eps": 1e-6,
        "max_position_embeddings": 40,
        "pad_token_id": 3,
        "embedding_scale": "sqrt",
    }
    assert conversion.config.num_hidden_layers == 3
    assert conversion.unused == ()


@documents
def test_the_folder_serves_the_embeddings_of_the_original(
    convert: Callable[..., Conversion], tmp_path: Path, document: str
) -> None:
    """Loaded like any other folder, it gives the mean of the original's output at real positions, at unit length."""
    convert(reference(document))
    answers = np.load(REFERENCE / f"{document}.npz")
    lengths = answers["padding_mask"].sum(axis=1)
    expected = np.stack([states[:n].mean(axis=0) for states, n in zip(answers["output"], lengths, strict=True)])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    texts = [
        " ".join(f"word{number}" for number in ids[:n]) for ids, n in zip(answers["input_ids"], lengths, strict=True)
    ]
    embedder = Embedder.load(tmp_path / "folder", dtype="float32", device="cpu", threads=1)
    np.testing.assert_allclose(embedder.encode(texts), expected, atol=1e-5, rtol=0)


def test_the_folder_speaks_the_language_of_sentence_transformers(
    convert: Callable[..., Conversion], tmp_path: Path
) -> None:
    """Pooling and maximum length are where sentence-transformers keeps them, and the tokenizer is the caller's."""
    convert(reference("seed-2"), pooling="cls", max_length=40)
    folder = tmp_path / "folder"
    modules = json.loads((folder / "modules.json").read_text())
    assert [(module["path"], module["type"].rsplit(".")[-1]) for module in modules] == [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
    ]
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert pooling["word_embedding_dimension"] == 64
    assert [mode for mode, chosen in pooling.items() if chosen is True and mode.startswith("pooling")] == [
        "pooling_mode_cls_token"
    ]
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 40
    assert (folder / "tokenizer.json").read_bytes() == (tmp_path / "words.json").read_bytes()
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_others_may_read_the_folder(convert: Callable[..., Conversion], tmp_path: Path) -> None:
    """A server that runs as another user can open everything: the folder has no temporary folder's permissions."""
    convert(reference("seed-2"))
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("wrapper", ["state_dict", "model_state_dict", "model"])
def test_a_training_checkpoint_is_unwrapped(convert: Callable[..., Conversion], tmp_path: Path, wrapper: str) -> None:
    """The state dict is found inside what training loops save, with the prefixes of DataParallel and compile."""
    tensors = {f"module._orig_mod.{key}": tensor for key, tensor in reference("seed-0").items()}
    convert({"epoch": 3, "optimizer": {"lr": 0.1}, wrapper: tensors})
    assert load_file(tmp_path / "folder" / "model.safetensors").keys() == reference("seed-0").keys()


def test_the_annotated_transformer_gives_its_encoder(convert: Callable[..., Conversion], tmp_path: Path) -> None:
    """A whole translation model becomes the folder that its encoder alone would have become."""
    conversion = convert(annotated_transformer())
    written = load_file(tmp_path / "folder" / "model.safetensors")
    assert written.keys() == reference("seed-2").keys()
    assert all(torch.equal(written[key], tensor) for key, tensor in reference("seed-2").items())
    assert conversion.format.name == "seed 2"
    assert {"src_embed.1.pe", "tgt_embed.1.pe", "generator.proj.bias", "decoder.norm.a_2"} <= set(conversion.unused)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_long_table_of_sinusoids_is_recognised(convert: Callable[..., Conversion], dtype: torch.dtype) -> None:
    """The usual 5,000 rows pass in every precision, although float32 phases drift apart far from row 0."""
    whole = annotated_transformer()
    whole["src_embed.1.pe"] = sinusoid_table(5_000, 64).unsqueeze(0).to(dtype)
    assert "src_embed.1.pe" in convert(whole).unused


@pytest.mark.parametrize(
    "table",
    [
        sinusoid_table(300, 64) + 1e-3,
        sinusoid_table(300, 64).roll(1, dims=0),
        torch.cat([sinusoid_table(300, 64)[:, 0::2], sinusoid_table(300, 64)[:, 1::2]], dim=1),
        sinusoid_table(300, 64).fill_(math.nan),
        torch.zeros(64),
    ],
    ids=["shifted", "one row late", "sines first", "nan", "flat"],
)
def test_other_positions_than_the_sinusoids_are_refused(
    convert: Callable[..., Conversion], tmp_path: Path, table: Tensor
) -> None:
    """A position buffer that is not what the encoder adds is an error with its key, never ignored."""
    with pytest.raises(CheckpointError, match=r"src_embed\.1\.pe"):
        convert({**annotated_transformer(), "src_embed.1.pe": table})
    assert_nothing_written(tmp_path)


def test_narrow_weights_stay_narrow(convert: Callable[..., Conversion], tmp_path: Path) -> None:
    """A bfloat16 state dict makes a bfloat16 folder."""
    convert({key: tensor.bfloat16() for key, tensor in reference("seed-0").items()})
    written = load_file(tmp_path / "folder" / "model.safetensors")
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}


def test_tensors_that_share_memory_are_written(convert: Callable[..., Conversion], tmp_path: Path) -> None:
    """Tied weights and transposed views, which safetensors itself refuses, are written out."""
    tensors = reference("seed-0")
    tensors["layers.1.feed_forward.linear1.weight"] = tensors["layers.0.feed_forward.linear1.weight"]
    tensors["layers.2.feed_forward.linear1.weight"] = tensors["layers.2.feed_forward.linear2.weight"].T
    convert(tensors)
    written = load_file(tmp_path / "folder" / "model.safetensors")
    assert all(torch.equal(written[key], tensor) for key, tensor in tensors.items())


def test_a_state_dict_without_token_embedding_names_the_key(convert: Callable[..., Conversion], tmp_path: Path) -> None:
    """The encoder alone cannot be served; the error says which key would hold the table."""
    tensors = reference("seed-0")
    del tensors["embedding.embedding.weight"]
    with pytest.raises(
        CheckpointError, match=r"model\.pt.*'embedding\.embedding\.weight'.*'src_embed\.0\.lut\.weight'"
    ):
        convert(tensors)
    assert_nothing_written(tmp_path)


def test_two_token_embeddings_are_refused(convert: Callable[..., Conversion]) -> None:
    """Which of two tables was meant is not guessed."""
    table = reference("seed-2")["embedding.embedding.weight"]
    with pytest.raises(CheckpointError, match=r"'embedding\.embedding\.weight'.*'src_embed\.0\.lut\.weight'"):
        convert({**reference("seed-2"), "src_embed.0.lut.weight": table})


@documents
def test_every_key_is_required(convert: Callable[..., Conversion], tmp_path: Path, document: str) -> None:
    """Whichever tensor is missing, the error names it and nothing is written."""
    for key in reference(document):
        tensors = reference(document)
        del tensors[key]
        with pytest.raises(CheckpointError, match=f"model.pt.*'{key}'"):
            convert(tensors)
    assert_nothing_written(tmp_path)


@pytest.mark.parametrize("key", ["layers.0.self_attn.extra", "position_ids", "classifier.weight", "encoder.pooler"])
def test_an_unknown_key_is_refused(convert: Callable[..., Conversion], tmp_path: Path, key: str) -> None:
    """A tensor that is in no list stops the conversion with its name."""
    with pytest.raises(CheckpointError, match=f"model.pt.*'{key.removeprefix('encoder.')}' is not part of the seed 2"):
        convert({**reference("seed-2"), key: torch.zeros(3)})
    assert_nothing_written(tmp_path)


def test_names_of_neither_or_both_documents_are_refused(convert: Callable[..., Conversion]) -> None:
    """The family is known by its attention's names; without them, or with both, nothing is guessed."""
    with pytest.raises(CheckpointError, match="neither"):
        convert({"bert.embeddings.word_embeddings.weight": torch.zeros(97, 64)})
    with pytest.raises(CheckpointError, match="both"):
        convert(reference("seed-0") | reference("seed-2"))


@pytest.mark.parametrize("num_attention_heads", [7, 0, -8])
def test_heads_that_do_not_divide_the_width_are_refused(
    convert: Callable[..., Conversion], tmp_path: Path, num_attention_heads: int
) -> None:
    """64 columns cannot be cut into so many heads."""
    with pytest.raises(CheckpointError, match=f"{num_attention_heads}"):
        convert(reference("seed-0"), num_attention_heads=num_attention_heads)
    assert_nothing_written(tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [{"pooling": "median"}, {"activation": "geglu"}, {"max_length": 0}, {"pad_token_id": 97}, {"pad_token_id": -1}],
)
def test_arguments_that_no_encoder_has_are_refused(
    convert: Callable[..., Conversion], tmp_path: Path, arguments: dict[str, Any]
) -> None:
    """The error gives the value that was refused."""
    (value,) = arguments.values()
    with pytest.raises(CheckpointError, match=str(value)):
        convert(reference("seed-0"), **arguments)
    assert_nothing_written(tmp_path)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_refused(
    convert: Callable[..., Conversion], tmp_path: Path, value: float
) -> None:
    """A training run that diverged is found here and not by its users."""
    tensors = reference("seed-2")
    tensors["layers.1.feed_forward.w_1.bias"][5] = value
    with pytest.raises(CheckpointError, match=r"'layers\.1\.feed_forward\.w_1\.bias'.*not finite"):
        convert(tensors)
    assert_nothing_written(tmp_path)


@pytest.mark.parametrize(
    "tensor", [torch.zeros(64, 63), torch.zeros(64), torch.zeros(64, 64, dtype=torch.int64)], ids=["63", "flat", "int"]
)
def test_a_tensor_of_the_wrong_kind_is_named(convert: Callable[..., Conversion], tensor: Tensor) -> None:
    """Shape and dtype are checked against what the encoder needs."""
    with pytest.raises(CheckpointError, match=r"'layers\.1\.self_atten\.linears\.2\.weight'"):
        convert({**reference("seed-0"), "layers.1.self_atten.linears.2.weight": tensor})


@pytest.mark.parametrize("key", ["embedding.embedding.weight", "layers.0.feed_forward.linear1.weight"])
def test_a_flat_tensor_where_sizes_are_read_is_named(convert: Callable[..., Conversion], key: str) -> None:
    """The tensors that give the sizes are looked at before they are trusted."""
    with pytest.raises(CheckpointError, match=f"'{key}' has shape"):
        convert({**reference("seed-0"), key: torch.zeros(64)})


class Trap:
    """Unpickling it would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def test_a_pickle_is_not_executed(convert: Callable[..., Conversion], tmp_path: Path) -> None:
    """Code in the file does not run; the error tells how to save tensors instead."""
    file, sprung = tmp_path / "trap.pt", tmp_path / "sprung"
    torch.save({"state_dict": Trap(sprung)}, file)
    tokenizer = write_tokenizer(tmp_path / "words.json")
    with pytest.raises(CheckpointError, match=r"trap\.pt.*model\.state_dict\(\)") as caught:
        convert_state_dict(file, tmp_path / "folder", num_attention_heads=8, tokenizer=tokenizer)
    assert not sprung.exists()
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", pickle.dumps([1, 2])], ids=["empty", "text", "pickle"])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    """Whatever the reader stumbles over, the answer is one error that names the file."""
    file = tmp_path / "model.pt"
    file.write_bytes(content)
    tokenizer = write_tokenizer(tmp_path / "words.json")
    with pytest.raises(CheckpointError, match=r"model\.pt"):
        convert_state_dict(file, tmp_path / "folder", num_attention_heads=8, tokenizer=tokenizer)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A path that leads nowhere is said to do so."""
    tokenizer = write_tokenizer(tmp_path / "words.json")
    with pytest.raises(CheckpointError, match=r"gone\.pt is not a file"):
        convert_state_dict(tmp_path / "gone.pt", tmp_path / "folder", num_attention_heads=8, tokenizer=tokenizer)


@pytest.mark.parametrize("saved", [[1, 2], {}, {"weight": 3.0}, {1: torch.zeros(1)}])
def test_what_is_no_state_dict_is_refused(convert: Callable[..., Conversion], saved: object) -> None:
    """Only a mapping from names to tensors is one."""
    with pytest.raises(CheckpointError, match=r"model\.pt"):
        convert(saved)


def test_a_tokenizer_with_more_ids_than_rows_is_refused(convert: Callable[..., Conversion], tmp_path: Path) -> None:
    """An id without a row would fail at the first text that has it; a row without an id does no harm."""
    write_tokenizer(tmp_path / "words.json", num_tokens=98)
    with pytest.raises(CheckpointError, match=r"words\.json.*97 rows"):
        convert(reference("seed-0"))
    assert_nothing_written(tmp_path)
    write_tokenizer(tmp_path / "words.json", num_tokens=90)
    convert(reference("seed-0"))


def test_a_file_that_is_no_tokenizer_is_refused(convert: Callable[..., Conversion], tmp_path: Path) -> None:
    """A vocabulary list or another JSON file is named, and nothing is written."""
    words = tmp_path / "words.json"
    words.write_text('{"hello": 1}')
    with pytest.raises(CheckpointError, match=r"words\.json is not a tokenizer\.json"):
        convert(reference("seed-0"), tokenizer=words)
    assert_nothing_written(tmp_path)


def test_a_folder_that_holds_something_is_left_alone(convert: Callable[..., Conversion], tmp_path: Path) -> None:
    """An existing model is never overwritten; an empty folder is filled."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "precious").write_text("keep")
    with pytest.raises(CheckpointError, match="not empty"):
        convert(reference("seed-0"))
    assert [path.name for path in folder.iterdir()] == ["precious"]
    (folder / "precious").unlink()
    convert(reference("seed-0"))
    assert (folder / "config.json").is_file()


def test_a_file_in_the_place_of_the_folder_is_refused(convert: Callable[..., Conversion], tmp_path: Path) -> None:
    """What stands there is not replaced."""
    (tmp_path / "folder").write_text("keep")
    with pytest.raises(CheckpointError, match="not a folder"):
        convert(reference("seed-0"))
    assert (tmp_path / "folder").read_text() == "keep"


def test_a_conversion_that_fails_half_way_leaves_nothing(
    convert: Callable[..., Conversion], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the disk fills up after the weights are written, neither folder nor temporary folder stays."""

    def full_disk(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full_disk)
    with pytest.raises(CheckpointError, match="No space left"):
        convert(reference("seed-0"))
    assert_nothing_written(tmp_path)
