"""The page through HTTP: what it is made of, and the headers that keep it to itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.routes.viewer import FOLDER, MEDIA_TYPES, page_files
from tests.app.conftest import Serve, Served

pytestmark = pytest.mark.anyio

MAX_SCRIPT_BYTES = 63_000
HOSTILE_NAMES = ["../main.py", "..%2Fmain.py", "%2e%2e%2f%2e%2e%2fpyproject.toml", "main.js%00", "MAIN.JS", "main", ""]


def read(pattern: str) -> dict[str, str]:
    """The page's files of a kind, by name."""
    return {path.name: path.read_text() for path in sorted(FOLDER.glob(pattern))}


async def test_the_page_is_at_the_root(server: Served) -> None:
    """GET / is the page, in HTML."""
    response = await server.client.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.content == (FOLDER / "index.html").read_bytes()


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.iterdir() if path.suffix in MEDIA_TYPES))
async def test_every_file_is_served_as_what_it_is(server: Served, name: str) -> None:
    """Each file comes whole, with the media type that a browser needs to accept it under nosniff."""
    response = await server.client.get(f"/viewer/{name}")
    assert response.status_code == 200
    assert response.headers["content-type"] == MEDIA_TYPES[Path(name).suffix]
    assert response.content == (FOLDER / name).read_bytes()


@pytest.mark.parametrize("path", ["/", "/viewer/main.js", "/viewer/style.css"])
async def test_the_headers_keep_the_page_to_this_server(server: Served, path: str) -> None:
    """No other origin, no script or style in the markup, no guessing of types, no referrer."""
    headers = (await server.client.get(path)).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert policy["base-uri"] == policy["object-src"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


async def test_an_unchanged_file_is_not_sent_again(server: Served) -> None:
    """A browser always asks, and gets 304 without a body while its copy is the current one."""
    first = await server.client.get("/viewer/main.js")
    assert first.headers["cache-control"] == "no-cache"
    again = await server.client.get("/viewer/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    other = await server.client.get("/viewer/main.js", headers={"If-None-Match": '"another"'})
    assert (other.status_code, other.content) == (200, first.content)
    assert len({file.etag for file in page_files().values()}) == len(page_files())


async def test_head_is_get_without_the_body(server: Served) -> None:
    """Whoever asks whether the page is there gets an answer."""
    get, head = await server.client.get("/"), await server.client.head("/")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
async def test_nothing_else_is_served(server: Served, name: str) -> None:
    """A name that is none of the page's is 404 in the one shape of errors, whatever it spells."""
    response = await server.client.get(f"/viewer/{name}")
    assert response.status_code == 404
    assert response.json()["code"] == "not_found"


async def test_no_viewer_means_no_page(serve: Serve) -> None:
    """--no-viewer takes the page away, and nothing of the API."""
    async with serve(viewer=False) as served:
        for path, status in (("/", 405), ("/viewer/main.js", 404)):  # a client of another API may still post to /
            assert (await served.client.get(path)).status_code == status
        assert (await served.client.get("/info")).status_code == 200


async def test_the_page_is_not_in_the_schema(server: Served) -> None:
    """/openapi.json describes the API; the page is none of it."""
    paths = (await server.client.get("/openapi.json")).json()["paths"]
    assert "/" not in paths
    assert not any(path.startswith("/viewer") for path in paths)


def test_the_scripts_are_small() -> None:
    """All JavaScript together stays under 63 kB: it is read by people, and loaded on phones."""
    assert sum(len(text.encode()) for text in read("*.js").values()) < MAX_SCRIPT_BYTES


def test_nothing_comes_from_elsewhere() -> None:
    """No file names another host, except the namespace of SVG, which nothing is loaded from."""
    for name, text in read("*").items():
        assert set(re.findall(r"https?://[^\s\"'`)>]*", text)) <= {"http://www.w3.org/2000/svg"}, name
        assert "import(" not in text
        assert "@import" not in text


def test_texts_never_become_markup() -> None:
    """What a user typed is only ever text: no script of the page parses HTML or runs strings."""
    for name, text in read("*.js").items():
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "DOMParser",
        ):
            assert way not in text, f"{name} uses {way}"


def test_the_markup_holds_no_script_and_no_style() -> None:
    """The policy would refuse them: every script is a module of its own, every style is in the sheet."""
    [page] = read("*.html").values()
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert "<style" not in page
    assert re.findall(r"\s(style|on[a-z]+)=", page) == []


def test_every_reference_of_the_page_is_there() -> None:
    """What the page and its modules name, the folder holds: relative, so that a path prefix does not matter."""
    [page] = read("*.html").values()
    named = set(re.findall(r'(?:src|href)="(viewer/[^"]+)"', page))
    assert named == {"viewer/main.js", "viewer/style.css", "viewer/icon.svg"}
    for name, text in read("*.js").items():
        for imported in re.findall(r'from "\./([^"]+)"', text):
            assert imported in page_files(), f"{name} imports {imported}"


async def test_requests_for_files_share_one_label(server: Served) -> None:
    """Metrics count files under their route's template, so that names make no new series."""
    for name in ("main.js", "style.css", "nothing.js"):
        await server.client.get(f"/viewer/{name}")
    for status, count in ((200, 2), (404, 1)):
        assert server.sample("eyeline_requests_total", route="/viewer/{name}", status=status) == count
