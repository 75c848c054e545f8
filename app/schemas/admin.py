"""The wire of ``/admin``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ReloadRequest(BaseModel):
    """Which model to load anew; without a body, all that are served."""

    model_config = ConfigDict(
        strict=True, extra="forbid", json_schema_extra={"examples": [{"model": "eyeline-base"}, {}]}
    )

    model: str | None = Field(None, description="A served model's name; null = all, together or not at all")


class Change(BaseModel):
    """Something that is said of a model, and differs from what was said before; numbers and names as texts."""

    field: str = Field(description="As in /info")
    before: str
    after: str


class ReloadedModel(BaseModel):
    """What a reload did to one model."""

    model: str
    files: list[str] = Field(description="Files of the folder that are new, gone, or written since it was last read")
    changes: list[Change]


class ReloadResponse(BaseModel):
    """The new models serve."""

    models: list[ReloadedModel]
    seconds: float = Field(description="From the request to the switch: loading, checking and warming up")
