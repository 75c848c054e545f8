"""The wire contract of text-embeddings-inference's routes.

``/embed``, ``/embed_all``, ``/decode``, and by the key ``inputs`` ``/similarity`` and ``/tokenize``. As that server
does, these take fields that they do not know; a header names them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.naming import named
from app.plain import PlainRequest, as_list, is_one
from app.schemas.body import Dimensions, Index
from model.truncation import Side

Direction = Literal["Right", "Left", "right", "left"]

# What is empty is refused where its place in the request is known; the schema says it all the same.
FilledText = Annotated[str, Field(json_schema_extra={"minLength": 1})]
FilledIds = Annotated[list[Index], Field(fail_fast=True, json_schema_extra={"minItems": 1})]
Inputs = (
    FilledText
    | Annotated[list[FilledText | FilledIds], Field(fail_fast=True, json_schema_extra={"minItems": 1})]
    | FilledIds  # behind the list of texts, whose findings are those that callers want to read
)


class TeiBody(BaseModel):
    """Base of every body: nothing is coerced; a field that is not known is kept, so that it can be named."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class TeiTruncation(TeiBody):
    """What becomes of a text that is too long, and what stands before each text."""

    truncate: bool | None = Field(None, description="Cut what is too long; null and false answer 413 instead.")
    truncation_direction: Direction = Field("Right", description="Where it is cut: Left takes from the beginning.")
    prompt_name: str | None = Field(None, description="A prompt of the model, put before each text.")

    @property
    def side(self) -> Side:
        """Where texts are cut."""
        return "left" if self.truncation_direction.lower() == "left" else "right"


class TeiEmbedAllRequest(TeiTruncation):
    """Body of ``POST /embed_all``."""

    inputs: Inputs = Field(
        description="A text, a flat list of token ids (one text, special tokens among them), or a list of either."
    )

    def plain(self, model: str | None) -> PlainRequest:
        """Return what is asked, in the server's own words."""
        return self._plain(model, token_states=True)

    def _plain(
        self,
        model: str | None,
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        token_states: bool = False,
    ) -> PlainRequest:
        return PlainRequest(
            as_list(self.inputs),
            model=model,
            prompt_name=self.prompt_name,
            truncate=bool(self.truncate),
            side=self.side,
            normalize=normalize,
            dimensions=dimensions,
            token_states=token_states,
            rename=named("inputs", is_list=not is_one(self.inputs)),
        )


class TeiEmbedRequest(TeiEmbedAllRequest):
    """Body of ``POST /embed``."""

    normalize: bool = Field(True, description="Scale each embedding to unit length.")
    dimensions: Dimensions | None = Field(None, description="Keep the first so many dimensions; null = all.")

    def plain(self, model: str | None) -> PlainRequest:
        """Return what is asked, in the server's own words."""
        return self._plain(model, normalize=self.normalize, dimensions=self.dimensions)


class TeiComparison(TeiBody):
    """One text, and those that it is compared with."""

    source_sentence: FilledText
    sentences: Annotated[list[FilledText], Field(fail_fast=True, json_schema_extra={"minItems": 1})]


class TeiSimilarityRequest(TeiBody):
    """Body of ``POST /similarity`` in the form of text-embeddings-inference."""

    inputs: TeiComparison
    parameters: TeiTruncation | None = None

    def plain(self, model: str | None) -> PlainRequest:
        """Return what is asked: the source sentence first."""
        parameters = self.parameters or TeiTruncation()
        sentences = self.inputs.sentences
        return PlainRequest(
            [self.inputs.source_sentence, *sentences] if sentences else [],
            model=model,
            prompt_name=parameters.prompt_name,
            truncate=bool(parameters.truncate),
            side=parameters.side,
            rename=_name_in_comparison,
        )


class TeiTokenizeRequest(TeiBody):
    """Body of ``POST /tokenize`` in the form of text-embeddings-inference."""

    inputs: FilledText | Annotated[list[FilledText], Field(fail_fast=True, json_schema_extra={"minItems": 1})]
    add_special_tokens: bool = Field(True, description="Whether the answer has what the template adds.")
    prompt_name: str | None = Field(None, description="A prompt of the model, put before each text.")

    def plain(self, model: str | None) -> PlainRequest:
        """Return what is asked, in the server's own words."""
        return PlainRequest(
            as_list(self.inputs),
            model=model,
            prompt_name=self.prompt_name,
            rename=named("inputs", is_list=not is_one(self.inputs)),
        )


class TeiDecodeRequest(TeiBody):
    """Body of ``POST /decode``."""

    ids: FilledIds | Annotated[list[FilledIds], Field(fail_fast=True, json_schema_extra={"minItems": 1})] = Field(
        description="The token ids of one text, or a list of such."
    )
    skip_special_tokens: bool = True

    def plain(self, model: str | None) -> PlainRequest:
        """Return what is asked, in the server's own words."""
        return PlainRequest(as_list(self.ids), model=model, rename=named("ids", is_list=not is_one(self.ids)))


class TeiToken(BaseModel):
    """One token of a text."""

    id: int
    text: str = Field(description="Of your text what it stands for; of a special token its name.")
    special: bool
    start: int | None = Field(description="Byte of UTF-8 in prompt and text together; null for a special token.")
    stop: int | None


class TeiErrorResponse(BaseModel):
    """Every error of these routes."""

    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Empty"]


def ignored_fields(body: TeiBody) -> list[str]:
    """Name the fields of a body that are not known, at its top and one level below it, as ``parameters.x``."""
    found = list(body.model_extra or {})
    for name in type(body).model_fields:
        part = getattr(body, name)
        if isinstance(part, TeiBody):
            found += [f"{name}.{inner}" for inner in ignored_fields(part)]
    return found


def _name_in_comparison(param: str) -> str:
    """Name a text of a comparison: ``texts[0]`` is the source sentence."""
    if param == "texts[0]":
        return "inputs.source_sentence"
    if param.startswith("texts["):
        return f"inputs.sentences[{int(param[len('texts[') : -1]) - 1}]"
    return "inputs.sentences" if param == "texts" else param
