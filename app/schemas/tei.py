"""The wire contract of text-embeddings-inference's routes.

``/embed``, ``/embed_all``, ``/predict``, ``/decode``, by the key ``inputs`` ``/similarity`` and ``/tokenize``, and
``/rerank`` unless it has ``documents``. As that server does, these take fields that they do not know; a header names
them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from app.errors import EmptyInputError
from app.naming import named
from app.plain import PlainRequest, as_list, is_one
from app.schemas.body import MAX_QUERY_CHARACTERS, Dimensions, Index
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

TextOrPair = Annotated[
    list[str], Field(min_length=1, max_length=2, fail_fast=True, json_schema_extra={"contains": {"minLength": 1}})
]
"""What is read together: a text, or the two of a pair, one of which may be empty."""


class TeiBody(BaseModel):
    """Base of every body: nothing is coerced; a field that is not known is kept, so that it can be named."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class TeiCut(TeiBody):
    """What becomes of a text that is too long; of a pair, the longer text is cut first."""

    truncate: bool | None = Field(None, description="Cut what is too long; null and false answer 413 instead.")
    truncation_direction: Direction = Field("Right", description="Where it is cut: Left takes from the beginning.")

    @property
    def side(self) -> Side:
        """Where texts are cut."""
        return "left" if self.truncation_direction.lower() == "left" else "right"


class TeiTruncation(TeiCut):
    """The same, and what stands before each text."""

    prompt_name: str | None = Field(
        None,
        description="A prompt of the model, put before each text. Late interaction: query or document (docs/api.md).",
    )


class TeiEmbedAllRequest(TeiTruncation):
    """Body of ``POST /embed_all``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": "The cat sat."},
                {"inputs": ["The cat sat.", "A dog barked."], "truncate": True},
                {"inputs": ["The cat sat.", [5, 6]], "truncate": True, "truncation_direction": "Left"},
            ]
        }
    )

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


def _shape(inputs: object) -> str:
    """Tell what is meant, so that an error is about that; the first item decides, as there."""
    if not isinstance(inputs, list):
        return "str"
    return "list[list]" if inputs and isinstance(inputs[0], list) else "list[str]"


class TeiPredictRequest(TeiCut):
    """Body of ``POST /predict``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": "The cat sat."},
                {"inputs": ["The cat sat.", "A dog barked."], "raw_scores": True},
                {"inputs": [["The cat sat."], ["The cat sat.", "A dog barked."]], "truncate": True},
            ]
        }
    )

    inputs: Annotated[
        Annotated[FilledText, Tag("str")]
        | Annotated[TextOrPair, Tag("list[str]")]
        | Annotated[list[TextOrPair], Field(min_length=1, fail_fast=True), Tag("list[list]")],
        Discriminator(_shape),
    ] = Field(description="A text; or a list of a text, or of the two texts of a pair; or a list of such lists.")
    raw_scores: bool = Field(False, description="Give logits, not scores from 0 to 1.")

    @property
    def is_batch(self) -> bool:
        """Whether there are many, and so the answer is a list of lists."""
        return _shape(self.inputs) == "list[list]"

    def plain(self, model: str | None) -> PlainRequest:
        """Return what is asked, in the server's own words."""
        if isinstance(self.inputs, str):
            lists = [[self.inputs]]
        else:
            lists = [item for item in self.inputs if isinstance(item, list)]
            lists = lists or [[item for item in self.inputs if isinstance(item, str)]]
        return PlainRequest(
            [(item[0], item[1]) if len(item) == 2 else item[0] for item in lists],
            model=model,
            truncate=bool(self.truncate),
            side=self.side,
            rename=named("inputs", is_list=self.is_batch),
        )


class TeiRerankRequest(TeiCut):
    """Body of ``POST /rerank`` in the form of text-embeddings-inference."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"query": "Who sat?", "texts": ["A dog barked.", "The cat sat."]},
                {"query": "Who sat?", "texts": ["A dog barked.", "The cat sat."], "raw_scores": True},
                {"query": "Who sat?", "texts": ["A dog barked."], "return_text": True, "truncate": True},
            ]
        }
    )

    query: FilledText = Field(max_length=MAX_QUERY_CHARACTERS, description="Compared with each text.")
    texts: Annotated[list[str], Field(fail_fast=True, json_schema_extra={"minItems": 1})]
    raw_scores: bool = Field(False, description="Give logits, not scores from 0 to 1.")
    return_text: bool = Field(False, description="Whether the answer has the texts.")

    def plain(self, model: str | None) -> PlainRequest:
        """Return what is asked: a pair for each text."""
        if not self.query:
            raise EmptyInputError("the query must not be empty", param="query", limit=1, actual=0)
        return PlainRequest(
            [(self.query, text) for text in self.texts], model=model, truncate=bool(self.truncate), side=self.side
        )


class TeiPrediction(BaseModel):
    """The score of a label."""

    score: float
    label: str


class TeiRank(BaseModel):
    """The score of a text."""

    index: int
    text: str = Field("", description="Only with `return_text`.")
    score: float


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
