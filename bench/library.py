"""Speed of the library, next to sentence-transformers, in one run.

Everything that is compared runs in turn, round after round, so that a machine whose speed drifts slows all of them;
what counts is the ratio of medians. Run it with ``make bench`` on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from model.device import available_threads, has_native_bfloat16
from model.embedder import Embedder

TEXTS = Path(__file__).parent / "texts" / "sentences-25.txt"


def make_contenders(folder: str) -> dict[str, Callable[[list[str]], object]]:
    """Load everything that is compared: name -> what encodes all texts."""
    contenders: dict[str, Callable[[list[str]], object]] = {
        "Eyeline float32": Embedder.load(folder, dtype="float32", device="cpu").encode
    }
    has_bfloat16 = has_native_bfloat16(torch.device("cpu"))
    if has_bfloat16:
        contenders["Eyeline bfloat16"] = Embedder.load(folder, dtype="bfloat16", device="cpu").encode
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        print("sentence-transformers is not installed: Eyeline alone")
        return contenders
    names = {"sentence-transformers float32": torch.float32}
    if has_bfloat16:
        names["sentence-transformers bfloat16"] = torch.bfloat16
    for name, dtype in names.items():
        peer = SentenceTransformer(folder, device="cpu", local_files_only=True, model_kwargs={"dtype": dtype})
        contenders[name] = lambda texts, peer=peer: peer.encode(texts, batch_size=32, show_progress_bar=False)
    return contenders


def measure(contenders: dict[str, Callable[[list[str]], object]], texts: list[str], rounds: int) -> dict[str, float]:
    """Return the median seconds of each contender, over ``rounds`` interleaved rounds after a warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for encode in contenders.values():
        encode(texts)
    for _ in range(rounds):
        for name, encode in contenders.items():
            started = time.perf_counter()
            encode(texts)
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    """Print texts and tokens per second, and ratios to the slowest peer's float32."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="weights/all-MiniLM-L6-v2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    texts = TEXTS.read_text(encoding="utf-8").splitlines()
    contenders = make_contenders(arguments.model)
    torch.set_num_threads(available_threads())
    tokens = sum(item.num_tokens for item in Embedder.load(arguments.model, device="cpu").tokenizer.encode(texts))
    medians = measure(contenders, texts, arguments.rounds)
    base = medians.get("sentence-transformers float32", medians["Eyeline float32"])
    print(f"{len(texts)} texts, {tokens} tokens, {torch.get_num_threads()} threads, {arguments.rounds} rounds, medians")
    print(f"{'':32}{'texts/s':>10}{'tokens/s':>10}{'ratio':>8}")
    for name, median in medians.items():
        print(f"{name:32}{len(texts) / median:10.0f}{tokens / median:10.0f}{base / median:8.2f}")
    if arguments.json:
        figures = {name: {"texts_per_s": len(texts) / s, "tokens_per_s": tokens / s} for name, s in medians.items()}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
