"""Tables of what was measured: on the terminal, and in Markdown between two marker comments of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.library import Figure
from bench.server import Answered, Load

BEGIN = "<!-- figures: begin, written by make bench-peers -->"
END = "<!-- figures: end -->"

OURS = "eyeline"
CEILING = "ceiling"
BASE = "sentence-transformers float32"

Table = list[list[str]]
"""Rows of cells; the first row is the head, the first column is aligned left and all others right."""


@dataclass(frozen=True, slots=True)
class Served:
    """What one server did under one load; each number is the median of the rounds.

    Attributes
    ----------
    server, dtype, model : str
    load : Load
    answered : Answered
    library_texts_per_second : float or None
        What the library alone encodes of the same texts, for Eyeline's own servers.
    """

    server: str
    dtype: str
    model: str
    load: Load
    answered: Answered
    library_texts_per_second: float | None


def library_table(figures: Sequence[Figure]) -> Table:
    """Compare the figures of one model and one set.

    ``of best peer`` is the ratio to the fastest other library in the same number format, ``of ceiling`` the share of
    what the matrix products alone allow in that format.
    """
    rows = [
        [
            "",
            "tokens/s",
            "texts/s",
            "of best peer",
            "of sentence-transformers float32",
            "of ceiling",
            "cosine, mean",
            "lowest",
            "settings",
        ]
    ]
    rates = {figure.name: figure.tokens_per_second for figure in figures}
    for figure in figures:
        peers = [
            other.tokens_per_second
            for other in figures
            if other.dtype == figure.dtype and other.library not in (OURS, CEILING)
        ]
        rate = figure.tokens_per_second
        is_ceiling = figure.library == CEILING
        rows.append(
            [
                figure.name,
                f"{rate:,.0f}",
                "" if is_ceiling else f"{figure.texts_per_second:,.0f}",
                f"{rate / max(peers):.2f}" if figure.library == OURS and peers else "",
                f"{rate / rates[BASE]:.2f}" if BASE in rates and not is_ceiling else "",
                "" if is_ceiling else _share(rate, rates.get(f"{CEILING} {figure.dtype}")),
                "" if figure.cosine_mean is None else f"{figure.cosine_mean:.4f}",
                "" if figure.cosine_min is None else f"{figure.cosine_min:.4f}",
                figure.settings,
            ]
        )
    return rows


def server_table(served: Sequence[Served]) -> Table:
    """Compare servers under the same loads."""
    rows = [["", "load", "texts/s", "of library", "worker busy", "p50 ms", "p99 ms", "failed"]]
    for one in served:
        answered = one.answered
        rows.append(
            [
                f"{one.server} {one.dtype}",
                one.load.name,
                f"{answered.texts_per_second:,.0f}",
                _share(answered.texts_per_second, one.library_texts_per_second),
                "" if answered.busy is None else f"{answered.busy:.0%}",
                f"{answered.p50_ms:.1f}",
                f"{answered.p99_ms:.1f}",
                str(answered.failed),
            ]
        )
    return rows


def format_plain(table: Table) -> str:
    """Lay a table out for a terminal."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = []
    for row in table:
        first, *others = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join((first, *others)).rstrip())
    return "\n".join(lines)


def format_markdown(table: Table) -> str:
    """Write a table in Markdown."""
    head, *rows = table
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def write_between_markers(file: Path, content: str) -> None:
    """Put ``content`` where the last run's was; raises as :func:`read_around_markers`."""
    before, after = read_around_markers(file)
    file.write_text(f"{before}{BEGIN}\n\n{content.strip()}\n\n{END}{after}", encoding="utf-8")


def read_around_markers(file: Path) -> tuple[str, str]:
    """Read what stands before and after the figures.

    Raises
    ------
    ValueError
        If the file has no place for them.
    """
    before, begin, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{file} has no place for the figures: a line {BEGIN!r} and, below it, a line {END!r}")
    return before, after


def _share(rate: float, whole: float | None) -> str:
    """Write a percentage, or nothing where there is no whole."""
    return "" if whole is None else f"{rate / whole:.0%}"
