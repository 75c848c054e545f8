"""The reference's claims again, on a CUDA device: float32 within 5e-4, half precision by cosine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from model.batch import GROUPING, pack
from model.contract import EncodeInput
from model.embedder import Embedder
from model.encoder import Encoder
from model.varlen import has_varlen_kernel
from tests.model.answers import (
    MINILM,
    TOLERANCES,
    MiniLMAnswer,
    check_minilm,
    check_seed,
    seed_answers,
    shuffled,
)
from tests.model.test_encoder import CONFIGS, make_texts
from tests.model.test_reference import convert_seed

pytestmark = pytest.mark.cuda
dtypes = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])


@dtypes
@pytest.mark.parametrize("attention", ["fused", "explicit"])
def test_minilm(answers: list[MiniLMAnswer], dtype: str, attention: str) -> None:
    """all-MiniLM-L6-v2 gives the reference's embeddings and maps, alone and in shuffled batches."""
    embedder = Embedder.load(MINILM, dtype=dtype, device="cuda", special_tokens="parse", attention=attention)
    for size in (1, 7, 30):
        check_minilm(embedder, answers, shuffled(30, size, size), TOLERANCES["cuda", dtype], "some")


@dtypes
@pytest.mark.parametrize("document", ["seed-0", "seed-2"])
def test_seeds(document: str, dtype: str, tmp_path: Path) -> None:
    """A converted document's encoder gives its own token states and maps, alone and mixed."""
    embedder = Embedder.load(convert_seed(document, tmp_path), dtype=dtype, device="cuda")
    for size in (1, 3):
        check_seed(embedder, seed_answers(document), shuffled(3, size, size), TOLERANCES["cuda", dtype])


@pytest.mark.parametrize("family", [name for name, config in CONFIGS.items() if config.positions != "relative"])
@torch.inference_mode()
def test_texts_of_any_lengths_in_one_call(family: str) -> None:
    """On GPUs of capability 8.0 and newer every family that can attend without groups does, with the same states."""
    config, device = CONFIGS[family], torch.device("cuda")
    assert has_varlen_kernel(config, torch.bfloat16, device) == (torch.cuda.get_device_capability() >= (8, 0))
    torch.manual_seed(3)
    encoder = Encoder(config).eval().to(device, torch.bfloat16)
    texts = [*make_texts((8, 9, 10, 10, 3)), EncodeInput([3, 4, 5, 6], [0] * 4, 4, num_seen=2)]
    grouped, free = (encoder(pack(texts, device, grouping)).last_hidden_state.float() for grouping in (GROUPING, None))
    torch.testing.assert_close(free, grouped, rtol=0, atol=0.05)
