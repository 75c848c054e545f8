"""/docs in a headless Chromium: it shows every endpoint, and everything it needs comes from the server itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import DEFAULT_MODEL, SERVER_PYTHON, Server

pytestmark = pytest.mark.browser

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nothing else is reached, by whomever
    "--enable-logging=stderr",
    "--window-size=1280,2000",
)
PAGE_MILLISECONDS = 15_000  # of the page's own clock, which runs as fast as the page can
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Page:
    """What a browser made of an address.

    Attributes
    ----------
    dom : str
        The document after its scripts have run.
    console : list of str
        What scripts, and the browser about them, have written to the console.
    requests : list of (str, str)
        Each request: what started it (an origin, or that it was no page), and the address.
    """

    dom: str
    console: list[str]
    requests: list[tuple[str, str]]


def run_chromium(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Chromium with a profile of its own in ``folder``, where all it writes stays."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert browser is not None, "no Chromium here; .ci/setup installs it"
    run = subprocess.run(
        [
            browser,
            *FLAGS,
            f"--user-data-dir={folder / 'profile'}",
            f"--virtual-time-budget={PAGE_MILLISECONDS}",
            *arguments,
        ],
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run


def open_page(folder: Path, address: str) -> Page:
    """Open an address and let its scripts run."""
    log = folder / "net.json"
    run = run_chromium(folder, "--dump-dom", f"--log-net-log={log}", address)
    events: list[dict[str, Any]] = json.loads(log.read_text())["events"]
    started = [event["params"] for event in events if {"url", "initiator"} <= event.get("params", {}).keys()]
    return Page(
        dom=run.stdout,
        console=[line for line in run.stderr.splitlines() if "CONSOLE" in line],
        requests=[(params["initiator"], params["url"]) for params in started],
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the default model."""
    python = SERVER_PYTHON if SERVER_PYTHON.exists() else Path(sys.executable)
    arguments = [str(python), "-m", "app.cli", "serve", "--port", "0", "--model", str(DEFAULT_MODEL), "--no-warmup"]
    server = Server(tmp_path_factory.mktemp("server") / "log", arguments)
    yield server
    server.close()


@pytest.fixture(scope="module")
def docs(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """/docs, opened."""
    return open_page(tmp_path_factory.mktemp("docs"), f"{server.url}/docs")


def test_every_endpoint_is_shown(server: Server, docs: Page) -> None:
    """Each operation of the schema has its block on the page, with its path in it."""
    paths = server.client.get("/openapi.json").json()["paths"]
    assert "/encode" in paths
    for path, operations in paths.items():
        assert f'data-path="{path}"' in docs.dom
        for operation in operations.values():
            assert f'-{operation["operationId"]}"' in docs.dom
    assert "Failed to load API definition" not in docs.dom


def test_everything_comes_from_the_server(server: Server, docs: Page) -> None:
    """The page asks no other host for anything: it works without the internet, and tells nobody who reads it."""
    by_page = [url for initiator, url in docs.requests if initiator == server.url]
    assert {url.rpartition("/")[2] for url in by_page} >= {"swagger-ui.css", "swagger-ui-bundle.js", "openapi.json"}
    assert [url for url in by_page if not url.startswith(f"{server.url}/")] == []
    assert {initiator for initiator, _ in docs.requests} == {server.url, "not an origin"}  # the latter: the browser


def test_the_console_stays_empty(docs: Page, tmp_path: Path) -> None:
    """No script fails and nothing is refused; that an error would be seen, a page with one shows."""
    broken = open_page(tmp_path, "data:text/html,<script>nobody.knows()</script>")
    assert "nobody is not defined" in " ".join(broken.console)
    assert docs.console == []


def test_it_can_be_seen(server: Server, tmp_path: Path) -> None:
    """The page paints: a screenshot is a picture of the size asked for, and not a blank one."""
    picture = tmp_path / "docs.png"
    blank = tmp_path / "blank.png"
    run_chromium(tmp_path, f"--screenshot={picture}", f"{server.url}/docs")
    run_chromium(tmp_path, f"--screenshot={blank}", "about:blank")
    content = picture.read_bytes()
    width, height = int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
    assert (width, height) == (1280, 2000)
    assert len(content) > 5 * len(blank.read_bytes())
