"""Speed of the library, next to sentence-transformers, in one run.

Each contender lives in a process of its own, so that none profits from what another did to the allocator or the thread
pools. They run in turn, round after round, so that a machine whose speed drifts slows all of them; what counts is the
ratio of medians. Run it with ``make bench`` on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from model.device import available_threads, has_native_bfloat16
from model.embedder import Embedder

TEXTS = Path(__file__).parent / "texts" / "sentences-25.txt"

PEER_BATCH_SIZE = 32
"""sentence-transformers' own default; it sorts by length too."""


def load_contender(library: str, model: str, dtype: str) -> Callable[[list[str]], object]:
    """Return what encodes texts with one library in one number format."""
    if library == "eyeline":
        return Embedder.load(model, dtype=dtype, device="cpu").encode
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(available_threads())
    peer = SentenceTransformer(
        model, device="cpu", local_files_only=True, model_kwargs={"dtype": getattr(torch, dtype)}
    )
    return lambda texts: peer.encode(texts, batch_size=PEER_BATCH_SIZE, show_progress_bar=False)


def contend(library: str, model: str, dtype: str) -> None:
    """Encode all texts once for each line on standard input, and answer with the seconds it took."""
    texts = TEXTS.read_text(encoding="utf-8").splitlines()
    encode = load_contender(library, model, dtype)
    encode(texts)
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        encode(texts)
        print(f"seconds {time.perf_counter() - started}", flush=True)


class Contender:
    """A process that encodes when it is told to."""

    def __init__(self, library: str, model: str, dtype: str) -> None:
        self.name = f"{library} {dtype}"
        self.seconds: list[float] = []
        command = [sys.executable, "-m", "bench.library", "--contend", library, "--dtype", dtype, "--model", model]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._answer("ready")

    def run(self) -> None:
        """Encode all texts once."""
        print("go", file=self._process.stdin, flush=True)
        self.seconds.append(float(self._answer("seconds")))

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=30)

    def _answer(self, word: str) -> str:
        """Read lines up to the one that begins with ``word``; return what follows it."""
        for line in self._process.stdout or ():
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise SystemExit(f"{self.name} ended without an answer")


def main() -> None:
    """Print texts and tokens per second, and ratios to the peer's float32."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="weights/all-MiniLM-L6-v2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--contend", metavar="LIBRARY", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="float32", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contend:
        contend(arguments.contend, arguments.model, arguments.dtype)
        return
    dtypes = ["float32", *(["bfloat16"] if has_native_bfloat16(torch.device("cpu")) else [])]
    has_peer = importlib.util.find_spec("sentence_transformers") is not None
    libraries = ["eyeline", *(["sentence-transformers"] if has_peer else [])]
    contenders = [Contender(library, arguments.model, dtype) for library in libraries for dtype in dtypes]
    for _ in range(arguments.rounds):
        for contender in contenders:
            contender.run()
    for contender in contenders:
        contender.close()
    report(contenders, arguments.model, arguments.rounds, arguments.json)


def report(contenders: list[Contender], model: str, rounds: int, target: Path | None) -> None:
    """Print the table, and write it as JSON where asked."""
    texts = TEXTS.read_text(encoding="utf-8").splitlines()
    tokens = sum(item.num_tokens for item in Embedder.load(model, device="cpu").tokenizer.encode(texts))
    medians = {contender.name: statistics.median(contender.seconds) for contender in contenders}
    base = medians.get("sentence-transformers float32", medians["eyeline float32"])
    print(f"{len(texts)} texts, {tokens} tokens, {available_threads()} threads, {rounds} rounds, medians")
    print(f"{'':32}{'texts/s':>10}{'tokens/s':>10}{'ratio':>8}")
    for name, median in medians.items():
        print(f"{name:32}{len(texts) / median:10.0f}{tokens / median:10.0f}{base / median:8.2f}")
    if target:
        figures = {name: {"texts_per_s": len(texts) / s, "tokens_per_s": tokens / s} for name, s in medians.items()}
        target.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
