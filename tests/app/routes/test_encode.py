"""The native API through HTTP: every field asked, every field answered, every refusal."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from app.errors import ANSWERS, error_codes
from app.schemas.encode import EncodeResponse, ProblemResponse, TokenizeResponse
from app.schemas.similarity import SimilarityResponse
from app.settings import ModelSpec
from model.contract import EncodeInput
from tests.app.conftest import PROMPTS, Serve, Served, until
from tests.tiny import CONFIG, make_bert_folder

pytestmark = pytest.mark.anyio

LAYERS, HEADS, DIMENSIONS, MAX_LENGTH = CONFIG["num_hidden_layers"], CONFIG["num_attention_heads"], 16, 32
TEXTS = ["The cat sat on the mat.", "A dog barked!", "", "hello world"]
LONG = "cat " * 100  # 102 tokens, the tiny model reads 32
MARKER = "MARKER7"
SAFETENSORS, NPZ = "application/vnd.safetensors", "application/x-npz"


def from_base64(data: str, dtype: str) -> NDArray[Any]:
    """Decode what the API calls base64."""
    return np.frombuffer(base64.b64decode(data, validate=True), dtype=dtype)


def maps_of(entry: dict[str, Any]) -> NDArray[Any]:
    """Read one text's maps, however they are written."""
    maps = entry["maps"]
    if "values" in maps:
        return np.array(maps["values"])
    assert (maps["order"], maps["endian"]) == ("C", "little")
    dtype = {"float16": "<f2", "float32": "<f4"}[maps["dtype"]]
    return from_base64(maps["data"], dtype).reshape(maps["shape"])


def assert_problem(
    response: httpx.Response, status: int, code: str, param: str | None = None, limit: float | None = None
) -> dict[str, Any]:
    """Check the one shape of every error, and return it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-request-id"]
    body: dict[str, Any] = response.json()
    ProblemResponse.model_validate(body, strict=True)
    assert body["status"] == status
    assert body["code"] == code
    assert body["type"] == f"urn:eyeline:problem:{code}"
    assert body["detail"]
    assert body.get("param") == param
    if limit is not None:
        assert body["limit"] == limit
    assert len(response.content) < 4_000
    assert MARKER not in response.text
    return body


# ---- /encode: the plain answer


async def test_the_answer_field_by_field(server: Served) -> None:
    """Without attention an answer has exactly these fields, one entry a text."""
    response = await server.post("/encode", {"texts": TEXTS})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["model", "dimensions", "embeddings", "num_tokens", "num_tokens_total", "truncated"]
    assert body["model"] == "tiny"
    assert body["dimensions"] == DIMENSIONS
    assert body["num_tokens"] == body["num_tokens_total"] == [9, 6, 2, 4]
    assert body["truncated"] == [False] * 4
    assert np.shape(body["embeddings"]) == (4, DIMENSIONS)
    EncodeResponse.model_validate(body, strict=True)


async def test_embeddings_are_the_embedders(server: Served) -> None:
    """What comes over HTTP is what the library gives, in the order sent."""
    body = await server.encode(TEXTS)
    np.testing.assert_allclose(body["embeddings"], server.embedder.encode(TEXTS), atol=1e-6, rtol=0)


async def test_one_text_needs_no_list(server: Served) -> None:
    """A bare string is a list of one."""
    assert await server.encode(TEXTS[0]) == await server.encode([TEXTS[0]])


async def test_an_empty_text_is_a_text(server: Served) -> None:
    """It encodes to a finite unit vector: that of its special tokens."""
    [embedding] = (await server.encode(""))["embeddings"]
    assert np.linalg.norm(embedding) == pytest.approx(1, abs=1e-5)


async def test_pairs_and_texts_in_one_request(server: Served) -> None:
    """A pair is one text of two segments, and may stand beside plain texts."""
    body = await server.encode(["hello", ["the cat", "a dog barked"]], attention={})
    assert body["num_tokens"] == [3, 8]
    assert body["attention"][1]["tokens"]["segment"] == [None, 0, 0, None, 1, 1, 1, None]
    assert body["attention"][1]["words"] == {
        "text": ["the", "cat", "a", "dog", "barked"],
        "start": [0, 4, 0, 2, 6],
        "end": [3, 7, 1, 5, 12],
        "segment": [0, 0, 1, 1, 1],
    }
    expected = server.embedder.encode([("the cat", "a dog barked")])
    np.testing.assert_allclose(body["embeddings"][1], expected[0], atol=1e-6)


async def test_base64_holds_the_same_floats(server: Served) -> None:
    """Each embedding is the base64 of little-endian float32, bit for bit the numbers of the plain form."""
    plain = np.array((await server.encode(TEXTS))["embeddings"], dtype=np.float32)
    body = await server.encode(TEXTS, encoding_format="base64")
    decoded = np.stack([from_base64(text, "<f4") for text in body["embeddings"]])
    np.testing.assert_array_equal(decoded, plain)
    EncodeResponse.model_validate(body, strict=True)


@pytest.mark.parametrize("normalize", [True, False])
async def test_dimensions_are_cut_before_scaling(server: Served, normalize: bool) -> None:
    """The first n of the unscaled embedding, and of unit length again where asked."""
    whole = np.array((await server.encode(TEXTS, normalize=False))["embeddings"])
    body = await server.encode(TEXTS, dimensions=5, normalize=normalize)
    assert body["dimensions"] == 5
    expected = whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True) if normalize else whole[:, :5]
    np.testing.assert_allclose(body["embeddings"], expected, atol=1e-5)


async def test_normalize_is_on_unless_told(server: Served) -> None:
    """Embeddings are of unit length by default, and of any other without."""
    plain = np.linalg.norm((await server.encode(TEXTS))["embeddings"], axis=1)
    raw = np.linalg.norm((await server.encode(TEXTS, normalize=False))["embeddings"], axis=1)
    np.testing.assert_allclose(plain, 1, atol=1e-5)
    assert (np.abs(raw - 1) > 0.1).all()


async def test_truncation_is_reported(server: Served) -> None:
    """A text over the maximum is cut to it, and says so; its neighbour is left alone."""
    body = await server.encode([LONG, "hello"])
    assert body["num_tokens"] == [MAX_LENGTH, 3]
    assert body["num_tokens_total"] == [102, 3]
    assert body["truncated"] == [True, False]
    kept = await server.encode("cat " * (MAX_LENGTH - 2))
    assert kept["truncated"] == [False]
    np.testing.assert_allclose(body["embeddings"][0], kept["embeddings"][0], atol=1e-6)


async def test_truncation_can_be_refused(server: Served) -> None:
    """With truncate false a text over the maximum is 413 with the numbers, and nothing is run."""
    response = await server.post("/encode", {"texts": ["hello", LONG], "truncate": False})
    body = assert_problem(response, 413, "text_too_long", "texts[1]", MAX_LENGTH)
    assert body["actual"] == 102
    assert server.embedder.batches == []


@pytest.mark.parametrize("fields", [{"prompt_name": "query"}, {"prompt": PROMPTS["query"]}])
async def test_prompts_stand_before_each_text(server: Served, fields: dict[str, str]) -> None:
    """A prompt by name or in full changes the embedding as if it had been typed."""
    prompted = await server.encode(["the cat", "a dog"], **fields)
    typed = await server.encode([PROMPTS["query"] + "the cat", PROMPTS["query"] + "a dog"])
    np.testing.assert_allclose(prompted["embeddings"], typed["embeddings"], atol=1e-6)
    assert prompted["num_tokens"] == typed["num_tokens"]


async def test_offsets_do_not_count_the_prompt(server: Served) -> None:
    """Offsets are into the caller's own text; tokens of the prompt have no segment and no word."""
    body = await server.encode("the cat", prompt_name="query", attention={})
    assert body["attention"][0]["tokens"] == {
        "id": body["attention"][0]["tokens"]["id"],
        "text": ["[CLS]", "query", ":", "the", "cat", "[SEP]"],
        "start": [0, 0, 0, 0, 4, 0],
        "end": [0, 0, 0, 3, 7, 0],
        "special": [True, False, False, False, False, True],
        "segment": [None, None, None, 0, 0, None],
        "word": [None, None, None, 0, 1, None],
    }


