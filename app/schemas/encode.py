"""The wire contract of ``/encode``, ``/similarity`` and ``/tokenize``.

Requests are validated by these models. Answers are written from arrays (``app/answers.py``); their models here are the
documentation in ``/openapi.json``, and a test holds the two together.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

MAX_PROMPT_CHARACTERS = 4_096
"""It is put before every text of a request, so that a long one would make a small body a huge amount of work."""

Text = Annotated[str, Field(description="A text. An empty one is a text too.")]
Pair = Annotated[tuple[str, str], Field(description="A pair of texts, encoded together as `[a, b]`.")]
# fail_fast on every list: a body of a million wrong items would otherwise make a million findings.
Texts = Annotated[list[Text | Pair], Field(min_length=1, fail_fast=True)]

MAX_INTEGER = 2**31 - 1
Index = Annotated[int, Field(ge=-MAX_INTEGER - 1, le=MAX_INTEGER, json_schema_extra={"format": "int32"})]
"""A whole number that every JSON reader can hold, so that an error can name it."""
Indices = Annotated[list[Index], Field(fail_fast=True)]
Selection = Annotated[
    list[Index], Field(fail_fast=True, json_schema_extra={"minItems": 1, "uniqueItems": True})
]  # both are checked where the model is known, which words the error better


def _must_be_true(value: bool) -> bool:
    if not value:
        raise ValueError("should be true")
    return value


def _must_be_false(value: bool) -> bool:
    if value:
        raise ValueError("should be false")
    return value


# Not Literal: it compares with ==, so that 0 would pass for false, and 1.0 for true.
OnlyTrue = Annotated[bool, AfterValidator(_must_be_true), Field(json_schema_extra={"const": True})]
OnlyFalse = Annotated[bool, AfterValidator(_must_be_false), Field(json_schema_extra={"const": False})]
Dimensions = Annotated[int, Field(ge=1, le=MAX_INTEGER, json_schema_extra={"format": "int32"})]


class Body(BaseModel):
    """Base of every request body: nothing is coerced, an unknown field is an error."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class TextOptions(Body):
    """What every endpoint that reads texts takes."""

    model: str | None = Field(None, description="Which served model; null = the first one.")
    truncate: bool = Field(True, description="Cut what is over the model's maximum; false answers 413 instead.")
    prompt_name: str | None = Field(None, description="A prompt of the model folder, put before each text.")
    prompt: str | None = Field(
        None, max_length=MAX_PROMPT_CHARACTERS, description="A prompt of your own, put before each text."
    )


class AttentionOptions(Body):
    """Which attention maps to return, and how."""

    items: Indices | None = Field(None, description="Which texts, by index; null = all.")
    layers: Literal["all"] | Selection = Field([-1], description='Layers, negative from the end, or "all".')
    heads: Literal["all"] | Selection = Field("all", description='Heads, negative from the end, or "all".')
    reduce_heads: None = Field(None, description="Only null: each head by itself.")
    unit: Literal["token"] = Field("token", description="What a row and a column stand for.")
    special: Literal["keep"] = Field("keep", description="Special tokens keep their rows and columns.")
    rollout: None = Field(None, description="Only null: no rollout.")
    top_k: None = Field(None, description="Only null: every weight is returned.")
    min_weight: float = Field(0, ge=0, le=0, description="Only 0: every weight.")
    maps: OnlyTrue = Field(True, description="Return the maps themselves.")
    stats: OnlyFalse = Field(False, description="Only false: no statistics.")
    dtype: Literal["float16", "float32"] = Field("float16", description="Number type of base64 and binary maps.")
    encoding: Literal["list", "base64"] = Field("list", description="How maps stand in a JSON answer.")
    digits: int = Field(4, ge=1, le=9, description="Significant digits of each weight in a list.")
    offset_unit: Literal["codepoint"] = Field("codepoint", description="Unit of `start` and `end`.")


