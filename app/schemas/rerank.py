"""The wire contract of Cohere's and Jina's rerank: ``/v1/rerank``, ``/v2/rerank``, and by its key ``/rerank``."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from app.naming import named
from app.plain import PlainRequest
from app.schemas.body import MAX_INTEGER, MAX_QUERY_CHARACTERS, Body

NULL: None = Field(None, description="Cohere's; taken where it is null, as clients send it.")


class RerankDocument(Body):
    """A document as an object."""

    text: str


class RerankRequest(Body):
    """Body of ``POST /v1/rerank``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"query": "Who sat?", "documents": ["A dog barked.", "The cat sat."]},
                {"query": "Who sat?", "documents": ["A dog barked.", {"text": "The cat sat."}], "top_n": 1},
                {"query": "Who sat?", "documents": ["A dog barked."], "return_documents": True, "truncate": False},
            ]
        }
    )

    model: str | None = Field(None, description="The name of a served model; null = the first one.")
    query: str = Field(min_length=1, max_length=MAX_QUERY_CHARACTERS, description="Compared with each document.")
    documents: Annotated[list[str | RerankDocument], Field(fail_fast=True, json_schema_extra={"minItems": 1})]
    top_n: Annotated[int, Field(ge=1, le=MAX_INTEGER, json_schema_extra={"format": "int32"})] | None = Field(
        None, description="Give the best so many; null, or more than there are = all."
    )
    return_documents: bool | None = Field(None, description="Whether the answer has the documents; null = it has not.")
    max_tokens_per_doc: None = NULL
    max_chunks_per_doc: None = NULL
    rank_fields: None = NULL
    priority: None = NULL
    truncate: bool = Field(
        True,
        description=(
            "Not theirs: false refuses a document that is too long. Otherwise the longer of the two is cut; of late "
            "interaction each is cut to its own length."
        ),
    )

    @property
    def texts(self) -> list[str]:
        """The documents' texts."""
        return [document if isinstance(document, str) else document.text for document in self.documents]

    def plain(self) -> PlainRequest:
        """Return what is asked: a pair for each document."""
        return PlainRequest(
            [(self.query, text) for text in self.texts],
            model=self.model,
            truncate=self.truncate,
            rename=named("documents", is_list=True),
        )


class RerankResult(BaseModel):
    """How well a document goes with the query."""

    index: int
    relevance_score: float = Field(description="From 0 to 1; of a late interaction model its MaxSim.")
    document: RerankDocument | None = Field(None, description="Only with `return_documents`.")


class RerankUsage(BaseModel):
    """Tokens processed, special tokens included."""

    prompt_tokens: int
    total_tokens: int


class RerankTokens(BaseModel):
    """Tokens, as Cohere counts them."""

    input_tokens: int


class RerankMeta(BaseModel):
    """What else Cohere says."""

    tokens: RerankTokens


class RerankResponse(BaseModel):
    """Answer of ``POST /v1/rerank``, the best first; in its headers, which documents were cut."""

    id: str = Field(description="As in the header X-Request-ID.")
    model: str
    results: list[RerankResult]
    usage: RerankUsage
    meta: RerankMeta


class RerankErrorResponse(BaseModel):
    """Every error of these routes: clients of Cohere read ``message``, those of Jina ``detail``."""

    message: str
    detail: str = Field(description="The same.")
    code: str = Field(description="Stable, for programs.")