async def test_the_default_prompt_of_the_folder(serve: Serve, tmp_path: Path) -> None:
    """What the folder names as its default is put before each text that names none."""
    folder = make_bert_folder(tmp_path / "m", prompts=PROMPTS, default_prompt_name="passage")
    async with serve(model=(ModelSpec("tiny", folder),)) as server:
        assert (await server.encode("the cat"))["num_tokens"] == [6]
        assert (await server.encode("the cat", prompt=""))["num_tokens"] == [4]


async def test_timings_are_in_a_header(server: Served) -> None:
    """Server-Timing names the stages in milliseconds; together they are not more than the total."""
    for path in ("/encode", "/similarity", "/tokenize"):
        response = await server.post(path, {"texts": ["hello", "world"]})
        pattern = r"tokenize;dur=([\d.]+), queue;dur=([\d.]+), inference;dur=([\d.]+), total;dur=([\d.]+)"
        match = re.fullmatch(pattern, response.headers["server-timing"])
        assert match is not None
        tokenize, queue, inference, total = map(float, match.groups())
        assert tokenize + queue + inference <= total + 0.001
        assert tokenize > 0
        assert (inference > 0) == (path != "/tokenize")


async def test_the_id_of_a_request(server: Served) -> None:
    """A valid X-Request-ID comes back, on errors too; an invalid one is replaced."""
    assert (await server.post("/encode", {"texts": "a"}, x_request_id="mine")).headers["x-request-id"] == "mine"
    assert (await server.post("/encode", {"texts": []}, x_request_id="mine")).headers["x-request-id"] == "mine"
    assert (await server.post("/encode", {"texts": "a"}, x_request_id="not mine")).headers["x-request-id"] != "not mine"


# ---- /encode: attention


