"""Claims about loading tensors: everything must fit to the letter, and every refusal names file and key."""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from model.checkpoint import LoadedEncoder, load_dense, load_encoder, tensor_files, verify_checksums
from model.embedder import Embedder
from model.errors import CheckpointError
from model.folder import read_folder
from model.linear import Linear
from tests.model.folders import (
    CONFIG,
    Tensors,
    bert_tensors,
    head_tensors,
    wordpiece,
    write_bert,
    write_dense,
    write_json,
    write_modules,
    write_splade,
    write_tensors,
)
from tests.model.test_reference import convert_seed

ROOT = Path(__file__).parents[2]
FILE = "model.safetensors"
QUERY = "encoder.layer.1.attention.self.query.weight"
CPU = torch.device("cpu")


def load(folder: Path, dtype: torch.dtype = torch.float32) -> LoadedEncoder:
    """Load the encoder of a folder."""
    return load_encoder(read_folder(folder), dtype, CPU)


def refused(folder: Path, *parts: str) -> None:
    """Loading fails, and the message has all of ``parts``."""
    with pytest.raises(CheckpointError) as caught:
        Embedder.load(folder, dtype="float32", device="cpu", threads=1)
    for part in parts:
        assert part in str(caught.value)


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear layers keep the weight they were given, where a test can look at it."""
    monkeypatch.setattr("model.checkpoint.pack_linear_layers", lambda module: None)


def assert_same_weights(loaded: LoadedEncoder, folder: Path, tolerance: float = 0.0) -> None:
    """The encoder has the weights that the whole folder has."""
    for name, tensor in load(folder).encoder.state_dict().items():
        torch.testing.assert_close(loaded.encoder.state_dict()[name], tensor, rtol=0, atol=tolerance)


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace tensors of the file; None removes one."""
    kept = {**load_file(folder / FILE), **tensors}
    write_tensors(folder / FILE, {key: tensor for key, tensor in kept.items() if tensor is not None})


# --- what loads ---


