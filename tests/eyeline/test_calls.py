"""What is sent, and how answers are put together."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eyeline.calls
from eyeline.calls import (
    MAX_REQUEST_BYTES,
    attention_operation,
    encode_operation,
    info_operation,
    similarity_operation,
    split,
    tokenize_operation,
)
from eyeline.errors import UnexpectedAnswerError
from eyeline.records import Text
from tests.eyeline.fake_server import answer_encode, answer_similarity, answer_tokenize


def body_of(call: Any) -> Any:
    """What a call sends."""
    return json.loads(call.content())


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), min_size=1), st.integers(1, 5))
def test_splitting_loses_nothing(texts: list[str], size: int) -> None:
    """The parts, joined, are the list; none is over the size, none is empty, and each knows where it begins."""
    parts = list(split(texts, size, "texts"))
    assert [text for _, part in parts for text in part] == texts
    assert all(1 <= len(part) <= size for _, part in parts)
    assert all(texts[first : first + len(part)] == part for first, part in parts)
    assert len(parts) == -(-len(texts) // size)


def test_long_texts_make_smaller_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body stays under the limit, counted in bytes as they are sent; a text over it goes alone."""
    monkeypatch.setattr(eyeline.calls, "MAX_REQUEST_BYTES", 20)
    texts = ["ab", "äöüäöü", '"""', "x" * 50, "c"]  # with quotes, escapes and a comma: 5, 15, 9, 53, 4 bytes
    assert [part for _, part in split(texts, 10, "texts")] == [["ab", "äöüäöü"], ['"""'], ["x" * 50], ["c"]]
    assert [part for _, part in split(texts, None, "texts")] == [texts]


def test_the_limit_of_bytes_fits_the_servers() -> None:
    """Half of what --max-body-bytes is by default."""
    from app.settings import Settings

    assert Settings.model_fields["max_body_bytes"].default == 2 * MAX_REQUEST_BYTES


@pytest.mark.parametrize("item", [None, 3, b"bytes", ["a", None], [], ["a"], ("a", "b", "c")])
def test_what_is_no_text_is_named(item: Any) -> None:
    """Before anything is sent, by its place in the list: a None in a data frame's column is easily overlooked."""
    with pytest.raises(TypeError, match=r"texts\[1\]"):
        encode_operation(["a", item], {}, 10)
    with pytest.raises(TypeError, match=r"texts\[1\]"):
        similarity_operation(["a", item], None, {}, 10, explain=False, unit="token")


def test_a_lone_surrogate_is_named() -> None:
    """It has no UTF-8; the message has not the text in it."""
    with pytest.raises(ValueError, match=r"texts\[1\] is no text: it holds a lone surrogate"):
        encode_operation(["a", "secret\ud800"], {}, 10)


def test_what_encode_sends() -> None:
    """One text is a list of one; pairs stay pairs; no text is escaped; numbers are asked for as they are."""
    [call] = encode_operation("Grüße", {"dimensions": 4, "model": None}, 10).calls
    assert call.content() == '{"texts":["Grüße"],"dimensions":4}'.encode()
    assert (call.method, call.path) == ("POST", "/encode")
    assert call.headers() == {"Accept": "application/vnd.safetensors", "Content-Type": "application/json"}
    mixed: list[Text] = [("a", "b"), "c", "d"]
    calls = encode_operation(iter(mixed), {}, 2).calls
    assert [body_of(call) for call in calls] == [{"texts": [["a", "b"], "c"]}, {"texts": ["d"]}]
    assert [body_of(call) for call in encode_operation([], {}, 2).calls] == [{"texts": []}]


def test_what_attention_sends() -> None:
    """A request for each text: the limit on maps is each text's own."""
    calls = attention_operation(["a", ("b", "c")], {"layers": "all", "truncate": False}).calls
    attention = {"dtype": "float32", "layers": "all"}
    assert [body_of(call) for call in calls] == [
        {"texts": ["a"], "truncate": False, "attention": attention},
        {"texts": [["b", "c"]], "truncate": False, "attention": attention},
    ]
    assert {call.accept for call in calls} == {"application/vnd.safetensors"}


def test_what_the_others_send() -> None:
    """A matrix in one request whatever its size, pairs in several, explained pairs one by one, information without a
    body.
    """
    [matrix] = similarity_operation(["a", "b", "c"], None, {}, 2, explain=False, unit="token").calls
    assert body_of(matrix) == {"texts": ["a", "b", "c"]}
    pairs = [("a", "b"), ("c", "d"), ("e", "f")]
    calls = similarity_operation(None, pairs, {"dimensions": 3}, 2, explain=False, unit="token").calls
    assert [body_of(call) for call in calls] == [
        {"pairs": [["a", "b"], ["c", "d"]], "dimensions": 3},
        {"pairs": [["e", "f"]], "dimensions": 3},
    ]
    explained = similarity_operation(None, pairs, {}, 2, explain=True, unit="word").calls
    assert len(explained) == 3
    assert body_of(explained[0]) == {"pairs": [["a", "b"]], "explain": True, "unit": "word"}
    assert [body_of(call) for call in tokenize_operation(["a", "b"], {"prompt": "p"}, 1).calls] == [
        {"texts": ["a"], "prompt": "p"},
        {"texts": ["b"], "prompt": "p"},
    ]
    [info] = info_operation().calls
    assert (info.method, info.path, info.content(), info.headers()) == (
        "GET", "/info", None, {"Accept": "application/json"},
    )  # fmt: skip


