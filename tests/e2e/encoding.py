"""Runs of ``eyeline encode`` as processes that are watched."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic
from types import TracebackType

from tests.e2e.conftest import PATIENCE_SECONDS, ROOT, command, environment, wait_for


class Encode:
    """A run, which is killed at the end of its block if it still goes.

    Parameters
    ----------
    source : Path or sequence of str
        A file; or lines for a pipe that stays open: then it never comes to an end, however fast it is.
    output : Path
    flags : objects

    Attributes
    ----------
    peak_bytes : int
        The most memory that it was seen to have.
    seconds : float
        From its start to its end.
    """

    def __init__(self, source: Path | Sequence[str], output: Path, *flags: object) -> None:
        self._state = output.with_name(output.name + ".part.json")
        self._began = monotonic()
        self._said: tuple[str, str] | None = None
        self.peak_bytes, self.seconds = 0, 0.0
        is_piped = not isinstance(source, Path)
        self._process = subprocess.Popen(
            command("encode", "-" if is_piped else source, output, *flags),
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE if is_piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._feeder = Thread(target=self._feed, args=["" if isinstance(source, Path) else "\n".join([*source, ""])])
        self._feeder.start()

    def _feed(self, lines: str) -> None:
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it was killed
                self._process.stdin.write(lines)
                self._process.stdin.flush()

    def __enter__(self) -> Encode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._end()

    def num_rows(self) -> int:
        """Rows that are safe on the disk."""
        return int(json.loads(self._state.read_text())["progress"]["num_rows"]) if self._state.exists() else 0

    def wait_for_rows(self, count: int) -> None:
        """Wait until so many rows are counted, of a run that goes on."""

        def are_there() -> bool:
            assert self._process.poll() is None, self._end()
            return self.num_rows() >= count

        wait_for(are_there, f"{count} rows")

    def stop(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal; returns how the run ended, and its last words."""
        self._note_memory()
        self._process.send_signal(number)
        _, err = self._end()
        return self._process.returncode, err

    def finish(self) -> str:
        """Wait for a good end, and return what it said."""
        while self._process.poll() is None:
            self._note_memory()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=0.02)
        said, err = self._end()
        assert self._process.returncode == 0, err
        return said.strip()

    def _note_memory(self) -> None:
        """Read the high-water mark of the memory; wait4 would tell the test's own, with which the process began."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        if found := re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE):  # not of one that has just ended
            self.peak_bytes = int(found[1]) * 1024

    def _end(self) -> tuple[str, str]:
        """Take what the run said, once it is over."""
        if self._said is None:
            self._process.wait(PATIENCE_SECONDS)
            self.seconds = monotonic() - self._began
            self._feeder.join()
            self._said = self._process.communicate()
        return self._said
