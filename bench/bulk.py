"""Speed of ``eyeline encode`` next to the library, in one run: ``python -m bench.bulk``.

Both encode the same sentences with one loaded model, in turn, round after round: the library by one call of
``Embedder.encode``, the command's ``encode_file`` from a text file to a file of vectors. What counts is the ratio of
medians: of the seconds on the clock, and of the processor's, which other programs on the machine change less. Starting
Python and loading the model is in neither.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from app.bulk.encode import encode_file
from app.bulk.options import WINDOW_TEXTS, BulkOptions, OutputKind
from app.bulk.progress import ProgressBar
from app.bulk.window import BulkLimits
from bench.text_sets import read_texts
from model.embedder import Embedder

OUTPUTS: tuple[OutputKind, ...] = ("npy", "safetensors", "jsonl", "parquet")
LIMITS = BulkLimits(
    max_text_characters=200_000, batch_tokens=None, batch_attention_values=0, max_attention_values_computed=0
)


@dataclass(slots=True)
class Taken:
    """What each round took: on the clock, and of the processor."""

    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)

    def measure(self, work: Callable[[], object]) -> None:
        """Do some work, and note what it takes."""
        began, processor_began = time.perf_counter(), time.process_time()
        work()
        self.seconds.append(time.perf_counter() - began)
        self.processor_seconds.append(time.process_time() - processor_began)


def make_sentences(num_texts: int) -> list[str]:
    """Return so many sentences that all differ: those of the set of 25 tokens, with their number in front."""
    sentences = read_texts("25")
    return [f"{number}: {sentences[number % len(sentences)]}" for number in range(num_texts)]


def encode_to(source: Path, output: Path, kind: OutputKind, window_texts: int, embedder: Embedder) -> None:
    """Do what the command does once the model is loaded."""
    options = BulkOptions(source, "text", output, kind, overwrite=True, window_texts=window_texts)
    with closing(ProgressBar(output.name, show=False)) as bar:
        encode_file(options, embedder, LIMITS, bar, io.BytesIO())


def main() -> None:
    """Print texts per second and processor time of both, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="weights/eyeline-base")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--output", default="npy", choices=OUTPUTS)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--window", type=int, default=WINDOW_TEXTS)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    sentences = make_sentences(arguments.texts)
    embedder = Embedder.load(arguments.model, dtype=arguments.dtype, device="cpu")
    embedder.encode(sentences[:64])
    library, command = Taken(), Taken()
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / "in.txt", Path(folder) / f"out.{arguments.output}"
        source.write_text("".join(f"{sentence}\n" for sentence in sentences), encoding="utf-8")
        for number in range(arguments.rounds):
            turns: list[tuple[Taken, Callable[[], object]]] = [
                (library, lambda: embedder.encode(sentences)),
                (command, lambda: encode_to(source, output, arguments.output, arguments.window, embedder)),
            ]
            for taken, work in turns[:: 1 if number % 2 == 0 else -1]:  # neither is always the first
                taken.measure(work)
    print(f"{arguments.model}, {arguments.dtype}, {arguments.texts} sentences in windows of {arguments.window}")
    print(f"{'':28}{'texts/s':>10}{'processor s':>14}   {arguments.rounds} rounds, medians")
    for name, taken in (("Embedder.encode", library), (f"eyeline encode, {arguments.output}", command)):
        per_second = arguments.texts / statistics.median(taken.seconds)
        print(f"{name:28}{per_second:10.0f}{statistics.median(taken.processor_seconds):14.2f}")
    wall = statistics.median(library.seconds) / statistics.median(command.seconds)
    processor = statistics.median(library.processor_seconds) / statistics.median(command.processor_seconds)
    print(f"of the library's throughput: {wall:.0%} on the clock, {processor:.0%} by processor time")
    for name, alone, bulk in (
        ("on the clock", library.seconds, command.seconds),
        ("by processor time", library.processor_seconds, command.processor_seconds),
    ):
        print(f"round by round, {name}:", *(f"{mine / theirs:.0%}" for mine, theirs in zip(alone, bulk, strict=True)))


if __name__ == "__main__":
    main()
