"""Claims about offsets: each unit against the language's own way to count it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.offsets import OffsetUnit, convert_offsets

ASTRONAUT = "👩‍🚀 Unbelievable café!"


@pytest.mark.parametrize(
    ("unit", "expected"), [("codepoint", [4, 6, 21, 22]), ("utf16", [6, 8, 23, 24]), ("byte", [12, 14, 30, 31])]
)
def test_an_emoji_of_three_code_points(unit: OffsetUnit, expected: list[int]) -> None:
    """22 code points, 24 UTF-16 units, 31 bytes: the places of "Un" and "!" behind it, in each unit."""
    assert (len(ASTRONAUT), len(ASTRONAUT.encode("utf-16-le")) // 2, len(ASTRONAUT.encode())) == (22, 24, 31)
    assert convert_offsets(ASTRONAUT, [4, 6, 21, 22], unit) == expected


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.data())
def test_offsets_slice_the_text_as_the_unit_counts_it(text: str, data: st.DataObject) -> None:
    """What stands before an offset is as long, in its unit, as the offset says; order and repetition do not matter."""
    offsets = data.draw(st.lists(st.integers(0, len(text)), max_size=10))
    for unit, encoding, size in (("utf16", "utf-16-le", 2), ("byte", "utf-8", 1), ("codepoint", "utf-32-le", 4)):
        converted = convert_offsets(text, offsets, unit)  # type: ignore[arg-type]
        assert converted == [len(text[:offset].encode(encoding)) // size for offset in offsets]


def test_only_what_is_reached_is_read() -> None:
    """Of a text of which little was kept, little is converted: what stands behind it need not even be encodable."""
    assert convert_offsets("é\ud800", [0, 1], "byte") == [0, 2]


def test_no_offsets() -> None:
    """A text without tokens has none to convert."""
    assert convert_offsets("é", [], "byte") == []
