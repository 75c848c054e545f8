"""Corpora: sentences, one a line, from text files, and both sides of files of pairs; each with its weight.

A corpus is named on a command line as ``FILE[,weight=W][,join=N][,take=M][,swap=S]``. The weight is how often a pass
over the data sees the corpus: 1 = all of it once, 0.25 = a quarter, another one each time, 3 = all of it three times.
``join=N`` makes texts of 2 to N consecutive sentences out of it, for encoders that shall read more than a sentence.
``take=M`` keeps M texts, always the same ones, so that a teacher embeds no more than will be seen. ``swap=S`` puts
other words of the corpus, rare ones as likely as common ones, in the place of a share S of the words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.errors import CorpusError
from training.lines import read_lines
from training.pairs import PAIR_SUFFIXES, read_pairs

IntArray = NDArray[np.int64]

_CORPUS_SEED = 20_170_612
"""What is joined, taken and swapped depends on the corpus alone, so that its stored embeddings serve every run."""


@dataclass(frozen=True, slots=True)
class CorpusSpec:
    """What a command line says of a corpus.

    Attributes
    ----------
    path : Path
    weight : float
        Passes over the corpus in one pass over the data.
    join : int
        Longest run of sentences that are made one text; 1 = every sentence by itself.
    take : int or None
        Texts that are kept, drawn at random once and for all; None = all.
    swap : float
        Share of the words that others take the place of, 0 to 1.
    """

    path: Path
    weight: float = 1.0
    join: int = 1
    take: int | None = None
    swap: float = 0.0

    @classmethod
    def parse(cls, text: str) -> CorpusSpec:
        """Read ``FILE[,weight=W][,join=N][,take=M][,swap=S]``.

        Raises
        ------
        CorpusError
            If an option is unknown, or its value is none that it can have.
        """
        path, *options = text.split(",")
        weight, join, take, swap = 1.0, 1, None, 0.0
        for option in options:
            name, _, value = option.partition("=")
            try:
                if name == "weight":
                    weight = float(value)
                elif name == "join":
                    join = int(value)
                elif name == "take":
                    take = int(value)
                elif name == "swap":
                    swap = float(value)
                else:
                    raise CorpusError(f"corpus {text!r}: {name!r} is no option, only weight, join, take and swap are")
            except ValueError:
                raise CorpusError(f"corpus {text!r}: {name} {value!r} is not a number") from None
        if not (math.isfinite(weight) and weight > 0) or join < 1 or (take is not None and take < 1):
            raise CorpusError(f"corpus {text!r}: weight must be above 0, join and take at least 1")
        if not 0 <= swap <= 1:
            raise CorpusError(f"corpus {text!r}: swap must be from 0 to 1")
        return cls(Path(path), weight, join, take, swap)

    @property
    def name(self) -> str:
        """Name of the file without its endings; with join, take and swap, where they are given."""
        stem = self.path.name.removesuffix(".gz").rsplit(".", 1)[0]
        joined = "" if self.join == 1 else f"-join{self.join}"
        taken = "" if self.take is None else f"-take{self.take}"
        return stem + joined + taken + ("" if self.swap == 0 else f"-swap{self.swap:g}")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts and how often they are seen.

    Attributes
    ----------
    name : str
    texts : list of n str
    weight : float
    """

    name: str
    texts: list[str]
    weight: float


def read_corpora(specs: Sequence[CorpusSpec]) -> list[Corpus]:
    """Read every corpus of a run.

    Raises
    ------
    CorpusError
        If two corpora have one name, or one cannot be read or is empty.
    """
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise CorpusError(f"two corpora are called {name!r}; rename one of the files")
    return [Corpus(spec.name, read_texts(spec), spec.weight) for spec in specs]


def read_texts(spec: CorpusSpec) -> list[str]:
    """Read the texts of one corpus, joined, fewer and with other words where asked.

    Raises
    ------
    CorpusError
        If the file cannot be read, is not UTF-8, or holds no text.
    """
    if spec.path.name.removesuffix(".gz").endswith(PAIR_SUFFIXES):
        texts = [text for pair in read_pairs(spec.path) for text in (pair.anchor, pair.positive)]
    else:
        texts = [line for _, line in read_lines(spec.path)]
    if not texts:
        raise CorpusError(f"{spec.path} holds no text")
    words = distinct_words(texts) if spec.swap > 0 else []
    if spec.join > 1:
        texts = join_sentences(texts, spec.join)
    if spec.take is not None and spec.take < len(texts):
        kept = np.random.default_rng(_CORPUS_SEED).choice(len(texts), spec.take, replace=False)
        texts = [texts[place] for place in sorted(kept.tolist())]
    return swap_words(texts, words, spec.swap) if words else texts