async def test_attention_field_by_field(server: Served) -> None:
    """Each text shows its tokens, its words, and by default the last layer's maps of all heads."""
    response = await server.post("/encode", {"texts": ["the cat", "xyz"], "attention": {}})
    body = response.json()
    EncodeResponse.model_validate(body, strict=True)
    first, second = body["attention"]
    assert first.keys() == {"tokens", "words", "maps"}
    assert first["tokens"]["text"] == ["[CLS]", "the", "cat", "[SEP]"]
    assert first["tokens"]["special"] == [True, False, False, True]
    assert second["tokens"]["text"] == ["[CLS]", "x", "##y", "##z", "[SEP]"]
    assert second["tokens"]["word"] == [None, 0, 0, 0, None]
    assert second["words"] == {"text": ["xyz"], "start": [0], "end": [3], "segment": [0]}
    described = ["unit", "special", "units", "row_sum_tolerance"]
    assert list(first["maps"]) == ["layers", "heads", "axes", "shape", *described, "values"]
    assert (first["maps"]["unit"], first["maps"]["special"]) == ("token", "keep")
    assert first["maps"]["units"] == {"token": [0, 1, 2, 3], "word": [None, 0, 1, None]}
    assert first["maps"]["layers"] == [LAYERS - 1]
    assert first["maps"]["heads"] == list(range(HEADS))
    assert first["maps"]["axes"] == ["layer", "head", "query", "key"]
    assert first["maps"]["shape"] == [1, HEADS, 4, 4] == list(np.shape(first["maps"]["values"]))
    assert second["maps"]["shape"] == [1, HEADS, 5, 5]


@pytest.mark.parametrize("attention", [None, "left out"])
async def test_no_attention_unless_asked(server: Served, attention: str | None) -> None:
    """Null and absent are the same: no field in the answer, and nothing counted."""
    fields = {} if attention == "left out" else {"attention": attention}
    assert "attention" not in await server.encode(TEXTS, **fields)
    assert server.sample("eyeline_attention_values_total", model="tiny") == 0


async def test_embeddings_are_the_same_with_attention(server: Served) -> None:
    """Asking for maps changes no bit of an embedding, whoever asks in the batch."""
    plain = await server.encode(TEXTS)
    for attention in ({}, {"items": [1]}, {"layers": "all", "encoding": "base64"}):
        assert (await server.encode(TEXTS, attention=attention))["embeddings"] == plain["embeddings"]


async def test_list_and_base64_agree(server: Served) -> None:
    """The forms differ by their rounding alone: digits in a list, the number type in base64. Rows sum to 1."""
    exact = await server.encode(TEXTS, attention={"layers": "all", "encoding": "base64", "dtype": "float32"})
    half = await server.encode(TEXTS, attention={"layers": "all", "encoding": "base64"})
    for digits in (2, 4, 6):
        listed = await server.encode(TEXTS, attention={"layers": "all", "digits": digits})
        for index in range(len(TEXTS)):
            reference = maps_of(exact["attention"][index])
            assert reference.dtype == np.float32
            np.testing.assert_allclose(maps_of(listed["attention"][index]), reference, rtol=0.51 * 10 ** (1 - digits))
            np.testing.assert_allclose(reference.sum(axis=-1), 1, atol=1e-5)
    for index in range(len(TEXTS)):
        assert half["attention"][index]["maps"]["dtype"] == "float16"
        np.testing.assert_array_equal(
            maps_of(half["attention"][index]), maps_of(exact["attention"][index]).astype(np.float16)
        )
    EncodeResponse.model_validate(half, strict=True)


async def test_a_list_shows_the_digits_asked(server: Served) -> None:
    """No weight is written with more significant digits than asked, or JSON would be twice as large."""
    response = await server.post("/encode", {"texts": TEXTS[0], "attention": {"digits": 3}})
    values = response.text.partition('"values":')[2]
    numbers = re.findall(r"\d+\.\d+(?:e-?\d+)?", values)
    assert len(numbers) == HEADS * 9 * 9
    for number in numbers:
        digits = number.partition("e")[0].replace(".", "").lstrip("0").rstrip("0")
        assert len(digits) <= 3


async def test_items_layers_and_heads_select(server: Served) -> None:
    """Only what is asked comes, true numbers, in the asked order; the maps are the right ones."""
    whole = await server.encode(TEXTS, attention={"layers": "all", "digits": 6})
    chosen = await server.encode(TEXTS, attention={"items": [3, 0], "layers": [-1, 0], "heads": [-1, 0], "digits": 6})
    assert [entry is None for entry in chosen["attention"]] == [False, True, True, False]
    for index in (0, 3):
        maps = chosen["attention"][index]["maps"]
        assert (maps["layers"], maps["heads"]) == ([1, 0], [1, 0])
        expected = maps_of(whole["attention"][index])[[1, 0]][:, [1, 0]]
        np.testing.assert_array_equal(maps_of(chosen["attention"][index]), expected)
    one = await server.encode(TEXTS[0], attention={"layers": [1], "heads": [0], "digits": 6})
    np.testing.assert_array_equal(maps_of(one["attention"][0])[0, 0], maps_of(whole["attention"][0])[1, 0])


async def test_no_items_means_no_maps(server: Served) -> None:
    """An empty list of items is answered with a null for each text."""
    assert (await server.encode(TEXTS, attention={"items": []}))["attention"] == [None] * 4


