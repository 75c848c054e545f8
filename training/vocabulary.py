"""A tokenizer of the student's own, trained on its corpora; and which of its tokens the teacher knows."""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from training.errors import RunError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def train_wordpiece(texts: Iterable[str], vocab_size: int, *, lowercase: bool = True) -> tokenizers.Tokenizer:
    """Train BERT's kind of tokenizer.

    Parameters
    ----------
    texts : iterable of str
    vocab_size : int
        Tokens at most, the five special ones included.
    lowercase : bool
        Lower-case and strip accents first.

    Raises
    ------
    RunError
        If ``vocab_size`` has no room for a token besides the special ones.

    References
    ----------
    Schuster and Nakajima 2012; Devlin et al. 2019.
    """
    if vocab_size <= len(SPECIAL_TOKENS):
        raise RunError(f"a vocabulary of {vocab_size} has room for the special tokens only")
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    start, end = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", start), ("[SEP]", end)],
    )
    return tokenizer


def matching_rows(student: tokenizers.Tokenizer, teacher: tokenizers.Tokenizer, num_rows: int) -> list[int | None]:
    """Find each token of the student in the teacher's vocabulary.

    Returns
    -------
    list of ``num_rows`` (int or None)
        The teacher's id, or None.
    """
    theirs = teacher.get_vocab(with_added_tokens=True)
    rows: list[int | None] = [None] * num_rows
    for token, row in student.get_vocab(with_added_tokens=True).items():
        rows[row] = theirs.get(token)
    return rows
