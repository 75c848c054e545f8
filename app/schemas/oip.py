"""The wire contract of the Open Inference Protocol, version 2: ``/v2/...``.

As its servers do, these take fields and parameters that they do not know; a header names them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.errors import InvalidRequestError
from app.plain import PlainRequest
from app.schemas.body import MAX_INTEGER, MAX_PROMPT_CHARACTERS, Dimensions, Index, Selection

INPUT = "text"
OutputName = Literal["embedding", "attention", "num_tokens", "num_tokens_total", "truncated"]

MAX_ID_CHARACTERS = 1_024
"""It is sent back."""

Size = Annotated[int, Field(ge=0, le=MAX_INTEGER, json_schema_extra={"format": "int32"})]
Length = Annotated[int, Field(ge=1, le=MAX_INTEGER, json_schema_extra={"format": "int32"})]
Texts = Annotated[list[str | Annotated[list[str], Field(fail_fast=True)]], Field(fail_fast=True)]
NumberList = Annotated[str, Field(pattern=r"^(all|-?[0-9]{1,9}(,-?[0-9]{1,9})*)$", max_length=10_000)]
Numbers = Index | NumberList | Selection
"""Clients can hold parameters that are strings, numbers or booleans, and not all of them lists."""


class OIPObject(BaseModel):
    """Base of every part of a request: nothing is coerced; what is not known is kept, so that it can be named."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class OIPInputParameters(OIPObject):
    """How an input is sent."""

    binary_data_size: Size | None = Field(
        None, description="The tensor is not in `data`, but in so many bytes behind the JSON."
    )


class OIPInput(OIPObject):
    """The texts, one per element."""

    name: Literal["text"]
    shape: list[Length] = Field(min_length=1, max_length=2, description="[n], or [n, 1].")
    datatype: Literal["BYTES"]
    parameters: OIPInputParameters | None = None
    data: Texts | None = Field(None, description="The texts, flat or nested as `shape` says.")

    @property
    def binary_data_size(self) -> int | None:
        """Bytes behind the JSON; None where the tensor is in ``data``."""
        return None if self.parameters is None else self.parameters.binary_data_size


class OIPOutputParameters(OIPObject):
    """How an output is sent."""

    binary_data: bool | None = Field(None, description="Behind the JSON; null = as `binary_data_output` says.")


class OIPRequestedOutput(OIPObject):
    """An output to be returned."""

    name: OutputName
    parameters: OIPOutputParameters | None = None


class OIPParameters(OIPObject):
    """What is asked of the model. null = the default."""

    dimensions: Dimensions | None = Field(None, description="Keep the first so many dimensions of each embedding.")
    normalize: bool | None = Field(None, description="Scale each embedding to unit length; true by default.")
    truncate: bool | None = Field(
        None, description="Cut what is over the model's maximum; true by default, false answers 413."
    )
    prompt_name: str | None = Field(None, description="A prompt of the model, put before each text.")
    prompt: str | None = Field(None, max_length=MAX_PROMPT_CHARACTERS, description="A prompt of your own.")
    layers: Numbers | None = Field(
        None, description='Of attention: a layer, a list, "0,-1" or "all"; negative from the end; the last by default.'
    )
    heads: Numbers | None = Field(None, description="Of attention, likewise; all by default.")
    binary_data_output: bool | None = Field(None, description="Send outputs behind the JSON.")