@pytest.mark.parametrize(
    ("attention", "code", "param"),
    [
        ({"layers": [2]}, "attention_out_of_range", "attention.layers[0]"),
        ({"layers": [0, -3]}, "attention_out_of_range", "attention.layers[1]"),
        ({"layers": []}, "attention_out_of_range", "attention.layers"),
        ({"layers": [0, -2]}, "attention_out_of_range", "attention.layers"),
        ({"heads": [0, 2]}, "attention_out_of_range", "attention.heads[1]"),
        ({"heads": [1, 1]}, "attention_out_of_range", "attention.heads"),
        ({"items": [0, 4]}, "invalid_request", "attention.items[1]"),
        ({"items": [-1]}, "invalid_request", "attention.items[0]"),
        ({"layers": "none"}, "invalid_request", "attention.layers"),
        ({"heads": 1}, "invalid_request", "attention.heads"),
        ({"digits": 0}, "invalid_request", "attention.digits"),
        ({"digits": 10}, "invalid_request", "attention.digits"),
        ({"dtype": "float64"}, "invalid_request", "attention.dtype"),
        ({"min_weight": 1.1}, "invalid_request", "attention.min_weight"),
        ({"min_weight": -0.1}, "invalid_request", "attention.min_weight"),
        ({"top_k": 0}, "invalid_request", "attention.top_k"),
        ({"top_k": 2.0}, "invalid_request", "attention.top_k"),
        ({"rollout": True}, "invalid_request", "attention.rollout"),
        ({"rollout": {"residual": 1.5}}, "invalid_request", "attention.rollout.residual"),
        ({"rollout": {"heads": "all"}}, "invalid_request", "attention.rollout.heads"),
        ({"rollout": {"from_layer": 2}}, "attention_out_of_range", "attention.rollout.from_layer"),
        ({"rollout": {"from_layer": -3}}, "attention_out_of_range", "attention.rollout.from_layer"),
        ({"stats": 1}, "invalid_request", "attention.stats"),
        ({"maps": None}, "invalid_request", "attention.maps"),
        ({"unit": "piece"}, "invalid_request", "attention.unit"),
        ({"special": "hide"}, "invalid_request", "attention.special"),
        ({"reduce_heads": "min"}, "invalid_request", "attention.reduce_heads"),
        ({"offset_unit": "utf8"}, "invalid_request", "attention.offset_unit"),
        ({MARKER.lower(): 1}, "invalid_request", "attention.marker7"),
        ([], "invalid_request", "attention"),
        (True, "invalid_request", "attention"),
    ],
)
async def test_selections_that_do_not_exist(server: Served, attention: Any, code: str, param: str) -> None:
    """What the model or the server does not have is 422 with the field, before anything is run."""
    response = await server.post("/encode", {"texts": TEXTS, "attention": attention})
    assert_problem(response, 422, code, param)
    assert server.embedder.batches == []


async def test_a_model_without_maps_says_so(server: Served) -> None:
    """Attention of a model that cannot give it is 501 before anything is run, never an empty list; all else works."""
    server.embedder.gives_attention = False
    response = await server.post("/encode", {"texts": TEXTS, "attention": {}})
    assert_problem(response, 501, "attention_not_supported", "attention")
    assert server.embedder.batches == []
    await server.encode(TEXTS)
    assert (await server.client.get("/info")).json()["models"][0]["attention"] is False


VALUES = HEADS * 9 * 9  # one layer of TEXTS[0]


async def test_too_many_values_as_a_list(serve: Serve) -> None:
    """Over the cap of lists an answer is 413 before the forward pass, and says that base64 would do."""
    async with serve(max_attention_values_list=VALUES, max_attention_values_binary=2 * VALUES) as server:
        await server.encode(TEXTS[0], attention={})
        server.embedder.batches.clear()
        response = await server.post("/encode", {"texts": TEXTS[0], "attention": {"layers": "all"}})
        body = assert_problem(response, 413, "attention_too_large", "attention", VALUES)
        assert body["actual"] == 2 * VALUES
        assert "base64" in body["detail"]
        assert server.embedder.batches == []
        await server.encode(TEXTS[0], attention={"layers": "all", "encoding": "base64"})
        binary = await server.post("/encode", {"texts": TEXTS[0], "attention": {"layers": "all"}}, accept=SAFETENSORS)
        assert binary.status_code == 200


@pytest.mark.parametrize("accept", ["application/json", SAFETENSORS, NPZ])
async def test_too_many_values_in_binary(serve: Serve, accept: str) -> None:
    """Over the cap of binary answers it is 413 in every form, before the forward pass, without false hope."""
    async with serve(max_attention_values_list=1, max_attention_values_binary=VALUES) as server:
        attention = {"layers": "all", "encoding": "base64"}
        response = await server.post("/encode", {"texts": TEXTS[0], "attention": attention}, accept=accept)
        body = assert_problem(response, 413, "attention_too_large", "attention", VALUES)
        assert "base64" not in body["detail"]
        assert server.embedder.batches == []


async def test_the_cap_counts_the_asked_texts_alone(serve: Serve) -> None:
    """Texts whose maps nobody asked for cost nothing; texts that were asked for add up."""
    async with serve(max_attention_values_list=VALUES, max_attention_values_binary=VALUES) as server:
        await server.encode([TEXTS[0]] * 3, attention={"items": [2]})
        response = await server.post("/encode", {"texts": [TEXTS[0]] * 3, "attention": {"items": [0, 2]}})
        assert_problem(response, 413, "attention_too_large", "attention", VALUES)


