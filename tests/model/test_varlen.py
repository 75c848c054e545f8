"""Claims about attention without groups: with the kernel's contract kept, every family gives the same answers.

The kernel itself needs a GPU (``test_cuda.py`` runs it); here a slow one with its parameters stands in.
"""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from model.attention_cores import attention_weights
from model.batch import Grouping, TextBounds, pack
from model.config import EncoderConfig
from model.contract import AttentionSelection, EncodeInput
from model.core_choice import AttentionPath, choose_grouping
from model.embedder import Embedder
from model.encoder import Encoder
from model.varlen import answers_as_the_formula, attend_varlen, has_varlen_kernel
from tests.model.answers import MINILM
from tests.model.test_encoder import CONFIGS, make_texts

CPU = torch.device("cpu")
FAMILIES = [name for name, config in CONFIGS.items() if config.positions != "relative"]


def slow_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    starts_of_keys: Tensor,
    longest: int,
    longest_keys: int,
    *,
    window_size: tuple[int, int] = (-1, -1),
    seqused_k: Tensor | None = None,
) -> Tensor:
    """Text by text, as the documentation of ``torch.nn.attention.varlen`` says what each parameter means."""
    assert starts.dtype == torch.int32
    assert starts is starts_of_keys
    lengths = starts.diff().tolist()
    assert max(lengths) == longest == longest_keys
    context = torch.full_like(query, torch.nan)  # rows of no text hold anything
    for text, length in enumerate(lengths):
        rows = slice(int(starts[text]), int(starts[text]) + length)
        place = torch.arange(length)
        offset = place.unsqueeze(0) - place.unsqueeze(1)  # of the key from the query
        left, right = (length if bound < 0 else bound for bound in window_size)
        visible = (offset >= -left) & (offset <= right)
        if seqused_k is not None:
            visible &= place < seqused_k[text]
        q, k, v = (tensor[rows].transpose(0, 1) for tensor in (query, key, value))
        context[rows] = (attention_weights(q, k, visible) @ v).transpose(0, 1)
    return context


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the slow one stand in for the GPU's."""
    assert {*inspect.signature(slow_varlen).parameters} - {"starts", "starts_of_keys", "longest", "longest_keys"} <= {
        *inspect.signature(varlen.varlen_attn).parameters
    }
    monkeypatch.setattr(varlen, "varlen_attn", slow_varlen)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_every_family_gives_what_it_gives_in_groups(family: str, causal: bool) -> None:
    """States and maps, with windows and causality, and tokens that nobody looks at."""
    config = replace(CONFIGS[family], causal=causal)
    torch.manual_seed(3)
    encoder = Encoder(config).eval()
    texts = [*make_texts((8, 9, 10, 10, 3)), *(EncodeInput([3, 4, 5, 6], [0] * 4, 4, num_seen=seen) for seen in (2, 3))]
    selection = AttentionSelection(tuple(range(config.num_hidden_layers)), (0, 1))
    packs = [pack(texts), pack(texts, grouping=None)]
    grouped, free = (encoder(batch, [selection] * len(texts)) for batch in packs)
    num_tokens = sum(packs[0].lengths)
    torch.testing.assert_close(
        free.last_hidden_state[:num_tokens], grouped.last_hidden_state[:num_tokens], rtol=0, atol=1e-5
    )
    for ours, theirs in zip(free.attentions, grouped.attentions, strict=True):
        np.testing.assert_allclose(ours.maps, theirs.maps, rtol=0, atol=1e-5)
    assert packs[1].groups == ()


def test_bounds_say_where_texts_begin_and_what_is_seen() -> None:
    """Counted from 0 to the end of the last; what is seen is said only where a token is not."""
    bounds = TextBounds.of([2, 3, 1], [2, 3, 1])
    assert (bounds.starts.tolist(), bounds.starts.dtype) == ([0, 2, 5, 6], torch.int32)
    assert (bounds.longest, bounds.num_seen) == (3, None)
    seen = TextBounds.of([2, 3], [2, 1]).num_seen
    assert seen is not None
    assert (seen.tolist(), seen.dtype) == ([2, 1], torch.int32)


def test_pytorchs_own_function_takes_what_it_is_given() -> None:
    """Its parameters, on tensors that have shapes and no numbers."""
    heads = torch.empty(5, 3, 2, 8, dtype=torch.bfloat16, device="meta")
    bounds = TextBounds.of([2, 3], [2, 2])
    assert attend_varlen(heads, bounds, window=2, causal=True).shape == (5, 16)


def test_a_cpu_has_no_such_kernel(caplog: pytest.LogCaptureFixture) -> None:
    """Nor has float32, nor a model that adds to the scores; a kernel that refuses is no reason not to start."""
    gpu = torch.device("cuda")
    assert not has_varlen_kernel(CONFIGS["bert"], torch.bfloat16, CPU)
    assert not has_varlen_kernel(CONFIGS["bert"], torch.float32, gpu)
    assert not has_varlen_kernel(CONFIGS["mpnet"], torch.bfloat16, gpu)
    with caplog.at_level("INFO", logger="eyeline"):
        assert not answers_as_the_formula(2, 8, torch.bfloat16, CPU)
    assert "refused" in caplog.text


@pytest.mark.usefixtures("kernel")
def test_a_kernel_is_believed_when_it_gives_the_formulas_vectors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that looks at a token that nobody shall see is not, and the log says so."""
    assert answers_as_the_formula(2, 8, torch.bfloat16, CPU)
    monkeypatch.setattr(varlen, "varlen_attn", lambda *tensors, **options: slow_varlen(*tensors))
    assert not answers_as_the_formula(2, 8, torch.bfloat16, CPU)
    assert "wrong vectors" in caplog.text


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("attention", ["fused", "explicit"])
def test_an_embedder_with_the_kernel_pads_nothing(monkeypatch: pytest.MonkeyPatch, attention: str) -> None:
    """Same embeddings; the explicit path stays explicit."""
    texts = ["a cat sat on the mat", "a dog", "one more sentence, longer than all of the others before it"]
    plain = Embedder.load(MINILM, dtype="float32", device="cpu", threads=1, attention=attention)

    def as_on_a_gpu(
        path: AttentionPath, config: EncoderConfig, dtype: torch.dtype, _: torch.device, *, is_int8: bool
    ) -> Grouping | None:
        return choose_grouping(path, config, dtype, torch.device("cuda"), is_int8=is_int8)

    monkeypatch.setattr("model.core_choice.has_varlen_kernel", lambda *_: True)
    monkeypatch.setattr("model.embedder.choose_grouping", as_on_a_gpu)
    embedder = Embedder.load(MINILM, dtype="float32", device="cpu", threads=1, attention=attention)
    np.testing.assert_allclose(embedder.encode(texts), plain.encode(texts), atol=1e-6)
    lengths = [9, 10, 11, 11]
    assert (embedder.padding_ratio(lengths) == 0) == (attention == "fused")
    assert plain.padding_ratio(lengths) > 0
