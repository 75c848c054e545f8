"""Teach a small encoder to embed as a larger one does: ``python -m training.distil TEACHER OUT --corpus FILE ...``.

The teachers' embeddings of all texts are computed first and kept on disk; then the student learns to give the same
vectors (``cosine``, ``mse``), the same similarities between the texts of a batch (``similarity``), the same ranking of
the texts before it (``ranking``). With ``token`` the teacher runs beside the student and shows its tokens' states.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from model.checkpoint import load_encoder
from model.folder import ModelFolder, read_folder, read_tokenizer
from training.data import Corpus, CorpusSpec, choose_texts, mixed_batches, read_corpora, token_batches
from training.errors import RunError
from training.inherit import inherit, spread_layers
from training.losses import cosine_loss, matryoshka_similarity_loss, mse_loss, ranking_loss, token_loss
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
from training.student import FAMILIES, Student, TokenStore, encode, load_student, new_encoder, student_config
from training.teachers import LiveTeacher, Targets, TeacherQueue, teach
from training.trainer import BatchLoss
from training.vocabulary import matching_rows, train_wordpiece, trim_wordpiece


@dataclass(frozen=True, slots=True)
class LossWeights:
    """How much each loss counts; 0 leaves it out."""

    cosine: float
    mse: float
    similarity: float
    ranking: float
    token: float


RANKING_TEMPERATURE = 0.05
"""As in contrastive training."""


class DistilTask:
    """Give the teachers' embeddings.

    Parameters
    ----------
    student : Student
        On the device already.
    corpora : sequence of Corpus
    targets : sequence of Targets, one a teacher
        The first is the one whose vectors are learned; similarities are learned from all.
    weights : LossWeights
    live : LiveTeacher, optional
        The first teacher instead, where the states of tokens are learned.
    queue_size : int
        Earlier texts that each text is ranked against.
    mixed : bool
        Batches hold texts of any lengths.
    dimensions : sequence of int
        Matryoshka: the first so many dimensions shall have the teachers' similarities too.
    dev : DevSet
    place : Place
    batch_tokens, seed : int
    """

    def __init__(
        self,
        student: Student,
        corpora: Sequence[Corpus],
        targets: Sequence[Targets],
        weights: LossWeights,
        *,
        live: LiveTeacher | None = None,
        queue_size: int = 0,
        mixed: bool = False,
        dimensions: Sequence[int],
        dev: DevSet,
        place: Place,
        batch_tokens: int,
        seed: int,
    ) -> None:
        self._student = student
        self._targets = targets
        self._live = live
        self._weights = weights
        self._cut = mixed_batches if mixed else token_batches
        self._place = place
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._dev = dev
        self._sizes = [len(corpus.texts) for corpus in corpora]
        self._corpus_weights = [corpus.weight for corpus in corpora]
        self._store = TokenStore.of(student.tokenizer(), [text for corpus in corpora for text in corpus.texts])
        width = student.encoder.config.hidden_size
        self._dimensions = (*(number for number in dimensions if number != width), width)
        # thrown away after training: a student of another width learns the teacher's vectors up to a linear map
        self._projection = None
        modules: dict[str, nn.Module] = {"encoder": student.encoder}
        teacher_width = targets[0].width if live is None else live.width
        if teacher_width != width:
            self._projection = nn.Linear(width, teacher_width, bias=False).to(place.device)
            nn.init.orthogonal_(self._projection.weight)
            modules["projection"] = self._projection
        self._queue = TeacherQueue(queue_size, teacher_width).to(place.device)
        if queue_size:
            modules["queue"] = self._queue
        self.model: nn.Module = nn.ModuleDict(modules)

    def plan(self, epoch: int) -> list[NDArray[np.int64]]:
        """Choose and cut the texts of one pass."""
        generator = np.random.default_rng((self._seed, epoch))
        chosen = choose_texts(self._sizes, self._corpus_weights, generator)
        return self._cut(self._store.lengths, chosen, self._batch_tokens, generator)

    def loss(self, batch: NDArray[np.int64]) -> BatchLoss:
        """Compare with the teachers."""
        inputs = self._store.inputs(batch)
        student = encode(self._student.encoder, inputs, self._student.pooling, self._place.dtype)
        ours = student.rows  # (B, D)
        theirs = [target.rows(batch).to(self._place.device) for target in self._targets]
        teacher = None if self._live is None else self._live.encode(inputs)
        if teacher is not None:
            theirs.insert(0, teacher.rows)
        projected = self._projected(ours)  # (B, the teacher's D)
        parts: dict[str, tuple[float, Tensor]] = {}
        if self._weights.cosine:
            parts["cosine"] = self._weights.cosine, cosine_loss(projected, theirs[0])
        if self._weights.mse:
            parts["mse"] = self._weights.mse, mse_loss(projected, theirs[0])
        if self._weights.similarity:
            loss = matryoshka_similarity_loss(ours, theirs, self._dimensions)
            parts["similarity"] = self._weights.similarity, loss
        if self._weights.ranking:
            loss = ranking_loss(projected, theirs[0], self._queue.rows, RANKING_TEMPERATURE)
            parts["ranking"] = self._weights.ranking, loss
            self._queue.push(theirs[0])
        if teacher is not None:
            parts["token"] = self._weights.token, token_loss(self._projected(student.states), teacher.states)
        total = torch.stack([weight * loss for weight, loss in parts.values()]).sum()
        values = {name: float(loss.detach()) for name, (_, loss) in parts.items()}
        return BatchLoss(total, values, sum(item.num_tokens for item in inputs))

    def _projected(self, rows: Tensor) -> Tensor:
        """Take the student's vectors to the teacher's space, where its width is another."""
        return rows if self._projection is None else self._projection(rows)

    def dev_score(self) -> float | None:
        """Score the student on the dev set."""
        return self._dev.score(self._place.dtype)


def make_student(args: argparse.Namespace, described: ModelFolder, corpora: Sequence[Corpus]) -> Student:
    """Build the student that the options describe, with what it inherits from the first teacher.

    Raises
    ------
    RunError, CheckpointError
    """
    if args.init is not None:
        return load_student(args.init, dropout=args.dropout)
    teachers = read_tokenizer(described)
    backend, lowercase = teachers, described.lowercase
    texts = [text for corpus in corpora for text in corpus.texts]
    if args.train_vocabulary:
        backend, lowercase = train_wordpiece(texts, args.train_vocabulary), False
    elif args.trim_vocabulary:
        backend = trim_wordpiece(teachers, texts, args.trim_vocabulary)
    vocab_size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
    teacher = load_encoder(described, torch.float32, torch.device("cpu"), pack=False).encoder
    like = teacher.config
    raw = student_config(
        family=args.family,
        vocab_size=vocab_size,
        hidden_size=args.hidden_size or like.hidden_size,
        num_hidden_layers=args.layers or like.num_hidden_layers,
        num_attention_heads=args.heads or like.num_attention_heads,
        intermediate_size=args.intermediate_size or like.intermediate_size,
        max_length=args.max_length or described.max_length or like.max_positions or 512,
        pad_token_id=backend.token_to_id("[PAD]") or 0,
    )
    torch.manual_seed(args.seed)
    encoder = new_encoder(raw, dropout=args.dropout)
    if not args.from_scratch:
        layers = args.teacher_layers or spread_layers(like.num_hidden_layers, raw["num_hidden_layers"])
        copied = inherit(encoder, teacher, layers, matching_rows(backend, teachers, vocab_size))
        sys.stderr.write(f"{len(copied)} of {len(encoder.state_dict())} tensors begin as the teacher's\n")
    return Student(encoder, raw, backend, lowercase)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training.distil", description=__doc__)
    parser.add_argument("teacher", type=Path, help="model folder whose embeddings are learned")
    parser.add_argument("out", type=Path, help="model folder to write")
    parser.add_argument(
        "--corpus", action="append", required=True, metavar="FILE[,weight=W][,join=N][,take=M][,swap=S]", help="repeats"
    )
    parser.add_argument("--second-teacher", type=Path, action="append", default=[], help="for similarities; repeats")
    parser.add_argument("--cache", type=Path, help="the teachers' embeddings are kept there; default: OUT.cache")
    parser.add_argument("--cache-only", action="store_true", help="fill the cache and end")
    parser.add_argument("--teacher-dtype", default="auto", help="as the server's; default: %(default)s")
    student = parser.add_argument_group("the student (default: the teacher's sizes and tokenizer)")
    student.add_argument("--family", choices=sorted(FAMILIES), default="seed-2", help="default: %(default)s")
    student.add_argument("--layers", type=int)
    student.add_argument("--heads", type=int)
    student.add_argument("--hidden-size", type=int)
    student.add_argument("--intermediate-size", type=int)
    student.add_argument("--max-length", type=int, help="tokens that are read of a text")
    vocabulary = student.add_mutually_exclusive_group()
    vocabulary.add_argument("--train-vocabulary", type=int, metavar="SIZE", help="train a tokenizer on the corpora")
    vocabulary.add_argument(
        "--trim-vocabulary", type=int, metavar="SIZE", help="keep the teacher's pieces that the corpora use most"
    )
    student.add_argument("--teacher-layers", type=numbers, metavar="0,2,5", help="layers to begin as; default: spread")
    student.add_argument("--from-scratch", action="store_true", help="take nothing over from the teacher")
    student.add_argument("--init", type=Path, help="begin as this model folder instead")
    losses = parser.add_argument_group("losses (their weights; 0 leaves one out)")
    losses.add_argument("--cosine", type=float, default=1.0, help="default: %(default)s")
    losses.add_argument("--mse", type=float, default=0.0, help="default: %(default)s")
    losses.add_argument("--similarity", type=float, default=20.0, help="default: %(default)s")
    losses.add_argument("--ranking", type=float, default=0.0, help="default: %(default)s")
    losses.add_argument("--queue", type=int, default=2048, help="earlier texts that are ranked; default: %(default)s")
    losses.add_argument("--token", type=float, default=0.0, help="the teacher runs beside the student; %(default)s")
    losses.add_argument("--matryoshka", type=numbers, default=[], metavar="64,128,192,256", help="default: none")
    add_run_options(parser, learning_rate=3e-4, dropout=0.0)
    parser.add_argument("--mixed-lengths", action="store_true", help="batches hold texts of any lengths, not of like")
    parser.add_argument(
        "--freeze-embedding", action="store_true", help="leave the vectors of the vocabulary as they are"
    )
    return parser


def _check_losses(args: argparse.Namespace) -> LossWeights:
    weights = LossWeights(args.cosine, args.mse, args.similarity, args.ranking, args.token)
    values = (weights.cosine, weights.mse, weights.similarity, weights.ranking, weights.token)
    if not max(values) > 0:
        raise RunError("at least one of the losses must have a weight above 0")
    if min(values) < 0 or args.queue < 0:
        raise RunError("the weights of losses and --queue must not be below 0")
    if weights.token and args.cache_only:
        raise RunError(
            "with --token the teacher runs beside the student: there is nothing that --cache-only could fill"
        )
    return weights


def _run(args: argparse.Namespace) -> int:
    weights, place = _check_losses(args), choose_place(args)
    prepare_out(args)
    described = read_folder(args.teacher)
    step = None if args.cache_only else open_run(args.run, vars(args))  # it may refuse one: now, not after hours
    if step is not None:
        sys.stderr.write(f"{args.run}: going on from step {step}\n")
    corpora = read_corpora([CorpusSpec.parse(text) for text in args.corpus])
    cache = args.cache or args.out.with_name(f"{args.out.name}.cache")
    targets = [
        teach(folder, corpora, cache, dtype=args.teacher_dtype, device=args.device, threads=args.threads)
        for folder in (*([] if weights.token else [args.teacher]), *args.second_teacher)
    ]
    if args.cache_only:
        return 0
    student = make_student(args, described, corpora)
    check_dimensions(args.matryoshka, student.encoder.config.hidden_size)
    student.encoder.to(place.device)
    student.encoder.embedding.tokens.weight.requires_grad_(not args.freeze_embedding)
    live = None
    if weights.token:
        live = LiveTeacher.load(described, student, dtype=args.teacher_dtype, device=place.device)
    task = DistilTask(
        student, corpora, targets, weights, live=live, queue_size=args.queue if weights.ranking else 0,
        mixed=args.mixed_lengths, dimensions=args.matryoshka, dev=DevSet(args.dev, student), place=place,
        batch_tokens=args.batch_tokens, seed=args.seed,
    )  # fmt: skip
    texts = ", ".join(f"{corpus.name} ({len(corpus.texts)}, weight {corpus.weight:g})" for corpus in corpora)
    teachers = ", ".join(folder.resolve().name for folder in (args.teacher, *args.second_teacher))
    return train_and_export(args, task, student, {"Teacher": teachers, "Texts": texts})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    args = _parser().parse_args(arguments)
    return run_command("distil", lambda: _run(args))


if __name__ == "__main__":
    raise SystemExit(main())
