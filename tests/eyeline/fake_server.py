"""A server behind httpx.MockTransport: it answers in Eyeline's shapes, and keeps what it was sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import safetensors.numpy

from tests.doubles import FakeClock

MODEL = "fake"
SAFETENSORS = "application/vnd.safetensors"
CUT = "cut"
"""A text that begins so is truncated."""

TOKENS = {
    "id": [1, 7, 2],
    "text": ["[CLS]", "a", "[SEP]"],
    "start": [0, 0, 0],
    "end": [0, 1, 0],
    "special": [True, False, True],
    "segment": [None, 0, None],
    "word": [None, 0, None],
}
WORDS = {"text": ["a"], "start": [0], "end": [1], "segment": [0]}

Reply = httpx.Response | Exception


def problem(
    status: int, code: str = "some_code", headers: dict[str, str] | None = None, **fields: Any
) -> httpx.Response:
    """An error in the server's own shape."""
    body = {"type": f"urn:eyeline:problem:{code}", "title": "T", "status": status, "detail": "why", "code": code}
    content = json.dumps(body | fields)
    return httpx.Response(
        status, headers={"Content-Type": "application/problem+json"} | (headers or {}), content=content
    )


def is_cut(text: Any) -> bool:
    """Whether the fake truncates a text."""
    return isinstance(text, str) and text.startswith(CUT)


def number_of(text: Any) -> float:
    """What the fake makes of a text: its digits as a number, of a pair those of the first; -1 without any."""
    digits = "".join(filter(str.isdigit, text if isinstance(text, str) else text[0]))
    return float(digits) if digits else -1.0


def answer_encode(body: dict[str, Any], model: str = MODEL) -> httpx.Response:
    """Each text's embedding is its number, and a third; with attention, uniform maps of two heads."""
    if "chunks" in body:
        return answer_chunks(body)
    texts = body["texts"]
    head: dict[str, Any] = {
        "model": model,
        "dimensions": 2,
        "num_tokens": [3] * len(texts),
        "num_tokens_total": [9 if is_cut(text) else 3 for text in texts],
        "truncated": [is_cut(text) for text in texts],
    }
    arrays = {"embeddings": np.array([[number_of(text), 1 / 3] for text in texts], np.float32)}
    if "attention" in body:
        maps = {"layers": [5], "heads": [0, 1], "shape": [1, 2, 3, 3], "unit": "token", "special": "keep"}
        units = {"token": [0, 1, 2], "word": [None, 0, None]}
        described = maps | {"units": units, "row_sum_tolerance": 1e-5}
        head["attention"] = [{"tokens": TOKENS, "words": WORDS, "maps": described} for _ in texts]
        for index in range(len(texts)):
            arrays[f"attention.{index}.maps"] = np.full((1, 2, 3, 3), 1 / 3, np.float32)
    content = safetensors.numpy.save(arrays, metadata={"response": json.dumps(head)})
    return httpx.Response(200, headers={"Content-Type": SAFETENSORS}, content=content)


def answer_chunks(body: dict[str, Any]) -> httpx.Response:
    """Each text has as many chunks as its number says, of one character each, numbered."""
    texts = body["texts"]
    counts = [int(number_of(text)) for text in texts]
    head = {
        "model": MODEL,
        "dimensions": 2,
        "num_tokens": [3 * count for count in counts],
        "num_tokens_total": [count + 2 for count in counts],
        "truncated": [is_cut(text) for text in texts],
        "chunks": [
            {
                "start": list(range(count)),
                "end": list(range(1, count + 1)),
                "num_tokens": [1] * count,
                "truncated": [is_cut(text)] * count,
            }
            for text, count in zip(texts, counts, strict=True)
        ],
    }
    arrays = {
        f"chunks.{index}.embeddings": np.array([[count, chunk] for chunk in range(count)], np.float32)
        for index, count in enumerate(counts)
    }
    content = safetensors.numpy.save(arrays, metadata={"response": json.dumps(head)})
    return httpx.Response(200, headers={"Content-Type": SAFETENSORS}, content=content)


