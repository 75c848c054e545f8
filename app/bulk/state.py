"""Rows on the disk, and the file beside them that counts them: what a kill, a full disk or another run cannot spoil.

Bytes reach the disk before the state counts them, and the state is replaced whole. So after a kill the counted rows are
whole; what lies behind them is cut off and made again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from app.bulk.errors import BulkError, write_failure
from app.bulk.identity import Fingerprint
from app.bulk.options import BulkOptions
from app.bulk.output import Layout
from app.bulk.records import as_stored, difference, read_record, write_record

STATE_VERSION = 1

_DIGESTS = frozenset({"model"})

Append = Callable[[int, bytes], None]
"""Adds bytes to an open file. Passed in, so that a test can have a full disk."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What is complete.

    Attributes
    ----------
    num_read : int
        Rows of the input that were dealt with, bad ones among them.
    num_rows : int
        Rows of the output.
    num_skipped, num_truncated : int
    num_clipped : int
        Numbers beyond the range of int8 and uint8.
    fingerprint : str
        SHA-256 of the rows of the input that were dealt with, see :class:`~app.bulk.identity.Fingerprint`.
    sizes : tuple of int
        Bytes of each part.
    is_whole : bool
        All is there, and on its way to its name.
    """

    num_read: int = 0
    num_rows: int = 0
    num_skipped: int = 0
    num_truncated: int = 0
    num_clipped: int = 0
    fingerprint: str = ""
    sizes: tuple[int, ...] = ()
    is_whole: bool = False


def append_all(descriptor: int, content: bytes) -> None:
    """Add bytes to a file.

    Raises
    ------
    OSError
        If the disk is full, say; some of them may be there then.
    """
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


class PartFiles:
    """The files in which the rows of one output gather, owned by one process at a time.

    Parameters
    ----------
    options : BulkOptions
    layout : Layout
    identity : mapping
        What a resumed run must agree in, by the words that a refusal uses.
    append : Append

    Attributes
    ----------
    progress : Progress
        What is complete, as the state on the disk says.
    """

    def __init__(
        self, options: BulkOptions, layout: Layout, identity: Mapping[str, Any], append: Append = append_all
    ) -> None:
        self._options, self._layout, self._append = options, layout, append
        self._identity = as_stored(identity)
        self._descriptors: list[int] = []
        self.progress = Progress()

    def __enter__(self) -> Self:
        """Take up what is there, or begin.

        Raises
        ------
        BulkError
            If another run is at work, or what is there belongs to another job, or nothing can be written.
        """
        try:
            stored = self._stored()
            if stored is not None and stored.is_whole:
                self.progress = stored
                if self._read_state()["identity"] == self._identity:
                    return self
                self.finish()  # another job's last step, which leaves its output in our way
                self.progress = Progress()
            self._open()
        except OSError as error:
            self._close()
            raise write_failure(self._options.part, error) from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Cut off what is not counted, and let go."""
        if not self.progress.is_whole:
            # The next run does the same, so it may fail, and must not hide why this one ends. The state is read again,
            # since an interrupt may have come between its replacement and our knowing of it.
            with suppress(OSError, BulkError):
                self.progress = self._stored() or self.progress
                if not self.progress.is_whole:
                    self._restore()
        self._close()

    def add(self, bodies: Sequence[bytes], progress: Progress) -> None:
        """Append rows, and count them when the disk has them.

        Parameters
        ----------
        bodies : sequence of bytes
            For each part.
        progress : Progress
            As it is then; its ``sizes`` are filled in.

        Raises
        ------
        BulkError
            If they could not be written: the rows before are complete.
        """
        sizes = [size + len(body) for size, body in zip(self.progress.sizes, bodies, strict=True)]
        try:
            heads = self._layout.heads(progress.num_rows)
            for descriptor, body, head in zip(self._descriptors, bodies, heads, strict=True):
                self._append(descriptor, body)
                os.pwrite(descriptor, head, 0)
                os.fsync(descriptor)
            self._save(replace(progress, sizes=tuple(sizes)))
        except OSError as error:
            raise write_failure(self._options.part, error, num_rows=self.progress.num_rows) from error

    def finish(self) -> None:
        """Make the output of the parts; also where an earlier run was killed while it did so.

        Raises
        ------
        BulkError
            If it could not be written: the rows are complete.
        """
        try:
            if not self.progress.is_whole:
                moves = self._layout.finish(self.progress.num_rows)
                self._save(replace(self.progress, is_whole=True), moves)
            for source, target in self._moves():
                with suppress(FileNotFoundError):  # moved already
                    os.replace(source, target)
            self._sync_folder()
            for path in (*self._layout.parts, self._options.state):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise write_failure(self._options.output, error, num_rows=self.progress.num_rows) from error

    def _open(self) -> None:
        """Lock the parts, then find out whose they are and what of them counts."""
        for path in self._layout.parts:
            self._descriptors.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
        self._lock()
        stored = self._stored()
        fault = self._fault(stored)
        if fault is not None and not self._options.overwrite:
            raise BulkError(fault)
        if stored is None or fault is not None:
            heads = self._layout.heads(0)
            self._save(Progress(fingerprint=Fingerprint().value(), sizes=tuple(len(head) for head in heads)))
        else:
            self.progress = stored
        self._restore()

    def _lock(self) -> None:
        """Refuse to write where another process writes."""
        part = self._options.part
        try:
            fcntl.flock(self._descriptors[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BulkError(f"another run is writing {part}") from error
        except OSError:
            return  # a file system without locks
        status = os.fstat(self._descriptors[0])
        if not part.exists() or part.stat().st_ino != status.st_ino:
            raise BulkError(f"another run has just finished {self._options.output}")

    def _fault(self, stored: Progress | None) -> str | None:
        """Say why the parts cannot be gone on with, or begun."""
        options = self._options
        sizes = [os.fstat(descriptor).st_size for descriptor in self._descriptors]
        for output in self._layout.outputs:
            if output.exists() and not options.overwrite:
                return f"{output} is there already; choose another name, or --overwrite to replace it"
        advice = f"delete {options.part.name} and {options.state.name}, or give --overwrite, to begin again"
        if stored is None:
            return f"{options.part} is there, and no state that counts its rows; {advice}" if any(sizes) else None
        differs = difference(self._read_state()["identity"], self._identity, digests=_DIGESTS)
        if differs is not None:
            return f"{options.part} was begun with another {differs}; {advice}"
        # Before there are rows, the heads may be missing too: they are written behind the first state.
        if stored.num_rows and any(size < counted for size, counted in zip(sizes, stored.sizes, strict=True)):
            return f"{options.part} is shorter than its state says; {advice}"
        return None

    def _restore(self) -> None:
        """Cut the parts to what counts."""
        heads = self._layout.heads(self.progress.num_rows)
        for descriptor, size, head in zip(self._descriptors, self.progress.sizes, heads, strict=True):
            os.truncate(descriptor, size)
            os.pwrite(descriptor, head, 0)
            os.lseek(descriptor, size, os.SEEK_SET)

    def _read_state(self) -> dict[str, Any]:
        """Read the state file."""
        content = read_record(self._options.state)
        if content.get("version") != STATE_VERSION or set(content) != {"version", "identity", "progress", "moves"}:
            raise self._strange_state()
        if not isinstance(content["identity"], dict):
            raise self._strange_state()
        return content

    def _strange_state(self) -> BulkError:
        path = self._options.state
        return BulkError(f"{path} is not what this program writes; delete it and {self._options.part}")

    def _stored(self) -> Progress | None:
        """Return the progress on the disk."""
        if not self._options.state.exists():
            return None
        content = self._read_state()["progress"]
        # a field that is missing is no 0
        if not isinstance(content, dict) or set(content) != {field.name for field in fields(Progress)}:
            raise self._strange_state()
        try:
            return Progress(**{**content, "sizes": tuple(content["sizes"])})
        except TypeError as error:
            raise self._strange_state() from error

    def _moves(self) -> list[tuple[Path, Path]]:
        """Return the renames that are left to do."""
        folder = self._options.output.parent
        return [(folder / source, folder / target) for source, target in self._read_state()["moves"]]

    def _save(self, progress: Progress, moves: Sequence[tuple[Path, Path]] = ()) -> None:
        """Replace the state, whole."""
        content = {
            "version": STATE_VERSION,
            "identity": self._identity,
            "progress": asdict(progress),
            "moves": [[source.name, target.name] for source, target in moves],
        }
        write_record(self._options.state, content)
        self.progress = progress

    def _sync_folder(self) -> None:
        """Wait until the disk knows the new names, before the state that could bring them about is gone."""
        descriptor = os.open(self._options.output.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())
