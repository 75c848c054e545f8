"""Reads the options of ``app/options.py`` from flags and ``EYELINE_*`` variables, and describes them.

The flags, ``eyeline serve --help``, the variables and the README's table are generated from the fields of
:class:`Settings`. A flag wins over a variable, a variable over the default.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from app.option_names import PREFIX, Shown, flag_of, shorten, variable_of
from app.options import ModelSpec, Settings

__all__ = [
    "ModelSpec",
    "Settings",
    "SettingsError",
    "add_arguments",
    "from_arguments",
    "load_settings",
    "settings_table",
]

OTHER_VARIABLES = frozenset({"EYELINE_PUBLISHED_PORT"})
"""Variables with our prefix that are not the server's: docker-compose.yml reads this one."""

KUBERNETES_VARIABLE = re.compile(
    r"EYELINE(_[A-Z0-9]+)*_"
    r"(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)"
)
"""What Kubernetes injects for a Service whose name is eyeline or begins with ``eyeline-``."""

KUBERNETES_PORT_VARIABLE = re.compile(r"EYELINE(_[A-Z0-9]+)*_PORT")
KUBERNETES_PORT_VALUE = re.compile(r"(tcp|udp|sctp)://.*")


class SettingsError(Exception):
    """Settings that cannot be served. The message is one sentence with the flag or variable, the limit, the value."""


