"""Which word each token belongs to.

A word is a run of characters without white space in the caller's own text. In scripts that are written without spaces
(Chinese, Japanese, Thai, Lao, Khmer, Burmese) a run is cut further, where the model's own pre-tokenizer cuts it.
Pieces of pre-tokenizers are no words by themselves: BERT's makes three of "don't".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

_RUN = re.compile(r"\S+")
_SPACELESS = re.compile(
    "["
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u3040-\u30ff\u31f0-\u31ff"  # Hiragana, Katakana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Han
    "\U00020000-\U0003ffff"  # Han, supplementary planes
    "]"
)


@dataclass(frozen=True, slots=True)
class Span:
    """A word's code points in its text, end exclusive."""

    start: int
    end: int


def words_of(
    text: str, offsets: Sequence[tuple[int, int]], pieces: Sequence[int | None]
) -> tuple[list[Span], list[int]]:
    """Find the words of a text and the word of each token.

    Parameters
    ----------
    text : str
    offsets : sequence of (int, int)
        Code points of each token in ``text``. Empty offsets belong to the word that begins there, else to the last.
    pieces : sequence of (int or None)
        The pre-tokenizer's number for each token (``Encoding.word_ids``).

    Returns
    -------
    list of Span
        The words in which at least one token lies, in order.
    list of int
        For each token, the index of its word.
    """
    runs = _runs_until(text, max((end for _, end in offsets), default=0))
    spans: list[Span] = []
    words: list[int] = []
    keys: dict[tuple[int, int | None], int] = {}
    run_index = 0
    is_cut_of: dict[int, bool] = {}  # searched once a run, not once a token: a run may be the whole of a long text
    for (start, end), piece in zip(offsets, pieces, strict=True):
        start = _first_visible(text, start, end)
        while run_index + 1 < len(runs) and runs[run_index].end <= start:
            run_index += 1
        run = runs[run_index] if runs else Span(start, end)
        is_cut = is_cut_of.get(run.start)
        if is_cut is None:
            is_cut = is_cut_of[run.start] = _SPACELESS.search(text, run.start, run.end) is not None
        key = (run.start, piece if is_cut else None)
        if key not in keys:
            keys[key] = len(spans)
            spans.append(Span(start, end) if is_cut else run)
        elif is_cut:
            span = spans[keys[key]]
            spans[keys[key]] = Span(min(span.start, start), max(span.end, end))
        words.append(keys[key])
    return [_with_marks(text, spans, index) for index in range(len(spans))], words


def _with_marks(text: str, spans: Sequence[Span], index: int) -> Span:
    """Widen a word that was cut over the marks behind it that no token covers: tokenizers that strip accents drop them.

    A run that was not cut ends at white space, which is no mark.
    """
    start, end = spans[index].start, spans[index].end
    bound = spans[index + 1].start if index + 1 < len(spans) else len(text)
    while end < bound and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return Span(start, end)


def _runs_until(text: str, last: int) -> list[Span]:
    """Find the runs that begin up to ``last``, and at least one: behind it, a text that was cut may be very long."""
    runs: list[Span] = []
    for match in _RUN.finditer(text):
        if runs and match.start() > last:
            break
        runs.append(Span(*match.span()))
    return runs


def _first_visible(text: str, start: int, end: int) -> int:
    """Step over the white space that byte-level and SentencePiece tokens carry in front of them."""
    while start < end and text[start].isspace():
        start += 1
    return start
