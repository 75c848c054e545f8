"""From a text, a pair of texts or token ids to an :class:`~model.contract.EncodeInput`.

A thin owner of a ``tokenizers.Tokenizer``: it clears the padding and truncation that tokenizer files carry (the
server decides both), cuts texts itself and counts what it cut, and reports offsets into the caller's own text.
It holds no state that a call changes, so any number of threads may share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import tokenizers
from tokenizers import normalizers

from model.contract import EncodeInput, TokenTable, WordTable
from model.errors import PairError, PromptError, TextTooLongError, TokenIdError
from model.readings import ROLES, Reading, Role
from model.truncation import Side, cut, cut_ids, longest_first
from model.words import words_of

Text = str | tuple[str, str]
"""One text, or a pair that is encoded together."""

TokenIds = list[int]
"""One text as the ids of its tokens, special tokens among them."""

SLICE_CHARACTERS = 65_536
"""So many characters are tokenized together: enough for all threads, and about 20 MB until they are cut to length."""

SpecialTokens = Literal["text", "parse"]
"""What a user's literal ``[SEP]`` is: ``text`` = the characters that were typed; ``parse`` = the special token, as
sentence-transformers does."""


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """What a model folder says about its texts.

    Attributes
    ----------
    max_length : int
        Tokens that are read, special tokens included.
    lowercase : bool
        Lower-case before everything else (``do_lower_case`` in ``sentence_bert_config.json``).
    prompts : mapping of str to str
        Name -> text put before a text.
    default_prompt_name : str or None
    special_tokens : "text" or "parse"
    readings : mapping of Role to Reading
        Of a late interaction model: it reads queries and documents differently.
    """

    max_length: int
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    special_tokens: SpecialTokens = "text"
    readings: Mapping[Role, Reading] = field(default_factory=dict)


class Tokenizer:
    """Turns texts into ids, with limits and a record of what was cut.

    Parameters
    ----------
    backend : tokenizers.Tokenizer
        Owned from here on: its padding, truncation and normaliser are changed.
    config : TokenizerConfig
    """

    def __init__(self, backend: tokenizers.Tokenizer, config: TokenizerConfig) -> None:
        backend.no_padding()
        backend.no_truncation()
        backend.encode_special_tokens = config.special_tokens == "text"
        if config.lowercase:
            # as a normaliser, not as str.lower(): offsets stay those of the caller's text
            first = normalizers.Lowercase()
            backend.normalizer = normalizers.Sequence([first, backend.normalizer] if backend.normalizer else [first])
        self._backend = backend
        self.config = config
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.num_special_tokens: int = backend.num_special_tokens_to_add(is_pair=False)

    @property
    def max_length(self) -> int:
        """Longest text in tokens, special tokens included."""
        return self.config.max_length

    def prompt(self, name: str | None, text: str | None, *, param: str = "prompt_name") -> str:
        """Find the prompt of a request: a text given, else a name given, else the model's default, else none.

        Raises
        ------
        PromptError
            If the model folder has no prompt of that name, or name and text are both given.
        """
        if text is not None:
            if name is not None:
                raise PromptError("give either prompt or prompt_name, not both", param=param)
            return text
        name = name if name is not None else self.config.default_prompt_name
        if name is None:
            return ""
        if name not in self.config.prompts:
            known = ", ".join(sorted(self.config.prompts))
            raise PromptError(f"no prompt has this name. Available prompts: [{known}]", param=param)
        return self.config.prompts[name]

    def role(self, name: str | None, text: str | None) -> Role:
        """Tell what a text is to a late interaction model: a query where its prompt is called so, else a document.

        The model's default counts where :meth:`prompt` takes it: not where a prompt is given as a text.
        """
        called = name if name is not None or text is not None else self.config.default_prompt_name
        return ROLES.get(called or "", "document")

    def encode(
        self,
        texts: Sequence[Text | TokenIds],
        *,
        prompt: str = "",
        truncate: bool = True,
        side: Side = "right",
        whole: bool = False,
        details: bool = False,
        role: Role = "document",
    ) -> list[EncodeInput]:
        """Tokenize texts.

        Parameters
        ----------
        texts : sequence of str, (str, str) or list of int
            Token ids are taken as :meth:`from_ids` takes them, without the prompt and without details.
        prompt : str
            Put before each text (before the first of a pair).
        truncate : bool
            Cut what is longer than ``max_length``; pairs lose tokens of the longer text first.
        side : "left" or "right"
            Where tokens are cut away: "left" takes them from the beginning, the prompt first.
        whole : bool
            Keep every token, however many: to look at, not to encode.
        details : bool
            Fill ``tokens`` and ``words``; without them the fast path of the backend runs.
        role : Role
            What the texts are to a late interaction model; nothing to any other.

        Raises
        ------
        TextTooLongError
            If a text is too long and ``truncate`` is False. ``param`` names it as ``texts[i]``.
        PairError
            If the tokenizer has no template for pairs.
        TokenIdError
            If a text gives no token at all: an empty one, for a tokenizer that adds no special tokens.
        """
        encode_batch = self._backend.encode_batch if details else self._backend.encode_batch_fast
        reading = self.config.readings.get(role)
        prompt_length = self._prompt_length(prompt)
        inputs: list[EncodeInput] = []
        for together in _slices(texts, len(prompt)):
            spelled = [text for text in together if not isinstance(text, list)]
            firsts = [prompt + (text if isinstance(text, str) else text[0]) for text in spelled]
            seconds = [text[1] for text in spelled if not isinstance(text, str)]
            encodings = encode_batch(firsts + seconds, add_special_tokens=False)
            first_texts, second_texts = iter(encodings[: len(firsts)]), iter(encodings[len(firsts) :])
            for text in together:
                param = f"texts[{len(inputs)}]"
                if isinstance(text, list):
                    inputs.append(self.from_ids(text, truncate=truncate, side=side, param=param))
                    continue
                first, second = next(first_texts), None if isinstance(text, str) else next(second_texts)
                before = len(first)
                encoding, total = self._assemble(
                    first, second, reading, truncate=truncate, side=side, whole=whole, param=param
                )
                num_lost = before - len(first) if side == "left" else 0
                kept_prompt = _prompt_left(encoding, prompt_length, num_lost) if num_lost else prompt_length
                tokens, words = _tables(encoding, text, len(prompt)) if details else (None, None)
                item = EncodeInput(encoding.ids, encoding.type_ids, total, kept_prompt, tokens, words)
                inputs.append(item if reading is None else reading.read(item))
        return inputs

    def from_ids(
        self, ids: Sequence[int], *, truncate: bool = True, side: Side = "right", param: str = "texts[0]"
    ) -> EncodeInput:
        """Take token ids as they are, special tokens and all; a cut takes whatever stands at that side.

        To a late interaction model they are a document's, its prefix among them.

        Raises
        ------
        TokenIdError
            If an id is not in the vocabulary, or there is none at all.
        TextTooLongError
            As in :meth:`encode`.
        """
        reading = self.config.readings.get("document")
        max_length = self.max_length if reading is None else reading.max_length
        self._check_ids(ids, param)
        self._check_length(len(ids), max_length, truncate=truncate, param=param)
        kept = cut_ids(list(ids), max_length, side)
        item = EncodeInput(kept, [0] * len(kept), len(ids))
        return item if reading is None else reading.keep(item)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True, param: str = "ids") -> str:
        """Turn ids back into a text; raises :class:`TokenIdError` as :meth:`from_ids` does."""
        self._check_ids(ids, param)
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def _check_ids(self, ids: Sequence[int], param: str) -> None:
        if not ids:
            raise TokenIdError("a text given as token ids needs at least one", param=param, limit=1, actual=0)
        for token in ids:
            if not 0 <= token < self.vocab_size:
                message = f"token id {token} is not in the vocabulary of {self.vocab_size}"
                raise TokenIdError(message, param=param, limit=self.vocab_size - 1, actual=token)

    def _check_length(self, num_tokens: int, max_length: int, *, truncate: bool, param: str) -> None:
        """Refuse a text that is too long, unless it may be cut."""
        if num_tokens > max_length and not truncate:
            raise TextTooLongError(
                f"the text has {num_tokens} tokens, the model reads {max_length}; shorten it or set truncate to true",
                param=param,
                limit=max_length,
                actual=num_tokens,
            )

    def _assemble(
        self,
        first: tokenizers.Encoding,
        second: tokenizers.Encoding | None,
        reading: Reading | None,
        *,
        truncate: bool,
        side: Side,
        whole: bool,
        param: str,
    ) -> tuple[tokenizers.Encoding, int]:
        """Cut to length, with room for what a reading adds, and add the special tokens.

        Returns the encoding, and the tokens before the cut.
        """
        num_special = self._backend.num_special_tokens_to_add(is_pair=second is not None)
        max_length = self.max_length if reading is None else reading.max_length - reading.num_added
        if second is not None and not num_special:
            raise PairError(
                "the model's tokenizer has no way to mark where the second text of a pair begins", param=param
            )
        if second is not None and max_length < num_special + 2:
            message = f"the model reads {max_length} tokens, which leaves no room for a pair"
            raise PairError(message, param=param, limit=max_length, actual=num_special + 2)
        lengths = [len(first), len(second) if second is not None else 0]
        total = sum(lengths) + num_special
        if not total:
            message = "the text gives no token, and the model's tokenizer adds none of its own"
            raise TokenIdError(message, param=param, limit=1, actual=0)
        if not whole:
            num_added = 0 if reading is None else reading.num_added
            self._check_length(total + num_added, max_length + num_added, truncate=truncate, param=param)
        if total > max_length and not whole:
            kept_first, kept_second = longest_first(lengths[0], lengths[1], max_length - num_special)
            cut(first, kept_first, side)
            if second is not None:
                cut(second, kept_second, side)
        return self._backend.post_process(first, second, add_special_tokens=True), total

    def _prompt_length(self, prompt: str) -> int:
        """Count the leading tokens of a prompted text that are the template's or the prompt's.

        As sentence-transformers counts them: the prompt encoded by itself, without the closing special token.
        """
        if not prompt:
            return 0
        encoding = self._backend.encode(prompt)
        ends_special = bool(encoding.ids) and bool(encoding.special_tokens_mask[-1])
        return len(encoding.ids) - (1 if ends_special else 0)


def _prompt_left(encoding: tokenizers.Encoding, prompt_length: int, num_lost: int) -> int:
    """Count a prompt's tokens, with the template's before them, when the first ``num_lost`` are cut away."""
    mask = encoding.special_tokens_mask
    leading = next((index for index, is_special in enumerate(mask) if not is_special), 0)
    return prompt_length - num_lost if prompt_length - leading > num_lost else 0


def _slices(texts: Sequence[Text | TokenIds], prompt_characters: int) -> Iterator[Sequence[Text | TokenIds]]:
    """Split texts into runs that are tokenized together: what an uncut text takes is freed before the next run."""
    begin = characters = 0
    for index, text in enumerate(texts):
        more = prompt_characters + (len(text[0]) + len(text[1]) if isinstance(text, tuple) else len(text))
        if index > begin and characters + more > SLICE_CHARACTERS:
            yield texts[begin:index]
            begin, characters = index, 0
        characters += more
    yield texts[begin:]


def _tables(encoding: tokenizers.Encoding, text: Text, prompt_characters: int) -> tuple[TokenTable, WordTable]:
    """Describe every token, and the words, with offsets into the caller's own text."""
    parts = (text,) if isinstance(text, str) else text
    special = [bool(flag) for flag in encoding.special_tokens_mask]
    starts, ends = [0] * len(special), [0] * len(special)
    segments: list[int | None] = [None] * len(special)
    words: list[int | None] = [None] * len(special)
    table = WordTable([], [], [], [])
    all_offsets, all_pieces = encoding.offsets, encoding.word_ids  # each access makes a list of all
    for segment, part in enumerate(parts):
        shift = prompt_characters if segment == 0 else 0
        members = [
            index
            for index, sequence in enumerate(encoding.sequence_ids)
            # tokenizers 0.23 forgets the 0 of a pair's first text, so that it is known by not being the second
            if not special[index]
            and (sequence == 1) == (segment == 1)
            # a token that ends inside the prompt is the prompt's; one that bridges the seam counts as the text's
            and (not shift or all_offsets[index][1] > shift)
        ]
        offsets = [(max(start - shift, 0), end - shift) for start, end in (all_offsets[i] for i in members)]
        spans, word_of = words_of(part, offsets, [all_pieces[i] for i in members])
        for index, (start, end), word in zip(members, offsets, word_of, strict=True):
            starts[index], ends[index] = start, end
            segments[index], words[index] = segment, len(table.texts) + word
        table.texts.extend(part[span.start : span.end] for span in spans)
        table.starts.extend(span.start for span in spans)
        table.ends.extend(span.end for span in spans)
        table.segments.extend([segment] * len(spans))
    return TokenTable(encoding.ids, encoding.tokens, starts, ends, special, segments, words), table
