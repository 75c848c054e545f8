"""A tokenizer of the student's own: trained on its corpora, or the teacher's with the pieces they use most.

And which of its tokens the teacher knows.
"""

from __future__ import annotations

import json
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

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


def trim_wordpiece(tokenizer: tokenizers.Tokenizer, texts: Sequence[str], vocab_size: int) -> tokenizers.Tokenizer:
    """Keep the pieces of a WordPiece tokenizer that some texts use most.

    A word whose piece is gone is cut into the pieces that are left: every letter, digit and sign of ASCII stays. Other
    characters stay if the texts use them often enough.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
        Not changed.
    texts : sequence of str
    vocab_size : int
        Tokens at most.

    Returns
    -------
    tokenizers.Tokenizer
        The tokens that stay keep their order, numbered anew from 0.

    Raises
    ------
    RunError
        If it is no WordPiece tokenizer, has tokens beyond its vocabulary, or ``vocab_size`` has no room for what must
        stay.
    """
    description: dict[str, Any] = json.loads(tokenizer.to_str())
    if description["model"]["type"] != "WordPiece":
        raise RunError("only a WordPiece vocabulary can be trimmed")
    vocabulary: dict[str, int] = description["model"]["vocab"]
    added = [entry["content"] for entry in description["added_tokens"]]
    for token in added:
        if token not in vocabulary:
            raise RunError(f"token {token!r} was added beyond the vocabulary: such a tokenizer cannot be trimmed")
    signs = string.ascii_letters + string.digits + string.punctuation
    kept = {*added, *(piece for sign in signs for piece in (sign, f"##{sign}"))} & vocabulary.keys()
    if len(kept) > vocab_size:
        raise RunError(f"a vocabulary of {vocab_size} has no room for the {len(kept)} tokens that must stay")
    spelling = {index: token for token, index in vocabulary.items()}
    for index, _ in _counted(tokenizer, texts).most_common():
        if len(kept) == vocab_size:
            break
        kept.add(spelling[index])
    numbers = {token: number for number, token in enumerate(sorted(kept, key=vocabulary.__getitem__))}
    description["model"]["vocab"] = numbers
    for entry in description["added_tokens"]:
        entry["id"] = numbers[entry["content"]]
    _renumber_template(description["post_processor"], numbers)
    return tokenizers.Tokenizer.from_str(json.dumps(description))


def _counted(tokenizer: tokenizers.Tokenizer, texts: Sequence[str], chunk_texts: int = 8192) -> Counter[int]:
    """Count the tokens of some texts, without the template's."""
    plain = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    plain.no_padding()
    plain.no_truncation()
    counts: Counter[int] = Counter()
    for start in range(0, len(texts), chunk_texts):
        for encoding in plain.encode_batch(texts[start : start + chunk_texts], add_special_tokens=False):
            counts.update(encoding.ids)
    return counts


def _renumber_template(template: dict[str, Any] | None, numbers: dict[str, int]) -> None:
    """Give the special tokens of a template their new numbers."""
    if template is None:
        return
    if template["type"] == "TemplateProcessing":
        for entry in template["special_tokens"].values():
            entry["ids"] = [numbers[token] for token in entry["tokens"]]
    elif template["type"] == "BertProcessing":
        for role in ("sep", "cls"):
            template[role] = [template[role][0], numbers[template[role][0]]]
    else:
        raise RunError(f"a tokenizer with {template['type']} cannot be trimmed")


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
