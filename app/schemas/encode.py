"""The wire contract of ``/encode`` and ``/tokenize``.

Requests are validated by these models. Answers are written from arrays (``app/answers.py``); their models here are the
documentation in ``/openapi.json``, and a test holds the two together.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.schemas.body import MAX_INTEGER, Body, Dimensions, Index, Indices, Quantization, Selection, TextOptions, Texts
from app.schemas.chunks import ChunkOptions
from model.contract import HeadReduction, SpecialMode, Unit
from model.offsets import OffsetUnit
from model.output_types import OutputDtype


class RolloutOptions(Body):
    """Attention multiplied through the layers: which token of the input a token of the last layer goes back to."""

    residual: float = Field(
        0.5, ge=0, le=1, description="Share of each step that stays where it is, as residual connections do."
    )
    heads: HeadReduction = Field("mean", description="How the heads of a layer become one map; max is renormalised.")
    from_layer: Index = Field(0, description="First layer of the product, negative from the end; it ends at the last.")


class AttentionOptions(Body):
    """Which attention to return, and how. Order of work: heads, special tokens, words, sparse rows."""

    items: Indices | None = Field(None, description="Which texts, by index; null = all.")
    layers: Literal["all"] | Selection = Field([-1], description='Layers, negative from the end, or "all".')
    heads: Literal["all"] | Selection = Field("all", description='Heads, negative from the end, or "all".')
    reduce_heads: HeadReduction | None = Field(
        None, description="Take the heads asked for together; max divides each row by its sum. null = each by itself."
    )
    unit: Unit = Field(
        "token", description="What a row and a column stand for. Of a word's pieces, keys are summed, queries averaged."
    )
    special: SpecialMode = Field(
        "keep",
        description="Rows and columns of the special tokens that the template added: mask leaves them out; renormalize "
        "also divides each row by what it kept (`kept_mass`).",
    )
    rollout: RolloutOptions | None = Field(None, description="null = none. Over all tokens, heads and layers.")
    top_k: Annotated[int, Field(ge=1, le=MAX_INTEGER, json_schema_extra={"format": "int32"})] | None = Field(
        None, description="Return so many weights of each row, the largest, and the sum of the rest."
    )
    min_weight: float = Field(
        0, ge=0, le=1, description="Return the weights of each row from here on, and the sum of the rest."
    )
    maps: bool = Field(True, description="Return the maps themselves.")
    stats: bool = Field(False, description="Return numbers that describe each head.")
    dtype: Literal["float16", "float32"] = Field("float16", description="Number type of base64 and binary maps.")
    encoding: Literal["list", "base64"] = Field("list", description="How maps stand in a JSON answer.")
    digits: int = Field(4, ge=1, le=9, description="Significant digits of each weight in a list.")
    offset_unit: OffsetUnit = Field(
        "codepoint", description="Unit of `start` and `end`: code points, UTF-16 units (JavaScript), bytes of UTF-8."
    )


class EncodeRequest(TextOptions):
    """Body of ``POST /encode``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"texts": ["The cat sat.", "A dog barked."], "dimensions": 8},
                {"texts": "The cat sat.", "dimensions": 8, "output_dtype": "int8"},
                {
                    "texts": "The cat sat. A dog barked! Hello world.",
                    "chunks": {"unit": "sentence", "size": 2, "overlap": 1, "mode": "late"},
                },
                {"texts": ["The cat sat.", "A dog barked."], "attention": {"layers": [-1], "heads": [0]}},
            ]
        }
    )

    texts: str | Texts = Field(description="One text, or a list of texts and pairs.")
    normalize: bool = Field(True, description="Scale each embedding to unit length.")
    dimensions: Dimensions | None = Field(None, description="Keep the first so many dimensions; null = all.")
    output_dtype: OutputDtype = Field(
        "float32",
        description="Number type of the embeddings. int8 and uint8 need unit length; binary and ubinary pack the signs "
        "of eight dimensions into a number.",
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="Embeddings as numbers, or as base64 of their bytes: little-endian, of `output_dtype`."
    )
    attention: AttentionOptions | None = Field(None, description="Attention maps; null = none, and no cost.")
    chunks: ChunkOptions | None = Field(
        None, description="Cut each text into chunks with an embedding each; not together with `attention`."
    )


class TokenizeRequest(TextOptions):
    """Body of ``POST /tokenize``."""

    texts: str | Texts = Field(description="One text, or a list of texts and pairs.")


class Tokens(BaseModel):
    """Columns with one entry per token, in the order of the maps' axes."""

    id: list[int]
    text: list[str] = Field(description="The piece as the vocabulary spells it.")
    start: list[int] = Field(description="Offset in your text; 0 for a token that stands for none of it.")
    end: list[int] = Field(description="One past its last code point (or what `offset_unit` counts).")
    special: list[bool] = Field(description="True for what the template added, never for what you typed.")
    segment: list[int | None] = Field(description="0 = first text, 1 = second of a pair, null = special or prompt.")
    word: list[int | None] = Field(description="Index into `words`, null = special or prompt.")


class Words(BaseModel):
    """Columns with one entry per word: runs without white space."""

    text: list[str]
    start: list[int]
    end: list[int]
    segment: list[int]


