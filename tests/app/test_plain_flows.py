"""The flows of the compatible APIs, without HTTP. Through HTTP: tests/app/routes/test_openai.py and test_tei.py."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from app.errors import AnswerTooLargeError, EmptyInputError, ServiceError, TooManyTextsError
from app.naming import named
from app.plain import PlainRequest
from app.plain_flows import decode, embed, tokenize_whole
from app.service import Service
from model.errors import InputError, TextTooLongError, TokenIdError
from tests.app.conftest import Serve, Served

pytestmark = pytest.mark.anyio


def service_of(server: Served) -> Service:
    """The running service."""
    assert server.state.service is not None
    return server.state.service


async def test_token_ids_are_a_text_that_is_tokenized_already(server: Served) -> None:
    """The ids of a text, special tokens and all, give the text's embedding; ids and texts may be mixed."""
    texts = ["the cat sat", "a dog barked"]
    ids = [item.input_ids for item in server.embedder.tokenizer.encode(texts)]
    mixed = await embed(service_of(server), PlainRequest([texts[0], ids[1], ids[0]]), route="/embed")
    expected = server.embedder.encode([texts[0], texts[1], texts[0]])
    np.testing.assert_allclose(mixed.embeddings, expected, atol=1e-6)
    assert server.sample("eyeline_texts_total", model="tiny", route="/embed") == 3


async def test_token_states_come_in_place_of_an_embedding(server: Served) -> None:
    """One vector a token; their mean is what the embedding is made of."""
    found = await embed(service_of(server), PlainRequest(["the cat", "dog"], token_states=True), route="/embed_all")
    assert found.embeddings.size == 0
    for row, item, text in zip(found.rows, found.inputs, ("the cat", "dog"), strict=True):
        assert row.token_states is not None
        assert row.token_states.shape == (item.num_tokens, 16)
        mean = row.token_states.mean(axis=0)
        np.testing.assert_allclose(mean / np.linalg.norm(mean), server.embedder.encode(text)[0], atol=1e-5)


async def test_token_states_are_counted_before_they_are_computed(serve: Serve) -> None:
    """3 tokens of 16 numbers, twice, are 96: where 95 are allowed it is refused, and nothing is run."""
    async with serve(max_token_values=95) as server:
        request = PlainRequest(["cat", "dog"], token_states=True, rename=named("inputs", is_list=True))
        with pytest.raises(AnswerTooLargeError) as refused:
            await embed(service_of(server), request, route="/embed_all")
        assert (refused.value.limit, refused.value.actual, refused.value.param) == (95, 96, "inputs")
        assert server.embedder.batches == []
    async with serve(max_token_values=96) as server:
        assert (await embed(service_of(server), request, route="/embed_all")).rows


async def test_errors_name_the_field_of_the_family(serve: Serve) -> None:
    """Whoever finds the fault, the tokenizer or this module."""
    async with serve(max_text_characters=20, max_texts=2) as server:
        service = service_of(server)
        for texts, error, param in (
            (["a", ""], EmptyInputError, "input[1]"),
            (["a", "b" * 21], TextTooLongError, "input[1]"),
            (["a", [5] * 21], TextTooLongError, "input[1]"),
            (["a"] * 3, TooManyTextsError, "input"),
        ):
            request = PlainRequest(cast(Any, texts), rename=named("input", is_list=True))
            with pytest.raises(error) as refused:
                await embed(service, request, route="/v1/embeddings")
            assert isinstance(refused.value, ServiceError | InputError)
            assert refused.value.param == param


async def test_a_text_to_look_at_is_whole(serve: Serve) -> None:
    """Nothing is cut, the prompt is part of it, but all texts together are bounded."""
    async with serve(max_text_characters=200) as server:
        service = service_of(server)
        tokenized, texts = await tokenize_whole(service, PlainRequest(["a " * 50], prompt_name="query"))
        assert texts == ["query: " + "a " * 50]
        [item] = tokenized.inputs
        assert (item.num_tokens, item.is_truncated, item.tokens is not None) == (54, False, True)
        for sizes, is_refused in (((100, 100), False), ((101, 100), True)):
            request = PlainRequest(["a" * size for size in sizes], rename=named("inputs", is_list=True))
            if is_refused:
                with pytest.raises(AnswerTooLargeError) as refused:
                    await tokenize_whole(service, request)
                assert (refused.value.param, refused.value.actual) == ("inputs", 201)
            else:
                await tokenize_whole(service, request)


async def test_ids_become_texts_again(serve: Serve) -> None:
    """Of any number, on the event loop or on a thread; an id that is not in the vocabulary is named."""
    async with serve(max_texts=700) as server:
        service = service_of(server)
        ids = [item.input_ids for item in server.embedder.tokenizer.encode(["the cat sat"])] * 700
        many: Any = [ids[0] * 2] * 700  # 7,000 ids
        request = PlainRequest(many, rename=named("ids", is_list=True))
        assert set(await decode(service, request, skip_special_tokens=True)) == {"the cat sat the cat sat"}
        [text] = await decode(service, PlainRequest([ids[0]]), skip_special_tokens=False)
        assert text == "[CLS] the cat sat [SEP]"
        wrong = PlainRequest([[5], [-1]], rename=named("ids", is_list=True))
        with pytest.raises(TokenIdError) as refused:
            await decode(service, wrong, skip_special_tokens=True)
        assert refused.value.param == "ids[1]"
        with pytest.raises(TooManyTextsError):
            await decode(service, PlainRequest([[5]] * 701), skip_special_tokens=True)
