"""What the contracts of several routes are made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_PROMPT_CHARACTERS = 4_096
"""It is put before every text of a request, so that a long one would make a small body a huge amount of work."""

MAX_QUERY_CHARACTERS = 4_096
"""It is read again with every document, for the same reason."""

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


class Quantization(BaseModel):
    """What int8 and uint8 made of the numbers: ``x`` is about ``value * range / 127`` (of uint8, less 128 before)."""

    range: float = Field(description="The largest number that is told apart; the same for every text of this length.")
    clipped: list[int] = Field(description="How many numbers of each embedding lay beyond it.")