def answer_heads(body: dict[str, Any]) -> httpx.Response:
    """Two heads that have nothing in common, in the order of the second one."""
    texts = body["texts"]
    answer = {
        "model": MODEL,
        "heads": [[0, 0], [0, 1]],
        "distances": [[0.0, 1.0], [1.0, 0.0]],
        "order": [1, 0],
        "layout": [[-0.5, 0.0], [0.5, 0.0]],
        "explained": 1.0,
        "num_tokens": [3] * len(texts),
        "truncated": [is_cut(text) for text in texts],
    }
    return httpx.Response(200, json=answer)


def answer_similarity(body: dict[str, Any]) -> httpx.Response:
    """Cosines that are a hundredth of the pair's number; the unit matrix for texts."""
    if "texts" in body:
        count = len(body["texts"])
        cut = [is_cut(text) for text in body["texts"]]
        matrix = np.eye(count).tolist()
        answer: dict[str, Any] = {"similarities": matrix, "num_tokens": [3] * count, "truncated": cut}
    else:
        cosines = [number_of(pair) / 100 for pair in body["pairs"]]
        cut_pairs = [[is_cut(text) for text in pair] for pair in body["pairs"]]
        answer = {"similarities": cosines, "num_tokens": [[3, 3]] * len(cosines), "truncated": cut_pairs}
        if body.get("explain"):
            side = {"tokens": TOKENS, "words": WORDS}
            units = {"token": [0, 1], "word": [None, 0]}
            answer["explanations"] = [
                {
                    "a": side, "b": side, "unit": body["unit"], "rows": units, "columns": units, "shape": [2, 2],
                    "values": [[cosine, 0.0], [0.0, 0.0]], "row_sums": [cosine, 0.0], "column_sums": [cosine, 0.0],
                    "strongest": [{"row": 0, "column": 0, "value": cosine}], "sum": cosine,
                }
                for cosine in cosines
            ]  # fmt: skip
    return httpx.Response(200, json={"model": MODEL} | answer)


def answer_tokenize(body: dict[str, Any]) -> httpx.Response:
    """Every text has the same tokens, and its number as its count."""
    counts = [int(number_of(text)) for text in body["texts"]]
    rest = {"num_tokens_total": 9, "truncated": False}
    texts = [{"tokens": TOKENS, "words": WORDS, "num_tokens": count} | rest for count in counts]
    return httpx.Response(200, json={"model": MODEL, "texts": texts})


def answer_badly(body: object) -> httpx.Response:
    """Say gzip of what is none; a stream, as a body in memory would be decoded here."""
    return httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(b"no gzip"))


class FakeServer:
    """Answers what it was told to answer, in that order, and after that what was asked.

    Attributes
    ----------
    requests : list of httpx.Request
    waits : list of float
        What the client waited, in seconds: the clock moves, nobody sleeps.
    """

    def __init__(self, *first: Reply) -> None:
        self.requests: list[httpx.Request] = []
        self.waits: list[float] = []
        self.clock = FakeClock()
        self._first = list(first)
        self.transport = httpx.MockTransport(self.handle)
        self.routes: dict[str, Callable[[dict[str, Any]], httpx.Response]] = {
            "/encode": answer_encode,
            "/attention/heads": answer_heads,
            "/similarity": answer_similarity,
            "/tokenize": answer_tokenize,
            "/info": lambda body: httpx.Response(200, json={"model_id": MODEL}),
            "/health": lambda body: httpx.Response(200, json={"status": "ready"}),
        }

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self._first:
            reply = self._first.pop(0)
            if isinstance(reply, Exception):
                raise reply
            return reply
        return self.routes[request.url.path](json.loads(request.content or b"null"))

    @property
    def bodies(self) -> list[Any]:
        """What was sent, as JSON."""
        return [json.loads(request.content) for request in self.requests]

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.clock.advance(seconds)

    async def wait_async(self, seconds: float) -> None:
        self.wait(seconds)