# ---- /encode: forms of the answer


async def test_safetensors_and_npz_hold_what_json_holds(server: Served) -> None:
    """The arrays are bit for bit those of JSON's base64; all the rest is the JSON, without the arrays."""
    body = {"texts": TEXTS, "attention": {"items": [0, 3], "layers": "all", "dtype": "float32", "encoding": "base64"}}
    expected = (await server.post("/encode", body)).json()

    response = await server.post("/encode", body, accept=SAFETENSORS)
    assert response.headers["content-type"] == SAFETENSORS
    tensors = safetensors.numpy.load(response.content)
    header_size = int.from_bytes(response.content[:8], "little")
    header = json.loads(response.content[8 : 8 + header_size])
    rest = json.loads(header["__metadata__"]["response"])

    zipped = await server.post("/encode", body, accept=NPZ)
    assert zipped.headers["content-type"] == NPZ
    with np.load(io.BytesIO(zipped.content), allow_pickle=False) as file:
        arrays = dict(file)
    assert json.loads(arrays.pop("response").tobytes()) == rest
    assert arrays.keys() == tensors.keys() == {"embeddings", "attention.0.maps", "attention.3.maps"}
    for name, array in tensors.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert array.dtype == np.float32

    np.testing.assert_array_equal(tensors["embeddings"], np.array(expected.pop("embeddings"), dtype=np.float32))
    for index in (0, 3):
        maps = expected["attention"][index]["maps"]
        np.testing.assert_array_equal(tensors[f"attention.{index}.maps"], maps_of(expected["attention"][index]))
        del maps["data"]
    assert rest == expected


async def test_binary_maps_have_the_number_type_asked(server: Served) -> None:
    """Maps are float16 unless float32 is asked for, whatever the encoding field says, and without attention absent."""
    body: dict[str, Any] = {"texts": TEXTS, "attention": {}}
    tensors = safetensors.numpy.load((await server.post("/encode", body, accept=SAFETENSORS)).content)
    assert tensors["attention.0.maps"].dtype == np.float16
    assert tensors["attention.0.maps"].shape == (1, HEADS, 9, 9)
    del body["attention"]
    assert safetensors.numpy.load((await server.post("/encode", body, accept=SAFETENSORS)).content).keys() == {
        "embeddings"
    }


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("*/*", "application/json"),
        ("application/octet-stream", SAFETENSORS),
        ("application/json;q=0.1, application/x-npz;q=0.9", NPZ),
    ],
)
async def test_accept_decides(server: Served, accept: str, content_type: str) -> None:
    """The form follows the Accept header and its qualities."""
    response = await server.post("/encode", {"texts": TEXTS}, accept=accept)
    assert response.headers["content-type"] == content_type


async def test_no_form_that_we_write(server: Served) -> None:
    """Anything else is 406, before the body is looked at, and the header is not repeated."""
    response = await server.post("/encode", {"texts": TEXTS}, accept=f"text/{MARKER}")
    assert_problem(response, 406, "not_acceptable")


async def test_a_large_answer_is_the_same(server: Served) -> None:
    """An answer that is written on another thread is the one that the event loop would have written."""
    many = await server.encode([TEXTS[0]] * 200, attention={"layers": "all"})  # 64,800 values
    one = await server.encode(TEXTS[0], attention={"layers": "all"})
    assert many["attention"] == one["attention"] * 200
    np.testing.assert_allclose(many["embeddings"], np.repeat(one["embeddings"], 200, axis=0), atol=1e-6)


# ---- /similarity


async def test_texts_are_compared_with_all(server: Served) -> None:
    """The matrix of cosines: symmetric, 1 on the diagonal, equal to the embeddings' products."""
    response = await server.post("/similarity", {"texts": TEXTS})
    body = response.json()
    SimilarityResponse.model_validate(body, strict=True)
    assert list(body) == ["model", "similarities", "num_tokens", "truncated"]
    matrix = np.array(body["similarities"])
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_allclose(np.diag(matrix), 1, atol=1e-6)
    assert np.abs(matrix).max() <= 1
    vectors = np.array((await server.encode(TEXTS))["embeddings"])
    np.testing.assert_allclose(matrix, vectors @ vectors.T, atol=1e-6)
    assert body["num_tokens"] == [9, 6, 2, 4]
    assert body["truncated"] == [False] * 4


async def test_pairs_are_compared_two_by_two(server: Served) -> None:
    """One cosine a pair, equal to the matrix's entry, with the tokens of both."""
    matrix = (await server.post("/similarity", {"texts": TEXTS})).json()["similarities"]
    response = await server.post("/similarity", {"pairs": [[TEXTS[0], TEXTS[1]], [TEXTS[3], LONG]]})
    body = response.json()
    SimilarityResponse.model_validate(body, strict=True)
    assert np.shape(body["similarities"]) == (2,)
    assert body["similarities"][0] == pytest.approx(matrix[0][1], abs=1e-6)
    assert body["num_tokens"] == [[9, 6], [4, MAX_LENGTH]]
    assert body["truncated"] == [[False, False], [False, True]]


