"""From lists of ids to packed tensors, and where each text stands in them.

Texts are packed without padding: every linear layer and norm sees ``(T, D)``. Only the attention core needs texts side
by side; for that, texts of like length form a :class:`Group`, padded to the longest of them and masked. Where a kernel
takes texts of any lengths, it needs no more than :class:`TextBounds`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from model.contract import EncodeInput
from model.masks import padding_mask

MAX_GROUP_PADDING = 0.1
"""Share of a group's slots that may be padding before a new group is begun (measured: see docs/decisions.md)."""


FEWEST_ALIGNED = 4
"""Texts of a group from which it is worth padding them all: a lone short text took 4 to 8 % longer."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """How texts form groups: what suits the attention core that runs them.

    Attributes
    ----------
    max_padding : float
        Share of a group's slots that may be padding, to hold texts of several lengths. With 0 the attention core does
        the same for a text whoever its neighbours are, to the last bit.
    align : int
        Lengths of groups are rounded up to a multiple of this, where a quarter of it or less is missing and there are
        texts enough to gain by it.
    alone_from : int or None
        Texts of at least so many tokens are groups of their own; None = no text is.
    """

    max_padding: float = MAX_GROUP_PADDING
    align: int = 1
    alone_from: int | None = None

    def padded_length(self, longest: int, num_texts: int) -> int:
        """Return the slots of each text of a group of so many texts, whose longest has so many tokens."""
        missing = -longest % self.align
        is_gain = num_texts >= FEWEST_ALIGNED and missing <= self.align // 4
        return longest + missing if is_gain else longest

    def is_alone(self, length: int) -> bool:
        """Whether a text of so many tokens is a group of its own."""
        return self.alone_from is not None and length >= self.alone_from


GROUPING = Grouping()
"""Groups of like length, with nothing that only some processors gain by."""


@dataclass(frozen=True, slots=True)
class Group:
    """Texts whose attention runs in one call.

    Attributes
    ----------
    start, stop : int
        The group's tokens in the packed batch.
    num_texts, length : int
        B and L of the padded form.
    mask : Tensor, shape (B, L), bool, or None
        True where a token is real; None where all texts are of one length and nothing is padded.
    seen : Tensor, shape (B, L), bool, or None
        True where a token is looked at; None where every real one is.
    padded_from : Tensor, shape (B * L,), int64, or None
        The token of the pack that stands in each slot of the padded form. A padded slot repeats the first token of its
        own text: whatever is masked must still be finite, and none of a neighbour's.
    packed_from : Tensor, shape (stop - start,), int64, or None
        The slot in which each token of the group stands, counted through (B, L).
    """

    start: int
    stop: int
    num_texts: int
    length: int
    mask: Tensor | None = None
    padded_from: Tensor | None = None
    packed_from: Tensor | None = None
    seen: Tensor | None = None

    def pad(self, packed: Tensor) -> Tensor:
        """Lay the group's rows side by side: (T, ...) -> (B, L, ...). A view where nothing is padded."""
        source = self.padded_from
        rows = packed[self.start : self.stop] if source is None else packed.index_select(0, source)
        return rows.view(self.num_texts, self.length, *packed.shape[1:])

    def pack(self, padded: Tensor) -> Tensor:
        """Undo :meth:`pad`: (B, L, ...) -> (stop - start, ...)."""
        rows = padded.flatten(0, 1)
        return rows if self.packed_from is None else rows.index_select(0, self.packed_from)


@dataclass(frozen=True, slots=True)
class TextBounds:
    """Where texts begin and end, as a kernel for texts of any lengths takes it (see :mod:`model.varlen`).

    Attributes
    ----------
    starts : Tensor, shape (B + 1,), int32
        The first token of each text, and the end of the last: what the field calls ``cu_seqlens``.
    longest : int
    num_seen : Tensor, shape (B,), int32, or None
        How many leading tokens of each text are looked at; None where all are.
    """

    starts: Tensor
    longest: int
    num_seen: Tensor | None = None

    @classmethod
    def of(cls, lengths: Sequence[int], num_seen: Sequence[int], device: torch.device | None = None) -> TextBounds:
        """Bound texts of these lengths that stand one after another."""
        starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        seen = None if list(num_seen) == list(lengths) else torch.tensor(num_seen, dtype=torch.int32)
        return cls(to_device(starts, device), max(lengths), None if seen is None else to_device(seen, device))


def to_device(tensor: Tensor, device: torch.device | None) -> Tensor:
    """Bring a new tensor where it is needed; to a GPU from pinned memory, so that nobody waits for the copy."""
    if device is not None and device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Texts ready for the encoder: shortest first, and behind them, again so, those with tokens that nobody looks at.

    Attributes
    ----------
    input_ids, token_type_ids, positions : Tensor, shape (T,), int64
        Positions count the tokens of each text from 0. On a CPU a few idle rows stand behind the last text, see
        :func:`rounded_rows`; they belong to no group and no text.
    lengths, starts : tuple of B ints
        Tokens of each text, and where they begin; in packed order.
    order : tuple of B ints
        ``order[i]`` is the place, among the inputs, of the text that is i-th in the pack.
    num_seen : tuple of B ints
        How many of its leading tokens are looked at.
    groups : tuple of Group
        Empty where there are ``bounds``.
    bounds : TextBounds or None
        What the attention core takes in place of groups, if its kernel takes texts of any lengths.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    positions: Tensor
    lengths: tuple[int, ...]
    starts: tuple[int, ...]
    order: tuple[int, ...]
    num_seen: tuple[int, ...]
    groups: tuple[Group, ...]
    bounds: TextBounds | None = None