class EncodeRequest(TextOptions):
    """Body of ``POST /encode``."""

    texts: str | Texts = Field(description="One text, or a list of texts and pairs.")
    normalize: bool = Field(True, description="Scale each embedding to unit length.")
    dimensions: Dimensions | None = Field(None, description="Keep the first so many dimensions; null = all.")
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="Embeddings as numbers, or as base64 of little-endian float32."
    )
    attention: AttentionOptions | None = Field(None, description="Attention maps; null = none, and no cost.")


class SimilarityRequest(TextOptions):
    """Body of ``POST /similarity``: either ``texts`` or ``pairs``."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["texts"], "properties": {"texts": {"type": "array"}, "pairs": {"type": "null"}}},
                {"required": ["pairs"], "properties": {"pairs": {"type": "array"}, "texts": {"type": "null"}}},
            ]
        }
    )

    texts: Annotated[list[str], Field(min_length=1, fail_fast=True)] | None = Field(
        None, description="Texts that are each compared with all."
    )
    pairs: Annotated[list[tuple[str, str]], Field(min_length=1, fail_fast=True)] | None = Field(
        None, description="Texts that are compared two by two."
    )
    dimensions: Dimensions | None = Field(None, description="Compare the first so many dimensions; null = all.")

    @model_validator(mode="after")
    def _one_of_two(self) -> SimilarityRequest:
        if (self.texts is None) == (self.pairs is None):
            raise ValueError("give either texts or pairs")
        return self


class TokenizeRequest(TextOptions):
    """Body of ``POST /tokenize``."""

    texts: str | Texts = Field(description="One text, or a list of texts and pairs.")


class Tokens(BaseModel):
    """Columns with one entry per token, in the order of the maps' axes."""

    id: list[int]
    text: list[str] = Field(description="The piece as the vocabulary spells it.")
    start: list[int] = Field(description="First code point in your text; 0 for a token that stands for none of it.")
    end: list[int] = Field(description="One past the last code point.")
    special: list[bool] = Field(description="True for what the template added, never for what you typed.")
    segment: list[int | None] = Field(description="0 = first text, 1 = second of a pair, null = special or prompt.")
    word: list[int | None] = Field(description="Index into `words`, null = special or prompt.")


class Words(BaseModel):
    """Columns with one entry per word: runs without white space."""

    text: list[str]
    start: list[int]
    end: list[int]
    segment: list[int]


class Maps(BaseModel):
    """Attention weights of one text. Row = query (who looks), column = key (looked at); rows sum to 1."""

    layers: list[int] = Field(description="True layer numbers, in the order asked.")
    heads: list[int] = Field(description="True head numbers, in the order asked.")
    axes: list[Literal["layer", "head", "query", "key"]]
    shape: list[int]
    values: list[list[list[list[float]]]] | None = Field(None, description="With encoding list.")
    data: str | None = Field(None, description="With encoding base64.")
    dtype: Literal["float16", "float32"] | None = Field(None, description="With encoding base64.")
    order: Literal["C"] | None = Field(None, description="With encoding base64: the last axis runs fastest.")
    endian: Literal["little"] | None = Field(None, description="With encoding base64.")


class TextAttention(BaseModel):
    """What one text shows of itself."""

    tokens: Tokens
    words: Words
    maps: Maps


class EncodeResponse(BaseModel):
    """Answer of ``POST /encode``; every list has one entry per text, in the order sent."""

    model: str
    dimensions: int
    embeddings: list[list[float]] | list[str]
    num_tokens: list[int] = Field(description="Tokens processed, special tokens included.")
    num_tokens_total: list[int] = Field(description="Tokens before truncation.")
    truncated: list[bool]
    attention: list[TextAttention | None] | None = Field(None, description="Only where attention was asked for.")


class SimilarityResponse(BaseModel):
    """Answer of ``POST /similarity``: cosines."""

    model: str
    similarities: list[list[float]] | list[float] = Field(description="n x n for texts, one per pair for pairs.")
    num_tokens: list[int] | list[list[int]]
    truncated: list[bool] | list[list[bool]]


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
