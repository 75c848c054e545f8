"""Where sentences end, after the rules of Unicode (UAX #29), which need no model, no list of words and no dependency.

Each character has a class, and the rules read the string of classes. What differs from the standard, each for running
text:

- a single line end is white space (texts come with hard-wrapped lines); an empty line ends a sentence;
- a full stop behind a single capital (``J. Smith``), or behind a title that stands before a name, ends nothing.

Other abbreviations that a capital follows end a sentence, as in the standard. For chunks that is harmless: what is cut
too often is only shorter.

References
----------
Unicode Standard Annex #29, section 5; the numbers of its rules (SB6, ...) stand beside the parts below.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

TITLES = frozenset({"Capt", "Col", "Dr", "Gen", "Lt", "Mr", "Mrs", "Ms", "Mx", "Prof", "Rev", "Sgt", "St"})
"""Before a name, and before nothing else."""

_LOOKED_AT = 8
"""Characters before a full stop: more than any title has."""

_TERMINATORS = frozenset("!?‼⁇⁈⁉。！？｡։؟۔।॥၊။።፧፨᠃᠉‽⸮꓿")  # noqa: RUF001 - other scripts
_FULL_STOPS = frozenset(".․﹒．")  # noqa: RUF001 - other scripts
_CONTINUATIONS = frozenset(",-:;–—、，：；﹐﹑﹕﹣－､")  # noqa: RUF001 - other scripts
_QUOTES = frozenset("\"'«»‹›")  # noqa: RUF001 - other scripts

_CATEGORIES = {
    "Lu": "U", "Lt": "U", "Ll": "L", "Lo": "O", "Lm": "O", "Nl": "O", "Nd": "N",
    "Ps": "C", "Pe": "C", "Pi": "C", "Pf": "C", "Zs": "w", "Zl": "P", "Zp": "P",
}  # fmt: skip

_CANDIDATE = re.compile(r"\n[w\n]*\n|P|([AS]++)C*+([w\n]*+)")
"""Where a sentence may end: an empty line, a separator, or terminators with what closes and white space behind them."""

_SMALL_NEXT = re.compile(r"[^ULOPAS\n]*+L")


@lru_cache(maxsize=4096)
def _class_of(character: str) -> str:
    """Return the letter that stands for a character: upper, lower, other letter, number, white space, ..."""
    if character in "\t\v\f\r":
        return "w"
    if character in "\n\x85":
        return "\n"
    if character in _FULL_STOPS:
        return "A"
    if character in _TERMINATORS:
        return "S"
    if character in _CONTINUATIONS:
        return ","
    if character in _QUOTES:
        return "C"
    return _CATEGORIES.get(unicodedata.category(character), "-")


def sentences(text: str) -> list[tuple[int, int]]:
    """Cut a text into sentences.

    Returns
    -------
    list of (int, int)
        Start and end of each in code points, ascending, without the white space around it; none is empty. Whatever of
        the text is not white space is in one of them.

    Notes
    -----
    Linear in the length of the text: candidates do not overlap, and none is looked behind for beyond the next one.
    """
    classes = "".join(map(_class_of, text))
    spans: list[tuple[int, int]] = []
    start = 0
    for match in _CANDIDATE.finditer(classes):
        if _ends(match, classes) and not (match[1] == "A" and _is_title(text, match.start())):
            spans.append((start, match.end()))
            start = match.end()
    spans.append((start, len(text)))
    trimmed = []
    for begin, end in spans:
        inner = text[begin:end]
        left = begin + len(inner) - len(inner.lstrip())
        right = begin + len(inner.rstrip())
        if left < right:
            trimmed.append((left, right))
    return trimmed


def _ends(candidate: re.Match[str], classes: str) -> bool:
    """Decide whether a sentence ends with a candidate."""
    terminators, white_space = candidate[1], candidate[2]
    if terminators is None or white_space.count("\n") > 1:
        return True
    before = classes[max(0, candidate.start() - 2) : candidate.start()]
    following = classes[candidate.end() : candidate.end() + 1]
    if following == ",":  # SB8a
        return False
    if "S" in terminators:  # SB11
        return True
    if before[-1:] == "U" and before[:-1] not in {"U", "L", "O", "N"}:
        return False  # a single capital
    if candidate.end() == candidate.end(1):  # nothing between the full stop and what follows
        if following == "N":  # SB6: 3.14
            return False
        if following == "U" and before[-1:] in {"U", "L"}:  # SB7: U.S
            return False
    return _SMALL_NEXT.match(classes, candidate.end()) is None  # SB8


def _is_title(text: str, end: int) -> bool:
    """Whether what stands before a full stop is a title."""
    return re.split(r"\W", text[max(0, end - _LOOKED_AT) : end])[-1] in TITLES