def load_settings(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Read flags and environment.

    Parameters
    ----------
    argv : sequence of str
        The flags, without the program's name.
    environ : mapping
        The environment, usually ``os.environ``.

    Raises
    ------
    SettingsError
        An unknown flag or ``EYELINE_*`` variable, or a value that cannot be served.
    """
    parser = _StrictParser(prog="eyeline serve", allow_abbrev=False)
    add_arguments(parser)
    return from_arguments(parser.parse_args(argv), environ)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one flag per field to ``parser``; the values stay texts until :func:`from_arguments` checks them."""
    for name, info in Settings.model_fields.items():
        if not _has_flag(info):
            continue
        text = f"{info.description} [default: {_default(info)}; variable: {variable_of(name)}]".replace("%", "%%")
        if info.annotation is bool:
            parser.add_argument(flag_of(name), action=argparse.BooleanOptionalAction, default=None, help=text)
        elif any(part.repeats for part in _shown_parts(info)):
            parser.add_argument(flag_of(name), action="append", metavar=_metavar(info), help=text)
        else:
            parser.add_argument(flag_of(name), metavar=_metavar(info), help=text)


def from_arguments(namespace: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Check what :func:`add_arguments` parsed together with the environment.

    Parameters
    ----------
    namespace : argparse.Namespace
        Attributes that are no field's name are left alone.
    environ : mapping
        The environment. An empty value counts as unset, but of keys.

    Raises
    ------
    SettingsError
        An unknown ``EYELINE_*`` variable, or a value that cannot be served.
    """
    flags = {name: value for name in Settings.model_fields if (value := getattr(namespace, name, None)) is not None}
    _refuse_unknown_variables(environ)
    values: dict[str, Any] = dict(flags)
    origins = {name: flag_of(name) for name in flags}
    for name in Settings.model_fields.keys() - flags.keys():
        variable = variable_of(name)
        _refuse_empty(name, environ)
        if text := environ.get(variable, "").strip():
            if name == "port":
                _refuse_kubernetes_port(text)
            repeats = any(part.repeats for part in _shown_parts(Settings.model_fields[name]))
            values[name] = text.split(",") if repeats else text
            origins[name] = variable
    try:
        return Settings(**values)
    except ValidationError as error:
        raise SettingsError(_sentence(error, origins)) from error


def settings_table() -> str:
    """Return the Markdown table of every option: flag, variable, default, meaning."""
    rows = [("Flag", "Variable", "Default", "Meaning"), ("---",) * 4]
    for name, info in Settings.model_fields.items():
        if info.annotation is bool:
            flag = f"`{flag_of(name)}`, `{flag_of(name).replace('--', '--no-', 1)}`"
        elif not _has_flag(info):
            flag = "none"
        else:
            flag = f"`{flag_of(name)} {_metavar(info)}`"
        rows.append((flag, f"`{variable_of(name)}`", _default(info), info.description or ""))
    # A bar inside a cell would end it, in code spans too.
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |\n" for row in rows)


class _StrictParser(argparse.ArgumentParser):
    """A parser that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message[:1].upper()}{message[1:]}.")


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    """Stop at a variable with our prefix that nothing reads: most likely a misspelt one."""
    known = [variable_of(name) for name in Settings.model_fields]
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in known or variable in OTHER_VARIABLES:
            continue
        if KUBERNETES_VARIABLE.fullmatch(variable):
            continue
        if KUBERNETES_PORT_VARIABLE.fullmatch(variable) and KUBERNETES_PORT_VALUE.fullmatch(environ[variable]):
            continue
        # Compared without the prefix, which would make any two names look alike.
        suffixes = [name.removeprefix(PREFIX) for name in known]
        matches = difflib.get_close_matches(variable.removeprefix(PREFIX).upper(), suffixes, n=3)
        nearest = [PREFIX + suffix for suffix in matches]
        hint = f"did you mean {' or '.join(nearest)}?" if nearest else "eyeline serve --help lists those there are."
        raise SettingsError(f"{shorten(variable, quote=False)} is not a setting: {hint}")


def _refuse_empty(name: str, environ: Mapping[str, str]) -> None:
    may_be_empty = all(part.may_be_empty for part in _shown_parts(Settings.model_fields[name]))
    if not may_be_empty and not environ.get(variable_of(name), "set").strip():
        raise SettingsError(f"{variable_of(name)} is set, but empty: give it a value, or take the variable away.")


def _refuse_kubernetes_port(text: str) -> None:
    if KUBERNETES_PORT_VALUE.fullmatch(text):
        raise SettingsError(
            f"EYELINE_PORT is {shorten(text)}, which Kubernetes injects for a Service called eyeline: set "
            "enableServiceLinks: false in the pod, rename the Service, or pass --port."
        )


def _sentence(error: ValidationError, origins: Mapping[str, str]) -> str:
    """Say the first thing that is wrong in one sentence that begins with the flag or variable it came from."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if not first["loc"]:
        return str(cause or first["msg"])
    name = str(first["loc"][0])
    origin = origins.get(name, flag_of(name))
    # A secret's cause says what is wrong with it, and nothing of it; no other finding about one is put into words.
    if cause is None and not _has_flag(Settings.model_fields[name]):
        return f"{origin} must be a text."
    if cause is not None:
        return f"{origin} {cause}."
    # "Input should be a valid integer, unable to parse ..." -> "must be a valid integer"
    rule = first["msg"].removeprefix("Input should ").removeprefix("String should ").split(", unable")[0]
    if first["type"] == "int_parsing_size":
        rule = "be a smaller integer"
    return f"{origin} must {rule}, not {shorten(str(first['input']))}."


def _shown_parts(info: FieldInfo) -> Iterator[Shown]:
    return (part for part in info.metadata if isinstance(part, Shown))


def _has_flag(info: FieldInfo) -> bool:
    return all(part.has_flag for part in _shown_parts(info))


def _metavar(info: FieldInfo) -> str:
    if get_origin(info.annotation) is Literal:
        return "|".join(get_args(info.annotation))
    return next(_shown_parts(info)).metavar


def _default(info: FieldInfo) -> str:
    shown = next(_shown_parts(info), None)
    if shown is not None and shown.default is not None:
        return shown.default
    if isinstance(info.default, bool):
        return "on" if info.default else "off"
    return f"{info.default:g}" if isinstance(info.default, float) else str(info.default)
