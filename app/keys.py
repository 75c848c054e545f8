"""API keys: which there are, and whose is the one that a caller shows. Where one must be shown is in ``app/access.py``.

A list of keys is written as entries ``KEY`` or ``NAME:KEY``: in a file one a line, where ``#`` begins a comment; in a
variable separated by commas or spaces. A key without a name is called ``key-1``, ``key-2``, ... by its place.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

MIN_KEY_CHARACTERS = 16
"""Nothing slows a guesser down, so a key must be beyond guessing; ``openssl rand -hex 32`` makes one of 64."""
MAX_KEY_CHARACTERS = 512
MAX_KEYS = 256
"""A shown key is compared with every one (half a microsecond each), and each name is a metrics label."""
MAX_NAME_CHARACTERS = 64
MAX_FILE_BYTES = 256 * 1024

KEY = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""What an Authorization header can carry (RFC 6750, section 2.1). It has no colon, which ends a name."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class KeysError(ValueError):
    """A list of keys that cannot be used. The message counts entries and characters, and shows nothing of a key."""


class NamedKey(NamedTuple):
    """An entry of a list of keys."""

    name: str
    key: str

    def __repr__(self) -> str:
        """Show the name alone."""
        return f"NamedKey(name={self.name!r})"


def parse_keys(text: str) -> list[NamedKey]:
    """Read a list of keys.

    Raises
    ------
    KeysError
        If there is none, or one that could not be sent, could be guessed, or is there twice.
    """
    entries = [entry for line in text.splitlines() for entry in re.split(r"[,\s]+", line.partition("#")[0]) if entry]
    if not entries:
        raise KeysError("must hold at least one key")
    if len(entries) > MAX_KEYS:
        raise KeysError(f"must hold at most {MAX_KEYS} keys, not {len(entries)}")
    keys = [_named_key(entry, number) for number, entry in enumerate(entries, 1)]
    numbers: dict[str, int] = {}
    for number, (_, key) in enumerate(keys, 1):
        if numbers.setdefault(key, number) != number:
            raise KeysError(f"must hold each key once, but entries {numbers[key]} and {number} are the same")
    return keys


def read_keys_file(path: Path) -> list[NamedKey]:
    """Read a list of keys from a file; raises :class:`KeysError`, also where the file cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise KeysError(f"must be a file that can be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise KeysError("must be a text file in UTF-8") from None
    if len(content) > MAX_FILE_BYTES:
        raise KeysError(f"must be a file of at most {MAX_FILE_BYTES} bytes")
    return parse_keys(text)


class KeyRing:
    """Keys that open the same doors. It holds their digests alone, so that nothing can print a key.

    Parameters
    ----------
    keys : sequence of NamedKey
        Several may share a name, as a key and its successor do.

    Attributes
    ----------
    names : tuple of str
        Each once, in the order they were given.
    """

    def __init__(self, keys: Sequence[NamedKey]) -> None:
        self._secret = secrets.token_bytes(32)
        self._digests = tuple((name, self._digest(key)) for name, key in keys)
        self.names = tuple(dict.fromkeys(name for name, _ in keys))

    def name_of(self, shown: str) -> str | None:
        """Return the name of the key that a caller shows; None if it is none of these.

        Notes
        -----
        The work is the same whatever is shown: digests that no caller can foresee are compared, with every key's, in
        constant time.
        """
        digest = self._digest(shown)
        found = None
        for name, known in self._digests:
            if hmac.compare_digest(known, digest):
                found = name
        return found

    def _digest(self, key: str) -> bytes:
        return hmac.digest(self._secret, key.encode(), "sha256")


def _named_key(entry: str, number: int) -> NamedKey:
    """Read one entry; a message calls it by its number, as any part of it may be the key."""
    name, colon, key = entry.rpartition(":")
    if not colon:
        name = f"key-{number}"
    if not NAME.fullmatch(name) or len(name) > MAX_NAME_CHARACTERS:
        raise KeysError(
            f"must give names of letters, digits, '.', '_' and '-', at most {MAX_NAME_CHARACTERS}, before a key's "
            f"colon, but entry {number} does not"
        )
    if not KEY.fullmatch(key):
        raise KeysError(f"must hold keys of letters, digits and ._~+/- with = at the end, but entry {number} does not")
    if not MIN_KEY_CHARACTERS <= len(key) <= MAX_KEY_CHARACTERS:
        raise KeysError(
            f"must hold keys of {MIN_KEY_CHARACTERS} to {MAX_KEY_CHARACTERS} characters, but entry {number} has "
            f"{len(key)}; openssl rand -hex 32 makes one"
        )
    return NamedKey(name, key)