_WORD = re.compile(r"[^\W\d_]{4,}")
"""Four letters or more: what says what a text is about, with hardly an article or a preposition."""


def distinct_words(texts: Sequence[str]) -> list[str]:
    """Find the words of at least four letters, each once, in order of the alphabet."""
    return sorted({word for text in texts for word in _WORD.findall(text)})


def swap_words(texts: Sequence[str], words: Sequence[str], share: float) -> list[str]:
    """Put words drawn from ``words``, each as likely, in the place of a share of the words of four letters or more.

    What comes out means little, but a teacher has a vector for it. So a student reads words in company that its texts
    do not have, and rare words as often as common ones. TinyBERT (https://arxiv.org/abs/1909.10351) swaps words for
    like ones.
    """
    generator = np.random.default_rng(_CORPUS_SEED)

    def swapped(match: re.Match[str]) -> str:
        return words[int(generator.integers(len(words)))] if generator.random() < share else match.group()

    return [_WORD.sub(swapped, text) for text in texts]


def join_sentences(sentences: Sequence[str], longest: int) -> list[str]:
    """Make texts of 2 to ``longest`` (at least 2) consecutive sentences; the last may be shorter."""
    generator = np.random.default_rng(_CORPUS_SEED)
    texts, start = [], 0
    while start < len(sentences):
        length = int(generator.integers(2, longest, endpoint=True))
        texts.append(" ".join(sentences[start : start + length]))
        start += length
    return texts


def choose_texts(sizes: Sequence[int], weights: Sequence[float], generator: np.random.Generator) -> IntArray:
    """Choose what one pass over the data sees.

    Parameters
    ----------
    sizes : sequence of int
        Texts in each corpus.
    weights : sequence of float
    generator : np.random.Generator

    Returns
    -------
    array of int
        Places in all corpora put one after another, in no useful order.
    """
    chosen, start = [], 0
    for size, weight in zip(sizes, weights, strict=True):
        whole = int(weight)
        part = round((weight - whole) * size)
        chosen += [np.arange(start, start + size)] * whole
        chosen.append(start + generator.choice(size, part, replace=False, shuffle=False))
        start += size
    return np.concatenate(chosen).astype(np.int64)


def mixed_batches(
    lengths: IntArray, chosen: IntArray, max_tokens: int, generator: np.random.Generator
) -> list[IntArray]:
    """Cut texts into batches of any lengths, so that a batch compares a question with a page.

    Parameters and returns are those of :func:`token_batches`. Texts are packed without padding, so that only the
    attention core notices: it runs once for each group of like length.
    """
    return _cut(lengths, generator.permutation(chosen), max_tokens) if len(chosen) else []


POOL_BATCHES = 64
"""Batches' worth of texts that are sorted by length together: enough for like lengths, few enough to stay mixed."""


def token_batches(
    lengths: IntArray, chosen: IntArray, max_tokens: int, generator: np.random.Generator
) -> list[IntArray]:
    """Cut texts into batches of like length, each of at most ``max_tokens`` tokens, and shuffle the batches.

    Parameters
    ----------
    lengths : array of int
        Tokens of every text.
    chosen : array of int
        Places of the texts to batch; a place may come twice.
    max_tokens : int
        A longer text is a batch of its own.
    generator : np.random.Generator

    Returns
    -------
    list of array of int
        Each text of ``chosen`` in exactly one batch.
    """
    if not len(chosen):
        return []
    shuffled = generator.permutation(chosen)
    average = float(lengths[shuffled].mean())
    pool = max(1, int(POOL_BATCHES * max_tokens / max(average, 1.0)))
    batches: list[IntArray] = []
    for start in range(0, len(shuffled), pool):
        members = shuffled[start : start + pool]
        batches += _cut(lengths, members[np.argsort(lengths[members], kind="stable")], max_tokens)
    return [batches[place] for place in generator.permutation(len(batches))]


def _cut(lengths: IntArray, members: IntArray, max_tokens: int) -> list[IntArray]:
    """Cut a row of texts where the next one would be too much for its batch."""
    batches, first, tokens = [], 0, 0
    for place, length in enumerate(lengths[members].tolist()):
        if place > first and tokens + length > max_tokens:
            batches.append(members[first:place])
            first, tokens = place, 0
        tokens += length
    return [*batches, members[first:]]
