"""Where the time of a batch goes, operator by operator, for each number format.

The profiler of PyTorch counts the time that an operator takes itself, without those it calls. It costs a few
microseconds a call, so batches are full ones. It sees the thread that asks alone, so there is one, as each lane is one.
``python -m bench.operators`` prints a table for docs/performance.md.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable

import torch
from torch.profiler import ProfilerActivity, profile

from bench.text_sets import TEXT_SETS, read_texts
from model.device import has_native_bfloat16
from model.embedder import Embedder

BATCH_TOKENS = 2048

GROUPS = {
    "attention core": ("scaled_dot_product", "flash_attention", "softmax", "bmm"),
    "linear layers": ("linear", "addmm", "mm"),
    "norms": ("layer_norm", "rms_norm", "var", "std"),
    "numbers to bytes": ("addcmul", "clamp", "to_copy", "copy_"),
    "rows gathered": ("index", "embedding", "gather", "cat", "pad"),
}
"""What an operator's name holds -> the row of the table it is counted in; the first that fits."""


def group_of(operator: str) -> str:
    """Find the row of an operator, such as ``aten::native_layer_norm``."""
    name = operator.rpartition("::")[2]
    return next((group for group, parts in GROUPS.items() if any(part in name for part in parts)), "other operators")


def shares(embedder: Embedder, texts: Iterable[str]) -> dict[str, float]:
    """Profile one pass over ``texts``: row of the table -> its share of all operators' own time.

    Raises
    ------
    RuntimeError
        If next to nothing ran where the profiler looks.
    """
    many = list(texts)
    embedder.encode(many, batch_tokens=BATCH_TOKENS)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        embedder.encode(many, batch_tokens=BATCH_TOKENS)
    times: Counter[str] = Counter()
    for event in profiler.key_averages():
        if "::" in event.key:
            times[group_of(event.key)] += event.self_cpu_time_total
    if "linear layers" not in times:
        raise RuntimeError("the profiler saw no linear layer: the texts ran on threads that it does not watch")
    return {group: time / times.total() for group, time in times.items()}


def main() -> None:
    """Print a table in Markdown: a row a group, a column a number format and a set of texts."""
    parser = argparse.ArgumentParser(prog="bench.operators", description=__doc__)
    parser.add_argument("--model", default="weights/all-MiniLM-L6-v2")
    parser.add_argument("--sets", nargs="+", choices=TEXT_SETS, default=["25", "200"])
    parser.add_argument("--texts", type=int, default=200, help="of each set")
    arguments = parser.parse_args()
    formats = ["float32", "int8"]
    if has_native_bfloat16(torch.device("cpu")):
        formats.insert(1, "bfloat16")
    columns: dict[str, dict[str, float]] = {}
    for dtype in formats:
        embedder = Embedder.load(arguments.model, dtype=dtype, device="cpu", threads=1)
        for text_set in arguments.sets:
            columns[f"{dtype}, {text_set}"] = shares(embedder, read_texts(text_set, arguments.texts))
    print(f"| share of the time | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for group in (*GROUPS, "other operators"):
        print(f"| {group} | {' | '.join(f'{column.get(group, 0.0):.0%}' for column in columns.values())} |")


if __name__ == "__main__":
    main()
