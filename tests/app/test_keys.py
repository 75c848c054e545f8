"""Lists of keys, and the ring that knows them without holding them."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from app.keys import (
    MAX_FILE_BYTES,
    MAX_KEY_CHARACTERS,
    MAX_KEYS,
    MAX_NAME_CHARACTERS,
    MIN_KEY_CHARACTERS,
    KeyRing,
    KeysError,
    NamedKey,
    parse_keys,
    read_keys_file,
)

FIRST, SECOND = "first-key-of-the-tests", "c2Vjb25kIGtleSBvZiB0aGUgdGVzdHM="
SHORTEST = "x" * MIN_KEY_CHARACTERS


@pytest.mark.parametrize(
    "text",
    [
        f"search:{FIRST},{SECOND}",
        f"  search:{FIRST} ,\n\t{SECOND} ",
        f"# the search team\nsearch:{FIRST}  # until May\n\n{SECOND}\n",
        f"search:{FIRST}\r\n{SECOND}\r\n",
    ],
    ids=["commas", "spaces", "comments", "line ends of Windows"],
)
def test_the_ways_to_write_a_list(text: str) -> None:
    """Commas, spaces and lines separate; what has no name is called by its place."""
    assert parse_keys(text) == [NamedKey("search", FIRST), NamedKey("key-2", SECOND)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "at least one key"),
        (" \n# nothing\n,", "at least one key"),
        ("short", f"of {MIN_KEY_CHARACTERS} to {MAX_KEY_CHARACTERS} characters, but entry 1 has 5"),
        (f"{FIRST},a:{'y' * (MAX_KEY_CHARACTERS + 1)}", f"entry 2 has {MAX_KEY_CHARACTERS + 1}"),
        (f"{SHORTEST}é", "letters, digits"),
        (f'"{SHORTEST}"', "letters, digits"),
        (f"{SHORTEST}=x", "letters, digits"),
        (f":{SHORTEST}", "names of letters"),
        (f"a b:{SHORTEST}", "entry 1 has 1"),
        (f"a:b:{SHORTEST}", "names of letters"),
        (f"{'n' * (MAX_NAME_CHARACTERS + 1)}:{SHORTEST}", f"at most {MAX_NAME_CHARACTERS}"),
        (f"a:{FIRST},{SECOND},b:{FIRST}", "entries 1 and 3 are the same"),
        (",".join(f"{SHORTEST}{number}" for number in range(MAX_KEYS + 1)), f"{MAX_KEYS} keys, not {MAX_KEYS + 1}"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused(text: str, complaint: str) -> None:
    """The sentence names the rule and the entry by its number, and holds no part of any key."""
    with pytest.raises(KeysError, match=complaint) as caught:
        parse_keys(text)
    said = str(caught.value)
    assert said.startswith("must ")
    assert not any(part in said for part in (FIRST, SECOND, SHORTEST, "short"))
    assert caught.value.__cause__ is None


def test_the_limits_are_reached() -> None:
    """The shortest and the longest key, the longest name and the longest list are taken."""
    assert parse_keys(SHORTEST)
    assert parse_keys(f"{'n' * MAX_NAME_CHARACTERS}:{'y' * MAX_KEY_CHARACTERS}")
    assert len(parse_keys(",".join(f"{SHORTEST}{number}" for number in range(MAX_KEYS)))) == MAX_KEYS


def test_a_file_is_read(tmp_path: Path) -> None:
    """As editors write it, a byte order mark and words in a comment included."""
    file = tmp_path / "keys"
    file.write_text(f"\ufeff# Schlüssel\n{FIRST}\n")
    assert read_keys_file(file) == [NamedKey("key-1", FIRST)]


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """No file, a folder, nothing in it, no text, and one without an end: a sentence each, within bounded memory."""
    (tmp_path / "empty").touch()
    (tmp_path / "bytes").write_bytes(b"\xff\xfe" * 10)
    (tmp_path / "huge").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    for name, complaint in (
        ("nothing", "No such file"),
        (".", "Is a directory"),
        ("empty", "at least one key"),
        ("bytes", "UTF-8"),
        ("huge", str(MAX_FILE_BYTES)),
    ):
        with pytest.raises(KeysError, match=complaint):
            read_keys_file(tmp_path / name)
    with pytest.raises(KeysError):
        read_keys_file(Path("/dev/zero"))


def test_a_key_is_known_by_its_name() -> None:
    """Each key of a ring has its name, also two of one name; anything else has none."""
    ring = KeyRing([NamedKey("search", FIRST), NamedKey("search", SECOND), NamedKey("batch", SHORTEST)])
    assert ring.names == ("search", "batch")
    assert [ring.name_of(key) for key in (FIRST, SECOND, SHORTEST)] == ["search", "search", "batch"]
    for wrong in ("", FIRST[:-1], FIRST + "x", FIRST.upper(), "search", f"search:{FIRST}", "\xff", "x" * 60_000):
        assert ring.name_of(wrong) is None


def test_every_key_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work says nothing about which key it was: all are compared, by the comparison that takes constant time."""
    compared: list[int] = []
    ring = KeyRing([NamedKey(str(number), f"{SHORTEST}{number}") for number in range(5)])
    monkeypatch.setattr("app.keys.hmac.compare_digest", lambda a, b: bool(compared.append(len(a)) or a == b))
    for shown in (f"{SHORTEST}0", f"{SHORTEST}4", "none"):
        compared.clear()
        ring.name_of(shown)
        assert compared == [32] * 5


def test_nothing_shows_a_key() -> None:
    """Not the ring, nothing that it holds, and not an entry on its way there."""
    key = os.urandom(16).hex()
    assert key not in repr(parse_keys(key))
    ring = KeyRing(parse_keys(key))
    assert key not in f"{ring!r} {vars(ring)}"
    held = gc.get_referents(ring)
    for _ in range(4):
        held += gc.get_referents(*(one for one in held if not isinstance(one, type)))
    assert not any(one == key for one in held if isinstance(one, str))
