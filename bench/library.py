"""Speed of the library, next to others, in one run: ``make bench`` compares with sentence-transformers.

Each contender lives in a process of its own (:mod:`bench.contender`). They run in turn, round after round, so that a
machine whose speed drifts slows all of them; what counts is the ratio of medians. Run it on a machine that does nothing
else. ``bench.peers`` measures many more libraries in the same way.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.contender import Contender
from bench.libraries import UnavailableError
from bench.text_sets import NUM_TEXTS, read_texts
from model.device import available_threads
from model.embedder import Embedder

DTYPES = ("float32", "bfloat16", "int8")

SETTLE_SECONDS = 0.2
"""Between two contenders: the threads of a pool spin for a while before they sleep."""


@dataclass(slots=True)
class Figure:
    """What one library in one number format did with one set of texts.

    Attributes
    ----------
    model, text_set, library, dtype : str
    num_texts, num_tokens : int
        Tokens as Eyeline's tokenizer counts them, special tokens included.
    settings : str
        What was chosen for the set, a batch size for instance.
    seconds : list of float
        For all texts, one number a round.
    cosine_mean, cosine_min : float or None
        Between its embeddings and Eyeline's in float32, over the texts; None where there are no embeddings.
    """

    model: str
    text_set: str
    library: str
    dtype: str
    num_texts: int
    num_tokens: int
    settings: str = ""
    seconds: list[float] = field(default_factory=list)
    cosine_mean: float | None = None
    cosine_min: float | None = None

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.library} {self.dtype}"

    @property
    def texts_per_second(self) -> float:
        """By the median round."""
        return self.num_texts / statistics.median(self.seconds)

    @property
    def tokens_per_second(self) -> float:
        """By the median round."""
        return self.num_tokens / statistics.median(self.seconds)


@contextmanager
def starting(
    libraries: Iterable[tuple[str, str, str | Path]], model: str, num_texts: int, unavailable: dict[str, str]
) -> Iterator[list[Contender]]:
    """Start contenders, and end them.

    Parameters
    ----------
    libraries : iterable of (library, dtype, interpreter)
    model : str
    num_texts : int
    unavailable : dict of str to str
        What cannot be had is entered here, with the reason.
    """
    contenders: list[Contender] = []
    try:
        for library, dtype, python in libraries:
            try:
                contender = Contender(
                    library, dtype, model, python=python, threads=available_threads(), num_texts=num_texts
                )
                contenders.append(contender)
            except UnavailableError as error:
                unavailable[f"{library} {dtype}"] = str(error)
        yield contenders
    finally:
        for contender in contenders:
            contender.close()


def measure(
    contenders: Sequence[Contender],
    model: str,
    text_sets: Sequence[str],
    num_texts: int,
    num_rounds: int,
    unavailable: dict[str, str],
) -> list[Figure]:
    """Let the contenders encode every set, in turn, so many times; one that fails is left out, with its reason."""
    tokenizer = Embedder.load(model, device="cpu").tokenizer
    texts = {text_set: read_texts(text_set, num_texts) for text_set in text_sets}
    num_tokens = {name: sum(item.num_tokens for item in tokenizer.encode(many)) for name, many in texts.items()}
    figures = {
        (contender, text_set): Figure(
            model, text_set, contender.library, contender.dtype, len(texts[text_set]), num_tokens[text_set]
        )
        for text_set in text_sets
        for contender in contenders
    }

    def leave_out(contender: Contender, error: UnavailableError) -> None:
        unavailable[contender.name] = str(error)
        for text_set in text_sets:
            figures.pop((contender, text_set), None)

    with tempfile.TemporaryDirectory() as folder:
        files = {key: Path(folder) / f"{number}.npy" for number, key in enumerate(figures)}
        for contender, text_set in list(figures):
            if figure := figures.get((contender, text_set)):
                try:
                    figure.settings = contender.prepare(text_set, files[contender, text_set])
                except UnavailableError as error:
                    leave_out(contender, error)
        compare_embeddings([(figure, files[key]) for key, figure in figures.items()])
    for _ in range(num_rounds):
        for contender, text_set in list(figures):
            if figure := figures.get((contender, text_set)):
                time.sleep(SETTLE_SECONDS)
                try:
                    figure.seconds.append(contender.run(text_set))
                except UnavailableError as error:
                    leave_out(contender, error)
    return list(figures.values())


def compare_embeddings(encoded: Sequence[tuple[Figure, Path]]) -> None:
    """Enter how near each contender's embeddings are to Eyeline's in float32, where there are any."""
    exact = {figure.text_set: np.load(file) for figure, file in encoded if figure.name == "eyeline float32"}
    for figure, file in encoded:
        if file.exists():
            cosines = cosine(np.load(file), exact[figure.text_set])
            figure.cosine_mean, figure.cosine_min = float(cosines.mean()), float(cosines.min())


def cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compare rows one by one: (n, D), (n, D) -> (n,)."""
    product: NDArray[np.float32] = np.einsum("nd,nd->n", a, b)
    return product / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))


def main() -> None:
    """Print texts and tokens per second, and ratios to the peer's float32."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="weights/all-MiniLM-L6-v2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=NUM_TEXTS)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    has_peer = importlib.util.find_spec("sentence_transformers") is not None
    libraries = ["eyeline", *(["sentence-transformers"] if has_peer else [])]
    wanted = [(library, dtype, sys.executable) for library in libraries for dtype in DTYPES]
    unavailable: dict[str, str] = {}
    with starting(wanted, arguments.model, arguments.texts, unavailable) as contenders:
        figures = measure(contenders, arguments.model, ["25"], arguments.texts, arguments.rounds, unavailable)
    report(figures, arguments.rounds, arguments.json)


def report(figures: list[Figure], num_rounds: int, target: Path | None) -> None:
    """Print the table, and write it as JSON where asked."""
    rates = {figure.name: figure.tokens_per_second for figure in figures}
    base = rates.get("sentence-transformers float32", rates["eyeline float32"])
    print(
        f"{figures[0].num_texts} texts, {figures[0].num_tokens} tokens, {available_threads()} threads, "
        f"{num_rounds} rounds, medians"
    )
    print(f"{'':32}{'texts/s':>10}{'tokens/s':>10}{'ratio':>8}")
    for figure in figures:
        print(
            f"{figure.name:32}{figure.texts_per_second:10.0f}{figure.tokens_per_second:10.0f}"
            f"{figure.tokens_per_second / base:8.2f}"
        )
    if target:
        written = {
            figure.name: {"texts_per_s": figure.texts_per_second, "tokens_per_s": figure.tokens_per_second}
            for figure in figures
        }
        target.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
