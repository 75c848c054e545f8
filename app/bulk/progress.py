"""The progress bar of ``eyeline encode``: texts per second, and the time left as far as the input tells it."""

from __future__ import annotations

import sys

from tqdm import tqdm


class ProgressBar:
    """A :class:`~app.bulk.encode.Watcher` that draws on stderr.

    Parameters
    ----------
    name : str
        What is being made.
    show : bool
        Without it only rows that are left out are told.
    """

    def __init__(self, name: str, *, show: bool) -> None:
        # The average speed, since a window begins with its longest texts and ends with its shortest.
        self._bar = tqdm(desc=name, unit=" texts", smoothing=0, disable=not show, dynamic_ncols=True, file=sys.stderr)

    def resumed(self, num_texts: int) -> None:
        """Begin behind what was done before, which counts for no speed."""
        self._bar.initial = self._bar.n = num_texts
        self._bar.refresh()

    def read(self, num_texts: int, share: float | None) -> None:
        """Estimate how many there are; exact as soon as the last one has been read."""
        if share:
            self._bar.total = round(num_texts / share)

    def encoded(self, num_texts: int) -> None:
        """Go on."""
        self._bar.update(num_texts)

    def skipped(self, message: str) -> None:
        """Say what was left out, and go on."""
        self._bar.write(f"eyeline: left out {message}", file=sys.stderr)
        self._bar.update(1)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
