"""What a run tells: a line of JSON now and then, and a bar while somebody watches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tqdm import tqdm

from training.errors import RunError
from training.files import replace_file


class Watched(Protocol):
    """What the bar shows of a run's progress."""

    step: int
    tokens: int
    elapsed_seconds: float
    last_score: float | None


class Journal:
    """The log of one run, ``log.jsonl``, and the bar.

    Parameters
    ----------
    file : Path
    bar : bool
        Show a bar on standard error, where that is a terminal.
    """

    def __init__(self, file: Path, *, bar: bool = False) -> None:
        self._file = file
        # thousandths of the run: steps and minutes both make them
        form = "{percentage:5.1f}%|{bar}| {elapsed}<{remaining}{postfix}"
        self._bar = tqdm(total=1000, disable=None if bar else True, bar_format=form, dynamic_ncols=True)

    def __enter__(self) -> Journal:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the bar as it stands."""
        self._bar.close()

    def write(self, entry: Mapping[str, Any]) -> None:
        """Add one line.

        Raises
        ------
        RunError
            If it cannot be written.
        """
        try:
            with self._file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise RunError(f"{self._file} could not be written: {error.strerror or error}") from error

    def rewind(self, step: int) -> None:
        """Forget the lines of later steps: a run that is resumed from ``step`` writes them once more."""
        if self._file.exists():
            kept = [entry for entry in read_log(self._file) if entry["step"] <= step]
            if step == 0:
                kept = []  # nothing was saved, so the run begins anew
            replace_file(self._file, "".join(json.dumps(entry) + "\n" for entry in kept).encode())

    def show(self, progress: Watched, entry: Mapping[str, Any], share_done: float) -> None:
        """Move the bar."""
        rate = progress.tokens / max(progress.elapsed_seconds, 1e-9)
        score = "" if progress.last_score is None else f", dev {progress.last_score:.2f}"
        text = f"step {progress.step}, loss {entry['loss']:.4f}, {rate:,.0f} tokens/s{score}"
        self._bar.update(int(1000 * share_done) - self._bar.n)
        self._bar.set_postfix_str(text)


def read_log(file: Path) -> list[dict[str, Any]]:
    """Read the lines of a log; a last one that a kill cut short is left out."""
    entries = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:
            break
    return entries
