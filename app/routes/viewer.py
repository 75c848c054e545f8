"""The page: ``GET /`` and the files it is made of under ``/viewer/``.

Every file is read once and known by its name, so that no path leads anywhere else. The policy lets the page load and
ask nothing but this server, and run no script that is written into it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request, Response

FOLDER = Path(__file__).parents[1] / "viewer"

MEDIA_TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'; "
        "require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # A new version of the server is a new page at once; what is unchanged costs one short answer.
    "Cache-Control": "no-cache",
}

METHODS = ["GET", "HEAD"]

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page.

    Attributes
    ----------
    content : bytes
    media_type : str
    etag : str
        A quoted digest of the content.
    """

    content: bytes
    media_type: str
    etag: str


@cache
def page_files() -> Mapping[str, PageFile]:
    """Read the files of the page, by name."""
    files = {}
    for path in FOLDER.iterdir():
        if path.suffix in MEDIA_TYPES:
            content = path.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            files[path.name] = PageFile(content, MEDIA_TYPES[path.suffix], etag)
    return files


@router.api_route("/", methods=METHODS)
async def page(request: Request) -> Response:
    """Show the page."""
    return _answer(request, "index.html")


@router.api_route("/viewer/{name}", methods=METHODS)
async def page_file(request: Request, name: str) -> Response:
    """Give a file of the page.

    Raises
    ------
    HTTPException
        404, if the page has no such file.
    """
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    file = page_files().get(name)
    if file is None:
        raise HTTPException(404)
    headers = {**HEADERS, "ETag": file.etag}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
