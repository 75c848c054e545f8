"""Cuts long texts into chunks, and says what the model runs for them: each chunk by itself, or late chunking.

A text is tokenized once, and chunks are stretches of its tokens. By itself a chunk stands between the special tokens of
the template, as a text does. Late chunking reads the text as a whole and cuts afterwards: the tokens of a chunk have
seen the text around it when they are pooled. A text that is longer than the model reads is then read in windows that
overlap, and each chunk is pooled within one of them: it has seen a quarter of a window before it at least, where the
text and its own length leave room for that.

A text that is one chunk has in both modes the embedding that it has without chunks.

References
----------
Günther et al. 2024 (Late chunking: contextual chunk embeddings using long-context embedding models).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from model.chunking import Chunking
from model.contract import EncodeInput
from model.errors import ChunkingError, TextTooLongError, TooManyChunksError
from model.sentences import sentences
from model.tokenizer import Tokenizer

CONTEXT_SHARE = 0.25
"""Of a window, at least, stands before the first chunk that is pooled in it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of a text.

    Attributes
    ----------
    start, end : int
        Code points into the text.
    tokens : range
        Of the text's own tokens: special tokens and prompt are not counted.
    is_truncated : bool
        Whether the embedding lacks its last tokens, as it alone is longer than the model reads.
    """

    start: int
    end: int
    tokens: range
    is_truncated: bool = False


@dataclass(frozen=True, slots=True)
class ChunkedText:
    """A text in chunks, and what is run for them.

    Attributes
    ----------
    chunks : list of Chunk
        In the order of the text; at least one.
    inputs : list of EncodeInput
        A chunk each, or with late chunking a window each.
    pooled : list of tuple of range
        Of each input which of its tokens make an embedding, a range for each of its chunks.
        In the order of ``inputs`` they are those of ``chunks``.
    num_tokens_total : int
        Tokens of the whole text, special tokens and prompt included.
    """

    chunks: list[Chunk]
    inputs: list[EncodeInput]
    pooled: list[tuple[range, ...]]
    num_tokens_total: int


def chunk_text(
    text: str,
    tokenizer: Tokenizer,
    chunking: Chunking,
    *,
    prompt: str = "",
    truncate: bool = True,
    max_chunks: int,
    param: str = "texts[0]",
) -> ChunkedText:
    """Cut a text, and prepare what is run.

    Parameters
    ----------
    text : str
    tokenizer : Tokenizer
    chunking : Chunking
        One that :func:`~model.chunking.check_chunking` takes.
    prompt : str
        Put before each chunk, or each window.
    truncate : bool
        Cut a chunk that is longer than the model reads; of chunks by sentences only, as others cannot be.
    max_chunks : int
    param : str
        What errors call the text.

    Raises
    ------
    TooManyChunksError, TextTooLongError, ChunkingError
        The last if a chunk of so many tokens is longer than the model reads.
    """
    [whole] = tokenizer.encode([text], prompt=prompt, whole=True, details=True)
    around = _Surroundings.of(whole)
    room = tokenizer.max_length - around.length
    if room < 1 or (chunking.unit == "token" and chunking.size > room):
        raise ChunkingError(
            f"the model reads {tokenizer.max_length} tokens, {around.length} of which are special tokens and prompt: "
            f"a chunk may have {max(room, 0)}, not {chunking.size}",
            param="chunks.size",
            limit=max(room, 0),
            actual=chunking.size,
        )
    chunks = _cut(text, whole, around, chunking, max_chunks, param)
    for index, chunk in enumerate(chunks):
        if len(chunk.tokens) > room:
            if not truncate:
                raise TextTooLongError(
                    f"a chunk of the text has {len(chunk.tokens)} tokens, and there is room for {room}: "
                    "make chunks smaller, cut them by tokens, or set truncate to true",
                    param=param,
                    limit=room,
                    actual=len(chunk.tokens),
                )
            chunks[index] = replace(chunk, is_truncated=True)
    runs = _late_windows(chunks, around, room) if chunking.mode == "late" else _separate(chunks, around, room)
    inputs, pooled = [], []
    for window, ranges, num_lost in runs:
        inputs.append(around.input(window, num_lost))
        pooled.append(ranges)
    return ChunkedText(chunks, inputs, pooled, whole.num_tokens)


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """A text's own tokens, and what stands before and behind them: special tokens and prompt.

    Attributes
    ----------
    whole : EncodeInput
    own : range
        Places in ``whole``.
    """

    whole: EncodeInput
    own: range

    @classmethod
    def of(cls, whole: EncodeInput) -> _Surroundings:
        if whole.tokens is None:
            raise ValueError("chunks are cut from texts that were tokenized with details")
        own = [index for index, segment in enumerate(whole.tokens.segments) if segment is not None]
        # a text without tokens: all that there is stands before them
        return cls(whole, range(own[0], own[-1] + 1) if own else range(whole.num_tokens, whole.num_tokens))

    @property
    def length(self) -> int:
        """Tokens that are not the text's own."""
        return self.whole.num_tokens - len(self.own)

    def input(self, window: range, num_lost: int) -> EncodeInput:
        """Put what stands around the text around some of its own tokens."""
        whole, first = self.whole, self.own.start
        parts = (slice(0, first), slice(first + window.start, first + window.stop), slice(self.own.stop, None))
        ids = [token for part in parts for token in whole.input_ids[part]]
        types = [kind for part in parts for kind in whole.token_type_ids[part]]
        return EncodeInput(ids, types, len(ids) + num_lost, whole.prompt_length)


