"""Answers become records, errors become exceptions."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

from eyeline.errors import (
    AnswerError,
    DeadlineExceededError,
    InferenceFailedError,
    InvalidRequestError,
    NotFoundError,
    NotReadyError,
    NotSupportedError,
    OverloadedError,
    TooLargeError,
    UnauthorizedError,
    UnexpectedAnswerError,
    answer_error,
)
from eyeline.replies import (
    parse_attention,
    parse_chunks,
    parse_encoded,
    parse_head_distances,
    parse_health,
    parse_json,
    parse_similarity,
    parse_tokenized,
    read,
    read_arrays,
)
from tests.eyeline.fake_server import (
    TOKENS,
    WORDS,
    answer_encode,
    answer_heads,
    answer_similarity,
    answer_tokenize,
    problem,
)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequestError),
        (404, NotFoundError),
        (413, TooLargeError),
        (422, InvalidRequestError),
        (429, OverloadedError),
        (500, InferenceFailedError),
        (501, NotSupportedError),
        (503, NotReadyError),
        (504, DeadlineExceededError),
        (401, UnauthorizedError),
        (402, AnswerError),
        (307, AnswerError),
    ],
)
def test_each_status_is_its_own_exception(status: int, kind: type[AnswerError]) -> None:
    """With all that the server said, and the name under which its log has it."""
    response = problem(status, "its_code", {"X-Request-ID": "r1"}, param="texts[3]", limit=2, actual=5)
    error = answer_error(response)
    assert type(error) is kind
    said = (error.status, error.code, error.param, error.limit, error.actual, error.detail, error.request_id)
    assert said == (status, "its_code", "texts[3]", 2, 5, "why", "r1")


@pytest.mark.parametrize(
    ("param", "expected"),
    [
        ("texts[3]", "texts[259]"),
        ("pairs[3][1]", "pairs[259][1]"),
        ("texts", "texts"),
        ("dimensions", "dimensions"),
        ("attention.layers[0]", "attention.layers[0]"),
        (None, None),
    ],
)
def test_an_index_is_the_callers(param: str | None, expected: str | None) -> None:
    """Text 3 of the second request is text 259 of the list."""
    assert answer_error(problem(422, param=param), first=256).param == expected


@pytest.mark.parametrize("content", [b"<html>Bad Gateway</html>", b"", b"[]", b"\xff", b'{"detail": null}'])
def test_a_proxys_error_is_an_error_all_the_same(content: bytes) -> None:
    """HTTP's own words, and no code."""
    error = answer_error(httpx.Response(502, content=content))
    assert (error.status, error.code, error.detail) == (502, None, "Bad Gateway")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>Log in</html>",
        b"\x02\0\0\0\0\0\0\0{}",
        b"\xff" * 20,
        safetensors.numpy.save({"embeddings": np.zeros((1, 2), np.float32)}),
        safetensors.numpy.save({"embeddings": np.zeros((1, 2), np.float64)}, metadata={"response": "{}"}),
        safetensors.numpy.save({"embeddings": np.zeros((1, 2), np.float32)}, metadata={"response": "{}"})[:-1],
    ],
)
@pytest.mark.parametrize(
    "parse",
    [parse_encoded, parse_attention, parse_chunks, parse_tokenized, parse_similarity, parse_head_distances, parse_json],
)
def test_an_answer_of_something_else_is_said_to_be_one(content: bytes, parse: Any) -> None:
    """A login page with status 200 is neither a crash in a parser nor an empty result."""
    with pytest.raises(UnexpectedAnswerError, match=f"{len(content)} bytes of text/html"):
        read(httpx.Response(200, headers={"Content-Type": "text/html"}, content=content), parse)


def test_arrays_are_read_bit_for_bit() -> None:
    """As the safetensors library wrote them: every type that the server sends, any shape, NaN, and odd alignment."""
    written: dict[str, Any] = {
        "f16": np.arange(3, dtype=np.float16),
        "f32": np.array([[np.nan, 1e-45], [3.4e38, -0.0]], np.float32),
        "i8": np.array([-128, 127], np.int8),
        "u8": np.array([[0], [255]], np.uint8),
        "i32": np.array([-(2**31), 7], np.int32),
        "empty": np.zeros((2, 0, 3), np.float32),
    }
    body, arrays = read_arrays(safetensors.numpy.save(written, metadata={"response": '{"a": 1}'}))
    assert body == {"a": 1}
    assert arrays.keys() == written.keys()
    for name, array in written.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
        assert arrays[name].tobytes() == array.tobytes()
        assert arrays[name].flags.writeable
        assert arrays[name].flags.aligned