def test_loading_does_without_the_compiler(folder: Path) -> None:
    """PyTorch's compiler takes a second to import, and nothing here compiles."""
    load_a_model = f"""
import sys
from model.embedder import Embedder
Embedder.load({str(folder)!r}, dtype="float32", device="cpu", threads=1)
sys.exit("torch._dynamo" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", load_a_model], check=True, cwd=ROOT)


def test_a_loaded_model_is_independent_of_its_files(tmp_path: Path) -> None:
    """Whoever writes over the file of a model that is being served changes nothing in memory: no tensor is the mapped
    file. A file that is cut short would end the process.
    """
    folder = write_bert(tmp_path / "model")
    embedder = Embedder.load(folder, dtype="float32", device="cpu", threads=1)
    before = embedder.encode("hello")
    with (folder / FILE).open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(0)
        file.write(b"\x7f" * size)
        file.truncate(10)
    assert (embedder.encode("hello") == before).all()


@pytest.mark.usefixtures("unpacked")
def test_every_weight_is_the_files(folder: Path) -> None:
    """Query, key and value are stacked in this order; everything else is where its name says."""
    theirs, loaded = bert_tensors(), load(folder)
    ours = loaded.encoder.state_dict()
    layer = "encoder.layer.1"
    for suffix in ("weight", "bias"):
        stacked = torch.cat([theirs[f"{layer}.attention.self.{name}.{suffix}"] for name in ("query", "key", "value")])
        assert torch.equal(ours[f"layers.1.self_attention.qkv.{suffix}"], stacked)
        for name, source in {
            "layers.1.self_attention.out": f"{layer}.attention.output.dense",
            "layers.1.feed_forward.expand": f"{layer}.intermediate.dense",
            "layers.1.feed_forward.contract": f"{layer}.output.dense",
            "layers.1.sublayers.0.norm": f"{layer}.attention.output.LayerNorm",
            "layers.1.sublayers.1.norm": f"{layer}.output.LayerNorm",
            "embedding.norm": "embeddings.LayerNorm",
        }.items():
            assert torch.equal(ours[f"{name}.{suffix}"], theirs[f"{source}.{suffix}"])
    assert torch.equal(ours["embedding.tokens.weight"], theirs["embeddings.word_embeddings.weight"])
    assert torch.equal(ours["embedding.positions.weight"], theirs["embeddings.position_embeddings.weight"])
    assert torch.equal(ours["embedding.token_types.weight"], theirs["embeddings.token_type_embeddings.weight"])
    assert loaded.num_parameters == sum(tensor.numel() for tensor in theirs.values())
    assert loaded.format.name == "BERT"
    assert loaded.ignored_keys == ()


def test_a_loaded_encoder_serves(folder: Path) -> None:
    """Evaluation mode, no gradients, nothing left without memory."""
    encoder = load(folder).encoder
    assert not any(module.training for module in encoder.modules())
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert all(tensor.device == CPU for tensor in [*encoder.parameters(), *encoder.buffers()])


def test_linear_layers_are_packed_for_serving(folder: Path) -> None:
    """What is loaded on a CPU is ready for the fused kernel where PyTorch has it: no layer keeps a second copy."""
    layers = [module for module in load(folder).encoder.modules() if isinstance(module, Linear)]
    assert len(layers) == 8
    assert {layer.weight is None for layer in layers} == {torch.backends.mkldnn.is_available()}


@pytest.mark.parametrize(
    "prefix", ["bert.", "model.", "auto_model.", "0.auto_model.", "module.", "model.bert.", "0.auto_model.bert."]
)
@pytest.mark.usefixtures("unpacked")
def test_prefixes_are_stripped(folder: Path, tmp_path: Path, prefix: str) -> None:
    """Whatever wrapped the encoder when it was saved, its weights are found."""
    wrapped = {prefix + key: tensor for key, tensor in bert_tensors().items()}
    assert_same_weights(load(write_bert(tmp_path / "wrapped", tensors=wrapped)), folder)


@pytest.mark.parametrize(
    "twin",
    [
        torch.zeros(16, 16),
        bert_tensors()[QUERY].half(),
        bert_tensors()[QUERY].T.contiguous(),
        bert_tensors()[QUERY][:15],
        torch.zeros(16, 16, dtype=torch.float8_e4m3fn),
        torch.tensor(1.0),
    ],
    ids=["zeros", "half", "transposed", "shorter", "bytes", "number"],
)
def test_one_name_twice_with_different_numbers_is_refused(folder: Path, twin: torch.Tensor) -> None:
    """With and without its prefix, a tensor is there twice: nobody can tell which of them counts, so both are named."""
    change(folder, **{f"bert.{QUERY}": twin})
    refused(folder, FILE, repr(QUERY), f"'bert.{QUERY}'", "they differ")


def test_one_name_twice_with_the_same_numbers_is_one_tensor(folder: Path, tmp_path: Path) -> None:
    """The second name is known and not used; so is that of a tensor without numbers, or of a single one."""
    more = {name: bert_tensors()[QUERY] for name in (f"bert.{QUERY}", f"model.{QUERY}")}
    more |= {name: torch.zeros(0) for name in ("pooler.a", "bert.pooler.a")}
    more |= {name: torch.tensor(2, dtype=torch.int8) for name in ("pooler.b", "bert.pooler.b")}
    change(folder, **more)
    loaded = load(folder)
    assert loaded.num_parameters == sum(tensor.numel() for tensor in bert_tensors().values())
    assert len(loaded.ignored_keys) == len({*loaded.ignored_keys}) == 6
    once = load(write_bert(tmp_path / "once"))
    for name, tensor in once.encoder.state_dict().items():
        assert torch.equal(loaded.encoder.state_dict()[name], tensor)


def test_twins_in_two_shards_are_compared_too(folder: Path) -> None:
    """And the file of the second name is told."""
    _, first, second = shard(folder)
    key = min(first)
    write_tensors(folder / "model-00002-of-00002.safetensors", {**second, f"bert.{key}": first[key] + 1})
    refused(folder, "model-00002-of-00002.safetensors", repr(key), f"'bert.{key}'", "they differ")


def shard(folder: Path) -> tuple[Path, Tensors, Tensors]:
    """Cut the file in two, with an index; returns the index and both halves."""
    tensors = load_file(folder / FILE)
    (folder / FILE).unlink()
    keys = sorted(tensors)
    first, second = ({key: tensors[key] for key in part} for part in (keys[:15], keys[15:]))
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    for name, part in zip(names, (first, second), strict=True):
        write_tensors(folder / name, part)
    weight_map = dict.fromkeys(first, names[0]) | dict.fromkeys(second, names[1])
    index = write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    return index, first, second


@pytest.mark.usefixtures("unpacked")
def test_shards_are_put_together(folder: Path, tmp_path: Path) -> None:
    """Query and key of one layer may stand in different files."""
    _, first, second = shard(folder)
    assert first
    assert second
    assert_same_weights(load(folder), write_bert(tmp_path / "whole"))


def test_a_missing_shard_is_named(folder: Path) -> None:
    """The file that is not there."""
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    refused(folder, "model-00002-of-00002.safetensors is missing")


def test_a_tensor_that_its_shard_does_not_hold_is_named(folder: Path) -> None:
    """The index and the tensor."""
    _, _, second = shard(folder)
    lost = sorted(second)[0]
    del second[lost]
    write_tensors(folder / "model-00002-of-00002.safetensors", second)
    refused(folder, "model.safetensors.index.json", repr(lost))


def test_a_shard_outside_the_folder_is_not_read(folder: Path) -> None:
    """An index cannot lead out of the folder."""
    _, first, second = shard(folder)
    write_tensors(folder.parent / "elsewhere.safetensors", second)
    (folder / "model-00002-of-00002.safetensors").unlink()
    weight_map = dict.fromkeys(first, "model-00001-of-00002.safetensors")
    weight_map |= dict.fromkeys(second, "../elsewhere.safetensors")
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    refused(folder, "model.safetensors.index.json names '../elsewhere.safetensors', which is outside of the folder")


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.usefixtures("unpacked")
def test_other_dtypes_of_the_file_are_taken(folder: Path, tmp_path: Path, stored: torch.dtype) -> None:
    """Half-precision and double files run in the dtype asked for, with their own rounding."""
    rounded = {key: tensor.to(stored) for key, tensor in bert_tensors().items()}
    loaded = load(write_bert(tmp_path / "half", tensors=rounded))
    assert {tensor.dtype for tensor in loaded.encoder.state_dict().values()} == {torch.float32}
    assert_same_weights(loaded, folder, tolerance=0.01)
    table = loaded.encoder.state_dict()["embedding.tokens.weight"]
    assert torch.equal(table, rounded["embeddings.word_embeddings.weight"].float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_asked_dtype_holds_for_all(folder: Path, dtype: torch.dtype) -> None:
    """Every parameter and every buffer is in the dtype asked for."""
    encoder = load(folder, dtype).encoder
    assert {tensor.dtype for tensor in [*encoder.parameters(), *encoder.buffers()]} == {dtype}


def test_the_fixed_positions_have_the_asked_dtype_too(tmp_path: Path) -> None:
    """Sinusoids are in no file: they follow the weights all the same."""
    encoder = load(convert_seed("seed-0", tmp_path), torch.bfloat16).encoder
    assert [buffer.dtype for buffer in encoder.buffers()] == [torch.bfloat16]


def test_known_tensors_beside_the_encoder_are_counted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Poolers and heads are left out, counted, and named in one line of the log; position ids are checked instead."""
    change(
        folder,
        **{
            "pooler.dense.weight": torch.zeros(16, 16),
            "cls.predictions.bias": torch.zeros(4),
            "embeddings.position_ids": torch.arange(40).unsqueeze(0),
        },
    )
    with caplog.at_level(logging.INFO, logger="eyeline.model"):
        loaded = load(folder)
    assert sorted(loaded.ignored_keys) == ["cls.predictions.bias", "pooler.dense.weight"]
    assert "2 tensors are known and not used" in caplog.text
    assert Embedder.load(folder, threads=1).info.num_ignored_tensors == 2