_Run = tuple[range, tuple[range, ...], int]
"""Own tokens that are run, the ranges that are pooled, and the tokens that chunks lost."""


def _separate(chunks: Sequence[Chunk], around: _Surroundings, room: int) -> Iterator[_Run]:
    """Run each chunk by itself."""
    for chunk in chunks:
        kept = chunk.tokens[:room]
        yield kept, (range(around.length + len(kept)),), len(chunk.tokens) - len(kept)


def _late_windows(chunks: Sequence[Chunk], around: _Surroundings, room: int) -> Iterator[_Run]:
    """Lay windows over the chunks, each as long as there is room for; each chunk is in the first that holds it whole.

    What stands before the text is pooled with its first chunk, what stands behind it with the last.
    """
    kept = [chunk.tokens[:room] for chunk in chunks]
    stops = [tokens.stop for tokens in kept]  # ascending, cut or not
    before, num_tokens, last = around.own.start, len(around.own), len(chunks) - 1
    index = 0
    while index <= last:
        tokens = kept[index]
        # full up to the end of the text, with the context asked for, but never so that the chunk itself is cut
        start = max(0, min(tokens.start - int(CONTEXT_SHARE * room), num_tokens - room), tokens.stop - room)
        window = range(start, min(start + room, num_tokens))
        held = range(index, bisect_right(stops, window.stop))
        shift = before - start
        ranges = tuple(
            range(
                0 if number == 0 else shift + kept[number].start,
                around.length + len(window) if number == last else shift + kept[number].stop,
            )
            for number in held
        )
        yield window, ranges, sum(len(chunks[number].tokens) - len(kept[number]) for number in held)
        index = held.stop


def _cut(
    text: str, whole: EncodeInput, around: _Surroundings, chunking: Chunking, max_chunks: int, param: str
) -> list[Chunk]:
    """Cut a text into chunks, none without a token; a text without any is one chunk."""
    own, table = around.own, whole.tokens
    if not own or table is None:
        return [Chunk(0, len(text), range(0))]
    starts, ends = table.starts[own.start : own.stop], table.ends[own.start : own.stop]
    if chunking.unit == "token":
        spans = enumerate(zip(starts, ends, strict=True))
        units = [Chunk(start, end, range(place, place + 1)) for place, (start, end) in spans]
    else:
        units = _sentences_with_tokens(text, starts)
    step = chunking.size - chunking.overlap
    # none that holds nothing new: the last one is the first that reaches the end
    count = 1 + max(0, -(-(len(units) - chunking.size) // step))
    if count > max_chunks:
        raise TooManyChunksError(
            f"the text has {count} chunks, and there is room for {max_chunks}: make chunks larger, or overlap less",
            param=param,
            limit=max_chunks,
            actual=count,
        )
    groups = (units[number * step : number * step + chunking.size] for number in range(count))
    return [
        Chunk(group[0].start, group[-1].end, range(group[0].tokens.start, group[-1].tokens.stop)) for group in groups
    ]


def _sentences_with_tokens(text: str, starts: Sequence[int]) -> list[Chunk]:
    """Give each sentence the tokens that begin in it (``starts`` ascend); one without any is none."""
    found: list[Chunk] = []
    spans = sentences(text)
    for number, (start, end) in enumerate(spans):
        following = spans[number + 1][0] if number + 1 < len(spans) else len(text)
        first = found[-1].tokens.stop if found else 0
        stop = bisect_left(starts, following) if number + 1 < len(spans) else len(starts)
        if stop > first:
            found.append(Chunk(start, end, range(first, stop)))
    return found
