"""The flow of one request, without HTTP. Most of what it answers: tests/app/routes/test_encode.py."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import numpy as np
import pytest

from app.callers import Caller
from app.errors import (
    AttentionTooLargeError,
    DeadlineExceededError,
    InvalidRequestError,
    TooManyTextsError,
    UnknownModelError,
)
from app.limits import Limits
from app.schemas.encode import AttentionOptions, EncodeRequest, TokenizeRequest
from app.schemas.similarity import SimilarityRequest
from app.service import INLINE_CHARACTERS, Encoded, Service
from model.errors import DimensionsError, TextTooLongError
from model.tokenizer import Tokenizer
from tests.app.conftest import RecordingEmbedder, Serve, Served, until
from tests.doubles import FakeClock

pytestmark = pytest.mark.anyio


def service_of(server: Served) -> Service:
    """The running service."""
    assert server.state.service is not None
    return server.state.service


async def encode(server: Served, texts: Any, **fields: Any) -> Encoded:
    """Encode without HTTP."""
    return await service_of(server).encode(EncodeRequest(texts=texts, **fields), binary=False, route="/encode")


async def test_rows_stand_in_the_order_of_the_texts(server: Served) -> None:
    """However batches are cut, each text has its own row; arrays are float32."""
    texts = [f"{'cat ' * (index % 7)}dog {index}" for index in range(50)]
    encoded = await encode(server, texts)
    assert encoded.embeddings.dtype == np.float32
    assert [item.num_tokens for item in encoded.inputs] == [
        item.num_tokens for item in server.embedder.tokenizer.encode(texts)
    ]
    alone = np.concatenate([server.embedder.encode(text) for text in texts])
    np.testing.assert_allclose(encoded.embeddings, alone, atol=1e-5)


async def test_many_requests_at_once_get_their_own(server: Served) -> None:
    """Requests that share batches never share rows."""
    expected = {word: server.embedder.encode(word)[0] for word in ("cat", "dog", "mat", "hello", "world")}
    words = list(expected) * 20
    answers = await asyncio.gather(*(encode(server, word) for word in words))
    for word, answer in zip(words, answers, strict=True):
        np.testing.assert_allclose(answer.embeddings[0], expected[word], atol=1e-5)


async def test_a_model_by_name_or_the_first(server: Served) -> None:
    """None is the first; a name that is not served is an error that names those that are, not what was asked."""
    service = service_of(server)
    assert service.find_model(None) is service.find_model("tiny")
    with pytest.raises(UnknownModelError, match="tiny") as refused:
        service.find_model("MARKER")
    assert "MARKER" not in refused.value.message


async def test_timings_are_those_of_the_slowest_text(serve: Serve) -> None:
    """A request waits as long as its last text does, in whatever batch that is run."""
    async with serve(batch_tokens=32) as server:
        encoded = await encode(server, ["cat " * 30, "dog " * 30])  # 32 tokens each: a batch of their own
        assert len(server.embedder.batches) == 2
        queue = [row.queue_seconds for row in encoded.rows]
        assert encoded.timings.queue == max(queue) > min(queue)
        assert encoded.timings.inference == max(row.inference_seconds for row in encoded.rows) > 0
        assert encoded.timings.tokenize > 0


class Listening:
    """A tokenizer that notes which thread it runs on."""

    def __init__(self, inner: Tokenizer) -> None:
        self._inner = inner
        self.threads: list[threading.Thread] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        self.threads.append(threading.current_thread())
        return self._inner.encode(*args, **kwargs)


@pytest.mark.parametrize(
    ("texts", "prompt", "is_inline"),
    [
        (["a" * INLINE_CHARACTERS], None, True),
        (["a" * INLINE_CHARACTERS, "b"], None, False),
        ([("a" * INLINE_CHARACTERS, "b")], None, False),
        (["a"] * 10, "p" * (INLINE_CHARACTERS // 10), False),
    ],
)
async def test_long_texts_do_not_hold_up_the_event_loop(
    server: Served, texts: Any, prompt: str | None, is_inline: bool
) -> None:
    """Short texts are tokenized at once; many characters, those of prompts included, go to a thread."""
    listening = Listening(server.embedder.tokenizer)
    server.embedder.tokenizer = cast(Tokenizer, listening)
    await service_of(server).tokenize(TokenizeRequest(texts=texts, prompt=prompt))
    assert [thread is threading.main_thread() for thread in listening.threads] == [is_inline]


async def test_limits_count_what_they_say(serve: Serve) -> None:
    """Texts per request; code points per text, those of both texts of a pair together; exactly the limit is allowed."""
    async with serve(max_texts=3, max_queue_texts=3, max_text_characters=4) as server:
        await encode(server, ["abcd", "\U0001f600" * 4, ("ab", "cd")])
        with pytest.raises(TooManyTextsError) as too_many:
            await encode(server, ["a"] * 4)
        assert (too_many.value.limit, too_many.value.actual) == (3, 4)
        for long in ("abcde", ("abc", "de")):
            with pytest.raises(TextTooLongError) as too_long:
                await encode(server, ["a", long])
            assert (too_long.value.param, too_long.value.limit, too_long.value.actual) == ("texts[1]", 4, 5)


async def test_pairs_of_a_comparison_count_twice(serve: Serve) -> None:
    """A comparison of two texts encodes two."""
    async with serve(max_texts=3, max_queue_texts=3) as server:
        with pytest.raises(TooManyTextsError):
            await service_of(server).similarity(SimilarityRequest(pairs=[("a", "b")] * 2), route="/similarity")


async def test_refusals_come_before_tokenizing(server: Served) -> None:
    """Dimensions, items, layers and heads are checked before any work is done on the texts."""
    listening = Listening(server.embedder.tokenizer)
    server.embedder.tokenizer = cast(Tokenizer, listening)
    with pytest.raises(DimensionsError):
        await encode(server, "a", dimensions=17)
    with pytest.raises(InvalidRequestError):
        await encode(server, "a", attention=AttentionOptions(items=[1]))
    assert listening.threads == []


async def test_maps_are_computed_for_those_who_asked(server: Served) -> None:
    """Of a request's texts only the items asked for have maps, and tokens are described only where maps are."""
    encoded = await encode(server, ["a", "b", "c"], attention=AttentionOptions(items=[1]))
    assert [row.maps is not None for row in encoded.rows] == [False, True, False]
    plain = await encode(server, ["a"])
    assert plain.inputs[0].tokens is None
    assert plain.selection is None