HEAD: Tensors = {
    "bert.pooler.dense.weight": torch.ones(16, 16),
    "bert.pooler.dense.bias": torch.zeros(16),
    "classifier.weight": torch.ones(3, 16),
    "classifier.bias": torch.zeros(3),
}
LABELS = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}}


def test_a_classification_head_is_loaded_where_the_architecture_has_one(tmp_path: Path) -> None:
    """In float32 whatever the encoder is in, and counted; of any other architecture the same tensors are ignored."""
    tensors = bert_tensors() | HEAD
    loaded = load(write_bert(tmp_path / "head", tensors=tensors, **LABELS), torch.bfloat16)
    assert loaded.classifier is not None
    assert {parameter.dtype for parameter in loaded.classifier.parameters()} == {torch.float32}
    assert loaded.ignored_keys == ()
    assert loaded.num_parameters == sum(tensor.numel() for tensor in tensors.values())
    other = load(write_bert(tmp_path / "other", tensors=tensors, architectures=["BertModel"]))
    assert other.classifier is None
    assert len(other.ignored_keys) == len(HEAD)


def test_colberts_projection_is_a_tensor_among_the_encoders(tmp_path: Path) -> None:
    """It is a Dense module where the folder has none, else it is counted as ignored; of any other architecture it is in
    no list, and a folder without it is refused.
    """
    weight = torch.ones(6, 16)
    colbert = {"architectures": ["HF_ColBERT"]}
    path = write_bert(tmp_path / "inline", tensors=bert_tensors() | {"linear.weight": weight}, **colbert)
    assert load(path).ignored_keys == ("linear.weight",)  # modules.json says that the folder pools
    (path / "modules.json").unlink()
    write_json(path / "artifact.metadata", {"dim": 6})
    assert load(path).ignored_keys == ()
    [config] = read_folder(path).dense
    assert torch.equal(load_dense(config, torch.device("cpu")).linear.weight, weight)
    write_json(path / "artifact.metadata", {"dim": 7})
    with pytest.raises(CheckpointError, match=r"'linear.weight' has shape \(6, 16\), the config says \(7, 16\)"):
        load_dense(read_folder(path).dense[0], torch.device("cpu"))
    write_tensors(path / "model.safetensors", bert_tensors())
    with pytest.raises(CheckpointError, match=r"tensor 'linear.weight' is missing"):
        load_dense(read_folder(path).dense[0], torch.device("cpu"))
    refused(
        write_bert(tmp_path / "bert", tensors=bert_tensors() | {"linear.weight": weight}), "'linear.weight'", "no list"
    )


