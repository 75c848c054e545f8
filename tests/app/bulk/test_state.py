"""Part files and their state: what counts, whose it is, and what a full disk or another run leaves of it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.bulk.encoded import Encoded, RowShape
from app.bulk.errors import BulkError
from app.bulk.options import BulkOptions
from app.bulk.output import Layout, make_layout
from app.bulk.rows import TextRow
from app.bulk.state import PartFiles, Progress, append_all
from tests.app.bulk.jobs import make_options

IDENTITY = {"model": "digest", "dimensions": None, "keep": ["a"]}
SHAPE = RowShape(2, ("entropy",), 1, 2)


def make_encoded(*values: float) -> Encoded:
    """Rows of two numbers, and statistics of two heads."""
    rows = [TextRow(index, "t") for index in range(len(values))]
    numbers = np.array(values, np.float32)
    return Encoded(rows, np.stack([numbers, -numbers], axis=1), np.stack([numbers] * 2, axis=1).reshape(-1, 1, 1, 2))


class Bench:
    """One job in a folder."""

    def __init__(self, folder: Path, name: str = "o.npy", **changes: Any) -> None:
        self.options: BulkOptions = make_options(Path("a.txt"), folder / name, attention_stats=True, **changes)
        self.layout: Layout = make_layout(self.options, SHAPE, None)

    def open(self, identity: dict[str, Any] = IDENTITY, **more: Any) -> PartFiles:
        """Part files, to be entered."""
        return PartFiles(self.options, self.layout, identity, **more)

    def add(self, parts: PartFiles, *values: float) -> None:
        """Add a window of rows."""
        done = parts.progress
        progress = replace(done, num_read=done.num_read + len(values), num_rows=done.num_rows + len(values))
        parts.add(self.layout.bodies(make_encoded(*values)), progress)

    def numbers(self, path: Path) -> list[float]:
        """First numbers of each row of an array."""
        return [float(row.flat[0]) for row in np.load(path)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A job in the test's folder."""
    return Bench(tmp_path)


def names(folder: Path) -> set[str]:
    """What is in a folder."""
    return {path.name for path in folder.iterdir()}


def test_rows_are_counted_and_taken_up_again(bench: Bench, tmp_path: Path) -> None:
    """A second run begins behind the first, and when all is there only the outputs are left."""
    with bench.open() as parts:
        assert (parts.progress.num_rows, parts.progress.num_read) == (0, 0)
        bench.add(parts, 1, 2)
    assert names(tmp_path) == {"o.npy.part", "o.attention_stats.npy.part", "o.npy.part.json"}
    assert bench.numbers(bench.options.part) == [1, 2]
    with bench.open() as parts:
        assert parts.progress.num_rows == 2
        bench.add(parts, 3)
        parts.finish()
    assert names(tmp_path) == {"o.npy", "o.attention_stats.npy"}
    assert bench.numbers(bench.options.output) == [1, 2, 3]
    assert bench.numbers(bench.options.second_output) == [1, 2, 3]


def test_what_is_not_counted_is_cut_off(bench: Bench) -> None:
    """Bytes behind the counted ones, as a kill leaves them, are not in the output."""
    with bench.open() as parts:
        bench.add(parts, 1)
    for path in bench.layout.parts:
        with path.open("ab") as stream:
            stream.write(b"half a row")
    with bench.open() as parts:
        bench.add(parts, 2)
        parts.finish()
    assert bench.numbers(bench.options.output) == bench.numbers(bench.options.second_output) == [1, 2]


