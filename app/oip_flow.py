"""The flow of the Open Inference Protocol: the texts of a body, and the service's own steps around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from app.errors import AttentionTooLargeError, InvalidRequestError, TooManyTextsError
from app.limits import Limits
from app.naming import naming
from app.schemas.oip import INPUT, OIPInferRequest, OIPInput
from app.service import Encoded, Service, stack
from app.tensors import decode_texts
from model.contract import AttentionSelection, OutputSpec

WHERE = "inputs[0]"


def read_texts(request: OIPInferRequest, section: memoryview, limits: Limits) -> list[str]:
    """Read the texts of a request, from its JSON or from the bytes behind it.

    Parameters
    ----------
    request : OIPInferRequest
    section : memoryview
        What stands behind the JSON.
    limits : Limits
        For the number of texts: so many are looked at at most.

    Raises
    ------
    TooManyTextsError
    InvalidRequestError
        If data, shape and sizes do not agree.
    """
    [item] = request.inputs
    count = item.shape[0]
    if item.shape[1:] not in ([], [1]):
        raise InvalidRequestError("should be [n] or [n, 1]", param=f"{WHERE}.shape")
    if count > limits.max_texts:
        raise TooManyTextsError(
            f"a request may hold {limits.max_texts} texts, this one holds {count}",
            param=INPUT,
            limit=limits.max_texts,
            actual=count,
        )
    size = item.binary_data_size
    if (item.data is None) == (size is None):
        raise InvalidRequestError("should have either data or the parameter binary_data_size", param=WHERE)
    if len(section) != (size or 0):
        raise InvalidRequestError(
            f"{len(section)} bytes stand behind the JSON, binary_data_size says {size or 0}",
            param=f"{WHERE}.parameters.binary_data_size",
            limit=len(section),
            actual=size or 0,
        )
    return decode_texts(section, count, INPUT) if item.data is None else _listed(item, item.data)


def _listed(item: OIPInput, data: Sequence[str | list[str]]) -> list[str]:
    """Return the texts of ``data``, which is flat or has the very shape."""
    if len(data) != item.shape[0]:
        raise InvalidRequestError(
            f"has {len(data)} elements, shape says {item.shape[0]}",
            param=f"{WHERE}.data",
            limit=item.shape[0],
            actual=len(data),
        )
    texts = []
    is_nested = isinstance(data[0], list)
    for index, element in enumerate(data):
        if isinstance(element, str) and not is_nested:
            texts.append(element)
        elif isinstance(element, list) and is_nested and len(item.shape) == 2 and len(element) == 1:
            texts.append(element[0])
        else:
            raise InvalidRequestError("data should be flat, or nested as shape says", param=f"{WHERE}.data[{index}]")
    return texts


async def infer(service: Service, request: OIPInferRequest, texts: Sequence[str], name: str, *, route: str) -> Encoded:
    """Encode the texts of a request, with attention where it is asked for.

    Parameters
    ----------
    service : Service
    request : OIPInferRequest
    texts : sequence of str
        An empty one is a text too.
    name : str
        Of the model.
    route : str
        Template, for the metrics.

    Raises
    ------
    ServiceError, InputError
        See ``app/errors.py``; the texts are called what the caller calls them.
    """
    wanted = request.wanted()
    plain = request.plain(texts, name)
    with naming(plain.rename):
        model = service.find_model(name)
        if "embedding" in wanted:
            model.embedder.check_kind("embedding")
        dimensions = model.embedder.check_dimensions(plain.dimensions)
        selection = None
        if "attention" in wanted:
            selection = model.embedder.select_attention(*request.layers_and_heads(), param="parameters")
        inputs, tokenize_seconds = await service.tokenize_texts(model, texts, plain, details=False)
        if selection is not None:
            num_tokens = [item.num_tokens for item in inputs]
            model.batcher.check_size(len(num_tokens), sum(num_tokens), service.caller.key)
            check_padded(selection, num_tokens, service.limits, as_list=not wanted["attention"])
        spec = OutputSpec(
            model.embedder.info.kind == "embedding",
            normalize=plain.normalize,
            dimensions=dimensions,
            attention=selection,
        )
        rows, timings = await service.run(model, inputs, [spec] * len(inputs), tokenize_seconds, route)
        return Encoded(model, inputs, stack(rows), rows, selection, timings)


def check_padded(selection: AttentionSelection, num_tokens: Sequence[int], limits: Limits, *, as_list: bool) -> None:
    """Refuse attention that takes too much to compute, or to send padded to the longest text.

    Parameters
    ----------
    selection : AttentionSelection
        Of whole maps.
    num_tokens : sequence of int
        Of each text.
    limits : Limits
    as_list : bool
        Whether the numbers leave as JSON.

    Raises
    ------
    AttentionTooLargeError
        With changes of the request that would fit.
    """
    computed, sent = _sizes(selection, num_tokens)
    allowed = limits.max_attention_values_list if as_list else limits.max_attention_values_binary
    if computed > limits.max_attention_values_computed:
        what, which, actual = "the maps have {} values, a request may have {} computed", "computed", computed
    elif sent > allowed:
        what, which, actual = "padded to the longest text, the maps have {} values, this form may hold {}", "sent", sent
    else:
        return
    bound = limits.max_attention_values_computed if which == "computed" else allowed
    ways = [
        f"{label} gives {fewer_computed if which == 'computed' else fewer_sent}"
        for label, (fewer_computed, fewer_sent), fewer_allowed in _changes(selection, num_tokens, limits, allowed)
        if fewer_computed <= limits.max_attention_values_computed and fewer_sent <= fewer_allowed
    ]
    raise AttentionTooLargeError(
        f"{what.format(actual, bound)}: {'; '.join(ways) or 'send fewer or shorter texts, and ask for fewer maps'}",
        param="attention",
        limit=bound,
        actual=actual,
    )


def _sizes(selection: AttentionSelection, num_tokens: Sequence[int]) -> tuple[int, int]:
    """Count the weights that are computed, and those that are sent."""
    computed = sum(selection.num_values(length) for length in num_tokens)
    return computed, len(num_tokens) * selection.num_values(max(num_tokens))


def _changes(
    selection: AttentionSelection, num_tokens: Sequence[int], limits: Limits, allowed: int
) -> Iterator[tuple[str, tuple[int, int], int]]:
    """List what a caller may change: how it is spelled, what it gives, how much of that may be sent."""
    binary = limits.max_attention_values_binary
    if allowed < binary:
        yield f"binary_data=true (which may hold {binary})", _sizes(selection, num_tokens), binary
    last, first = max(selection.layers), selection.heads[0]
    if len(selection.layers) > 1:
        yield f"layers={last}", _sizes(replace(selection, layers=(last,)), num_tokens), allowed
    if len(selection.heads) > 1:
        yield f"heads={first}", _sizes(replace(selection, heads=(first,)), num_tokens), allowed
    if len(num_tokens) > 1:
        yield "the longest text alone", _sizes(selection, [max(num_tokens)]), allowed
