"""The tables of ``make bench-peers``."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.library import Figure
from bench.peers.report import (
    BEGIN,
    END,
    format_markdown,
    format_plain,
    library_table,
    write_between_markers,
)


def figure(library: str, dtype: str, seconds: list[float]) -> Figure:
    """Make what a contender did with 100 texts of 30 tokens."""
    return Figure("weights/a", "25", library, dtype, num_texts=100, num_tokens=3000, seconds=seconds)


FIGURES = [
    figure("eyeline", "float32", [1.0, 0.5, 9.0]),
    figure("eyeline", "int8", [0.25]),
    figure("ceiling", "float32", [0.8]),
    figure("sentence-transformers", "float32", [3.0]),
    figure("openvino", "float32", [2.0]),
    figure("openvino", "bfloat16", [0.9]),
]


def test_ratios_are_of_medians_within_a_format() -> None:
    """The best peer is the fastest in the same number format; one slow round does not count; the ceiling is no peer."""
    head, ours, int8, ceiling, base, *_ = library_table(FIGURES)
    assert head[3:6] == ["of best peer", "of sentence-transformers float32", "of ceiling"]
    assert ours[:6] == ["eyeline float32", "3,000", "100", "2.00", "3.00", "80%"]
    assert int8[3:6] == ["", "12.00", ""]  # nobody else has the format, and its ceiling was not measured
    assert ceiling[:6] == ["ceiling float32", "3,750", "", "", "", ""]
    assert base[3:6] == ["", "1.00", "27%"]


def test_a_table_keeps_its_columns() -> None:
    """On the terminal columns are aligned; in Markdown every row has as many cells as the rule."""
    table = library_table(FIGURES)
    head, first, *_ = format_plain(table).splitlines()
    assert head.index("tokens/s") + len("tokens/s") == first.index("3,000") + len("3,000")
    assert {line.count("|") for line in format_markdown(table).splitlines()} == {len(table[0]) + 1}


def test_figures_replace_those_of_the_last_run_and_nothing_else(tmp_path: Path) -> None:
    """What people wrote around the figures stays, however often they are written."""
    file = tmp_path / "page.md"
    file.write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    for content in ("first", "second"):
        write_between_markers(file, content)
    assert file.read_text() == f"before\n\n{BEGIN}\n\nsecond\n\n{END}\n\nafter\n"


@pytest.mark.parametrize("text", ["", f"{BEGIN}\n", f"{END}\n", f"{END}\n{BEGIN}\n"])
def test_a_page_without_a_place_for_figures_is_refused(tmp_path: Path, text: str) -> None:
    """Half a pair of markers, or a wrong order, must not swallow the rest of the page."""
    file = tmp_path / "page.md"
    file.write_text(text)
    with pytest.raises(ValueError, match="no place for the figures"):
        write_between_markers(file, "figures")
    assert file.read_text() == text
