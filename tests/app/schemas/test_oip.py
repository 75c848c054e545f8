"""The bodies of the Open Inference Protocol: what is taken, what is meant by it, what is not known in it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from app.errors import InvalidRequestError
from app.schemas.oip import MAX_ID_CHARACTERS, OIPInferRequest, ignored_fields, numbers_of

INPUT = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}


def request(**fields: Any) -> OIPInferRequest:
    """A body with one text."""
    return OIPInferRequest.model_validate({"inputs": [INPUT], **fields})


def test_defaults_are_those_of_encode() -> None:
    """Whole, scaled, cut where too long, without maps; null is the same as nothing."""
    nulls = {name: None for name in ("id", "outputs", "model_name", "model_version")}
    options = {
        name: None for name in ("dimensions", "normalize", "truncate", "prompt", "prompt_name", "layers", "heads")
    }
    for body in (request(), request(**nulls, parameters=None), request(parameters=options), request(outputs=[])):
        plain = body.plain(["a"], "tiny")
        assert (plain.texts, plain.model) == (["a"], "tiny")
        assert (plain.normalize, plain.truncate, plain.dimensions) == (True, True, None)
        assert (plain.prompt, plain.prompt_name) == (None, None)
        assert body.wanted() == {"embedding": False}
        assert body.layers_and_heads() == ([-1], "all")


def test_parameters_reach_the_server() -> None:
    """Each of them."""
    asked = {"dimensions": 3, "normalize": False, "truncate": False, "prompt": "p: ", "prompt_name": None}
    plain = request(parameters=asked).plain(["a"], "tiny")
    assert (plain.dimensions, plain.normalize, plain.truncate, plain.prompt) == (3, False, False, "p: ")
    assert request(parameters={"prompt_name": "query"}).plain([], "m").prompt_name == "query"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, [7]), (2, [2]), (-1, [-1]), ([0, -1], [0, -1]), ("all", "all"), ("3", [3]), ("0,-1,2", [0, -1, 2])],
)
def test_numbers_have_many_forms(value: Any, expected: Any) -> None:
    """Clients whose parameters are no lists write a string."""
    assert numbers_of(value, [7]) == expected
    if value is not None:
        body = request(parameters={"layers": value, "heads": value}, outputs=[{"name": "attention"}])
        assert body.layers_and_heads() == (expected, expected)


@pytest.mark.parametrize(
    "value", [True, 1.0, "", "some", "1,", ",1", "1;2", "0x1", "٣", [True], ["1"], 2**31, "1" * 10, "1\n", {}]
)
def test_what_is_no_list_of_numbers_is_refused(value: Any) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValidationError):
        request(parameters={"layers": value})


@pytest.mark.parametrize(
    ("parameters", "outputs", "expected"),
    [
        ({"binary_data_output": True}, None, {"embedding": True}),
        ({"binary_data_output": False}, [{"name": "truncated"}], {"truncated": False}),
        (
            {"binary_data_output": True},
            [{"name": "num_tokens", "parameters": {"binary_data": False}}, {"name": "attention", "parameters": {}}],
            {"num_tokens": False, "attention": True},
        ),
        (
            None,
            [{"name": "attention", "parameters": {"binary_data": True}}, {"name": "embedding", "parameters": None}],
            {"attention": True, "embedding": False},
        ),
    ],
)
def test_outputs_are_those_asked_for(parameters: Any, outputs: Any, expected: dict[str, bool]) -> None:
    """In the order asked; what an output says of itself goes before what is said of all."""
    wanted = request(parameters=parameters, outputs=outputs).wanted()
    assert list(wanted.items()) == list(expected.items())


def test_an_output_is_asked_for_once() -> None:
    """Two of one name could not be told apart."""
    with pytest.raises(InvalidRequestError) as caught:
        request(outputs=[{"name": "embedding"}, {"name": "embedding"}]).wanted()
    assert caught.value.param == "outputs[1].name"


@pytest.mark.parametrize("name", ["layers", "heads"])
def test_a_choice_of_attention_goes_with_attention(name: str) -> None:
    """Alone it is a mistake, not a wish that is passed over."""
    with pytest.raises(InvalidRequestError) as caught:
        request(parameters={name: 0}).wanted()
    assert caught.value.param == f"parameters.{name}"
    assert request(parameters={name: 0}, outputs=[{"name": "attention"}]).wanted() == {"attention": False}


@pytest.mark.parametrize(
    ("param", "name"),
    [
        ("texts", "text"),
        ("texts[3]", "text[3]"),
        ("dimensions", "parameters.dimensions"),
        ("prompt_name", "parameters.prompt_name"),
        ("attention", "attention"),
        ("parameters.layers", "parameters.layers"),
    ],
)
def test_errors_name_what_the_caller_sent(param: str, name: str) -> None:
    """The tensor and its element, or the parameter."""
    assert request().plain(["a"], "m").rename(param) == name


@pytest.mark.parametrize(
    "fields",
    [
        {"inputs": []},
        {"inputs": [INPUT, INPUT]},
        {"inputs": [{**INPUT, "name": "input-0"}]},
        {"inputs": [{**INPUT, "datatype": "FP32"}]},
        {"inputs": [{**INPUT, "datatype": "bytes"}]},
        {"inputs": [{**INPUT, "shape": []}]},
        {"inputs": [{**INPUT, "shape": [0]}]},
        {"inputs": [{**INPUT, "shape": [-1]}]},
        {"inputs": [{**INPUT, "shape": [1, 1, 1]}]},
        {"inputs": [{**INPUT, "shape": [1.0]}]},
        {"inputs": [{**INPUT, "shape": [True]}]},
        {"inputs": [{**INPUT, "shape": 1}]},
        {"inputs": [{**INPUT, "data": "a"}]},
        {"inputs": [{**INPUT, "data": [1]}]},
        {"inputs": [{**INPUT, "data": [[["a"]]]}]},
        {"inputs": [{**INPUT, "parameters": {"binary_data_size": -1}}]},
        {"inputs": [{**INPUT, "parameters": {"binary_data_size": "5"}}]},
        {"outputs": [{"name": "logits"}]},
        {"outputs": [{"name": "embedding", "parameters": {"binary_data": 1}}]},
        {"id": 42},
        {"id": "x" * (MAX_ID_CHARACTERS + 1)},
        {"parameters": []},
        {"parameters": {"dimensions": 0}},
        {"parameters": {"dimensions": "8"}},
        {"parameters": {"normalize": 1}},
        {"parameters": {"prompt": "x" * 4_097}},
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any]) -> None:
    """Wrong tensors, wrong types: nothing is coerced."""
    with pytest.raises(ValidationError):
        request(**fields)


def test_what_is_not_known_is_named() -> None:
    """MLServer's content_type, Triton's timeout, a misspelt option: taken, and told."""
    body = request(
        inputs=[{**INPUT, "parameters": {"content_type": "str"}, "encoding": 1}],
        outputs=[{"name": "embedding", "parameters": {"classification": 3}}],
        parameters={"timeout": 5, "dimension": 8},
        model_name="other",
        extra=1,
    )
    assert sorted(ignored_fields(body)) == [
        "extra",
        "inputs.encoding",
        "inputs.parameters.content_type",
        "outputs.parameters.classification",
        "parameters.dimension",
        "parameters.timeout",
    ]
    assert list(ignored_fields(request(parameters={"dimensions": 3}, model_name="m", model_version="1", id="5"))) == []