async def test_a_fault_in_a_pair_is_named_as_the_caller_knows_it(server: Served) -> None:
    """The fourth text of two pairs is pairs[1][1], not texts[3]."""
    response = await server.post("/similarity", {"pairs": [["a", "b"], ["c", LONG]], "truncate": False})
    assert response.status_code == 413
    assert response.json()["param"] == "pairs[1][1]"


async def test_similarity_takes_the_same_options(server: Served) -> None:
    """Dimensions, prompts and truncate mean what they mean for /encode."""
    vectors = np.array((await server.encode(TEXTS, dimensions=3, prompt_name="query"))["embeddings"])
    response = await server.post("/similarity", {"texts": TEXTS, "dimensions": 3, "prompt_name": "query"})
    np.testing.assert_allclose(response.json()["similarities"], vectors @ vectors.T, atol=1e-6)
    response = await server.post("/similarity", {"texts": [LONG], "truncate": False})
    assert_problem(response, 413, "text_too_long", "texts[0]", MAX_LENGTH)


@pytest.mark.parametrize(
    "body", [{}, {"texts": ["a"], "pairs": [["a", "b"]]}, {"texts": None, "pairs": None}, {"texts": []}, {"pairs": []}]
)
async def test_texts_or_pairs_but_not_both(server: Served, body: dict[str, Any]) -> None:
    """Both, neither and none are 422."""
    response = await server.post("/similarity", body)
    assert response.status_code == 422
    assert response.json()["code"] == "invalid_request"


@pytest.mark.parametrize("pair", [["a"], ["a", "b", "c"], "ab", ["a", 1], [["a"], "b"]])
async def test_a_pair_is_two_texts(server: Served, pair: Any) -> None:
    """Anything else in place of a pair is 422 and names it."""
    for path, field in (("/similarity", "pairs"), ("/encode", "texts")):
        if path == "/encode" and pair == "ab":
            continue  # a string is a text there
        response = await server.post(path, {field: [["a", "b"], pair]})
        assert response.status_code == 422
        assert response.json()["param"].startswith(f"{field}[1]")


# ---- /tokenize


async def test_tokenize_shows_what_encode_reads(server: Served) -> None:
    """Tokens and words are those of the attention answer; the counts are those of /encode; nothing is run."""
    response = await server.post("/tokenize", {"texts": [*TEXTS, LONG]})
    body = response.json()
    TokenizeResponse.model_validate(body, strict=True)
    assert body["model"] == "tiny"
    assert server.embedder.batches == []
    encoded = await server.encode([*TEXTS, LONG], attention={})
    for index, text in enumerate(body["texts"]):
        assert text["tokens"] == encoded["attention"][index]["tokens"]
        assert text["words"] == encoded["attention"][index]["words"]
        for name in ("num_tokens", "num_tokens_total", "truncated"):
            assert text[name] == encoded[name][index]


async def test_tokenize_refuses_as_encode_does(server: Served) -> None:
    """Truncation, prompts and unknown fields are handled alike."""
    response = await server.post("/tokenize", {"texts": LONG, "truncate": False})
    assert_problem(response, 413, "text_too_long", "texts[0]", MAX_LENGTH)
    response = await server.post("/tokenize", {"texts": "a", "normalize": True})
    assert_problem(response, 422, "invalid_request", "normalize")


# ---- refusals: the error table through HTTP


def refuse(inputs: Sequence[EncodeInput]) -> None:
    """Fail as a broken kernel would."""
    raise ValueError(MARKER)


TEXT_REFUSALS: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"texts": "a", "model": MARKER}, 404, "model_not_found", "model"),
    ({"texts": ["a"] * 5}, 413, "too_many_texts", "texts"),
    ({"texts": ["a", "b" * 201]}, 413, "text_too_long", "texts[1]"),
    ({"texts": [["a" * 150, "b" * 51]]}, 413, "text_too_long", "texts[0]"),
    ({"texts": ["cat " * 30] * 4}, 413, "request_too_large", "texts"),
    ({"texts": "a", "prompt_name": MARKER}, 422, "unknown_prompt", "prompt_name"),
    ({"texts": "a", "prompt_name": "query", "prompt": MARKER}, 422, "unknown_prompt", "prompt_name"),
    ({"texts": "a", "prompt": MARKER * 1_000}, 422, "invalid_request", "prompt"),
    ({"texts": "a", "dimensions": 17}, 422, "dimensions_out_of_range", "dimensions"),
    ({"texts": "a", "dimensions": 12, "output_dtype": "binary"}, 422, "output_dtype_not_possible", "output_dtype"),
    ({"texts": MARKER, "chunks": {"unit": "token", "size": 31}}, 422, "chunks_not_possible", "chunks.size"),
    ({"texts": "cat " * 20, "chunks": {"unit": "token", "size": 1}}, 413, "too_many_chunks", "texts[0]"),
    ({"texts": "a", "dimensions": 0}, 422, "invalid_request", "dimensions"),
    ({"texts": "a", "dimensions": "8"}, 422, "invalid_request", "dimensions"),
    ({"texts": "a", "dimensions": 8.0}, 422, "invalid_request", "dimensions"),
    ({"texts": "a", "normalize": 1}, 422, "invalid_request", "normalize"),
    ({"texts": "a", "truncate": "true"}, 422, "invalid_request", "truncate"),
    ({"texts": "a", "encoding_format": MARKER}, 422, "invalid_request", "encoding_format"),
    ({"texts": []}, 422, "invalid_request", "texts"),
    ({"texts": None}, 422, "invalid_request", "texts"),
    ({"texts": {"a": MARKER}}, 422, "invalid_request", "texts"),
    ({"texts": [MARKER, 1]}, 422, "invalid_request", "texts[1]"),
    ({"texts": [MARKER, None]}, 422, "invalid_request", "texts[1]"),
    ({"inputs": MARKER}, 422, "invalid_request", "texts"),
    ({"texts": "a", "input": MARKER}, 422, "invalid_request", "input"),
]


