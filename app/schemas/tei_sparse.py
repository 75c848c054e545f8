"""The wire contract of text-embeddings-inference's ``/embed_sparse``."""

from __future__ import annotations

from pydantic import BaseModel, Field

from app.plain import PlainRequest
from app.schemas.tei import TeiEmbedAllRequest


class TeiEmbedSparseRequest(TeiEmbedAllRequest):
    """Body of ``POST /embed_sparse``."""

    def plain(self, model: str | None) -> PlainRequest:
        """Return what is asked, in the server's own words."""
        return self._plain(model)


class TeiSparseValue(BaseModel):
    """The weight of one token of the vocabulary."""

    index: int = Field(ge=0, description="Its id; ascending in the list of a text.")
    value: float = Field(gt=0)
