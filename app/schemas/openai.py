"""The wire contract of OpenAI's embeddings: ``/v1/embeddings``, ``/v1/models``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from app.naming import named
from app.plain import PlainRequest, as_list, is_one
from app.schemas.body import MAX_INTEGER, MAX_PROMPT_CHARACTERS, Body, Dimensions, Index
from model.output_types import OutputDtype

# What is empty is refused where its place in the request is known; the schema says it all the same.
FilledText = Annotated[str, Field(json_schema_extra={"minLength": 1})]
FilledIds = Annotated[list[Index], Field(fail_fast=True, json_schema_extra={"minItems": 1})]
FilledTexts = Annotated[list[FilledText], Field(fail_fast=True, json_schema_extra={"minItems": 1})]
FilledIdLists = Annotated[list[FilledIds], Field(fail_fast=True, json_schema_extra={"minItems": 1})]


class OpenAIEmbeddingsRequest(Body):
    """Body of ``POST /v1/embeddings``."""

    input: FilledText | FilledTexts | FilledIds | FilledIdLists = Field(
        description="A text, a list of texts, a text as token ids (special tokens among them), or a list of such."
    )
    model: str | None = Field(None, description="The name of a served model; null = the first one.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="Numbers (also null), or base64 of their bytes: little-endian, of `output_dtype`."
    )
    dimensions: Dimensions | None = Field(None, description="Keep the first so many, then scale to unit length.")
    user: str | None = Field(None, description="Taken, and not used.")
    output_dtype: OutputDtype = Field(
        "float32", description="Not OpenAI's: number type of the embeddings, as Cohere and Voyage name them."
    )
    truncate: bool = Field(
        True, description="Not OpenAI's: false refuses a text that is too long, as OpenAI does, with 400."
    )
    prompt_name: str | None = Field(None, description="Not OpenAI's: a prompt of the model, put before each text.")
    prompt: str | None = Field(
        None, max_length=MAX_PROMPT_CHARACTERS, description="Not OpenAI's: a prompt of your own."
    )

    def plain(self) -> PlainRequest:
        """Return what is asked, in the server's own words."""
        return PlainRequest(
            as_list(self.input),
            model=self.model,
            prompt_name=self.prompt_name,
            prompt=self.prompt,
            truncate=self.truncate,
            dimensions=self.dimensions or None,
            output_dtype=self.output_dtype,
            rename=named("input", is_list=not is_one(self.input)),
        )


class InfinityEmbeddingsRequest(OpenAIEmbeddingsRequest):
    """Body of ``POST /embeddings``: what infinity's own client sends of itself is taken, too."""

    dimensions: Annotated[int, Field(ge=0, le=MAX_INTEGER, json_schema_extra={"format": "int32"})] | None = Field(
        None, description="Keep the first so many, then scale to unit length; null and 0 = all."
    )
    modality: Literal["text"] | None = Field(None, description="Taken, and not used: there is no other.")


class OpenAIEmbedding(BaseModel):
    """One text's vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | list[int] | str = Field(description="Of unit length, but for `output_dtype`.")


class OpenAIUsage(BaseModel):
    """Tokens processed, special tokens included."""

    prompt_tokens: int
    total_tokens: int


class OpenAIEmbeddingsResponse(BaseModel):
    """Answer of ``POST /v1/embeddings``; in its headers, which texts were cut."""

    object: Literal["list"]
    data: list[OpenAIEmbedding]
    model: str
    usage: OpenAIUsage


class OpenAIModel(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"]
    created: int = Field(description="When the server loaded it: seconds since 1970.")
    owned_by: str


class OpenAIModels(BaseModel):
    """Answer of ``GET /v1/models``."""

    object: Literal["list"]
    data: list[OpenAIModel]


class OpenAIErrorBody(BaseModel):
    """What went wrong."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None = Field(description="The field at fault.")
    code: str | None = Field(description="Stable, for programs.")


class OpenAIErrorResponse(BaseModel):
    """Every error of these routes."""

    error: OpenAIErrorBody
