"""Claims about bringing a known model into the weights folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath

import pytest

import app.fetch
from app.fetch import FetchError, HubSource, SourceError, WheelSource, fetch, find_damage, pip_download, read_manifest

FILES = {
    "config.json": b'{"hidden_size": 4}',
    "model.safetensors": bytes(range(256)) * 300,
    "1_Pooling/config.json": b"{}",
}
FOLDER = "tiny_wheel/model"
REVISION = "0123456789abcdef" * 2 + "01234567"


@dataclass
class Hub:
    """A server on the loopback interface that gives ``content``, and misbehaves where told to.

    ``advertised`` holds a length to announce where it is not the true one.
    """

    url: str = ""
    content: dict[str, bytes] = field(default_factory=lambda: dict(FILES))
    advertised: dict[str, int] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    requested: list[str] = field(default_factory=list)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A running Hub; no proxy stands before it."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requested.append(self.path)
            path = self.path.removeprefix(f"/owner/tiny/resolve/{REVISION}/")
            if path in state.redirects:
                self.send_response(302)
                self.send_header("Location", f"{state.url}/owner/tiny/resolve/{REVISION}/{state.redirects[path]}")
                self.end_headers()
            elif path in state.content:
                body = state.content[path]
                self.send_response(200)
                self.send_header("Content-Length", str(state.advertised.get(path, len(body))))
                self.end_headers()
                self.wfile.write(body)
            else:
                self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def write_manifest(folder: Path, *sources: dict[str, str]) -> Path:
    """Pin the model ``tiny``, whose files are ``FILES``."""
    files = [
        {"path": path, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for path, content in FILES.items()
    ]
    path = folder / "manifest.json"
    entry = {"origin": "owner/tiny", "licence": "Apache-2.0", "files": files, "sources": list(sources)}
    path.write_text(json.dumps({"tiny": entry, "other": {**entry, "origin": "owner/other"}}))
    return path


def wheel_source() -> dict[str, str]:
    """The manifest's words for the wheel."""
    return {"kind": "wheel", "requirement": "tiny-wheel==1.0", "folder": FOLDER}


def hub_source(hub: Hub) -> dict[str, str]:
    """The manifest's words for the Hub."""
    return {"kind": "hub", "url": f"{hub.url}/owner/tiny", "revision": REVISION}


def wheel_of(content: dict[str, bytes]) -> Callable[[str, Path, bool], Path]:
    """A downloader that builds the wheel instead, with members that nobody asked for."""

    def download(requirement: str, folder: Path, show_progress: bool) -> Path:
        path = folder / "tiny_wheel-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
            for name, body in content.items():
                wheel.writestr(f"{FOLDER}/{name}", body)
            wheel.writestr(f"{FOLDER}/../../../escaped.txt", b"evil")
            wheel.writestr("tiny_wheel/__init__.py", b"raise SystemExit")
        return path

    return download


def no_wheel(requirement: str, folder: Path, show_progress: bool) -> Path:
    """A downloader that has no network."""
    raise SourceError("no index can be reached")


def assert_complete(folder: Path) -> None:
    """Every pinned file, its checksums, and nothing else."""
    written = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    sums = written.pop("SHA256SUMS").decode()
    assert written == FILES
    assert sums == "".join(f"{hashlib.sha256(content).hexdigest()}  {path}\n" for path, content in FILES.items())


@dataclass
class Bench:
    """A weights folder and what was said about it."""

    root: Path
    said: list[str] = field(default_factory=list)

    @property
    def weights(self) -> Path:
        return self.root / "weights"

    def fetch(self, *sources: dict[str, str], name: str = "tiny", wheel: app.fetch.WheelDownload = no_wheel) -> Path:
        return fetch(
            name,
            self.weights,
            manifest=write_manifest(self.root, *sources),
            download_wheel=wheel,
            say=self.said.append,
        )

    @property
    def names(self) -> list[str]:
        """What the weights folder holds, working folders included."""
        return sorted(path.name for path in self.weights.iterdir())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """An empty place."""
    return Bench(tmp_path)


def test_a_wheel_gives_the_pinned_files_and_no_others(bench: Bench) -> None:
    """Members are taken by name, so nothing else in the archive reaches the disk, wherever it points."""
    assert_complete(bench.fetch(wheel_source(), wheel=wheel_of(FILES)))
    assert bench.names == ["tiny"]
    assert not list(bench.root.rglob("escaped.txt"))
    assert "tiny-wheel==1.0" in bench.said[-1]


