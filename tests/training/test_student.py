"""Students: their sizes, tokens, embeddings and gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model.embedder import Embedder
from model.errors import CheckpointError
from model.pooling import POOLING_FUNCTIONS, PoolingMode
from tests.tiny import make_bert_folder
from tests.training.seeds import make_student
from training.errors import RunError
from training.export import export_student
from training.student import TokenStore, autocast, embed, embed_all, load_student, student_config

TEXTS = ["the cat sat", "a dog", "", "the dog barked on the mat " * 9, "hello world"]


@pytest.mark.parametrize("family", ["seed-0", "seed-2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_reach_every_parameter_and_are_finite(family: str, dtype: torch.dtype) -> None:
    """Nothing of the serving path (packed weights, no_grad) cuts training off, in either precision."""
    student = make_student(family, dropout=0.1)
    student.encoder.train()
    store = TokenStore.of(student.tokenizer(), TEXTS)
    embed(student.encoder, store.inputs(range(len(TEXTS))), "mean", dtype).square().sum().backward()
    for name, parameter in student.encoder.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name
        assert parameter.dtype == torch.float32


@pytest.mark.parametrize("mode", sorted(POOLING_FUNCTIONS))
def test_a_student_embeds_as_the_server_will(tmp_path: Path, mode: PoolingMode) -> None:
    """The same texts through the exported folder give the same vectors, in the texts' own order."""
    student = make_student()
    student.pooling = mode
    export_student(student, tmp_path / "m", "", dtype=torch.float32)
    rows = embed_all(student.encoder, TokenStore.of(student.tokenizer(), TEXTS), mode, torch.float32, max_tokens=40)
    served = Embedder.load(tmp_path / "m", dtype="float32", device="cpu", threads=1).encode(TEXTS, normalize=False)
    assert np.abs(rows - served).max() < 1e-5


def test_measuring_takes_no_dropout_and_gives_it_back() -> None:
    """Two measurements agree, and training goes on with dropout."""
    student = make_student(dropout=0.5)
    student.encoder.train()
    store = TokenStore.of(student.tokenizer(), TEXTS)
    first, second = (embed_all(student.encoder, store, "mean", torch.float32) for _ in range(2))
    assert np.array_equal(first, second)
    assert student.encoder.training


def test_dropout_drops_while_training() -> None:
    """With dropout, two forward passes differ; without it, they do not."""
    for dropout, differs in ((0.3, True), (0.0, False)):
        student = make_student(dropout=dropout)
        student.encoder.train()
        inputs = TokenStore.of(student.tokenizer(), TEXTS).inputs([0, 1, 3])
        first, second = (embed(student.encoder, inputs, "mean", torch.float32) for _ in range(2))
        assert bool((first != second).any()) is differs


def test_random_weights_begin_at_a_size_that_trains() -> None:
    """Token vectors have variance 1 after the scale of sqrt(D), and norms begin as 1 and 0."""
    encoder = make_student(hidden_size=64).encoder
    scaled = encoder.embedding.tokens.weight.detach() * encoder.embedding.tokens.scale
    assert float(scaled.std()) == pytest.approx(1, abs=0.05)
    assert encoder.norm is not None
    assert [encoder.norm.get_parameter(name)[0].item() for name in ("weight", "bias")] == [1, 0]
    query = encoder.layers[0].self_attention.qkv.weight[:64]
    assert float(query.detach().std()) == pytest.approx((2 / (64 + 64)) ** 0.5, rel=0.05)


def test_stored_tokens_are_the_tokenizers() -> None:
    """Ids and lengths of any text, in any order, cut to the maximum length."""
    tokenizer = make_student().tokenizer()
    store = TokenStore.of(tokenizer, TEXTS, chunk_texts=2)
    expected = tokenizer.encode(TEXTS)
    assert [item.input_ids for item in store.inputs([3, 0, 3])] == [expected[i].input_ids for i in (3, 0, 3)]
    assert store.lengths.tolist() == [item.num_tokens for item in expected]
    assert (len(store), int(store.lengths.max())) == (5, 32)


def test_a_student_that_cannot_be_is_one_sentence() -> None:
    """Heads that do not divide the width, sizes of 0, families without a name."""
    sizes = {"vocab_size": 9, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 8, "max_length": 9}
    with pytest.raises(RunError, match="hidden_size 16 is not a multiple of num_attention_heads 3"):
        student_config(family="seed-2", num_attention_heads=3, **sizes)
    with pytest.raises(RunError, match="family 'bert' is not known, only seed-0, seed-2"):
        student_config(family="bert", num_attention_heads=2, **sizes)


def test_a_trained_folder_is_taken_up_as_it_was(tmp_path: Path) -> None:
    """Weights, tokenizer and pooling come back; weights can be trained again."""
    student = make_student("seed-0")
    student.pooling = "cls"
    export_student(student, tmp_path / "m", "", dtype=torch.float32)
    again = load_student(tmp_path / "m", dropout=0.2)
    for name, tensor in student.encoder.state_dict().items():
        assert torch.equal(tensor, again.encoder.state_dict()[name]), name
    assert (again.pooling, again.raw) == ("cls", student.raw)
    assert again.encoder.config.dropout == 0.2
    assert all(parameter.requires_grad for parameter in again.encoder.parameters())


def test_only_the_seeds_encoders_are_taken_up(tmp_path: Path) -> None:
    """A BERT can teach, but is not trained here; a folder that is none is named."""
    with pytest.raises(RunError, match="is no plain seed-0 or seed-2 encoder"):
        load_student(make_bert_folder(tmp_path / "bert"))
    with pytest.raises(CheckpointError, match="is not a folder"):
        load_student(tmp_path / "nothing")


def test_products_run_in_the_precision_asked() -> None:
    """Bfloat16 rounds the products, float32 leaves them alone; the rows come back in float32 either way."""
    x = torch.full((1, 1), 1 + 2**-12)
    with autocast(torch.device("cpu"), torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
    with autocast(torch.device("cpu"), torch.float32):
        assert float(x @ x) > 1
