"""What may be asked with texts: the keyword arguments of both clients, and how they stand in a request.

What is not given is not sent, so the server's defaults hold. ``docs/api.md`` says what each does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict


class TextOptions(TypedDict, total=False):
    """Of every method that takes texts.

    Attributes
    ----------
    model : str or None
        Which served model; the first by default.
    truncate : bool
        Cut what is over the model's maximum (the default), or refuse it: :class:`eyeline.TooLargeError`.
    prompt_name, prompt : str or None
        A prompt of the model folder by its name, or one of your own.
    """

    model: str | None
    truncate: bool
    prompt_name: str | None
    prompt: str | None


class VectorOptions(TextOptions, total=False):
    """Of methods that make embeddings.

    Attributes
    ----------
    dimensions : int or None
        Only the first so many, scaled to unit length after the cut.
    """

    dimensions: int | None


class EncodeOptions(VectorOptions, total=False):
    """Of methods that return embeddings.

    Attributes
    ----------
    normalize : bool
        Scale each embedding to unit length (the default).
    output_dtype : "float32", "float16", "int8", "uint8", "binary" or "ubinary"
        Number type of the embeddings; int8 and uint8 need unit length, packed bits a multiple of eight dimensions.
    """

    normalize: bool
    output_dtype: Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"]


class ChunkOptions(EncodeOptions, total=False):
    """Of ``encode_chunks``, beside ``unit`` and ``size``.

    Attributes
    ----------
    overlap : int
        How many of a chunk's units the next one begins with; none by default.
    mode : "separate" or "late"
        Encode each chunk by itself (the default), or the text as a whole, and pool the tokens of each chunk.
    offset_unit : "codepoint", "utf16" or "byte"
        What ``start`` and ``end`` count; Python's strings are sliced by code points, the default.
    """

    overlap: int
    mode: Literal["separate", "late"]
    offset_unit: Literal["codepoint", "utf16", "byte"]


class RolloutOptions(TypedDict, total=False):
    """How attention is multiplied through the layers."""

    residual: float
    heads: Literal["mean", "max"]
    from_layer: int


class AttentionOptions(EncodeOptions, total=False):
    """Of ``attention``.

    Attributes
    ----------
    layers, heads : list of int, or "all"
        By default the last layer (-1), and all heads.
    reduce_heads : "mean", "max" or None
    special : "keep", "mask" or "renormalize"
    unit : "token" or "word"
    top_k : int or None
    min_weight : float
        With one of these, ``maps.sparse`` holds the largest weights of each row in place of ``maps.values``.
    maps, stats : bool
        Maps are there unless False; statistics if True.
    rollout : bool or dict
        True, or a dict with ``residual``, ``heads``, ``from_layer``.
    dtype : "float32" or "float16"
        Of weights on their way and in the arrays. Here float32 is the default, so that numbers stay exact.
    offset_unit : "codepoint", "utf16" or "byte"
        What ``start`` and ``end`` count; Python's strings are sliced by code points, the default.
    """

    layers: Sequence[int] | Literal["all"]
    heads: Sequence[int] | Literal["all"]
    reduce_heads: Literal["mean", "max"] | None
    special: Literal["keep", "mask", "renormalize"]
    unit: Literal["token", "word"]
    top_k: int | None
    min_weight: float
    maps: bool
    stats: bool
    rollout: bool | RolloutOptions
    dtype: Literal["float32", "float16"]
    offset_unit: Literal["codepoint", "utf16", "byte"]


def text_fields(options: Mapping[str, Any], known: type) -> dict[str, Any]:
    """Check the names of options, and leave out what is None.

    Parameters
    ----------
    options : mapping
    known : type
        The TypedDict that they are of.

    Raises
    ------
    TypeError
        If there is another, as for any keyword argument.
    """
    for name in options:
        if name not in known.__annotations__:
            raise TypeError(
                f"unexpected keyword argument {name!r}; there are {', '.join(sorted(known.__annotations__))}"
            )
    return {name: value for name, value in options.items() if value is not None}


def chunk_fields(options: ChunkOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part the options of a request from those of its ``chunks``."""
    fields = text_fields(options, ChunkOptions)
    of_request = {name: fields.pop(name) for name in EncodeOptions.__annotations__ if name in fields}
    return of_request, fields


def attention_fields(options: AttentionOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part the options of a request from those of its ``attention``.

    Returns
    -------
    (dict, dict)
        Fields of the request, and of the object ``attention``.
    """
    fields = text_fields(options, AttentionOptions)
    of_request = {name: fields.pop(name) for name in EncodeOptions.__annotations__ if name in fields}
    rollout = fields.pop("rollout", False)
    if rollout is not False:
        fields["rollout"] = {} if rollout is True else dict(rollout)
    for name in ("layers", "heads"):
        if name in fields and not isinstance(fields[name], str):
            fields[name] = [int(number) for number in fields[name]]  # a range, or numbers of numpy, too
    return of_request, {"dtype": "float32"} | fields