def test_the_hub_gives_the_pinned_revision(bench: Bench, hub: Hub) -> None:
    """Every file is asked for at the revision, never at a branch."""
    assert_complete(bench.fetch(hub_source(hub)))
    assert bench.names == ["tiny"]
    assert hub.requested == [f"/owner/tiny/resolve/{REVISION}/{path}" for path in FILES]


def test_a_redirect_is_followed(bench: Bench, hub: Hub) -> None:
    """The Hub answers for large files with the place where they are."""
    hub.content["elsewhere"] = hub.content.pop("model.safetensors")
    hub.redirects["model.safetensors"] = "elsewhere"
    assert_complete(bench.fetch(hub_source(hub)))


def test_the_full_name_is_understood(bench: Bench) -> None:
    """The name on the Hub means the same model and the same folder."""
    assert bench.fetch(wheel_source(), name="owner/tiny", wheel=wheel_of(FILES)) == bench.weights / "tiny"


def test_the_next_source_is_tried(bench: Bench, hub: Hub) -> None:
    """Where the first source fails, the second gives the model; what the first had begun is gone."""
    broken = {**FILES, "1_Pooling/config.json": b"[]", "extra": b"left over"}
    assert_complete(bench.fetch(wheel_source(), hub_source(hub), wheel=wheel_of(broken)))
    assert "resolve" not in bench.said[-1]
    assert REVISION[:12] in bench.said[-1]


def test_a_source_that_works_is_the_last_one_asked(bench: Bench, hub: Hub) -> None:
    """The Hub is left alone when the wheel was good."""
    bench.fetch(wheel_source(), hub_source(hub), wheel=wheel_of(FILES))
    assert hub.requested == []


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("model.safetensors", FILES["model.safetensors"][:-1], r"ended after 76799 of 76800 bytes"),
        ("model.safetensors", FILES["model.safetensors"] + b"!", r"longer than the pinned 76800 bytes"),
        ("model.safetensors", b"!" + FILES["model.safetensors"][1:], r"has SHA-256 [0-9a-f]{64}, not the pinned"),
        ("config.json", None, r"config\.json"),
    ],
    ids=["short", "long", "changed", "missing"],
)
def test_a_file_that_is_not_as_pinned_is_refused(
    bench: Bench, hub: Hub, path: str, body: bytes | None, reason: str
) -> None:
    """Whichever source gives it, a wrong file makes no model, and the error has every source with its reason."""
    content = {name: value for name, value in {**FILES, path: body}.items() if value is not None}
    hub.content = content
    with pytest.raises(FetchError) as caught:
        bench.fetch(wheel_source(), hub_source(hub), wheel=wheel_of(content))
    assert re.fullmatch(
        rf"tiny could not be fetched: the wheel tiny-wheel==1\.0: .*{reason}.*; {hub.url}/owner/tiny at .*: .*"
        rf"({reason}|status 404).*\.",
        str(caught.value),
    )
    assert bench.names == []


def test_a_transfer_that_breaks_off_is_refused(bench: Bench, hub: Hub) -> None:
    """A connection that closes before the announced length leaves no model."""
    hub.content["model.safetensors"] = FILES["model.safetensors"][:1000]
    hub.advertised["model.safetensors"] = len(FILES["model.safetensors"])
    with pytest.raises(FetchError, match=r"model\.safetensors"):
        bench.fetch(hub_source(hub))
    assert bench.names == []


def test_a_host_that_is_not_there_is_a_reason(bench: Bench, hub: Hub) -> None:
    """A refused connection is reported in the words of the system."""
    nobody = {**hub_source(hub), "url": "http://127.0.0.1:9/owner/tiny"}
    with pytest.raises(FetchError, match=r"no index can be reached.*[Cc]onnection refused"):
        bench.fetch(wheel_source(), nobody)


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_wheel_that_is_no_archive_is_a_reason(bench: Bench, content: bytes) -> None:
    """A broken wheel is that source's failure, not the program's."""

    def download(requirement: str, folder: Path, show_progress: bool) -> Path:
        path = folder / "tiny.whl"
        path.write_bytes(content)
        return path

    with pytest.raises(FetchError, match=r"tiny-wheel==1\.0: not a wheel"):
        bench.fetch(wheel_source(), wheel=download)
    assert bench.names == []


