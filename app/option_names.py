"""What an option is called, and how it is shown: one name in three spellings, field, flag and variable."""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "EYELINE_"

MAX_SHOWN_CHARACTERS = 80
"""A wrong value is shown in the message up to this length: long enough for any real one."""


@dataclass(frozen=True, slots=True)
class Shown:
    """How a field appears in ``--help`` and in the table.

    Attributes
    ----------
    metavar : str
        Stands for the value: its kind or unit.
    default : str or None
        Replaces the plain default where that says nothing, as None does.
    repeats : bool
        Whether the flag may come several times; the variable's values are separated by commas.
    has_flag : bool
        False of a secret, which everyone on the machine could read among the arguments of the process.
    may_be_empty : bool
        Whether an empty variable is as good as none. Not of what guards the server: a secret that did not arrive would
        leave it open.
    """

    metavar: str
    default: str | None = None
    repeats: bool = False
    has_flag: bool = True
    may_be_empty: bool = True


def shorten(text: str, *, quote: bool = True) -> str:
    """Shorten ``text`` for a message, on one line."""
    short = text if len(text) <= MAX_SHOWN_CHARACTERS else text[:MAX_SHOWN_CHARACTERS] + "..."
    return repr(short) if quote else repr(short)[1:-1]


def flag_of(name: str) -> str:
    """Return the flag of a field."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """Return the environment variable of a field."""
    return PREFIX + name.upper()


def label_of(name: str) -> str:
    """Return both names of a field, for a message about it."""
    return f"{flag_of(name)} ({variable_of(name)})"