def test_a_dense_modules_residual_is_read(tmp_path: Path) -> None:
    """Its weight is as much a tensor of the module as the other; without it the module is refused."""
    tensors = {"linear.weight": torch.ones(6, 16), "residual.weight": 2 * torch.ones(6, 16)}
    fields = {"bias": False, "use_residual": True}
    path = write_bert(tmp_path / "model")
    write_dense(path / "2_Dense", tensors, **fields)
    write_modules(path, ("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"))
    [config] = read_folder(path).dense
    assert torch.equal(load_dense(config, torch.device("cpu")).state_dict()["residual.weight"], 2 * torch.ones(6, 16))
    write_dense(path / "2_Dense", {"linear.weight": torch.ones(6, 16)}, **fields)
    with pytest.raises(CheckpointError, match=r"tensor 'residual.weight' is missing"):
        load_dense(config, torch.device("cpu"))


DECODER = "cls.predictions.decoder"
TABLE = "embeddings.word_embeddings.weight"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tied_decoder_is_the_table_itself(tmp_path: Path, dtype: torch.dtype) -> None:
    """In its memory and its number format, and counted once, whether or not the file has it a second time."""
    encoder, head = bert_tensors(), head_tensors()
    loaded = load(write_splade(tmp_path / "once"), dtype)
    assert loaded.splade is not None
    assert loaded.splade.head.decoder.weight.data_ptr() == loaded.encoder.embedding.tokens.weight.data_ptr()
    assert {parameter.dtype for parameter in loaded.splade.head.parameters()} == {dtype}
    assert loaded.num_parameters == sum(tensor.numel() for tensor in (encoder | head).values())
    assert loaded.ignored_keys == ()
    copies = {f"{DECODER}.weight": encoder[TABLE].clone(), f"{DECODER}.bias": head["cls.predictions.bias"].clone()}
    twice = load(write_splade(tmp_path / "twice", head | copies), dtype)
    assert twice.num_parameters == loaded.num_parameters
    assert sorted(twice.ignored_keys) == ["cls.predictions.bias", f"{DECODER}.weight"]  # each once more