class Units(BaseModel):
    """Columns with one entry per row (and column) of a map."""

    token: list[int] = Field(description="Index into `tokens` of the first token of each.")
    word: list[int | None] = Field(description="Index into `words`, null = special or prompt.")


class SparseRows(BaseModel):
    """The largest weights of each row, the largest first: lists, or with encoding base64 compressed rows.

    The weights of a row as they are sent, and its rest, are the sum of the whole row.
    """

    row_start: str | None = Field(None, description="base64 of int32, rows + 1: row r is from row_start[r] on.")
    index: list[list[list[list[int]]]] | str = Field(description="Keys; base64 of int32.")
    weight: list[list[list[list[float]]]] | str = Field(description="base64 of `dtype`.")
    rest: list[list[list[float]]] | str = Field(description="Sum of what was left out of each row; base64 of float32.")


class Base64Numbers(BaseModel):
    """How numbers stand in base64; dtype, order and endian also beside those of a binary answer."""

    data: str | None = Field(None, description="With encoding base64.")
    dtype: Literal["float16", "float32"] | None = Field(None, description="With encoding base64.")
    order: Literal["C"] | None = Field(None, description="With encoding base64: the last axis runs fastest.")
    endian: Literal["little"] | None = Field(None, description="With encoding base64.")


class Maps(Base64Numbers):
    """Attention weights of one text. Row = query (who looks), column = key (looked at)."""

    layers: list[int] = Field(description="True layer numbers, in the order asked.")
    heads: list[int] | HeadReduction = Field(
        description="True head numbers, in the order asked, or how they were taken."
    )
    axes: list[Literal["layer", "head", "query", "key"]]
    shape: list[int]
    unit: Unit
    special: SpecialMode
    units: Units
    row_sum_tolerance: float = Field(
        description="How far the sum of a row as sent may be from 1; from `kept_mass` with special mask; where a row "
        "kept nothing, it is 0."
    )
    kept_mass: list[list[list[float]]] | None = Field(
        None, description="What each row kept when special tokens were left out, [layer][head][query]."
    )
    values: list[list[list[list[float]]]] | None = Field(None, description="With encoding list.")
    sparse: SparseRows | None = Field(None, description="With top_k or min_weight, in place of the whole maps.")


Statistic = list[list[float | None]]


class Stats(BaseModel):
    """Numbers that describe single heads, [layer][head], averaged over query rows; null where one has no meaning."""

    layers: list[int]
    heads: list[int]
    special: Literal["keep", "renormalize"]
    entropy: Statistic = Field(description="In nats.")
    entropy_norm: Statistic = Field(description="Over the largest possible; 0 where a row has one key.")
    effective_tokens: Statistic = Field(description="exp(entropy) of each row, averaged.")
    confidence: Statistic = Field(description="The largest weight of each row, averaged.")
    mean_distance: Statistic = Field(description="In tokens.")
    to_cls: Statistic = Field(description="Mass on the opening special token.")
    to_sep: Statistic = Field(description="Mass on the other special tokens.")
    to_self: Statistic
    to_prev: Statistic
    to_next: Statistic
    kept_mass: Statistic | None = Field(None, description="Where special tokens are left out.")


class Rollout(Base64Numbers):
    """Attention multiplied through the layers, (n, n): row = token of the last layer, column = token of the input."""

    residual: float
    heads: HeadReduction
    layers: list[int] = Field(description="The layers multiplied.")
    shape: list[int]
    unit: Unit
    special: SpecialMode
    units: Units
    row_sum_tolerance: float
    kept_mass: list[float] | None = None
    values: list[list[float]] | None = Field(None, description="With encoding list.")


class TextAttention(BaseModel):
    """What one text shows of itself."""

    tokens: Tokens
    words: Words
    maps: Maps | None = None
    stats: Stats | None = None
    rollout: Rollout | None = None


class EncodeResponse(BaseModel):
    """Answer of ``POST /encode``; every list has one entry per text, in the order sent."""

    model: str
    dimensions: int = Field(description="Of each embedding; with binary and ubinary eight times its numbers.")
    embeddings: list[list[float]] | list[list[int]] | list[str]
    quantization: Quantization | None = Field(None, description="Only with output_dtype int8 and uint8.")
    num_tokens: list[int] = Field(description="Tokens processed, special tokens included.")
    num_tokens_total: list[int] = Field(description="Tokens before truncation.")
    truncated: list[bool]
    attention: list[TextAttention | None] | None = Field(None, description="Only where attention was asked for.")


class TokenizedText(BaseModel):
    """One text as the model reads it."""

    tokens: Tokens
    words: Words
    num_tokens: int
    num_tokens_total: int
    truncated: bool


class TokenizeResponse(BaseModel):
    """Answer of ``POST /tokenize``."""

    model: str
    texts: list[TokenizedText]


class ProblemResponse(BaseModel):
    """Every error: RFC 9457 ``application/problem+json``."""

    type: str
    title: str
    status: int
    detail: str
    code: str = Field(description="Stable, for programs.")
    param: str | None = Field(None, description="The field at fault.")
    limit: float | None = None
    actual: float | None = None
