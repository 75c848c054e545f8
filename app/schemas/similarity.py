"""The wire contract of ``/similarity``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from app.schemas.body import Dimensions, TextOptions
from app.schemas.encode import Tokens, Words


class SimilarityRequest(TextOptions):
    """Body of ``POST /similarity``: either ``texts`` or ``pairs``."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {
                    "required": ["texts"],
                    "properties": {
                        "texts": {"type": "array"},
                        "pairs": {"type": "null"},
                        "explain": {"const": False},
                        "unit": False,
                    },
                },
                {
                    "required": ["pairs"],
                    "properties": {
                        "pairs": {"type": "array"},
                        "texts": {"type": "null"},
                        "explain": {"const": False},
                        "unit": False,
                    },
                },
                {
                    "required": ["pairs", "explain"],
                    "properties": {"pairs": {"type": "array"}, "texts": {"type": "null"}, "explain": {"const": True}},
                },
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
    explain: bool = Field(False, description="With pairs: what each pair of tokens adds to the cosine.")
    unit: Literal["token", "word"] = Field("token", description="With explain: what a row and a column stand for.")

    @field_validator("explain")
    @classmethod
    def _only_of_pairs(cls, explain: bool, info: ValidationInfo) -> bool:
        if explain and info.data.get("texts") is not None:
            raise ValueError("goes with pairs, not with texts")
        return explain

    @field_validator("unit")
    @classmethod
    def _only_of_explanations(cls, unit: str, info: ValidationInfo) -> str:
        # Runs only where a unit was sent; an explain that is itself at fault is missing here, and is what gets named.
        if info.data.get("explain") is False:
            raise ValueError("goes with explain")
        return unit

    @model_validator(mode="after")
    def _one_of_two(self) -> SimilarityRequest:
        if (self.texts is None) == (self.pairs is None):
            raise ValueError("give either texts or pairs")
        return self


class ExplainedText(BaseModel):
    """One side of a pair."""

    tokens: Tokens
    words: Words


class ExplainedUnits(BaseModel):
    """What rows or columns stand for: columns with one entry per unit."""

    token: list[int] = Field(description="The unit's first token, an index into `tokens`.")
    word: list[int | None] = Field(description="Index into `words`, null = special or prompt.")


class StrongPair(BaseModel):
    """One entry of a similarity map."""

    row: int
    column: int
    value: float


class Explanation(BaseModel):
    """What each pair of tokens (or words) of two texts adds to their cosine."""

    a: ExplainedText
    b: ExplainedText
    unit: Literal["token", "word"]
    rows: ExplainedUnits = Field(description="Of the first text: what pooling averages.")
    columns: ExplainedUnits = Field(description="Of the second text.")
    shape: list[int]
    values: list[list[float]] = Field(description="They sum to the cosine.")
    row_sums: list[float]
    column_sums: list[float]
    strongest: list[StrongPair] = Field(description="At most ten, by absolute value.")
    sum: float = Field(description="The cosine.")


class SimilarityResponse(BaseModel):
    """Answer of ``POST /similarity``: cosines."""

    model: str
    similarities: list[list[float]] | list[float] = Field(description="n x n for texts, one per pair for pairs.")
    num_tokens: list[int] | list[list[int]]
    truncated: list[bool] | list[list[bool]]
    explanations: list[Explanation] | None = Field(None, description="Only with explain: one per pair.")
