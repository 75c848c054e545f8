"""The wire contract of ``chunks`` of ``/encode``."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from app.schemas.body import MAX_INTEGER, Body, Quantization
from model.chunking import Chunking, ChunkMode, ChunkUnit
from model.offsets import OffsetUnit


class ChunkOptions(Body):
    """How each text is cut into chunks, each of which gets an embedding."""

    unit: ChunkUnit = Field(description="What a chunk is made of. A sentence ends where Unicode says so.")
    size: Annotated[int, Field(ge=1, le=MAX_INTEGER, json_schema_extra={"format": "int32"})] = Field(
        description="Tokens or sentences in a chunk. Special tokens and prompt are not counted."
    )
    overlap: Annotated[int, Field(ge=0, le=MAX_INTEGER, json_schema_extra={"format": "int32"})] = Field(
        0, description="How many of them the next chunk begins with; less than `size`."
    )
    mode: ChunkMode = Field(
        "separate",
        description="separate: each chunk is encoded by itself. late: the text is read as a whole, as far as the model "
        "reads, and then the tokens of each chunk are pooled.",
    )
    offset_unit: OffsetUnit = Field(
        "codepoint", description="Unit of `start` and `end`: code points, UTF-16 units (JavaScript), bytes of UTF-8."
    )

    def chunking(self) -> Chunking:
        """Return the same in the model's own words."""
        return Chunking(self.unit, self.size, self.overlap, self.mode)


class TextChunks(BaseModel):
    """The chunks of one text: columns with one entry per chunk."""

    start: list[int] = Field(description="Offset in your text.")
    end: list[int] = Field(description="One past its last code point (or what `offset_unit` counts).")
    num_tokens: list[int] = Field(description="Tokens of the text in the chunk, before truncation.")
    truncated: list[bool] = Field(description="Whether the chunk alone is longer than the model reads.")
    embeddings: list[list[float]] | list[list[int]] | list[str]
    quantization: Quantization | None = Field(None, description="Only with output_dtype int8 and uint8.")


class ChunksResponse(BaseModel):
    """Answer of ``POST /encode`` with ``chunks``; every list has one entry per text, in the order sent."""

    model: str
    dimensions: int = Field(description="Of each embedding; with binary and ubinary eight times its numbers.")
    chunks: list[TextChunks]
    num_tokens: list[int] = Field(description="Tokens processed for all chunks, special tokens included.")
    num_tokens_total: list[int] = Field(description="Tokens of the text as a whole, special tokens included.")
    truncated: list[bool] = Field(description="Whether one of the chunks was cut.")