def test_a_decoder_of_its_own(tmp_path: Path) -> None:
    """Untied, it is read and counted; its bias may have either name, and its own comes first."""
    own = torch.ones(CONFIG["vocab_size"], 16)
    head = head_tensors() | {f"{DECODER}.weight": own}
    loaded = load(write_splade(tmp_path / "own", head, tie_word_embeddings=False))
    assert loaded.splade is not None
    assert torch.equal(loaded.splade.head.decoder.weight, own)
    assert torch.equal(loaded.splade.head.decoder.bias, head["cls.predictions.bias"])
    assert loaded.num_parameters == sum(tensor.numel() for tensor in (bert_tensors() | head).values())
    named = head | {f"{DECODER}.bias": torch.full((CONFIG["vocab_size"],), 2.0)}
    other = load(write_splade(tmp_path / "named", named, tie_word_embeddings=False))
    assert other.splade is not None
    assert set(other.splade.head.decoder.bias.tolist()) == {2.0}


@pytest.mark.parametrize(
    ("left_out", "more", "changes", "words"),
    [
        ("cls.predictions.bias", {}, {}, ["'cls.predictions.bias' is missing"]),
        ("cls.predictions.transform.dense.weight", {}, {}, ["transform.dense.weight", "missing"]),
        ("", {}, {"tie_word_embeddings": False}, [f"'{DECODER}.weight' is missing"]),
        ("", {f"{DECODER}.weight": torch.zeros(CONFIG["vocab_size"], 16)}, {}, [DECODER, TABLE, "differ"]),
        ("", {f"{DECODER}.bias": torch.zeros(CONFIG["vocab_size"])}, {}, [DECODER, "cls.predictions.bias", "differ"]),
        ("", {f"{DECODER}.weight": torch.zeros(3, 16)}, {"tie_word_embeddings": False}, ["(3, 16)"]),
        ("", {"cls.predictions.bias": torch.zeros(3)}, {}, ["cls.predictions.bias", "(3,)"]),
        ("", {}, {"tie_word_embeddings": "no"}, ["config.json", "tie_word_embeddings 'no'"]),
    ],
)
def test_a_masked_language_models_head_that_does_not_fit_is_refused(
    tmp_path: Path, left_out: str, more: Tensors, changes: dict[str, object], words: list[str]
) -> None:
    """A tensor is missing, has the wrong shape, or is there twice with different numbers."""
    head = {key: tensor for key, tensor in head_tensors().items() if key != left_out}
    refused(write_splade(tmp_path / "model", head | more, **changes), *words)


def test_a_family_without_such_a_head_is_refused(tmp_path: Path) -> None:
    """In words, with its name."""
    folder = convert_seed("seed-0", tmp_path)
    write_modules(folder, ("MLMTransformer", ""), ("SpladePooling", "1_SpladePooling"))
    write_json(folder / "1_SpladePooling/config.json", {"pooling_strategy": "max", "activation_function": "relu"})
    (folder / "SHA256SUMS").unlink(missing_ok=True)
    refused(folder, "seed 0", "masked language model")


# --- what does not ---


@pytest.mark.parametrize(
    ("changes", "left_out", "words"),
    [
        ({}, "classifier.bias", ["classifier.bias", "missing"]),
        ({"id2label": {"0": "a"}}, "", ["classifier.weight", "(3, 16)", "(1, 16)"]),
        ({"id2label": {"0": "a", "7": "b"}}, "", ["config.json", "id2label"]),
    ],
)
def test_a_head_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, object], left_out: str, words: list[str]
) -> None:
    """A tensor that is missing, and labels that are not as many as the head's; with the tensor, the file, the field."""
    tensors = {key: tensor for key, tensor in (bert_tensors() | HEAD).items() if key != left_out}
    folder = write_bert(tmp_path / "head", tensors=tensors, **{**LABELS, **changes})
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("key", [QUERY, "embeddings.LayerNorm.bias", "encoder.layer.0.output.dense.bias"])
def test_a_missing_tensor_is_named(folder: Path, key: str) -> None:
    """No parameter keeps a random value."""
    change(folder, **{key: None})
    refused(folder, FILE, repr(key), "is missing")


