"""A model folder may come from anywhere: whatever is in it, it loads or is refused, with bounded memory and time."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.model.broken_folders import BREAKINGS, KINDS, Breaking, whole

ROOT = Path(__file__).parents[2]
COUNT = int(os.environ.get("FOLDER_FUZZ_COUNT", "250"))
SEED = int(os.environ.get("FOLDER_FUZZ_SEED", "0"))
MAX_SECONDS = 5.0  # of the processor, for a folder of some kilobytes
MAX_SAID = 1_000  # characters: a sentence, with a path


def test_a_broken_folder_is_refused_or_loads(tmp_path: Path) -> None:
    """Bits flipped, files cut, swapped, linked to devices and pipes, JSON of any kind, sizes beyond all memory, names
    that lead out: each gives a CheckpointError of one sentence, or a model that runs. Nothing else is raised, no folder
    takes more than a bounded share of memory or of the processor, and the process outlives them all.
    """
    command = [sys.executable, "-m", "tests.model.broken_folders", str(tmp_path), str(SEED), str(COUNT)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    tried = [json.loads(line) for line in run.stdout.splitlines()]
    last = run.stderr.strip().splitlines()[-1:]
    assert run.returncode == 0, f"ended with {run.returncode} at: {last}"
    assert len(tried) == len(KINDS) + COUNT
    whole, broken = tried[: len(KINDS)], tried[len(KINDS) :]
    assert [one for one in whole if one["outcome"] != "loaded"] == []
    assert [one for one in broken if one["outcome"] not in ("refused", "loaded")] == []
    assert [one for one in broken if one["seconds"] > MAX_SECONDS] == []
    assert [one for one in broken if not one["said"].isprintable() or len(one["said"]) > MAX_SAID] == []
    outcomes = Counter(one["outcome"] for one in broken)
    assert outcomes["refused"] > COUNT / 2
    assert outcomes["loaded"] > 0


@pytest.mark.parametrize("breaking", dict.fromkeys(BREAKINGS), ids=lambda breaking: breaking.__name__)
def test_every_way_to_break_a_folder_breaks_it(breaking: Breaking, tmp_path: Path) -> None:
    """A way that changes nothing would prove nothing: over some draws each makes another folder."""
    changed = 0
    for seed in range(4):
        folder = whole(tmp_path / str(seed), "plain")
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert breaking(folder, random.Random(seed))
        after = {path for path in folder.rglob("*") if path.is_symlink() or path.exists()}
        changed += (
            any(
                path not in after or path.is_symlink() or not path.is_file() or path.read_bytes() != content
                for path, content in before.items()
            )
            or len(after) > len(before) + 2
        )
    assert changed > 0