def pack(
    inputs: Sequence[EncodeInput], device: torch.device | None = None, grouping: Grouping | None = GROUPING
) -> PackedBatch:
    """Concatenate texts, shortest first, and group them for attention.

    Texts with tokens that nobody looks at form groups of their own, so that no other text takes a mask for them.

    Parameters
    ----------
    inputs : sequence of B EncodeInput
        Each with at least one token.
    device : torch.device, optional
        Where the tensors go; the copy to a GPU is asynchronous, from pinned memory.
    grouping : Grouping or None
        None where the attention core takes texts of any lengths: it gets their bounds then, and no groups.
    """
    order = sorted(range(len(inputs)), key=lambda index: (inputs[index].hides_tokens, inputs[index].num_tokens))
    lengths = [inputs[index].num_tokens for index in order]
    num_seen = [inputs[index].num_seen or inputs[index].num_tokens for index in order]
    ids: list[int] = []
    types: list[int] = []
    starts: list[int] = []
    for index in order:
        starts.append(len(ids))
        ids += inputs[index].input_ids
        types += inputs[index].token_type_ids
    positions = [position for length in lengths for position in range(length)]
    columns = to_device(torch.tensor([ids, types, positions]), device)  # (3, T)
    if not columns.is_cuda:
        columns = F.pad(columns, (0, rounded_rows(len(ids)) - len(ids)))
    return PackedBatch(
        input_ids=columns[0],
        token_type_ids=columns[1],
        positions=columns[2],
        lengths=tuple(lengths),
        starts=tuple(starts),
        order=tuple(order),
        num_seen=tuple(num_seen),
        groups=() if grouping is None else tuple(_groups(lengths, num_seen, starts, device, grouping)),
        bounds=TextBounds.of(lengths, num_seen, device) if grouping is None else None,
    )


def rounded_rows(num_tokens: int) -> int:
    """Round the rows of a batch up to one of a few sizes.

    oneDNN compiles a kernel for every number of rows it meets: about 3 ms and, in float32, 2.5 MB for the four products
    of a layer of all-MiniLM-L6-v2, kept for as long as the process lives. Some 50 sizes up to 2,048 tokens bound that,
    for 4 % more rows on average.
    """
    step = next((step for largest, step in ((128, 8), (512, 32), (2048, 64)) if num_tokens <= largest), 256)
    return -(-num_tokens // step) * step


def group_bounds(lengths: Sequence[int], grouping: Grouping = GROUPING) -> Iterator[tuple[int, int]]:
    """Cut ascending lengths into runs, each with as many padded slots as ``grouping`` allows before it is aligned.

    Yields
    ------
    tuple of int
        First text of the run, and the one after its last.
    """
    first, tokens = 0, 0
    for index, length in enumerate(lengths):
        slots = (index - first + 1) * length
        is_too_padded = slots - tokens - length > grouping.max_padding * slots
        if index > first and (is_too_padded or grouping.is_alone(length)):
            yield first, index
            first, tokens = index, 0
        tokens += length
    if lengths:
        yield first, len(lengths)


def padding_ratio(lengths: Sequence[int], grouping: Grouping | None = GROUPING) -> float:
    """Share of the attention core's slots that are padding, for texts of these lengths."""
    if grouping is None or not lengths:
        return 0.0
    ordered = sorted(lengths)
    bounds = group_bounds(ordered, grouping)
    slots = sum((stop - first) * grouping.padded_length(ordered[stop - 1], stop - first) for first, stop in bounds)
    return 1.0 - sum(ordered) / slots


def _groups(
    lengths: Sequence[int],
    num_seen: Sequence[int],
    starts: Sequence[int],
    device: torch.device | None,
    grouping: Grouping,
) -> Iterator[Group]:
    """Build the groups of a batch: of the texts that are seen whole, and of the others, whose lengths ascend each."""
    num_whole = sum(seen == length for seen, length in zip(num_seen, lengths, strict=True))
    bounds = [*group_bounds(lengths[:num_whole], grouping)]
    others = group_bounds(lengths[num_whole:], grouping)
    bounds += [(num_whole + first, num_whole + last) for first, last in others]
    for first, last in bounds:
        num_texts = last - first
        start, stop = starts[first], starts[last - 1] + lengths[last - 1]
        slots = grouping.padded_length(lengths[last - 1], num_texts)
        seen = padding_mask(num_seen[first:last], slots, device) if first >= num_whole else None  # (B, L)
        if lengths[first] == slots:
            yield Group(start, stop, num_texts, slots, seen=seen)
        else:
            mask = padding_mask(lengths[first:last], slots, device)  # (B, L)
            firsts = torch.tensor(starts[first:last], device=device).unsqueeze(1)  # (B, 1)
            padded_from = (firsts + torch.arange(slots, device=device) * mask).flatten()
            packed_from = mask.flatten().nonzero().squeeze(1)
            yield Group(start, stop, num_texts, slots, mask, padded_from, packed_from, seen)


def cut_by_tokens(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Cut texts into batches of like length for somebody who has them all at hand.

    Yields
    ------
    list of int
        Indices of the texts of one batch: longest first, at most ``max_tokens`` together, at least one.
    """
    batch: list[int] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and tokens + lengths[index] > max_tokens:
            yield batch
            batch, tokens = [], 0
        batch.append(index)
        tokens += lengths[index]
    if batch:
        yield batch
