"""The wire contract of ``/attention/heads``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from app.schemas.body import TextOptions, Texts


class HeadDistancesRequest(TextOptions):
    """Body of ``POST /attention/heads``."""

    texts: str | Texts = Field(
        description="The texts over which heads are compared: one, or a list of texts and pairs."
    )
    special: Literal["keep", "renormalize"] = Field(
        "keep",
        description="renormalize leaves out the special tokens that the template added, and scales what is left of "
        "each row to sum to 1.",
    )


class HeadDistancesResponse(BaseModel):
    """Answer of ``POST /attention/heads``: every list but the last two has one entry per head."""

    model: str
    heads: list[list[int]] = Field(description="Layer and head; what rows and columns of `distances` stand for.")
    distances: list[list[float]] = Field(description="Hellinger distances, 0 to 1.")
    order: list[int] = Field(description="Indices into `heads`, so that like heads are neighbours.")
    layout: list[list[float]] = Field(description="A place in the plane for each head: classical scaling.")
    explained: float = Field(description="Share of the squared distances that the layout holds.")
    num_tokens: list[int]
    truncated: list[bool]
