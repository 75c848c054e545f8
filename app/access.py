"""Who may ask for what: the one place that looks at API keys. Pure ASGI, before any route and before the body is read.

Everything is closed but what is listed here, so a new route is closed without a word.

=====================================================  ===================================================
Health                                                 open, always: a probe carries no secret
The page, ``/docs``, ``/openapi.json``, and their      open: what they show is no secret, and what they
files                                                  ask for needs the key that their user types in
``/metrics``                                           an API key, unless a setting opens it
Everything under ``/admin``                            an admin key; an API key does not open it
All else, what does not exist included                 an API key
=====================================================  ===================================================

Without API keys all but ``/admin`` is open; without an admin key nothing under ``/admin`` may exist. So a route there
is added to the app only where :attr:`AccessRules.admin` is set, and needs no check of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import UnauthorizedError
from app.keys import KeyRing
from app.problems import ErrorHandler

HEALTH_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"})
PAGE_PATHS = frozenset({"/", "/docs", "/openapi.json"})
PAGE_FOLDERS = ("/viewer/", "/static-offline-docs/")
METRICS_PATH = "/metrics"
ADMIN_PATH = "/admin"

READING = frozenset({"GET", "HEAD"})
"""What is open is open to these methods; ``POST /`` is an API."""

KEY_HEADERS = ("x-api-key", "api-key")
"""Beside ``Authorization: Bearer``: what other servers' clients send."""

CHALLENGE = {"WWW-Authenticate": "Bearer"}


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Which keys open what.

    Attributes
    ----------
    api : KeyRing or None
        None: no key is asked for.
    admin : KeyRing or None
        None: there is nothing under ``/admin``.
    metrics_without_key : bool
    """

    api: KeyRing | None = None
    admin: KeyRing | None = None
    metrics_without_key: bool = False

    def ring_for(self, method: str, path: str) -> KeyRing | None:
        """Return the ring whose keys open a path; None if it is open."""
        if self.admin is not None and (path == ADMIN_PATH or path.startswith(f"{ADMIN_PATH}/")):
            return self.admin
        return None if method in READING and self.is_open(path) else self.api

    def is_open(self, path: str) -> bool:
        """Whether a path may be read without a key, though there are keys."""
        if path == METRICS_PATH:
            return self.metrics_without_key
        return path in HEALTH_PATHS or path in PAGE_PATHS or path.startswith(PAGE_FOLDERS)


class AccessControl:
    """Lets a request pass that shows a key which opens its path, and answers any other with 401.

    The key's name is ``request.state.key`` of those that showed one.

    Parameters
    ----------
    app : ASGIApp
    rules : AccessRules
    answer : ErrorHandler
        Words and counts the refusal.
    """

    def __init__(self, app: ASGIApp, rules: AccessRules, answer: ErrorHandler) -> None:
        self._app = app
        self._rules = rules
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request; the end of the server's life is no request."""
        ring = self._rules.ring_for(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if ring is None:
            await self._app(scope, receive, send)
            return
        shown = shown_key(Headers(scope=scope))
        name = None if shown is None else ring.name_of(shown)
        if name is None:
            # which of the two is all that a caller learns
            said = "no API key was sent" if shown is None else "the API key is not known here"
            error = UnauthorizedError(f"{said}: send Authorization: Bearer KEY")
            response = await self._answer(Request(scope), error)
            response.headers.update(CHALLENGE)
            await response(scope, receive, send)
            return
        scope.setdefault("state", {})["key"] = name
        await self._app(scope, receive, send)


def shown_key(headers: Headers) -> str | None:
    """Return the key that a request shows: that of ``Authorization: Bearer``, or else of :data:`KEY_HEADERS`."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return next((headers[name].strip() for name in KEY_HEADERS if name in headers), None)