def test_a_member_that_cannot_be_unpacked_is_a_reason(bench: Bench) -> None:
    """A byte that flipped inside the archive is found, and the next source would be tried."""

    def download(requirement: str, folder: Path, show_progress: bool) -> Path:
        path = wheel_of(FILES)(requirement, folder, show_progress)
        content = bytearray(path.read_bytes())
        content[content.index(b"model.safetensors") + 40] ^= 0xFF
        path.write_bytes(content)
        return path

    with pytest.raises(FetchError, match=r"model\.safetensors"):
        bench.fetch(wheel_source(), wheel=download)


def test_an_unknown_name_lists_the_known_ones(bench: Bench) -> None:
    """A typing error costs no look into the manifest, and nothing is made on the disk."""
    with pytest.raises(FetchError, match=r"'tiiny' is not a known model; known: other, tiny\."):
        bench.fetch(wheel_source(), name="tiiny")
    assert not bench.weights.exists()


def test_a_complete_folder_is_verified_and_kept(bench: Bench) -> None:
    """A second fetch downloads nothing and says so; what the user put there stays."""
    folder = bench.fetch(wheel_source(), wheel=wheel_of(FILES))
    (folder / "notes.txt").write_text("mine")
    assert bench.fetch(wheel_source()) == folder
    assert bench.said[-1] == f"{folder} is complete, its 3 files are verified: kept."
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("body", [None, b"short", b'{"hidden_size": 5}'], ids=["missing", "short", "changed"])
def test_a_damaged_folder_is_reported_and_replaced(bench: Bench, body: bytes | None) -> None:
    """The file at fault is named before the model is fetched anew."""
    folder = bench.fetch(wheel_source(), wheel=wheel_of(FILES))
    (folder / "config.json").unlink()
    if body is not None:
        (folder / "config.json").write_bytes(body)
    assert_complete(bench.fetch(wheel_source(), wheel=wheel_of(FILES)))
    assert re.search(r"damaged \(config\.json .*\): it will be replaced", bench.said[-2])
    assert bench.names == ["tiny"]


def test_a_damaged_folder_stays_where_no_source_helps(bench: Bench) -> None:
    """Nothing is taken away before there is something better."""
    folder = bench.fetch(wheel_source(), wheel=wheel_of(FILES))
    (folder / "config.json").write_bytes(b"")
    with pytest.raises(FetchError):
        bench.fetch(wheel_source())
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert bench.names == ["tiny"]


def test_a_file_in_the_place_of_the_folder_is_left_alone(bench: Bench) -> None:
    """What is not a model folder is nobody's to replace."""
    bench.weights.mkdir()
    (bench.weights / "tiny").write_text("mine")
    with pytest.raises(FetchError, match="a file is in its place"):
        bench.fetch(wheel_source(), wheel=wheel_of(FILES))
    assert (bench.weights / "tiny").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_named(bench: Bench) -> None:
    """The disk's fault is not blamed on a source."""
    bench.weights.write_text("a file")
    with pytest.raises(FetchError, match=r"tiny could not be written to .*weights"):
        bench.fetch(wheel_source(), wheel=wheel_of(FILES))


@pytest.mark.parametrize("is_damaged", [False, True])
def test_two_fetches_at_once_do_no_harm(bench: Bench, is_damaged: bool) -> None:
    """One that starts and ends while another downloads leaves the other alone; the model that was first stays."""
    first: list[int] = []
    if is_damaged:
        (bench.weights / "tiny").mkdir(parents=True)
        (bench.weights / "tiny" / "config.json").write_bytes(b"damaged")

    def download(requirement: str, folder: Path, show_progress: bool) -> Path:
        path = wheel_of(FILES)(requirement, folder, show_progress)
        inner = bench.fetch(wheel_source(), wheel=wheel_of(FILES))
        assert path.exists()
        first.append(inner.stat().st_ino)
        return path

    folder = bench.fetch(wheel_source(), wheel=download)
    assert_complete(folder)
    assert [folder.stat().st_ino] == first
    assert bench.names == ["tiny"]


KILLED = """
import os, signal, sys
from pathlib import Path
from app.fetch import fetch

def killed(requirement, folder, show_progress):
    (folder / "half.whl").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

fetch("tiny", Path(sys.argv[1]), manifest=Path(sys.argv[2]), download_wheel=killed)
"""


