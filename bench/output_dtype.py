"""What a narrower number type of embeddings costs in search: ``python -m bench.output_dtype``.

Each of 1,000 sentences asks for its nearest among the others, once with the embeddings themselves and once with what
``output_dtype`` makes of them, compared as a vector database does: int8 and uint8 by the cosine (of uint8 less 128),
bits by how many differ. float32 embeddings decide what is right.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.embedder import Embedder
from model.output_dtype import NUMPY_DTYPES, PACKED, convert, num_clipped
from model.output_types import OutputDtype

TEXTS = Path(__file__).parent / "texts" / "sentences-25.txt"
NEAREST = 10


def similarities(embeddings: NDArray[np.float32], output_dtype: OutputDtype) -> NDArray[np.float64]:
    """Compare all texts with each other, by numbers of one type: (n, D) -> (n, n)."""
    numbers: NDArray[Any] = convert(embeddings, output_dtype)
    if output_dtype in PACKED:
        shift = 128 if output_dtype == "binary" else 0
        bits = np.unpackbits((numbers.astype(np.int16) + shift).astype(np.uint8), axis=1).astype(np.float64)
        return bits @ bits.T + (1 - bits) @ (1 - bits).T  # dimensions less the Hamming distance
    wide = numbers.astype(np.float64) - (128 if output_dtype == "uint8" else 0)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    return np.asarray(wide @ wide.T)


def nearest(found: NDArray[np.float64]) -> NDArray[np.int64]:
    """Find each text's nearest others: (n, n) -> (n, NEAREST)."""
    others = found - 2 * np.abs(found).max() * np.eye(len(found))
    return np.asarray(np.argsort(-others, axis=1, kind="stable")[:, :NEAREST])


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank values, equal ones alike."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts + 1) / 2)[inverse])


def main() -> None:
    """Print a table: bytes of an embedding, neighbours kept, and how far the order of all pairs is kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="weights/eyeline-base")
    parser.add_argument("--dimensions", type=int)
    arguments = parser.parse_args()
    embedder = Embedder.load(arguments.model, dtype="float32", device="cpu")
    embeddings = embedder.encode(TEXTS.read_text().splitlines(), dimensions=arguments.dimensions)
    pairs = np.triu_indices(len(embeddings), 1)
    right = similarities(embeddings, "float32")
    print(f"{arguments.model}, {embeddings.shape[1]} dimensions, {len(embeddings)} sentences")
    print(f"int8: {num_clipped(embeddings).sum()} of {embeddings.size} numbers clipped")
    print(f"{'':10}{'bytes':>8}{'nearest':>10}{f'of {NEAREST}':>8}{'Spearman':>10}")
    for output_dtype in NUMPY_DTYPES:
        found = similarities(embeddings, output_dtype)
        both = zip(nearest(right), nearest(found), strict=True)
        kept = np.mean([len(set(a) & set(b)) / NEAREST for a, b in both])
        first = np.mean(nearest(right)[:, 0] == nearest(found)[:, 0])
        order = np.corrcoef(ranks(right[pairs]), ranks(found[pairs]))[0, 1]
        num_bytes = convert(embeddings[:1], output_dtype).nbytes
        print(f"{output_dtype:10}{num_bytes:8}{first:10.1%}{kept:8.1%}{order:10.4f}")


if __name__ == "__main__":
    main()