def test_an_empty_file_misses_everything(folder: Path) -> None:
    """A file without tensors is refused like one that lacks a tensor."""
    write_tensors(folder / FILE, {})
    refused(folder, "tensor", "is missing")


@pytest.mark.parametrize("key", ["encoder.layer.2.output.dense.bias", "adapter.weight", "embeddings.word_embeddings.w"])
def test_an_unknown_tensor_is_named(folder: Path, key: str) -> None:
    """A tensor in no list means the config or the family is not this one."""
    change(folder, **{key: torch.zeros(16)})
    refused(folder, FILE, repr(key), "BERT")


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        (QUERY, (16, 15)),
        ("encoder.layer.0.attention.self.key.bias", (17,)),
        ("embeddings.position_embeddings.weight", (41, 16)),
        ("embeddings.word_embeddings.weight", (CONFIG["vocab_size"] + 1, 16)),
        ("encoder.layer.0.output.dense.bias", (1, 16)),
    ],
)
def test_a_wrong_shape_is_named(folder: Path, key: str, shape: tuple[int, ...]) -> None:
    """With the shape that is there and the one the config says."""
    change(folder, **{key: torch.zeros(shape)})
    refused(folder, FILE, repr(key), str(shape), "the config says")


def test_query_and_key_must_not_make_up_for_each_other(folder: Path) -> None:
    """The stacked shape fits, the parts do not: refused all the same."""
    layer = "encoder.layer.0.attention.self"
    change(folder, **{f"{layer}.query.weight": torch.zeros(20, 16), f"{layer}.key.weight": torch.zeros(12, 16)})
    refused(folder, f"{layer}.query.weight", "(20, 16)", "(16, 16)")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_not_finite_is_named(folder: Path, value: float) -> None:
    """One bad number in one tensor stops the start."""
    bad = bert_tensors()[QUERY]
    bad[7, 3] = value
    change(folder, **{QUERY: bad})
    refused(folder, FILE, repr(QUERY), "not finite")


def test_whole_numbers_are_no_weights(folder: Path) -> None:
    """A quantised tensor is not taken for a weight."""
    change(folder, **{QUERY: torch.zeros(16, 16, dtype=torch.int8)})
    refused(folder, FILE, repr(QUERY), "torch.int8")


@pytest.mark.parametrize("keep", [0, 4, 300, 5000])
def test_a_truncated_file_is_named(folder: Path, keep: int) -> None:
    """Cut in its length, its header or its tensors, the file is refused before a tensor is used."""
    whole = (folder / FILE).read_bytes()
    assert len(whole) > 5000
    (folder / FILE).write_bytes(whole[:keep])
    refused(folder, FILE, "truncated or no safetensors file")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_a_pickle_is_not_read(folder: Path, name: str) -> None:
    """A folder with nothing but a pickle says what to do."""
    (folder / FILE).rename(folder / name)
    refused(folder, "no model.safetensors", name, "save the model as safetensors")


def test_a_folder_without_weights_says_so(folder: Path) -> None:
    """No hint at a pickle that is not there."""
    (folder / FILE).unlink()
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors$"):
        tensor_files(folder)


@pytest.mark.parametrize("ids", [torch.arange(1, 41), torch.arange(40).flip(0), torch.zeros(40, dtype=torch.int64)])
def test_position_ids_must_count_from_zero(folder: Path, ids: torch.Tensor) -> None:
    """Other positions than those the encoder adds are refused."""
    change(folder, **{"embeddings.position_ids": ids.unsqueeze(0)})
    refused(folder, FILE, "'embeddings.position_ids'", "0, 1, ...")


@pytest.mark.parametrize("model_type", ["t5", "gpt2", None])
def test_an_unknown_family_is_named(folder: Path, model_type: str | None) -> None:
    """With the families there are."""
    write_json(folder / "config.json", {**CONFIG, "model_type": model_type})
    refused(folder, "config.json", f"model_type {model_type!r}", "bert", "modernbert", "seed-0")