def test_bytes_reach_the_disk_before_they_are_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part is synced before the state is replaced."""
    log: list[str] = []
    with bench.open() as parts:
        fsync, rename = os.fsync, os.replace
        inodes = {path.stat().st_ino: path.name for path in bench.layout.parts}

        def synced(descriptor: int) -> None:
            log.append(inodes.get(os.fstat(descriptor).st_ino, "state"))
            fsync(descriptor)

        def replaced(source: Path, target: Path) -> None:
            log.append(f"replace {target.name}")
            rename(source, target)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", replaced)
        bench.add(parts, 1)
        monkeypatch.undo()
    assert log == ["o.npy.part", "o.attention_stats.npy.part", "state", "replace o.npy.part.json"]


@pytest.mark.parametrize("room", range(4))
def test_a_full_disk_loses_nothing_that_was_counted(bench: Bench, room: int) -> None:
    """Half a window is cut off again, the sentence says what is complete, and the next run goes on."""
    left = room

    def append(descriptor: int, content: bytes) -> None:
        nonlocal left
        if left == 0:
            append_all(descriptor, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        left -= 1
        append_all(descriptor, content)

    def fill() -> None:
        with bench.open(append=append) as parts:
            for value in (1, 2, 3):
                bench.add(parts, value)

    complete = room // 2  # two parts a window
    with pytest.raises(BulkError) as caught:
        fill()
    assert str(caught.value) == (
        f"{bench.options.part} could not be written (No space left on device); "
        f"{complete} rows are complete, and the same command goes on from there"
    )
    for path in bench.layout.parts:
        assert bench.numbers(path) == [1, 2][:complete]
        assert path.stat().st_size == 128 + 8 * complete
    with bench.open() as parts:
        assert parts.progress.num_rows == complete
        for value in (1, 2, 3)[complete:]:
            bench.add(parts, value)
        parts.finish()
    assert bench.numbers(bench.options.output) == [1, 2, 3]


@pytest.mark.parametrize("name", ["o.npy", "o.safetensors", "o.parquet"])
def test_a_failure_while_finishing_can_be_made_up(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows stay; a second attempt finishes, and gives what one attempt would have given."""
    outcomes = []
    for folder in (tmp_path / "failing", tmp_path / "smooth"):
        folder.mkdir()
        bench = Bench(folder, name)
        with bench.open() as parts:
            bench.add(parts, 1, 2)
            if folder.name == "failing":
                finish = bench.layout.finish

                def half(num_rows: int, finish: Any = finish) -> Any:
                    finish(num_rows)
                    raise OSError(errno.ENOSPC, "No space left on device")

                monkeypatch.setattr(bench.layout, "finish", half)
                with pytest.raises(BulkError, match="2 rows are complete"):
                    parts.finish()
                monkeypatch.undo()
        with bench.open() as parts:
            assert parts.progress.num_rows == 2
            parts.finish()
        outcomes.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert outcomes[0] == outcomes[1]