def test_a_fetch_that_was_killed_leaves_no_model_and_is_cleared_away(bench: Bench) -> None:
    """After SIGKILL there is no folder of the model's name; the next fetch removes the remains and succeeds."""
    root = Path(app.fetch.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(bench.weights), str(write_manifest(bench.root, wheel_source()))],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    (left,) = bench.names
    assert left.startswith(".tiny.part-")
    assert_complete(bench.fetch(wheel_source(), wheel=wheel_of(FILES)))
    assert bench.names == ["tiny"]


def test_the_remains_of_another_model_are_not_touched(bench: Bench) -> None:
    """A fetch clears away only what a fetch of the same model left."""
    (bench.weights / ".other.part-abc").mkdir(parents=True)
    bench.fetch(wheel_source(), wheel=wheel_of(FILES))
    assert bench.names == [".other.part-abc", "tiny"]


def test_the_checksums_are_written_last(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder takes its name only when every file and the checksums are in it and on the disk."""
    events: list[str] = []
    rename, fsync = os.rename, os.fsync

    def watch_rename(source: Path, target: Path) -> None:
        assert_complete(source)
        events.append("rename")
        rename(source, target)

    def watch_fsync(descriptor: int) -> None:
        events.append("sync")
        fsync(descriptor)

    monkeypatch.setattr(os, "rename", watch_rename)
    monkeypatch.setattr(os, "fsync", watch_fsync)
    bench.fetch(wheel_source(), wheel=wheel_of(FILES))
    # the three files and the checksums, the two folders they are in; after the rename, the weights folder
    assert events == ["sync"] * 6 + ["rename", "sync"]


@pytest.mark.parametrize("progress", [True, False])
def test_the_bar_is_shown_only_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], progress: bool
) -> None:
    """Without a terminal, a log is not filled with bars unless the caller wants one; either way stdout stays empty."""
    manifest = write_manifest(tmp_path, wheel_source())
    fetch("tiny", tmp_path / "weights", progress=progress, manifest=manifest, download_wheel=wheel_of(FILES))
    out, err = capsys.readouterr()
    assert out == ""
    assert ("100%" in err) is progress
    assert "is complete, fetched from the wheel" in err


def fake_python(folder: Path, script: str) -> str:
    """A program that stands in for the Python that runs pip."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_pip_is_asked_for_the_one_wheel_without_its_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the wheel depends on is never downloaded, nothing is built, and the wheel is what comes back."""
    script = f'echo "$@" > {tmp_path}/arguments; echo wheel > {tmp_path}/tiny.whl'
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path, script))
    assert pip_download("tiny==1.0", tmp_path, False) == tmp_path / "tiny.whl"
    arguments = (tmp_path / "arguments").read_text().split()
    assert arguments[:3] == ["-m", "pip", "download"]
    assert {"--no-deps", "--only-binary", "tiny==1.0"} <= set(arguments)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo 'ERROR: No matching distribution found for tiny==1.0' >&2; echo '[notice] new pip' >&2; exit 1",
            "No mat",
        ),
        ("echo 'python: No module named pip' >&2; exit 1", "No module named pip"),
        ("exit 3", "ended with 3"),
        ("exit 0", "ended with 0"),
    ],
)
def test_pip_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str) -> None:
    """The reason is pip's own error, not a notice that comes after it."""
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path, script))
    with pytest.raises(SourceError, match=reason):
        pip_download("tiny==1.0", tmp_path, False)