@pytest.mark.parametrize("field", ["hidden_size", "num_attention_heads", "vocab_size", "hidden_act"])
def test_a_missing_field_of_the_config_is_named(folder: Path, field: str) -> None:
    """Sizes are never guessed."""
    write_json(folder / "config.json", {key: value for key, value in CONFIG.items() if key != field})
    refused(folder, "config.json", f"field {field!r} is missing")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_act", "mish"),
        ("num_attention_heads", 3),
        ("num_attention_heads", 0),
        ("hidden_size", "wide"),
        ("position_embedding_type", "relative_key"),
    ],
)
def test_a_config_that_cannot_be_built_is_named(folder: Path, field: str, value: object) -> None:
    """Every fault of the config is one sentence with its file."""
    write_json(folder / "config.json", {**CONFIG, field: value})
    refused(folder, "config.json")


# --- checksums ---


def write_sums(folder: Path, *names: str) -> Path:
    """List these files with their true sums."""
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    file = folder / "SHA256SUMS"
    file.write_text("".join(lines))
    return file


def test_matching_checksums_load(folder: Path) -> None:
    """Listed files that match, also in sub-folders and in binary mode, change nothing."""
    sums = write_sums(folder, FILE, "1_Pooling/config.json")
    sums.write_text(sums.read_text().replace("  1_", " *1_"))
    assert load(folder).num_parameters > 0


def test_an_empty_line_lists_nothing(folder: Path) -> None:
    """A list edited by hand may end with empty lines."""
    sums = write_sums(folder, FILE)
    sums.write_text(f"\n{sums.read_text()}\n \n")
    verify_checksums(folder)


def test_a_changed_file_is_named(folder: Path) -> None:
    """A single byte in a listed file stops the start."""
    write_sums(folder, "config.json", FILE)
    content = bytearray((folder / FILE).read_bytes())
    content[-1] ^= 1
    (folder / FILE).write_bytes(content)
    refused(folder, FILE, "does not match its SHA-256")


def test_a_listed_file_that_is_missing_is_named(folder: Path) -> None:
    """Half a download is no model."""
    (folder / "extra.txt").write_text("x")
    write_sums(folder, "extra.txt", FILE)
    (folder / "extra.txt").unlink()
    refused(folder, "extra.txt is listed in SHA256SUMS and is missing")


def test_no_list_is_no_check(folder: Path) -> None:
    """Folders from the Hub carry no list."""
    verify_checksums(folder)
    (folder / "SHA256SUMS").write_text("0" * 64 + "  config.json\n")
    with pytest.raises(CheckpointError, match="does not match"):
        verify_checksums(folder)


# --- dense modules ---

DENSE: Tensors = {
    "linear.weight": torch.randn(6, 16, generator=torch.Generator().manual_seed(1)),
    "linear.bias": torch.randn(6, generator=torch.Generator().manual_seed(2)),
}


def with_dense(folder: Path, tensors: Tensors = DENSE, **config: object) -> Path:
    """The folder with one Dense module behind the pooling."""
    write_dense(folder / "2_Dense", tensors, **config)
    write_modules(folder, ("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"))
    return folder