def test_an_interrupt_after_the_count_loses_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come between the new state and our knowing of it: what it counts must not be cut off."""
    rename = os.replace

    def interrupted(source: Path, target: Path) -> None:
        rename(source, target)
        raise KeyboardInterrupt

    def stop_in_the_middle() -> None:
        with bench.open() as parts:
            bench.add(parts, 1)
            monkeypatch.setattr(os, "replace", interrupted)
            bench.add(parts, 2)

    with pytest.raises(KeyboardInterrupt):
        stop_in_the_middle()
    monkeypatch.undo()
    assert bench.numbers(bench.options.part) == [1, 2]
    with bench.open() as parts:
        assert parts.progress.num_rows == 2
        parts.finish()
    assert bench.numbers(bench.options.output) == [1, 2]


@pytest.mark.parametrize("num_moved", [0, 1, 2])
def test_a_run_that_was_killed_while_it_renamed(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_moved: int
) -> None:
    """The next one does the rest, and reads and writes nothing for it."""
    with bench.open() as parts:
        bench.add(parts, 1)
        rename, moved = os.replace, 0

        def killed(source: Path, target: Path) -> None:
            nonlocal moved
            if target in bench.layout.outputs:
                if moved == num_moved:
                    raise KeyboardInterrupt
                moved += 1
            rename(source, target)

        monkeypatch.setattr(os, "replace", killed)
        monkeypatch.setattr(PartFiles, "_sync_folder", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            parts.finish()
        monkeypatch.undo()
    with bench.open() as parts:
        assert parts.progress.is_whole
        parts.finish()
    assert names(tmp_path) == {"o.npy", "o.attention_stats.npy"}
    assert bench.numbers(bench.options.output) == bench.numbers(bench.options.second_output) == [1]


def test_another_jobs_last_step_is_not_taken_for_ours(tmp_path: Path) -> None:
    """What a killed run had complete becomes its output, and ours must ask before it replaces that."""
    bench = Bench(tmp_path)
    with bench.open() as parts:
        bench.add(parts, 1)
        state = json.loads(bench.options.state.read_text())
        state["progress"]["is_whole"] = True
        state["moves"] = [["o.npy.part", "o.npy"], ["o.attention_stats.npy.part", "o.attention_stats.npy"]]
    bench.options.state.write_text(json.dumps(state))
    other = {**IDENTITY, "dimensions": 1}
    with pytest.raises(BulkError, match=r"o\.npy is there already"), bench.open(other):
        pass
    assert bench.numbers(bench.options.output) == [1]
    with Bench(tmp_path, overwrite=True).open(other) as parts:
        assert parts.progress.num_rows == 0


def test_one_run_at_a_time(bench: Bench) -> None:
    """A second run of the same output is refused while the first is at work."""
    with (
        bench.open(),
        pytest.raises(BulkError, match=r"another run is writing .*o\.npy\.part"),
        bench.open(),
    ):
        pass
    with bench.open():
        pass


def test_a_file_system_without_locks_will_do(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where locks cannot be had, a run goes on without."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with bench.open() as parts:
        bench.add(parts, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dimensions": 64}, "another dimensions (null, now 64)"),
        ({"model": "other"}, "another model; delete"),
        ({"keep": []}, 'another keep (["a"], now [])'),
    ],
)
def test_other_options_are_refused(bench: Bench, tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """In one sentence with what differs and the way out; --overwrite begins again."""
    with bench.open() as parts:
        bench.add(parts, 1)
    with pytest.raises(BulkError) as caught, bench.open({**IDENTITY, **change}):
        pass
    assert words in str(caught.value)
    assert "delete o.npy.part and o.npy.part.json, or give --overwrite, to begin again" in str(caught.value)
    with bench.open() as parts:
        assert parts.progress.num_rows == 1
    again = Bench(tmp_path, overwrite=True)
    with again.open({**IDENTITY, **change}) as parts:
        assert parts.progress.num_rows == 0
        again.add(parts, 5)
        parts.finish()
    assert again.numbers(again.options.output) == [5]


def test_overwrite_goes_on_with_a_part_that_fits(tmp_path: Path) -> None:
    """A script that always gives --overwrite loses no work to a kill either."""
    bench = Bench(tmp_path, overwrite=True)
    bench.options.output.write_bytes(b"old")
    with bench.open() as parts:
        bench.add(parts, 1)
    with bench.open() as parts:
        assert parts.progress.num_rows == 1
        assert bench.options.output.read_bytes() == b"old"
        parts.finish()
    assert bench.numbers(bench.options.output) == [1]


def test_a_part_without_a_state_is_not_ours(bench: Bench) -> None:
    """A file that only has the name is not overwritten unasked."""
    bench.options.part.write_bytes(b"somebody's")
    with pytest.raises(BulkError, match="no state that counts its rows"), bench.open():
        pass
    assert bench.options.part.read_bytes() == b"somebody's"


@pytest.mark.parametrize("size", [0, 60, 128])
def test_a_part_without_its_head_is_begun_anew(bench: Bench, size: int) -> None:
    """A run that was killed before the first bytes were whole is no obstacle."""
    with bench.open():
        pass
    os.truncate(bench.options.part, size)
    with bench.open() as parts:
        bench.add(parts, 1)
        parts.finish()
    assert bench.numbers(bench.options.output) == [1]


def test_a_part_that_lost_rows_is_refused(bench: Bench) -> None:
    """A part that is shorter than what was counted, as after a copy that broke off."""
    with bench.open() as parts:
        bench.add(parts, 1, 2)
    os.truncate(bench.options.part, 130)
    with pytest.raises(BulkError, match="is shorter than its state says"), bench.open():
        pass


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"version": 2, "identity": {}, "progress": {}, "moves": []}',
        '{"version": 1, "identity": [], "progress": {}, "moves": []}',
        '{"version": 1, "identity": {}, "progress": {}, "moves": []}',
        '{"version": 1, "identity": {}, "progress": {"sizes": [], "more": 1}, "moves": []}',
        '{"version": 1, "identity": {}, "progress": {"sizes": []}, "moves": []}',
        "[" * 100_000,
    ],
)
def test_a_state_that_is_none_is_refused(bench: Bench, content: str) -> None:
    """In one sentence, whatever is in the file."""
    bench.options.state.write_text(content)
    with pytest.raises(BulkError, match=r"o\.npy\.part\.json is not what this program writes"), bench.open():
        pass


def test_a_folder_that_may_not_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the system's reason."""

    def refuse(*args: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    bench = Bench(tmp_path)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(BulkError, match=r"o\.npy\.part could not be written \(Read-only file system\)"), bench.open():
        pass


def test_progress_survives_the_disk(bench: Bench) -> None:
    """Every number that is counted comes back."""
    with bench.open() as parts:
        progress = Progress(9, 4, 3, 2, 1, "digest", parts.progress.sizes)
        parts.add((b"", b""), progress)
    with bench.open() as parts:
        assert parts.progress == progress
