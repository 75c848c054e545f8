"""Choose the sentences of the demonstration from a corpus, and let a teacher score pairs of others for the dev set.

``python -m training.demo.make common-voice.txt.gz weights/all-MiniLM-L6-v2`` wrote the files beside this one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from model.contract import FloatArray
from model.embedder import Embedder
from training.files import replace_file
from training.lines import read_lines
from training.run import run_command

NUM_SENTENCES = 5000
NUM_DEV_SENTENCES = 1000
SEED = 0


def score_dev_pairs(sentences: Sequence[str], embeddings: FloatArray, seed: int) -> list[tuple[str, str, float]]:
    """Pair every sentence with the one that is nearest to it, and with any other.

    Parameters
    ----------
    sentences : sequence of n str
    embeddings : array, shape (n, D), float32
        Of unit length.
    seed : int

    Returns
    -------
    list of (str, str, float)
        No pair twice; the number is the cosine, so that a good student has the teacher's order of pairs.
    """
    cosines = embeddings @ embeddings.T
    generator = np.random.default_rng(seed)
    others = (np.arange(len(sentences)) + generator.integers(1, len(sentences), len(sentences))) % len(sentences)
    nearest = np.argmax(cosines - 2 * np.eye(len(sentences), dtype=np.float32), axis=1)
    pairs = {(min(i, j), max(i, j)) for found in (nearest, others) for i, j in enumerate(found.tolist())}
    return [(sentences[i], sentences[j], round(float(cosines[i, j]), 4)) for i, j in sorted(pairs)]


def _run(args: argparse.Namespace) -> int:
    sentences = [line for _, line in read_lines(args.corpus) if "\t" not in line]
    generator = np.random.default_rng(SEED)
    chosen = generator.choice(len(sentences), NUM_SENTENCES + NUM_DEV_SENTENCES, replace=False).tolist()
    picked = [sentences[place] for place in sorted(chosen[:NUM_SENTENCES])]
    held_out = [sentences[place] for place in sorted(chosen[NUM_SENTENCES:])]
    embeddings = Embedder.load(args.teacher, dtype="float32", device="cpu").encode(held_out)
    rows = ["sentence1\tsentence2\tscore"]
    rows += [f"{first}\t{second}\t{score:.4f}" for first, second, score in score_dev_pairs(held_out, embeddings, SEED)]
    replace_file(args.out / "sentences.txt", ("\n".join(picked) + "\n").encode())
    replace_file(args.out / "dev.tsv", ("\n".join(rows) + "\n").encode())
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.demo.make", description=__doc__)
    parser.add_argument("corpus", type=Path, help="sentences, one a line; may be a gzip file")
    parser.add_argument("teacher", type=Path, help="model folder")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="default: beside this file")
    args = parser.parse_args(arguments)
    return run_command("make", lambda: _run(args))


if __name__ == "__main__":
    raise SystemExit(main())
