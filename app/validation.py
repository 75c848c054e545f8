"""Turns pydantic's findings into one sentence about one field, in the words of the wire, without the caller's input."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from app.errors import InvalidRequestError, MalformedBodyError, ServiceError

MAX_NAME_CHARACTERS = 64  # of a field name that the caller chose: enough to find a typing error
SHOULD_BE = "should be "
WIRE_NAME = re.compile(r"[a-z][a-z0-9_]*")
PYTHON_TYPES = frozenset({"any", "bool", "bytes", "dict", "float", "int", "list", "none", "set", "str", "tuple"})
BODY_PARTS = frozenset({"body", "cookie", "header", "path", "query"})
PYTHON_SUBJECTS = re.compile(r"^(Input|List|Tuple|String) (?=should)")
OWN_WORDS = {
    "missing": "is required",
    "extra_forbidden": "is not a field of this request",
    "model_type": "should be an object",
    "model_attributes_type": "should be an object",
    "dict_type": "should be an object",
}
LIMITS = ("le", "lt", "ge", "gt", "max_length", "min_length")


def from_validation(errors: ValidationError | Sequence[Mapping[str, Any]]) -> InvalidRequestError:
    """Turn pydantic's findings into one sentence about one field, in the words of the wire.

    A union reports every branch that did not match. The deepest finding about the first field at fault is the one
    meant: it comes from the branch that matched furthest.

    Parameters
    ----------
    errors : ValidationError or sequence of mapping
        At least one finding, as pydantic lists them: ``type``, ``loc``, ``msg``, perhaps ``ctx``.

    Notes
    -----
    The input is never repeated; of a name that the caller chose, 64 printable characters are.
    What a validator of ours says in a ``ValueError`` is passed on, so it must not quote the value.
    """
    findings = [
        _Finding(_path(error), _expectation(error), _limit(error), error.get("ctx", {}).get("actual_length"))
        for error in (
            errors.errors(include_url=False, include_input=False) if isinstance(errors, ValidationError) else errors
        )
    ]
    same_field = [finding for finding in findings if finding.path[:1] == findings[0].path[:1]]
    deepest = max(same_field, key=lambda finding: len(finding.path))
    alternatives = [finding for finding in same_field if finding.path == deepest.path]
    # A branch that complains about a limit has matched otherwise: the other branches' complaints are noise.
    alternatives = [finding for finding in alternatives if finding.limit is not None] or alternatives
    param = _spell(deepest.path)
    expectations = list(dict.fromkeys(finding.expectation for finding in alternatives))
    if all(expectation.startswith(SHOULD_BE) for expectation in expectations):
        expected = SHOULD_BE + " or ".join(expectation.removeprefix(SHOULD_BE) for expectation in expectations)
    else:
        expected = next(expectation for expectation in expectations if not expectation.startswith(SHOULD_BE))
    message = f"{param or 'the body'}: {expected}"
    return InvalidRequestError(message, param=param, limit=alternatives[0].limit, actual=alternatives[0].actual)


class _Finding(NamedTuple):
    """One of pydantic's errors, without the union branches and without the input."""

    path: tuple[str | int, ...]
    expectation: str
    limit: float | None
    actual: int | None


def _path(error: Mapping[str, Any]) -> tuple[str | int, ...]:
    """Return ``loc`` without the tags that pydantic adds for the branches of a union."""
    *parts, last = error["loc"] or (None,)
    path = [part for part in parts if _is_wire_part(part)]
    if error["type"] == "extra_forbidden":
        path.append("".join(character for character in str(last)[:MAX_NAME_CHARACTERS] if character.isprintable()))
    elif _is_wire_part(last):
        path.append(last)
    return tuple(path)


def _is_wire_part(part: str | int | None) -> bool:
    """Whether a part of ``loc`` is a field or an index; a union branch is spelled as a type (``list[str]``)."""
    if isinstance(part, str):
        return len(part) <= MAX_NAME_CHARACTERS and bool(WIRE_NAME.fullmatch(part)) and part not in PYTHON_TYPES
    return part is not None


def _spell(path: tuple[str | int, ...]) -> str | None:
    """Spell a path as the wire does: ``("attention", "layers", 0)`` is ``attention.layers[0]``."""
    spelled = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return spelled.removeprefix(".") or None


def _expectation(error: Mapping[str, Any]) -> str:
    """Say what was expected, in pydantic's words where those cannot hold the input."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in OWN_WORDS:
        return OWN_WORDS[kind]
    if kind in ("value_error", "assertion_error"):
        return str(context["error"])
    if "error" in context or "tag" in context:  # a parser's complaint or a union's tag: both quote the input
        return "is not valid"
    words = PYTHON_SUBJECTS.sub("", str(error["msg"])).replace(" after validation", "")
    return words[:1].lower() + words[1:]


def _limit(error: Mapping[str, Any]) -> float | None:
    """Return the limit that was broken, where pydantic gives one."""
    context = error.get("ctx", {})
    return next((context[name] for name in LIMITS if isinstance(context.get(name), int | float)), None)


def from_fastapi(error: RequestValidationError) -> ServiceError:
    """Drop FastAPI's first part of ``loc`` (body, query, ...); tell broken JSON from a wrong value."""
    findings: list[dict[str, Any]] = []
    for finding in error.errors():
        if finding["type"] == "json_invalid":
            return MalformedBodyError("the body is not valid JSON")
        loc = tuple(finding["loc"])
        findings.append({**finding, "loc": loc[1:] if loc[:1] and loc[0] in BODY_PARTS else loc})
    return from_validation(findings)
