"""What a request's headers say of who asks, and how long they wait."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from app.callers import Caller, timeout_of
from app.errors import InvalidRequestError
from tests.app.conftest import Serve, Served

pytestmark = pytest.mark.anyio

HEADER = "X-Request-Timeout"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2", 2.0), ("2.5", 2.5), ("0", 0.0), ("0.000", 0.0), ("1.", 1.0), ("1e-3", 0.001), ("8.64E4", 86_400.0)],
)
def test_seconds_are_read(text: str, seconds: float) -> None:
    """As people and as programs write a decimal number."""
    assert timeout_of(Headers({HEADER: text})) == seconds
    assert timeout_of(Headers({})) is None


WRONG = [
    "",
    " ",
    "-1",
    "+1",
    "1s",
    "1,5",
    "0x1",
    "1_0",
    "nan",
    "inf",
    ".5",
    "86400.1",
    "1e999",
    "9" * 400,
    "\xb2",
    "None",
]


@pytest.mark.parametrize("text", WRONG)
async def test_anything_else_is_refused(server: Served, text: str) -> None:
    """By the name of the header, with the limit, and nothing is run; nothing of what was sent is repeated."""
    with pytest.raises(InvalidRequestError, match="from 0 to 86400") as caught:
        timeout_of(Headers({HEADER: text}))
    assert (caught.value.param, caught.value.limit) == (HEADER, 86_400.0)
    if text.isascii():
        response = await server.client.post("/encode", json={"texts": "a"}, headers={HEADER: text})
        assert (response.status_code, response.json()["param"]) == (422, HEADER)
        response = await server.client.post(
            "/v1/embeddings", json={"model": "tiny", "input": "a"}, headers={HEADER: text}
        )
        assert (response.status_code, response.json()["error"]["param"]) == (400, HEADER)
    assert server.embedder.batches == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/encode", {"texts": "a"}),
        ("/encode", {"texts": "a b c", "chunks": {"unit": "token", "size": 1}}),
        ("/encode", {"texts": "a", "attention": {}}),
        ("/similarity", {"pairs": [["a", "b"]], "explain": True}),
        ("/similarity", {"texts": ["a", "b"]}),
        ("/attention/heads", {"texts": ["a"]}),
        ("/v1/embeddings", {"model": "tiny", "input": "a"}),
        ("/embed", {"inputs": "a"}),
        ("/embed_all", {"inputs": "a"}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
        ("/v2/models/tiny/infer", {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}),
    ],
)
async def test_no_time_is_too_late_everywhere(server: Served, path: str, body: object) -> None:
    """On each route that runs texts: 504 before anything is run, counted; with time the same request is answered."""
    response = await server.client.post(path, json=body, headers={HEADER: "0"})
    assert response.status_code == 504, response.text
    assert server.embedder.batches == []
    assert server.sample("eyeline_rejected_total", model="tiny", reason="deadline_exceeded") == 1
    response = await server.client.post(path, json=body, headers={HEADER: "3600"})
    assert response.status_code == 200, response.text


async def test_the_setting_holds_against_a_longer_header(serve: Serve) -> None:
    """A caller can ask for less time than the server gives, not for more."""
    async with serve(request_timeout_seconds=1e-6) as server:
        response = await server.client.post("/encode", json={"texts": "a"}, headers={HEADER: "3600"})
        assert response.status_code == 504


async def test_the_description_has_the_header(server: Served) -> None:
    """Each operation that can be too late says how long a caller may give it."""
    schema = (await server.client.get("/openapi.json")).json()
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            if "504" in operation["responses"]:
                assert HEADER in operation["responses"]["504"]["description"], path


async def test_a_key_has_its_tokens_and_its_queue(serve: Serve) -> None:
    """What runs for a key is counted by its name, in every flow."""
    key = "a-key-of-these-tests"
    async with serve(api_keys=f"search:{key}") as server:
        headers = {"Authorization": f"Bearer {key}"}
        for path, body in (
            ("/encode", {"texts": "a"}),
            ("/attention/heads", {"texts": "a"}),
            ("/embed", {"inputs": "a"}),
        ):
            before = server.sample("eyeline_key_tokens_total", model="tiny", key="search")
            assert (await server.client.post(path, json=body, headers=headers)).status_code == 200
            assert server.sample("eyeline_key_tokens_total", model="tiny", key="search") == before + 3, path
        assert server.sample("eyeline_key_queue_texts", model="tiny", key="search") == 0
        assert server.sample("eyeline_key_queue_tokens", model="tiny", key="search") == 0


def test_a_caller_is_anyone_at_first() -> None:
    """Without headers there is neither a name nor a limit."""
    assert Caller() == Caller(None, None, None)