class OIPInferRequest(OIPObject):
    """Body of ``POST /v2/models/{name}/infer``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "42",
                    "inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["The cat sat.", "Hello!"]}],
                    "outputs": [{"name": "embedding"}, {"name": "num_tokens"}],
                    "parameters": {"dimensions": 64},
                }
            ]
        }
    )

    id: str | None = Field(None, max_length=MAX_ID_CHARACTERS, description="Comes back with the answer.")
    model_name: str | None = Field(None, description="Taken, and not used: the path names the model.")
    model_version: str | None = Field(None, description="Taken, and not used: the path names the version.")
    parameters: OIPParameters | None = None
    inputs: list[OIPInput] = Field(min_length=1, max_length=1)
    outputs: Annotated[list[OIPRequestedOutput], Field(fail_fast=True)] | None = Field(
        None, description="What to return, in this order; null or none = embedding."
    )

    @property
    def asked(self) -> OIPParameters:
        """The parameters, or those of a request without any."""
        return self.parameters or OIPParameters()

    def wanted(self) -> dict[OutputName, bool]:
        """Return the outputs to send, in order, and of each whether it stands behind the JSON.

        Raises
        ------
        InvalidRequestError
            If one is named twice, or layers or heads are chosen of attention that is not asked for.
        """
        binary = bool(self.asked.binary_data_output)
        wanted: dict[OutputName, bool] = {}
        for index, output in enumerate(self.outputs or [OIPRequestedOutput(name="embedding")]):
            if output.name in wanted:
                raise InvalidRequestError("is named twice", param=f"outputs[{index}].name")
            own = None if output.parameters is None else output.parameters.binary_data
            wanted[output.name] = binary if own is None else own
        if "attention" not in wanted:
            for name in ("layers", "heads"):
                if getattr(self.asked, name) is not None:
                    raise InvalidRequestError(
                        "chooses from the output attention, which is not asked for", param=f"parameters.{name}"
                    )
        return wanted

    def plain(self, texts: Sequence[str], model: str) -> PlainRequest:
        """Return what is asked, in the server's own words."""
        asked = self.asked
        return PlainRequest(
            texts,
            model=model,
            prompt_name=asked.prompt_name,
            prompt=asked.prompt,
            truncate=asked.truncate is not False,
            normalize=asked.normalize is not False,
            dimensions=asked.dimensions,
            rename=_rename,
        )

    def layers_and_heads(self) -> tuple[list[int] | Literal["all"], list[int] | Literal["all"]]:
        """Return which attention is asked for."""
        return numbers_of(self.asked.layers, [-1]), numbers_of(self.asked.heads, "all")


def numbers_of(value: Numbers | None, default: list[int] | Literal["all"]) -> list[int] | Literal["all"]:
    """Read a list of numbers in any of the forms it may have."""
    if value is None:
        return default
    if isinstance(value, int):
        return [value]
    if isinstance(value, str):
        return "all" if value == "all" else [int(number) for number in value.split(",")]
    return value


def ignored_fields(part: OIPObject, path: str = "") -> Iterator[str]:
    """Name what a request has that is not known, wherever in it, as ``inputs.parameters.x``."""
    for name in part.model_extra or {}:
        yield path + name
    for name in type(part).model_fields:
        value = getattr(part, name)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, OIPObject):
                yield from ignored_fields(item, f"{path}{name}.")


PARAMETERS: Mapping[str, str] = {name: f"parameters.{name}" for name in OIPParameters.model_fields}


def _rename(param: str) -> str:
    """Name what an error is about as the caller knows it: ``texts[3]`` is ``text[3]``."""
    if param == "texts" or param.startswith("texts["):
        return INPUT + param.removeprefix("texts")
    return PARAMETERS.get(param, param)


class OIPServerMetadata(BaseModel):
    """Answer of ``GET /v2``."""

    name: str
    version: str
    extensions: list[str]


class OIPLive(BaseModel):
    """Answer of ``GET /v2/health/live``."""

    live: bool


class OIPReady(BaseModel):
    """Answer of ``GET /v2/health/ready``."""

    ready: bool


class OIPModelReady(BaseModel):
    """Answer of ``GET /v2/models/{name}/ready``."""

    name: str
    ready: bool


class OIPTensorMetadata(BaseModel):
    """A tensor that a model takes or gives."""

    name: str
    datatype: str
    shape: list[int] = Field(description="-1 where it depends on the request.")


class OIPModelMetadata(BaseModel):
    """Answer of ``GET /v2/models/{name}``."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[OIPTensorMetadata]
    outputs: list[OIPTensorMetadata]


class OIPResponseOutput(BaseModel):
    """A tensor of the answer."""

    name: OutputName
    shape: list[int]
    datatype: Literal["FP32", "INT32", "BOOL"]
    parameters: dict[str, str | int] | None = Field(
        None, description="`binary_data_size`, where it stands behind the JSON; of attention its `layers` and `heads`."
    )
    data: list[float] | list[bool] | None = Field(None, description="Flat, the last axis running fastest.")


class OIPResponseParameters(BaseModel):
    """What became of the texts."""

    truncated_count: int = Field(description="How many texts were cut.")
    truncated_texts: str | None = Field(None, description="Which ones, where there are such: from 0, as `0,3-5`.")


class OIPInferResponse(BaseModel):
    """Answer of ``POST /v2/models/{name}/infer``; with tensors behind it, the JSON of that answer."""

    model_name: str
    model_version: str
    id: str | None = None
    parameters: OIPResponseParameters
    outputs: list[OIPResponseOutput]


class OIPErrorResponse(BaseModel):
    """Every error of these routes."""

    error: str
