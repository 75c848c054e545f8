"""Whatever runs out of memory raises MemoryError, and holds on to nothing."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from model.contract import EncodeInput, OutputSpec
from model.embedder import Embedder
from model.memory import SIGNS, is_out_of_memory, raising_memory_error
from tests.tiny import make_bert_folder

TOO_MUCH = 10**15  # bytes: no machine has them, and no operating system promises them


def ask_torch() -> None:
    """Meet the CPU allocator's own error, which is a plain RuntimeError."""
    torch.empty(TOO_MUCH, dtype=torch.uint8)


def ask_numpy() -> None:
    """Meet numpy's error, which is a MemoryError."""
    np.empty(TOO_MUCH, dtype=np.uint8)


def ask_cuda() -> None:
    """Stand in for CUDA's allocator."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nand a page of advice")


@pytest.mark.parametrize("ask", [ask_torch, ask_numpy, ask_cuda])
def test_memory_that_ran_out_is_a_memory_error(ask: Callable[[], None]) -> None:
    """Each library's way to say so is recognised, and becomes the one error that callers know, in one line."""
    with pytest.raises((RuntimeError, MemoryError)) as told:
        ask()
    assert is_out_of_memory(told.value)
    with pytest.raises(MemoryError) as caught:
        raising_memory_error(ask)()
    assert type(caught.value) is MemoryError
    assert "\n" not in str(caught.value)
    assert str(caught.value)


@pytest.mark.parametrize("sign", SIGNS)
def test_a_runtime_error_that_says_so_counts(sign: str) -> None:
    """What torch passes on from other libraries has no class of its own."""
    assert is_out_of_memory(RuntimeError(f"CUDA: {sign} when calling something"))
    assert not is_out_of_memory(ValueError(sign))


@pytest.mark.parametrize("error", [RuntimeError("sizes do not match"), ValueError("no"), KeyError(3)])
def test_any_other_error_passes_unchanged(error: Exception) -> None:
    """A bug stays what it is: less work at a time would not mend it."""

    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        raising_memory_error(fail)()
    assert caught.value is error


def test_nothing_of_the_failed_run_is_kept() -> None:
    """While the error is being handled the tensors of the run are gone, so that a smaller batch finds their memory."""
    kept: list[weakref.ref[torch.Tensor]] = []

    def fail() -> None:
        taken = torch.zeros(8)
        kept.append(weakref.ref(taken))
        ask_torch()

    try:
        raising_memory_error(fail)()
    except MemoryError:
        assert sys.exc_info()[1] is not None
        assert kept[0]() is None
    assert len(kept) == 1


def test_an_embedder_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that does not fit is a MemoryError of ``run``; the next one runs."""
    embedder = Embedder.load(make_bert_folder(tmp_path / "tiny"), dtype="float32", device="cpu", threads=1)
    text = EncodeInput([1, 2], [0, 0], 2)
    forward = embedder._encoder.forward

    def run_out(*args: object) -> None:
        ask_torch()

    monkeypatch.setattr(embedder._encoder, "forward", run_out)
    with pytest.raises(MemoryError, match="allocate memory"):
        embedder.run([text], [OutputSpec()])
    monkeypatch.setattr(embedder._encoder, "forward", forward)
    [row] = embedder.run([text], [OutputSpec()])
    assert row.embedding is not None
    assert np.isfinite(row.embedding).all()
