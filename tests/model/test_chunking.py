"""How texts may be cut into chunks, and what has no meaning."""

from __future__ import annotations

import subprocess
import sys

import pytest

from model.chunking import Chunking, check_chunking
from model.errors import ChunkingError
from model.pooling import PoolingMode


def test_an_overlap_leaves_something_new() -> None:
    """It is less than the size, or chunks would never end."""
    check_chunking(Chunking("token", 3, 2), "cls")
    with pytest.raises(ChunkingError, match="less than their size of 3, not 3") as caught:
        check_chunking(Chunking("token", 3, 3), "mean")
    assert (caught.value.param, caught.value.limit, caught.value.actual) == ("chunks.overlap", 2, 3)


@pytest.mark.parametrize("pooling", ["cls", "lasttoken"])
def test_late_chunks_need_a_pooling_of_all_tokens(pooling: PoolingMode) -> None:
    """The first token of a stretch in the middle stands for nothing."""
    for fine in ("mean", "max"):
        check_chunking(Chunking("token", 3, mode="late"), fine)  # type: ignore[arg-type] # both are modes
    with pytest.raises(ChunkingError, match=f"pools by {pooling}.*use mode separate"):
        check_chunking(Chunking("token", 3, mode="late"), pooling)


def test_the_names_cost_no_import_of_torch() -> None:
    """A command line that knows them answers a mistake at once."""
    code = "import sys, model.chunking; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