async def test_the_cap_depends_on_the_form(serve: Serve) -> None:
    """Lists have their cap, base64 and binary answers the other; exactly the cap is allowed."""
    async with serve(max_attention_values_list=18, max_attention_values_binary=36) as server:
        service = service_of(server)

        async def ask(layers: Any, encoding: str, *, binary: bool) -> Encoded:
            attention = AttentionOptions(layers=layers, encoding=encoding)  # type: ignore[arg-type]
            body = EncodeRequest(texts="a", attention=attention)  # 3 tokens, 2 heads: 18 values a layer
            return await service.encode(body, binary=binary, route="/encode")

        await ask([0], "list", binary=False)
        await ask("all", "base64", binary=False)
        await ask("all", "list", binary=True)
        with pytest.raises(AttentionTooLargeError):
            await ask("all", "list", binary=False)


@pytest.mark.parametrize(
    ("setting", "header", "arrived_at", "expected"),
    [
        (None, None, 3.0, None),
        (5.0, None, None, 15.0),
        (5.0, None, 3.0, 8.0),
        (5.0, 2.0, 3.0, 5.0),
        (5.0, 9.0, 3.0, 8.0),
        (None, 2.0, 3.0, 5.0),
        (None, 0.0, 3.0, 3.0),
    ],
)
async def test_the_smaller_time_out_counts_from_the_arrival(
    server: Served, setting: float | None, header: float | None, arrived_at: float | None, expected: float | None
) -> None:
    """Of the setting and the caller's own; of another caller it is another, of the same service."""
    clock = FakeClock()
    clock.advance(10.0 - clock())
    model = service_of(server).find_model(None)
    service = Service([model], Limits(10, 1_000, 1_000, 1_000, 1_000), timeout_seconds=setting, clock=clock)
    bound = service.for_caller(Caller("a", arrived_at, header))
    assert bound.deadline() == expected
    assert bound.caller.key == "a"
    assert service.caller.key is None
    assert bound.models is service.models


async def test_the_deadline_counts_from_the_request(server: Served) -> None:
    """A request that waited longer than its time-out is dropped; one that waited less is run."""
    clock = FakeClock()
    model = service_of(server).find_model(None)
    model.batcher._clock = clock
    limits = Limits(10, 1_000, 1_000, 1_000, 1_000)
    service = Service([model], limits, timeout_seconds=5.0, clock=clock)
    embedder = cast(RecordingEmbedder, model.embedder)
    for seconds, is_run in ((4.9, True), (5.0, False)):
        embedder.batches.clear()
        embedder.gate.clear()
        first = asyncio.create_task(service.encode(EncodeRequest(texts="a"), binary=False, route="/encode"))
        await asyncio.to_thread(embedder.entered.acquire)
        second = asyncio.create_task(service.encode(EncodeRequest(texts="b"), binary=False, route="/encode"))
        await until(lambda: model.batcher.queue_texts == 1)
        clock.advance(seconds)
        embedder.gate.set()
        await first
        if is_run:
            await second
            await asyncio.to_thread(embedder.entered.acquire)
        else:
            with pytest.raises(DeadlineExceededError):
                await second
        assert len(embedder.batches) == 1 + is_run