@pytest.mark.parametrize("activation", ["tanh", "identity"])
def test_a_dense_module_maps_the_pooled_vector(folder: Path, tiny: Embedder, activation: str) -> None:
    """The embedding is act(W pooled + b), and has the module's dimensions."""
    name = {"tanh": "torch.nn.modules.activation.Tanh", "identity": "torch.nn.modules.linear.Identity"}[activation]
    embedder = Embedder.load(with_dense(folder, activation_function=name), dtype="float32", device="cpu", threads=1)
    assert embedder.dimensions == embedder.info.dimensions == 6
    pooled = torch.from_numpy(tiny.encode(["the cat sat", "dog"], normalize=False))
    expected = pooled @ DENSE["linear.weight"].T + DENSE["linear.bias"]
    expected = expected.tanh() if activation == "tanh" else expected
    actual = torch.from_numpy(embedder.encode(["the cat sat", "dog"], normalize=False))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_dense_weights_stay_float32(folder: Path) -> None:
    """Pooled vectors are float32, whatever the encoder computes in."""
    config = read_folder(with_dense(folder, {key: tensor.half() for key, tensor in DENSE.items()})).dense[0]
    dense = load_dense(config, CPU)
    assert {parameter.dtype for parameter in dense.parameters()} == {torch.float32}
    assert not any(parameter.requires_grad for parameter in dense.parameters())
    assert not dense.training
    loaded = Embedder.load(folder, dtype="bfloat16", device="cpu", threads=1).encode("the cat")
    assert loaded.shape == (1, 6)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"linear.weight": DENSE["linear.weight"]}, "tensor 'linear.bias' is missing"),
        ({**DENSE, "norm.weight": torch.zeros(6)}, "tensor 'norm.weight' is in no list"),
        ({**DENSE, "linear.bias": torch.zeros(7)}, "tensor 'linear.bias' has shape (7,)"),
        ({**DENSE, "linear.bias": torch.full((6,), float("nan"))}, "not finite"),
    ],
)
def test_dense_weights_must_fit(folder: Path, tensors: Tensors, reason: str) -> None:
    """Missing, unknown, misshapen and broken tensors are refused with the module's folder."""
    refused(with_dense(folder, tensors), "2_Dense", reason)


def test_a_dense_module_without_weights_is_refused(folder: Path) -> None:
    """It never runs with random ones."""
    with_dense(folder)
    (folder / "2_Dense" / FILE).unlink()
    refused(folder, "2_Dense", "no model.safetensors")


@pytest.mark.parametrize("second", [None, (6, 4), (5, 4)])
def test_dense_modules_must_fit_each_other(folder: Path, second: tuple[int, int] | None) -> None:
    """What a module takes in must be what stands before it gives: a misfit stops the start, not the first request."""
    if second is None:
        refused(
            with_dense(folder, {"linear.weight": torch.zeros(6, 15), "linear.bias": torch.zeros(6)}, in_features=15),
            "2_Dense/config.json",
            "in_features is 15",
            "16",
        )
        return
    wide, narrow = second
    tensors = {"linear.weight": torch.ones(narrow, wide), "linear.bias": torch.zeros(narrow)}
    write_dense(with_dense(folder) / "3_Dense", tensors, in_features=wide, out_features=narrow)
    write_modules(folder, ("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Dense", "3_Dense"))
    if wide == 6:
        assert Embedder.load(folder, device="cpu", threads=1).dimensions == 4
    else:
        refused(folder, "3_Dense/config.json", "in_features is 5")


# --- tokenizer and encoder ---


def test_more_ids_than_rows_are_refused(folder: Path) -> None:
    """An id without a row would fail in the middle of a batch: both numbers are named at the start."""
    backend = wordpiece()
    backend.add_tokens(["zebra", "yak"])
    backend.save(str(folder / "tokenizer.json"))
    refused(folder, f"ids up to {CONFIG['vocab_size'] + 1}", f"{CONFIG['vocab_size']} rows")


def test_more_rows_than_ids_are_fine(tmp_path: Path) -> None:
    """Tables are often rounded up."""
    rows = CONFIG["vocab_size"] + 7
    assert Embedder.load(write_bert(tmp_path / "wide", vocab_size=rows), threads=1).info.vocab_size == rows


def test_the_shorter_limit_holds(folder: Path, tmp_path: Path) -> None:
    """``max_seq_length`` above the positions is cut to them; without any, positions decide."""
    assert Embedder.load(folder, threads=1).tokenizer.max_length == 32
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 999})
    assert Embedder.load(folder, threads=1).tokenizer.max_length == 40
    (folder / "sentence_bert_config.json").unlink()
    assert Embedder.load(folder, threads=1).info.max_length == 40


@pytest.mark.parametrize("limit", [0, -1, 1, 2])
def test_a_limit_without_room_for_a_token_is_refused(folder: Path, limit: int) -> None:
    """Two special tokens and one of the text are the least."""
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": limit})
    refused(folder, str(folder / "sentence_bert_config.json"), f"max_seq_length is {limit}, which leaves no room")
