"""Train on pairs that belong together: ``python -m training.contrastive OUT --pairs FILE ... --init FOLDER``.

Each anchor must find its positive among those of its batch and among the hard negatives, if the files have any.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from model.errors import CheckpointError
from training.data import CorpusSpec, choose_texts, token_batches
from training.errors import RunError
from training.losses import contrastive_loss
from training.pairs import Pair, read_pairs
from training.run import (
    DevSet,
    Place,
    add_run_options,
    check_dimensions,
    choose_place,
    numbers,
    open_run,
    prepare_out,
    run_command,
    train_and_export,
)
from training.student import FAMILIES, Student, TokenStore, embed, load_student, new_encoder, student_config
from training.trainer import BatchLoss
from training.vocabulary import train_wordpiece


class ContrastiveTask:
    """Tell pairs apart.

    Parameters
    ----------
    student : Student
        On the device already.
    pairs : sequence of sequence of Pair
        One sequence a file.
    weights : sequence of float
        Passes over each file in one pass over the data.
    temperature : float
    dimensions : sequence of int
        Matryoshka: the first so many dimensions shall tell pairs apart too.
    dev : DevSet
    place : Place
    batch_tokens, seed : int
    """

    def __init__(
        self,
        student: Student,
        pairs: Sequence[Sequence[Pair]],
        weights: Sequence[float],
        *,
        temperature: float,
        dimensions: Sequence[int],
        dev: DevSet,
        place: Place,
        batch_tokens: int,
        seed: int,
    ) -> None:
        self.model: nn.Module = nn.ModuleDict({"encoder": student.encoder})
        self._student, self._place, self._dev = student, place, dev
        self._temperature, self._batch_tokens, self._seed = temperature, batch_tokens, seed
        self._sizes, self._weights = [len(part) for part in pairs], weights
        width = student.encoder.config.hidden_size
        self._dimensions = (*(number for number in dimensions if number != width), width)
        every = [pair for part in pairs for pair in part]
        texts = dict.fromkeys(text for pair in every for text in (pair.anchor, pair.positive, *pair.negatives))
        place_of = {text: index for index, text in enumerate(texts)}
        self._store = TokenStore.of(student.tokenizer(), list(texts))
        # equal texts have equal places, which is how a batch knows that a candidate is no negative
        self._members = [
            (place_of[pair.anchor], place_of[pair.positive], tuple(place_of[text] for text in pair.negatives))
            for pair in every
        ]
        self._lengths = np.array(
            [sum(int(self._store.lengths[text]) for text in (a, p, *negatives)) for a, p, negatives in self._members],
            dtype=np.int64,
        )

    def plan(self, epoch: int) -> list[NDArray[np.int64]]:
        """Choose and cut the pairs of one pass; a batch that has nothing to tell its only pair from is left out."""
        generator = np.random.default_rng((self._seed, epoch))
        chosen = choose_texts(self._sizes, self._weights, generator)
        batches = token_batches(self._lengths, chosen, self._batch_tokens, generator)
        return [batch for batch in batches if len(batch) > 1 or self._has_hard_negative(int(batch[0]))]

    def _has_hard_negative(self, pair: int) -> bool:
        anchor, positive, negatives = self._members[pair]
        return any(text not in (anchor, positive) for text in negatives)

    def loss(self, batch: NDArray[np.int64]) -> BatchLoss:
        """Let every anchor of a batch find its positive."""
        members = [self._members[index] for index in batch.tolist()]
        anchors = [anchor for anchor, _, _ in members]
        candidates = [positive for _, positive, _ in members]
        candidates += [text for _, _, negatives in members for text in negatives]
        inputs = self._store.inputs(anchors + candidates)
        rows = embed(self._student.encoder, inputs, self._student.pooling, self._place.dtype)
        same = self._same(anchors, candidates)
        losses = [
            contrastive_loss(rows[: len(batch), :width], rows[len(batch) :, :width], self._temperature, same)
            for width in self._dimensions
        ]
        total = torch.stack(losses).mean()
        return BatchLoss(total, {"contrastive": float(losses[-1].detach())}, sum(item.num_tokens for item in inputs))

    def _same(self, anchors: Sequence[int], candidates: Sequence[int]) -> Tensor:
        """Mark candidates that equal the anchor or its positive, and those of an equal anchor."""
        first, other = np.array(anchors)[:, None], np.array(candidates)[None, :]
        positive = np.array(candidates[: len(anchors)])[:, None]
        same = (other == first) | (other == positive)
        same[:, : len(anchors)] |= first == np.array(anchors)[None, :]
        return torch.from_numpy(same).to(self._place.device)

    def dev_score(self) -> float | None:
        """Score the student on the dev set."""
        return self._dev.score(self._place.dtype)


def make_student(args: argparse.Namespace, pairs: Sequence[Sequence[Pair]]) -> Student:
    """Take up a folder, or build a student from scratch, with a tokenizer given or trained on the pairs.

    Raises
    ------
    RunError, CheckpointError
    """
    if args.init is not None:
        return load_student(args.init, dropout=args.dropout)
    if args.tokenizer is not None:
        try:
            backend = tokenizers.Tokenizer.from_file(str(args.tokenizer))
        except Exception as error:  # the Rust side raises bare Exception for every fault of a file
            raise CheckpointError(f"{args.tokenizer} is not a tokenizer.json: {error}") from error
    else:
        texts = (text for part in pairs for pair in part for text in (pair.anchor, pair.positive, *pair.negatives))
        backend = train_wordpiece(texts, args.train_vocabulary)
    raw = student_config(
        family=args.family,
        vocab_size=max(backend.get_vocab(with_added_tokens=True).values()) + 1,
        hidden_size=args.hidden_size,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        intermediate_size=args.intermediate_size,
        max_length=args.max_length,
        pad_token_id=backend.token_to_id("[PAD]") or 0,
    )
    torch.manual_seed(args.seed)
    return Student(new_encoder(raw, dropout=args.dropout), raw, backend)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training.contrastive", description=__doc__)
    parser.add_argument("out", type=Path, help="model folder to write")
    parser.add_argument("--pairs", action="append", required=True, metavar="FILE[,weight=W]", help="repeats")
    parser.add_argument("--temperature", type=float, default=0.05, help="cosines are divided by it; %(default)s")
    parser.add_argument("--matryoshka", type=numbers, default=[], metavar="64,128,192,256", help="default: none")
    student = parser.add_argument_group("the student")
    student.add_argument("--init", type=Path, help="begin as this model folder; without it, from scratch:")
    student.add_argument("--family", choices=sorted(FAMILIES), default="seed-2", help="default: %(default)s")
    student.add_argument("--layers", type=int, default=6, help="default: %(default)s")
    student.add_argument("--heads", type=int, default=8, help="default: %(default)s")
    student.add_argument("--hidden-size", type=int, default=512, help="default: %(default)s")
    student.add_argument("--intermediate-size", type=int, default=1024, help="default: %(default)s")
    student.add_argument("--max-length", type=int, default=512, help="tokens read of a text; default: %(default)s")
    student.add_argument("--tokenizer", type=Path, help="a tokenizer.json; without it, one is trained on the pairs")
    student.add_argument("--train-vocabulary", type=int, default=16000, metavar="SIZE", help="default: %(default)s")
    add_run_options(parser, learning_rate=1e-4, dropout=0.1)
    return parser


def _run(args: argparse.Namespace) -> int:
    if not args.temperature > 0:
        raise RunError(f"--temperature must be above 0, not {args.temperature}")
    place = choose_place(args)
    prepare_out(args)
    specs = [CorpusSpec.parse(text) for text in args.pairs]
    if any(spec.join != 1 or spec.take is not None or spec.swap != 0 for spec in specs):
        raise RunError("pairs cannot be joined, taken in part or swapped: leave join, take and swap out")
    step = open_run(args.run, vars(args))
    if step is not None:
        sys.stderr.write(f"{args.run}: going on from step {step}\n")
    pairs = [read_pairs(spec.path) for spec in specs]
    student = make_student(args, pairs)
    check_dimensions(args.matryoshka, student.encoder.config.hidden_size)
    student.encoder.to(place.device)
    task = ContrastiveTask(
        student, pairs, [spec.weight for spec in specs], temperature=args.temperature, dimensions=args.matryoshka,
        dev=DevSet(args.dev, student), place=place, batch_tokens=args.batch_tokens, seed=args.seed,
    )  # fmt: skip
    counts = ", ".join(f"{spec.name} ({len(part)})" for spec, part in zip(specs, pairs, strict=True))
    begun = "from scratch" if args.init is None else args.init.resolve().name
    return train_and_export(args, task, student, {"Began": begun, "Pairs": counts})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    args = _parser().parse_args(arguments)
    return run_command("contrastive", lambda: _run(args))


if __name__ == "__main__":
    raise SystemExit(main())