def test_embeddings_and_counts() -> None:
    """Arrays with one entry per text."""
    encoded = parse_encoded(answer_encode({"texts": ["1", "cut 2"]}))
    assert encoded.model == "fake"
    np.testing.assert_array_equal(encoded.embeddings, np.array([[1, 1 / 3], [2, 1 / 3]], np.float32))
    assert encoded.embeddings.dtype == np.float32
    assert (encoded.num_tokens.tolist(), encoded.num_tokens_total.tolist()) == ([3, 3], [3, 9])
    assert encoded.truncated.tolist() == [False, True]


def test_int8_says_its_range() -> None:
    """With what was clipped of each text; float embeddings have none."""
    head = {"model": "fake", "num_tokens": [3, 3], "num_tokens_total": [3, 3], "truncated": [False, False]}
    head["quantization"] = {"range": 0.5, "clipped": [0, 2]}
    arrays = {"embeddings": np.array([[1, -127], [127, 0]], np.int8)}
    content = safetensors.numpy.save(arrays, metadata={"response": json.dumps(head)})
    encoded = parse_encoded(httpx.Response(200, content=content))
    assert encoded.embeddings.dtype == np.int8
    assert encoded.embeddings.tolist() == [[1, -127], [127, 0]]
    assert encoded.quantization is not None
    assert (encoded.quantization.range, encoded.quantization.clipped.tolist()) == (0.5, [0, 2])
    assert parse_encoded(answer_encode({"texts": ["1"]})).quantization is None


def test_chunks_are_read() -> None:
    """Of each text its columns and its own array."""
    one, two = parse_chunks(answer_encode({"texts": ["1", "cut 2"], "chunks": {}}))
    assert (one.model, len(one), one.truncated, one.quantization) == ("fake", 1, False, None)
    assert (two.start.tolist(), two.end.tolist(), two.chunk_tokens.tolist()) == ([0, 1], [1, 2], [1, 1])
    assert (two.truncated, two.chunk_truncated.tolist()) == (True, [True, True])
    assert (two.num_tokens, two.num_tokens_total) == (6, 4)
    assert two.embeddings.tolist() == [[2, 0], [2, 1]]


def test_heads_are_read() -> None:
    """Arrays, and pairs of layer and head."""
    found = parse_head_distances(answer_heads({"texts": ["1", "cut 2"]}))
    assert (found.model, found.heads, found.order, found.explained) == ("fake", [(0, 0), (0, 1)], [1, 0], 1.0)
    np.testing.assert_array_equal(found.distances, 1 - np.eye(2))
    assert found.layout.tolist() == [[-0.5, 0.0], [0.5, 0.0]]
    assert (found.num_tokens.tolist(), found.truncated.tolist()) == ([3, 3], [False, True])


def attention_answer(parts: dict[str, Any], arrays: dict[str, Any]) -> httpx.Response:
    """An answer about one text."""
    entry = {"tokens": TOKENS, "words": WORDS} | parts
    counts = {"num_tokens": [3], "num_tokens_total": [3], "truncated": [False]}
    metadata = {"response": json.dumps({"model": "fake", "attention": [entry]} | counts)}
    named = {f"attention.0.{name}": array for name, array in arrays.items()}
    embeddings = {"embeddings": np.ones((1, 2), np.float32)}
    return httpx.Response(200, content=safetensors.numpy.save(embeddings | named, metadata=metadata))


UNITS = {"token": [1, 2], "word": [0, None]}
LAID_OUT = {"unit": "word", "special": "mask", "units": UNITS, "row_sum_tolerance": 0.001}