@pytest.mark.parametrize(("body", "status", "code", "param"), TEXT_REFUSALS)
async def test_a_refused_request_runs_nothing(
    serve: Serve, body: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    """Each refusal has its status, code and field, repeats nothing of the caller's, and the model never runs."""
    async with serve(
        max_texts=4, max_queue_texts=4, batch_tokens=40, max_queue_tokens=100, max_text_characters=200
    ) as server:
        assert_problem(await server.post("/encode", body), status, code, param)
        assert server.embedder.batches == []
        assert server.sample("eyeline_errors_total", code=code) == 1
        assert server.sample("eyeline_queue_texts", model="tiny") == 0


async def test_attention_offers_no_way_out_into_a_full_stop(serve: Serve) -> None:
    """A request that no queue holds is told so at once, whatever attention it asks for besides."""
    async with serve(batch_tokens=40, max_queue_tokens=100, max_attention_values_list=10) as server:
        body = {"texts": ["cat " * 30] * 4, "attention": {}}
        assert_problem(await server.post("/encode", body), 413, "request_too_large", "texts")
        assert server.sample("eyeline_rejected_total", model="tiny", reason="request_too_large") == 1


async def test_a_full_queue_is_429(serve: Serve) -> None:
    """When no room is left a request is refused with Retry-After, and counted as rejected."""
    async with serve(max_texts=2, max_queue_texts=2) as server:
        server.embedder.gate.clear()
        waiting = [asyncio.create_task(server.encode("hello"))]
        await asyncio.to_thread(server.embedder.entered.acquire)
        waiting.append(asyncio.create_task(server.encode(["hello", "world"])))
        await until(lambda: server.sample("eyeline_queue_texts", model="tiny") == 2)
        response = await server.post("/encode", {"texts": MARKER})
        assert_problem(response, 429, "queue_full", None, 2)
        assert int(response.headers["retry-after"]) >= 1
        assert server.sample("eyeline_rejected_total", model="tiny", reason="queue_full") == 1
        server.embedder.gate.set()
        await asyncio.gather(*waiting)


async def test_a_deadline_that_passed_is_504(serve: Serve) -> None:
    """A request whose time is up before it is run is told so, and is not run."""
    async with serve(request_timeout_seconds=1e-6) as server:
        response = await server.post("/encode", {"texts": MARKER})
        assert_problem(response, 504, "deadline_exceeded")
        assert server.embedder.batches == []


async def test_a_failing_text_is_500_without_the_reason(server: Served) -> None:
    """The reason is in the log; the caller learns which text it was."""
    server.embedder.before_run = refuse
    response = await server.post("/encode", {"texts": ["a", MARKER]})
    assert_problem(response, 500, "inference_failed", "texts[0]")
    assert server.sample("eyeline_batch_failures_total", model="tiny") >= 1


async def test_a_result_that_is_not_finite_is_withheld(serve: Serve, tmp_path: Path) -> None:
    """A NaN never reaches JSON, where it would be null: 500 and the text at fault."""
    folder = make_bert_folder(tmp_path / "broken")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors["encoder.layer.1.output.LayerNorm.bias"][3] = 3e38  # finite, but no two of them can be added
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    async with serve(model=(ModelSpec("tiny", folder),)) as server:
        assert_problem(await server.post("/encode", {"texts": "a"}), 500, "non_finite_output", "texts[0]")


async def test_before_the_models_are_warm_it_is_503(server: Served) -> None:
    """A request that comes too early is told to come back."""
    service, server.state.service = server.state.service, None
    for path in ("/encode", "/similarity", "/tokenize"):
        response = await server.post(path, {"texts": ["a"]})
        assert_problem(response, 503, "not_ready")
        assert int(response.headers["retry-after"]) >= 1
    server.state.service = service


async def test_framework_errors_have_the_same_shape(server: Served) -> None:
    """Unknown paths and wrong methods are problems too; 405 says what is allowed."""
    assert_problem(await server.client.get(f"/{MARKER}"), 404, "not_found")
    response = await server.client.get("/encode")
    assert_problem(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST"


COVERED_ELSEWHERE = {
    "malformed_json": "tests/app/test_requests.py",
    "body_too_large": "tests/app/test_requests.py",
    "unsupported_media_type": "tests/app/test_requests.py",
    "internal_error": "tests/app/test_middleware.py",
    "token_id_out_of_range": "tests/app/routes/test_openai.py",
    "empty_input": "tests/app/routes/test_openai.py",
    "answer_too_large": "tests/app/routes/test_tei.py",
    "explanation_not_supported": "tests/app/routes/test_explain.py",
    "wrong_model_kind": "tests/app/routes/test_kinds.py",
    "unauthorized": "tests/app/test_access.py",
    "key_queue_full": "tests/app/test_batcher.py",
    "out_of_memory": "tests/app/test_batcher.py",
    "server_stopping": "tests/app/test_main.py",
    "worker_unavailable": "tests/app/test_watchdog.py",
    "reload_failed": "tests/app/routes/test_admin.py",
    "reload_running": "tests/app/test_reload.py",
}


async def test_pairs_need_a_template(serve: Serve, tmp_path: Path) -> None:
    """A model whose tokenizer cannot tell two texts apart refuses pairs, and still reads texts."""
    folder = make_bert_folder(tmp_path / "m")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["post_processor"] = None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    async with serve(model=(ModelSpec("tiny", folder),)) as server:
        assert_problem(await server.post("/encode", {"texts": [["a", "b"]]}), 422, "pair_not_supported", "texts[0]")
        assert (await server.encode("the cat"))["num_tokens"] == [2]


def test_every_code_is_met_in_a_test() -> None:
    """No row of the error table is left without a request that meets it."""
    source = Path(__file__).read_text()
    for code in error_codes():
        assert f'"{code}"' in source
        if code in COVERED_ELSEWHERE and COVERED_ELSEWHERE[code].endswith(".py"):
            error = next((error.__name__ for error, answer in ANSWERS.items() if answer.code == code), code)
            other = Path(__file__).parents[3].joinpath(COVERED_ELSEWHERE[code]).read_text()
            assert error in other or code in other


# ---- several models


async def test_models_are_chosen_by_name(serve: Serve, tiny_folder: Path, tmp_path: Path) -> None:
    """The first is the default, each is reached by its name, and metrics tell them apart."""
    other = make_bert_folder(tmp_path / "other", seed=1, hidden_size=24)
    async with serve(model=(ModelSpec("tiny", tiny_folder), ModelSpec("other", other))) as server:
        default, named = await server.encode(TEXTS), await server.encode(TEXTS, model="tiny")
        assert default == named
        body = await server.encode(TEXTS, model="other")
        assert (body["model"], body["dimensions"]) == ("other", 24)
        assert server.sample("eyeline_texts_total", model="tiny", route="/encode") == 8
        assert server.sample("eyeline_texts_total", model="other", route="/encode") == 4
        for path in ("/similarity", "/tokenize"):
            assert (await server.post(path, {"texts": TEXTS, "model": "other"})).json()["model"] == "other"


# ---- what is counted


async def test_what_a_request_counts(server: Served) -> None:
    """Texts, tokens, cut texts, stages, attention values, batches; and nothing stays in flight or in the queue."""
    await server.encode([*TEXTS, LONG], attention={"items": [0]})
    await server.post("/similarity", {"texts": TEXTS})
    await server.post("/tokenize", {"texts": TEXTS})
    tokens = 9 + 6 + 2 + 4
    assert server.sample("eyeline_texts_total", model="tiny", route="/encode") == 5
    assert server.sample("eyeline_texts_total", model="tiny", route="/similarity") == 4
    assert server.sample("eyeline_tokens_total", model="tiny", route="/encode") == tokens + MAX_LENGTH
    assert server.sample("eyeline_tokens_total", model="tiny", route="/similarity") == tokens
    assert server.sample("eyeline_truncated_texts_total", model="tiny") == 1
    assert server.sample("eyeline_attention_values_total", model="tiny") == VALUES
    for stage in ("tokenize", "queue", "inference", "serialize"):
        assert server.sample("eyeline_stage_duration_seconds_count", model="tiny", stage=stage) == 2
    assert server.sample("eyeline_batch_texts_sum", model="tiny") == 9
    assert server.sample("eyeline_batch_tokens_sum", model="tiny") == 2 * tokens + MAX_LENGTH
    assert server.sample("eyeline_inflight_requests") == 0
    assert server.sample("eyeline_queue_texts", model="tiny") == 0
    assert server.sample("eyeline_queue_tokens", model="tiny") == 0


async def test_requests_are_counted_by_route_and_status(server: Served) -> None:
    """Templates and statuses are the labels; a path that nobody serves is ``unmatched``."""
    await server.encode("a")
    await server.post("/encode", {"texts": []})
    await server.client.get("/encode")
    await server.client.get(f"/{MARKER}")
    assert server.sample("eyeline_requests_total", route="/encode", status=200) == 1
    assert server.sample("eyeline_requests_total", route="/encode", status=422) == 1
    assert server.sample("eyeline_requests_total", route="/encode", status=405) == 1
    assert server.sample("eyeline_requests_total", route="unmatched", status=404) == 1
    assert server.sample("eyeline_errors_total", code="not_found") == 1
    assert server.sample("eyeline_request_duration_seconds_count", route="/encode") == 3
    assert MARKER.encode() not in server.state.metrics.render()[0]


async def test_a_failed_request_counts_no_texts(server: Served) -> None:
    """Texts are counted when they are answered."""
    server.embedder.before_run = refuse
    await server.post("/encode", {"texts": ["a"]})
    assert server.sample("eyeline_texts_total", model="tiny", route="/encode") == 0
    assert server.sample("eyeline_tokens_total", model="tiny", route="/encode") == 0