def test_pip_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead index does not hold the set-up for ever."""
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path, "exec sleep 60"))
    monkeypatch.setattr(app.fetch, "WHEEL_SECONDS", 0.05)
    with pytest.raises(SourceError, match="pip took longer"):
        pip_download("tiny==1.0", tmp_path, False)


def test_the_manifest_pins_everything() -> None:
    """Each known model has a licence, files by size and SHA-256 inside its folder, and sources that cannot move."""
    models = read_manifest()
    assert models
    for model in models.values():
        assert model.licence
        assert model.files
        for file in model.files:
            assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
            assert file.size > 0
            path = PurePosixPath(file.path)
            assert not path.is_absolute()
            assert ".." not in path.parts
        for source in model.sources:
            if isinstance(source, HubSource):
                assert re.fullmatch(r"[0-9a-f]{40}", source.revision)
                assert source.url.startswith("https://")
            else:
                assert isinstance(source, WheelSource)
                assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+", source.requirement)


@dataclass(frozen=True)
class Known:
    """What is said elsewhere of a model that the manifest pins.

    ``pooling`` and ``max_length`` are what its publisher wrote into the small files that decide them.
    """

    name: str
    origin: str
    licence: str
    weights: tuple[int, str]
    dimensions: int
    pooling: str
    max_length: int
    lowercase: bool = False


KNOWN = [
    Known(
        "all-MiniLM-L6-v2",
        "sentence-transformers/all-MiniLM-L6-v2",
        "Apache-2.0",
        (90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        dimensions=384,
        pooling="mean_tokens",
        max_length=256,
    ),
    Known(
        "paraphrase-multilingual-MiniLM-L12-v2",
        "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
        "Apache-2.0",
        (470_641_600, "eaa086f0ffee582aeb45b36e34cdd1fe2d6de2bef61f8a559a1bbc9bd955917b"),
        dimensions=384,
        pooling="mean_tokens",
        max_length=128,
    ),
    Known(
        "bge-small-zh-v1.5",
        "BAAI/bge-small-zh-v1.5",
        "MIT",
        (95_827_648, "354763b9b1357bc9c44f62c6be2276321081ed2567773608c0d0785b61d5a026"),
        dimensions=512,
        pooling="cls_token",
        max_length=512,
        lowercase=True,
    ),
]


@pytest.fixture(params=KNOWN, ids=lambda known: known.name)
def known(request: pytest.FixtureRequest) -> Known:
    """Each known model in turn."""
    model: Known = request.param
    return model


def pinned_as(content: str) -> tuple[int, str]:
    """Size and SHA-256 of a file with this content."""
    return len(content.encode()), hashlib.sha256(content.encode()).hexdigest()


def test_no_known_model_goes_untested() -> None:
    """The list above is the manifest's."""
    assert [known.name for known in KNOWN] == list(read_manifest())


def test_the_published_weights_are_pinned(known: Known) -> None:
    """A known model is its publisher's, under its licence, with the weights in full length, and its card."""
    model = read_manifest()[known.name]
    files = {file.path: file for file in model.files}
    assert (model.origin, model.licence) == (known.origin, known.licence)
    assert (files["model.safetensors"].size, files["model.safetensors"].sha256) == known.weights
    assert "README.md" in files
    (hub,) = [source for source in model.sources if isinstance(source, HubSource)]
    assert hub.url == f"https://huggingface.co/{known.origin}"


def test_all_that_serving_reads_is_pinned(known: Known) -> None:
    """No file that decides an embedding is left to be guessed, and none is pinned twice."""
    paths = [file.path for file in read_manifest()[known.name].files]
    assert len(set(paths)) == len(paths)
    assert {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "modules.json",
        "1_Pooling/config.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
    } <= set(paths)


def test_the_pinned_pooling_and_length_are_the_published_ones(known: Known) -> None:
    """The small files are pinned in the very bytes that say this pooling, width and maximum length."""
    files = {file.path: (file.size, file.sha256) for file in read_manifest()[known.name].files}
    kinds = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"]
    pooling = {
        "word_embedding_dimension": known.dimensions,
        **{f"pooling_mode_{kind}": kind == known.pooling for kind in kinds},
    }
    length = {"max_seq_length": known.max_length, "do_lower_case": known.lowercase}
    assert files["1_Pooling/config.json"] == pinned_as(json.dumps(pooling, indent=2))
    assert files["sentence_bert_config.json"] == pinned_as(json.dumps(length, indent=2))


def test_the_readme_lists_each_known_model(known: Known) -> None:
    """Dimensions, tokens, download and licence in the README are the manifest's."""
    rows = (Path(app.fetch.__file__).parents[1] / "README.md").read_text(encoding="utf-8").splitlines()
    (row,) = [row for row in rows if row.startswith(f"| `{known.name}` |")]
    megabytes = round(sum(file.size for file in read_manifest()[known.name].files) / 1e6)
    assert [cell.strip() for cell in row.split("|")][3:-1] == [
        str(known.dimensions),
        str(known.max_length),
        f"{megabytes} MB",
        known.licence,
    ]


def test_damage_is_listed_file_by_file(bench: Bench) -> None:
    """Every fault of a folder is named, not only the first."""
    folder = bench.fetch(wheel_source(), wheel=wheel_of(FILES))
    (folder / "config.json").unlink()
    (folder / "1_Pooling" / "config.json").write_bytes(b"{ }")
    model = read_manifest(write_manifest(bench.root, wheel_source()))["tiny"]
    assert find_damage(model, folder) == [
        "config.json is missing",
        "1_Pooling/config.json has 3 bytes instead of 2",
    ]