def test_dense_maps_statistics_and_rollout() -> None:
    """Each with its own kept mass: none takes another's array."""
    arrays = {
        "maps": np.arange(8, dtype=np.float16).reshape(1, 2, 2, 2),
        "kept_mass": np.full((1, 2, 2), 0.5, np.float32),
        "stats.entropy": np.array([[1, np.nan]], np.float32),
        "stats.kept_mass": np.array([[0.1, 0.2]], np.float32),
        "rollout": np.eye(2, dtype=np.float32),
        "rollout.kept_mass": np.array([0.3, 0.4], np.float32),
    }
    parts = {
        "maps": {"layers": [5], "heads": [0, 3], "shape": [1, 2, 2, 2]} | LAID_OUT,
        "stats": {"layers": [5], "heads": [0, 3], "special": "renormalize"},
        "rollout": {"residual": 0.5, "heads": "max", "layers": [4, 5], "shape": [2, 2]} | LAID_OUT,
    }
    [view] = parse_attention(attention_answer(parts, arrays))
    assert (view.model, view.num_tokens, view.num_tokens_total, view.truncated) == ("fake", 3, 3, False)
    assert view.embedding.tolist() == [1, 1]
    assert view.tokens.text == ["[CLS]", "a", "[SEP]"]
    assert view.words.end == [1]
    assert view.maps is not None
    assert view.maps.values is not None
    assert (view.maps.layers, view.maps.heads, view.maps.shape) == ([5], [0, 3], (1, 2, 2, 2))
    assert (view.maps.unit, view.maps.special, view.maps.units.word) == ("word", "mask", [0, None])
    np.testing.assert_array_equal(view.maps.values, arrays["maps"])
    np.testing.assert_array_equal(view.maps.kept_mass, arrays["kept_mass"])
    assert view.maps.sparse is None
    assert view.stats is not None
    assert view.stats.values.keys() == {"entropy", "kept_mass"}
    np.testing.assert_array_equal(view.stats.values["kept_mass"], arrays["stats.kept_mass"])
    assert view.rollout is not None
    np.testing.assert_array_equal(view.rollout.values, np.eye(2))
    np.testing.assert_array_equal(view.rollout.kept_mass, arrays["rollout.kept_mass"])
    assert (view.rollout.heads, view.rollout.layers, view.rollout.residual) == ("max", [4, 5], 0.5)


def test_sparse_rows() -> None:
    """Rows of different length; there are no dense maps then, and nothing that was not asked for."""
    arrays = {
        "maps.row_start": np.array([0, 2, 3], np.int32),
        "maps.index": np.array([1, 0, 1], np.int32),
        "maps.weight": np.array([0.6, 0.3, 0.9], np.float32),
        "maps.rest": np.array([0.1, 0.1], np.float32),
    }
    parts = {"maps": {"layers": [5], "heads": "mean", "shape": [1, 1, 2, 2]} | LAID_OUT}
    [view] = parse_attention(attention_answer(parts, arrays))
    assert view.maps is not None
    assert view.maps.sparse is not None
    assert view.maps.values is None
    assert view.maps.kept_mass is None
    assert view.maps.heads == "mean"
    for name, array in arrays.items():
        np.testing.assert_array_equal(getattr(view.maps.sparse, name.removeprefix("maps.")), array)
    assert view.stats is None
    assert view.rollout is None


def test_tokens_and_cosines() -> None:
    """JSON into tables and arrays; a key that a newer server adds is no error."""
    [text] = parse_tokenized(answer_tokenize({"texts": ["4"]}))
    assert (text.num_tokens, text.num_tokens_total, text.truncated) == (4, 9, False)
    assert (text.tokens.id, text.words.text) == ([1, 7, 2], ["a"])
    matrix = parse_similarity(answer_similarity({"texts": ["1", "2", "cut 3"]}))
    np.testing.assert_array_equal(matrix.similarities, np.eye(3, dtype=np.float32))
    assert matrix.truncated.tolist() == [False, False, True]
    assert matrix.explanations is None
    pairs = parse_similarity(answer_similarity({"pairs": [["7", "8"]], "explain": True, "unit": "token"}))
    assert pairs.similarities.dtype == np.float32
    assert pairs.explanations is not None
    [explanation] = pairs.explanations
    assert explanation.values.tolist() == [[0.07, 0.0], [0.0, 0.0]]
    assert explanation.values.dtype == np.float64
    assert (explanation.sum, explanation.strongest[0].value, explanation.unit) == (0.07, 0.07, "token")
    assert (explanation.a.tokens.text[1], explanation.rows.word) == ("a", [None, 0])
    newer = parse_tokenized(
        httpx.Response(
            200,
            json={
                "texts": [
                    {
                        "tokens": TOKENS | {"new": []},
                        "words": WORDS | {"new": []},
                        "num_tokens": 1,
                        "num_tokens_total": 1,
                        "truncated": False,
                        "new": 1,
                    }
                ]
            },
        )
    )
    assert newer[0].num_tokens == 1


def test_health_is_an_answer_at_503_too() -> None:
    """But a gateway's 503 is not the server's, and a page is no health."""
    assert parse_health(httpx.Response(503, content=b'{"status":"loading"}\n')) == "loading"
    with pytest.raises(NotReadyError):
        parse_health(httpx.Response(503, content=b"no upstream"))
    with pytest.raises(UnexpectedAnswerError):
        parse_health(httpx.Response(200, content=b"welcome"))