def test_either_texts_or_pairs() -> None:
    """And only pairs are explained."""
    for texts, pairs in ((None, None), (["a"], [("a", "b")])):
        with pytest.raises(ValueError, match="either texts or pairs"):
            similarity_operation(texts, pairs, {}, 2, explain=False, unit="token")
    with pytest.raises(ValueError, match="explain goes with pairs"):
        similarity_operation(["a"], None, {}, 2, explain=True, unit="token")


def test_answers_are_joined_in_the_order_of_the_calls() -> None:
    """Of embeddings, attention, tokens and pairs."""
    texts = ["1", "2", "3"]
    encode = encode_operation(texts, {}, 2)
    encoded = encode.merge([call.read(answer_encode(body_of(call))) for call in encode.calls])
    assert encoded.embeddings[:, 0].tolist() == [1, 2, 3]
    assert (len(encoded), encoded.num_tokens.shape, encoded.num_tokens_total.shape) == (3, (3,), (3,))
    attention = attention_operation(texts, {})
    views = attention.merge([call.read(answer_encode(body_of(call))) for call in attention.calls])
    assert [view.embedding[0] for view in views] == [1, 2, 3]
    tokenize = tokenize_operation(texts, {}, 2)
    tokenized = tokenize.merge([call.read(answer_tokenize(body_of(call))) for call in tokenize.calls])
    assert [text.num_tokens for text in tokenized] == [1, 2, 3]
    pairs = [(text, "x") for text in texts]
    for explain in (False, True):
        similarity = similarity_operation(None, pairs, {}, 2, explain=explain, unit="token")
        found = similarity.merge([call.read(answer_similarity(body_of(call))) for call in similarity.calls])
        np.testing.assert_allclose(found.similarities, [0.01, 0.02, 0.03])
        assert (len(found), found.num_tokens.shape, found.truncated.shape) == (3, (3, 2), (3, 2))
        assert (found.explanations is not None) == explain
        if found.explanations is not None:
            assert [one.sum for one in found.explanations] == [0.01, 0.02, 0.03]


def test_models_are_not_mixed() -> None:
    """While a new version is rolled out behind one address, vectors of two models would look like one result."""
    operation = encode_operation(["1", "2"], {}, 1)
    first, second = operation.calls
    parts = [first.read(answer_encode(body_of(first), "old")), second.read(answer_encode(body_of(second), "new"))]
    with pytest.raises(UnexpectedAnswerError, match="different models answered: new, old"):
        operation.merge(parts)


def test_vectors_of_different_length_are_not_mixed() -> None:
    """Nor two models of one name."""
    operation = encode_operation(["1", "2"], {}, 1)
    part = operation.calls[0].read(answer_encode({"texts": ["1"]}))
    longer = type(part)("fake", np.zeros((1, 3), np.float32), part.num_tokens, part.num_tokens, part.truncated)
    with pytest.raises(UnexpectedAnswerError, match="different lengths were answered: 2, 3"):
        operation.merge([part, longer])


@pytest.mark.parametrize("count", [1, 3])
def test_an_answer_about_other_texts_is_refused(count: int) -> None:
    """Too few or too many rows would shift every text behind them."""
    wrong = {"texts": ["9"] * count, "attention": {}}
    for operation in (encode_operation(["1", "2"], {}, 2), tokenize_operation(["1", "2"], {}, 2)):
        answer = answer_encode(wrong) if operation.calls[0].path == "/encode" else answer_tokenize(wrong)
        with pytest.raises(UnexpectedAnswerError):
            operation.calls[0].read(answer)
    similarity = similarity_operation(["1", "2"], None, {}, 2, explain=False, unit="token")
    with pytest.raises(UnexpectedAnswerError):
        similarity.calls[0].read(answer_similarity(wrong))


def test_an_error_names_the_callers_text() -> None:
    """Every operation that splits tells its calls where they begin."""
    response = httpx.Response(413, json={"detail": "d", "code": "text_too_long", "param": "texts[0]"})
    texts = ["1", "2", "3"]
    for operation in (encode_operation(texts, {}, 1), attention_operation(texts, {}), tokenize_operation(texts, {}, 1)):
        with pytest.raises(eyeline.TooLargeError) as caught:
            operation.calls[2].read(response)
        assert caught.value.param == "texts[2]"
    pairs = similarity_operation(None, [("a", "b")] * 3, {}, 1, explain=False, unit="token")
    with pytest.raises(eyeline.TooLargeError) as caught:
        pairs.calls[2].read(httpx.Response(413, json={"param": "pairs[0][1]"}))
    assert caught.value.param == "pairs[2][1]"
