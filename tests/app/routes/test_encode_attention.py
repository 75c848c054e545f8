"""Attention through HTTP: every option of ``attention``, and the traps that other tools of the kind fell into."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from app.schemas.encode import EncodeResponse
from app.settings import ModelSpec
from model.head_statistics import STATISTICS
from tests.app.conftest import Serve, Served
from tests.app.routes.test_encode import HEADS, LAYERS, MAX_LENGTH, SAFETENSORS, TEXTS, assert_problem, maps_of
from tests.model.folders import byte_level
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.anyio

ASTRONAUT = "👩‍🚀 unbelievable café!"
EXACT = {"encoding": "base64", "dtype": "float32"}
EVERYTHING = {"layers": "all", "stats": True, "rollout": {}, "special": "renormalize", "unit": "word"}


async def attend(server: Served, texts: Any, **attention: Any) -> list[dict[str, Any]]:
    """The attention of each text."""
    body = await server.encode(texts, attention=attention)
    EncodeResponse.model_validate(body, strict=True)
    return list(body["attention"])


async def exact_maps(server: Served, text: Any, **attention: Any) -> NDArray[Any]:
    """The maps of one text in float32."""
    [entry] = await attend(server, [text], **EXACT, **attention)
    return maps_of(entry).astype(np.float64)


# ---- what the options do to maps


@pytest.mark.parametrize("how", ["mean", "max"])
async def test_heads_taken_together(server: Served, how: str) -> None:
    """One head axis of length 1, from the heads asked for; the answer says how."""
    heads = await exact_maps(server, TEXTS[0], layers="all", heads=[1, 0])
    [entry] = await attend(server, [TEXTS[0]], layers="all", reduce_heads=how, **EXACT)
    assert entry["maps"]["heads"] == how
    assert entry["maps"]["shape"] == [LAYERS, 1, 9, 9]
    expected = heads.mean(1) if how == "mean" else heads.max(1) / heads.max(1).sum(-1, keepdims=True)
    np.testing.assert_allclose(maps_of(entry)[:, 0], expected, rtol=0, atol=1e-6)


async def test_special_tokens_left_out(server: Served) -> None:
    """Mask drops their rows and columns, renormalize divides by what was kept: the kept mass tells both."""
    whole = await exact_maps(server, "the cat sat", layers="all")
    inner = whole[..., 1:-1, 1:-1]
    for special, expected in (("mask", inner), ("renormalize", inner / inner.sum(-1, keepdims=True))):
        [entry] = await attend(server, ["the cat sat"], layers="all", special=special, digits=7, **EXACT)
        maps = entry["maps"]
        assert (maps["special"], maps["shape"]) == (special, [LAYERS, HEADS, 3, 3])
        assert maps["units"] == {"token": [1, 2, 3], "word": [0, 1, 2]}
        np.testing.assert_allclose(maps_of(entry), expected, rtol=0, atol=1e-6)
        np.testing.assert_allclose(maps["kept_mass"], inner.sum(-1), rtol=0, atol=1e-6)
        assert len(entry["tokens"]["id"]) == 5  # the tables are whole
    assert "kept_mass" not in (await attend(server, ["the cat sat"]))[0]["maps"]


async def test_words_in_place_of_pieces(server: Served) -> None:
    """Key pieces are summed, query pieces averaged; rows sum to 1, unsplit words keep their weights."""
    whole = await exact_maps(server, "the xyz sat", layers="all")  # [CLS] the x ##y ##z sat [SEP]
    [entry] = await attend(server, ["the xyz sat"], layers="all", unit="word", **EXACT)
    maps = maps_of(entry).astype(np.float64)
    assert entry["maps"]["units"] == {"token": [0, 1, 2, 5, 6], "word": [None, 0, 1, 2, None]}
    keys = np.stack(
        [whole[..., 0], whole[..., 1], whole[..., 2:5].sum(-1), whole[..., 5], whole[..., 6]], axis=-1
    )  # (layers, heads, 7, 5)
    expected = np.stack(
        [keys[..., 0, :], keys[..., 1, :], keys[..., 2:5, :].mean(-2), keys[..., 5, :], keys[..., 6, :]], axis=-2
    )
    np.testing.assert_allclose(maps, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(maps.sum(-1), 1, rtol=0, atol=1e-6)
    [hidden] = await attend(server, ["the xyz sat"], layers="all", unit="word", special="mask", **EXACT)
    assert hidden["maps"]["units"] == {"token": [1, 2, 5], "word": [0, 1, 2]}
    np.testing.assert_allclose(maps_of(hidden), expected[..., 1:-1, 1:-1], rtol=0, atol=1e-6)


async def test_a_pair_of_like_texts_has_twice_the_words(server: Served) -> None:
    """("the cat", "the cat"): no word of the second text is merged with its like in the first."""
    [entry] = await attend(server, [["the cat", "the cat"]], unit="word", special="renormalize")
    assert entry["maps"]["units"]["word"] == [0, 1, 2, 3]
    assert entry["words"]["segment"] == [0, 0, 1, 1]
    assert entry["maps"]["shape"][-1] == 4


async def test_prompts_stay_and_are_no_words(server: Served) -> None:
    """Tokens of a prompt are no special tokens: they keep their rows, each by itself."""
    body = await server.encode("xyz", prompt_name="query", attention={"unit": "word", "special": "mask"})
    [entry] = body["attention"]
    assert entry["maps"]["units"] == {"token": [1, 2, 3], "word": [None, None, 0]}


async def test_what_users_typed_is_never_special(serve: Serve) -> None:
    """With special tokens parsed, a typed [SEP] has the real one's id, and stays when special tokens leave."""
    async with serve(special_tokens="parse") as server:
        [entry] = await attend(server, ["the [SEP] cat [PAD]"], special="mask")
        kept = entry["maps"]["units"]["token"]
        assert [entry["tokens"]["text"][token] for token in kept] == ["the", "[SEP]", "cat", "[PAD]"]
        assert entry["tokens"]["id"][2] == entry["tokens"]["id"][5]


async def test_the_largest_weights_of_each_row(server: Served) -> None:
    """Top k and a smallest weight; what is left out of a row is told, and a large k leaves nothing out."""
    whole = (await exact_maps(server, TEXTS[0]))[0]
    [entry] = await attend(server, [TEXTS[0]], top_k=2, digits=6)
    sparse = entry["maps"]["sparse"]
    assert "values" not in entry["maps"]
    assert entry["maps"]["shape"] == [1, HEADS, 9, 9]
    for head in range(HEADS):
        for query in range(9):
            row = whole[head, query]
            index, weight = sparse["index"][0][head][query], sparse["weight"][0][head][query]
            assert index == np.argsort(-row)[:2].tolist()
            np.testing.assert_allclose(weight, row[index], rtol=1e-5)
            assert sum(weight) + sparse["rest"][0][head][query] == pytest.approx(1, abs=1e-6)
    [entry] = await attend(server, [TEXTS[0]], min_weight=0.2, digits=6)
    for head in range(HEADS):
        for query in range(9):
            expected = sorted((weight for weight in whole[head, query] if weight >= 0.2), reverse=True)
            np.testing.assert_allclose(entry["maps"]["sparse"]["weight"][0][head][query], expected, rtol=1e-5)
    [entry] = await attend(server, [TEXTS[0]], top_k=9, digits=9)
    assert np.abs(entry["maps"]["sparse"]["rest"]).max() < 1e-6


async def test_statistics_without_maps(server: Served) -> None:
    """A few numbers per head of every layer, and no map in the answer: entropy agrees with the maps."""
    [entry] = await attend(server, [TEXTS[0]], layers="all", maps=False, stats=True)
    assert entry.keys() == {"tokens", "words", "stats"}
    stats = entry["stats"]
    assert (stats["layers"], stats["heads"], stats["special"]) == ([0, 1], [0, 1], "keep")
    assert set(stats) - {"layers", "heads", "special"} == set(STATISTICS)
    maps = await exact_maps(server, TEXTS[0], layers="all")
    entropy = -(maps * np.log(maps)).sum(-1)
    np.testing.assert_allclose(stats["entropy"], entropy.mean(-1), rtol=1e-5)
    np.testing.assert_allclose(stats["effective_tokens"], np.exp(entropy).mean(-1), rtol=1e-5)
    np.testing.assert_allclose(stats["to_sep"], maps[..., -1].mean(-1), rtol=1e-5)
    [hidden] = await attend(server, [TEXTS[0]], layers="all", maps=False, stats=True, special="mask")
    assert hidden["stats"]["special"] == "renormalize"
    masses = [hidden["stats"][name] for name in ("to_cls", "to_sep", "kept_mass")]
    np.testing.assert_allclose(np.sum(masses, axis=0), 1, rtol=1e-5)


async def test_nothing_but_tokens(server: Served) -> None:
    """Neither maps nor anything made of them: the tables are still shown, and nothing is computed."""
    [entry] = await attend(server, [TEXTS[0]], maps=False)
    assert entry.keys() == {"tokens", "words"}
    assert server.sample("eyeline_attention_values_total", model="tiny") == 0


@pytest.mark.parametrize("how", ["mean", "max"])
async def test_rollout_over_all_layers(server: Served, how: str) -> None:
    """The product of all layers over all heads, whatever layers and heads are shown; alone as in company."""
    maps = await exact_maps(server, TEXTS[0], layers="all")
    joined = maps.mean(1) if how == "mean" else maps.max(1) / maps.max(1).sum(-1, keepdims=True)
    steps = (np.eye(9) + joined) / 2
    options: dict[str, Any] = {"layers": [0], "heads": [1], "rollout": {"heads": how}, "digits": 7}
    [alone] = await attend(server, [TEXTS[0]], **options)
    rollout = alone["rollout"]
    assert (rollout["layers"], rollout["heads"], rollout["residual"]) == ([0, 1], how, 0.5)
    np.testing.assert_allclose(rollout["values"], steps[1] @ steps[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.sum(rollout["values"], axis=-1), 1, rtol=0, atol=1e-5)
    assert alone["maps"]["layers"] == [0]
    together = await attend(server, [*TEXTS, "cat " * 40], **options)
    np.testing.assert_allclose(together[0]["rollout"]["values"], rollout["values"], rtol=0, atol=1e-5)
    [later] = await attend(server, [TEXTS[0]], **{**options, "rollout": {"heads": how, "from_layer": -1}})
    assert later["rollout"]["layers"] == [1]
    np.testing.assert_allclose(later["rollout"]["values"], steps[1], rtol=0, atol=1e-6)


# ---- traps


async def test_mixed_lengths_are_cut_to_their_own(server: Served) -> None:
    """3, 7 and 30 tokens in one call: each text's own axes, no padding among its tokens, the numbers it has alone."""
    texts = ["cat", "the cat sat on mat", "dog " * 28]
    together = await attend(server, texts, **EVERYTHING, **EXACT)
    for text, entry, length in zip(texts, together, (3, 7, 30), strict=True):
        assert len(entry["tokens"]["id"]) == length
        assert "[PAD]" not in entry["tokens"]["text"]
        [alone] = await attend(server, [text], **EVERYTHING, **EXACT)
        assert entry["maps"]["shape"] == [LAYERS, HEADS, length - 2, length - 2]
        np.testing.assert_allclose(maps_of(entry), maps_of(alone), rtol=0, atol=1e-5)
        for name in STATISTICS:
            np.testing.assert_allclose(entry["stats"][name], alone["stats"][name], rtol=1e-4, atol=1e-5)
    backwards = await attend(server, texts[::-1], **EVERYTHING, **EXACT)
    for entry, other in zip(together, backwards[::-1], strict=True):
        np.testing.assert_allclose(maps_of(entry), maps_of(other), rtol=0, atol=1e-5)


async def test_fifty_requests_half_with_attention(server: Served) -> None:
    """Sharing batches with those who ask for everything changes nobody's embedding."""
    alone = (await server.encode(TEXTS))["embeddings"]
    asks: tuple[dict[str, Any] | None, ...] = (None, EVERYTHING)
    answers = await asyncio.gather(*(server.encode(TEXTS, attention=asks[index % 2]) for index in range(50)))
    for answer in answers:
        np.testing.assert_allclose(answer["embeddings"], alone, rtol=0, atol=1e-6)


async def test_the_same_request_has_the_same_bytes(server: Served) -> None:
    """Nothing is left to chance (dropout, say), in any form."""
    for accept in ("application/json", SAFETENSORS):
        body = {"texts": TEXTS, "attention": {**EVERYTHING, "top_k": 3}}
        first, second = [await server.post("/encode", body, accept=accept) for _ in range(2)]
        assert first.status_code == 200
        assert first.content == second.content


@pytest.mark.parametrize(
    ("unit", "encoding", "size"), [("codepoint", "utf-32-le", 4), ("utf16", "utf-16-le", 2), ("byte", "utf-8", 1)]
)
async def test_offsets_slice_the_callers_text(server: Served, unit: str, encoding: str, size: int) -> None:
    """In each unit, tokens and words are the caller's own characters, behind an emoji of three code points as well."""
    text, second = ASTRONAUT, "é 👍 the cat"
    for asked, sides in ((text, [text]), ([text, second], [text, second])):
        [entry] = await attend(server, [asked], offset_unit=unit)
        for table, names in ((entry["words"], entry["words"]["text"]), (entry["tokens"], None)):
            spans = zip(table["start"], table["end"], table["segment"], strict=True)
            for place, (start, end, segment) in enumerate(spans):
                if segment is None:
                    assert (start, end) == (0, 0)
                    continue
                piece = sides[segment].encode(encoding)[start * size : end * size].decode(encoding)
                if names is None:
                    spelled = entry["tokens"]["text"][place].removeprefix("##")
                    plain = piece.lower().replace("é", "e")
                    assert spelled in (plain, "[UNK]")
                else:
                    assert piece == names[place]


async def test_a_word_covers_its_accents(server: Served) -> None:
    """Of "cafe" and a combining accent the tokens are the letters, and the word is what was typed."""
    [entry] = await attend(server, ["cafe\u0301 hello"], unit="word", special="mask")
    assert (entry["words"]["start"], entry["words"]["end"]) == ([0, 6], [5, 11])
    assert entry["words"]["text"] == ["cafe\u0301", "hello"]
    assert max(end for end, word in zip(entry["tokens"]["end"], entry["tokens"]["word"], strict=True) if word == 0) == 4
    [entry] = await attend(server, ["cafe\u0301 hello"], offset_unit="byte")
    assert (entry["words"]["start"], entry["words"]["end"]) == ([0, 7], [6, 12])


async def test_bytes_of_one_character_are_one_word(serve: Serve, tmp_path: Path) -> None:
    """Four byte pieces of an emoji share its span, are spelled as the vocabulary has them, and merge into words."""
    folder = make_bert_folder(tmp_path / "bytes", vocab_size=300)
    byte_level().save(str(folder / "tokenizer.json"))
    async with serve(model=(ModelSpec("tiny", folder),)) as server:
        [entry] = await attend(server, ["a👍b i ⭢ é"], offset_unit="utf16")
        tokens = entry["tokens"]
        assert list(zip(tokens["start"], tokens["end"], strict=True))[1:7] == [(0, 1), *[(1, 3)] * 4, (3, 4)]
        assert tokens["text"][1:7] == ["a", "ð", "Ł", "ĳ", "į", "b"]
        [entry] = await attend(server, ["a👍b i ⭢ é"], unit="word", special="renormalize")
        assert entry["words"]["text"] == ["a👍b", "i", "⭢", "é"]
        assert entry["maps"]["shape"] == [1, HEADS, 4, 4]
        np.testing.assert_allclose(np.sum(entry["maps"]["values"], axis=-1), 1, atol=1e-3)


@pytest.mark.parametrize("text", ["", "   ", "\u200b"])
async def test_a_text_of_nothing(server: Served, text: str) -> None:
    """Its special tokens have maps; without them there is nothing: empty maps and null, no NaN and no 500."""
    [entry] = await attend(server, [text], layers="all", stats=True, rollout={})
    assert entry["tokens"]["text"] == ["[CLS]", "[SEP]"]
    assert entry["maps"]["shape"] == [LAYERS, HEADS, 2, 2]
    np.testing.assert_allclose(np.sum(entry["maps"]["values"], axis=-1), 1, atol=1e-3)
    for unit in ("token", "word"):
        response = await server.post("/encode", {"texts": [text], "attention": {**EVERYTHING, "unit": unit}})
        assert response.status_code == 200
        assert "NaN" not in response.text
        [entry] = response.json()["attention"]
        assert entry["maps"]["shape"] == [LAYERS, HEADS, 0, 0]
        assert entry["rollout"]["values"] == []
        assert entry["stats"]["entropy"] == [[None] * HEADS] * LAYERS


async def test_one_word_has_no_spread(server: Served) -> None:
    """One token beside the special ones: entropy 0, and normalised 0 as well."""
    [entry] = await attend(server, ["cat"], stats=True, maps=False, special="renormalize")
    assert entry["stats"]["entropy"] == entry["stats"]["entropy_norm"] == [[0.0] * HEADS]
    assert entry["stats"]["effective_tokens"] == [[1.0] * HEADS]


async def test_a_cut_text_ends_where_it_was_cut(server: Served) -> None:
    """The closing token stays, offsets end with what was kept, and maps have the kept tokens' size."""
    body = await server.encode("cat " * 100, attention={"unit": "word", "special": "mask", "offset_unit": "byte"})
    [entry] = body["attention"]
    assert (body["num_tokens"], body["num_tokens_total"], body["truncated"]) == ([MAX_LENGTH], [102], [True])
    assert entry["tokens"]["text"][-1] == "[SEP]"
    assert max(entry["words"]["end"]) == 4 * (MAX_LENGTH - 2) - 1
    assert entry["maps"]["shape"][-1] == MAX_LENGTH - 2


async def test_markup_is_text(server: Served) -> None:
    """What a page would have to escape comes back as it was sent."""
    text = "</script><img src=x onerror=alert(1)>"
    [entry] = await attend(server, [text], unit="word")
    assert entry["words"]["text"] == ["</script><img", "src=x", "onerror=alert(1)>"]


async def test_axes_are_query_and_key(server: Served) -> None:
    """A row is who looks: rows sum to 1, and columns do not."""
    maps = await exact_maps(server, TEXTS[0], layers="all")
    np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-5)
    assert np.abs(maps.sum(-2) - 1).max() > 0.1


# ---- binary answers, counting, limits


async def test_binary_answers_have_every_part(server: Served) -> None:
    """Each array under its name, each the numbers of the JSON; npz has the same names."""
    attention = {**EVERYTHING, "dtype": "float32", "items": [0]}
    for thin in ({}, {"top_k": 2}):
        body = {"texts": TEXTS, "attention": {**attention, **thin}}
        response = await server.post("/encode", body, accept=SAFETENSORS)
        tensors = safetensors.numpy.load(response.content)
        maps = {f"maps.{name}" for name in ("row_start", "index", "weight", "rest")} if thin else {"maps"}
        names = maps | {"kept_mass", "rollout", "rollout.kept_mass", "stats.kept_mass"}
        names |= {f"stats.{name}" for name in STATISTICS}
        assert tensors.keys() == {"embeddings"} | {f"attention.0.{name}" for name in names}
        [listed, *_] = (await server.encode(TEXTS, attention={**attention, **thin, "digits": 7}))["attention"]
        np.testing.assert_allclose(tensors["attention.0.rollout"], listed["rollout"]["values"], rtol=1e-5)
        np.testing.assert_allclose(tensors["attention.0.kept_mass"], listed["maps"]["kept_mass"], rtol=1e-5)
        np.testing.assert_allclose(tensors["attention.0.stats.entropy"], listed["stats"]["entropy"], rtol=1e-6)
        if thin:
            rows = np.diff(tensors["attention.0.maps.row_start"])
            assert len(rows) == LAYERS * HEADS * 6
            listed_rows = [row for layer in listed["maps"]["sparse"]["weight"] for head in layer for row in head]
            weights = np.concatenate(listed_rows)
            np.testing.assert_allclose(tensors["attention.0.maps.weight"], weights, rtol=1e-5)
            sums = np.add.reduceat(tensors["attention.0.maps.weight"].astype(np.float64), np.r_[0, rows.cumsum()[:-1]])
            np.testing.assert_allclose(sums + tensors["attention.0.maps.rest"], 1, rtol=0, atol=1e-6)
        size = int.from_bytes(response.content[:8], "little")
        rest = json.loads(json.loads(response.content[8 : 8 + size])["__metadata__"]["response"])
        assert rest["attention"][0]["maps"]["units"] == listed["maps"]["units"]
        assert [entry is None for entry in rest["attention"]] == [False, True, True, True]


async def test_what_is_computed_is_counted(server: Served) -> None:
    """The metric counts weights that were computed, whatever was sent of them."""
    await attend(server, [TEXTS[0]], layers=[0], heads=[1], maps=False, stats=True)
    assert server.sample("eyeline_attention_values_total", model="tiny") == 81
    await attend(server, [TEXTS[0], "cat"], items=[1], layers=[0], heads=[1], top_k=1, unit="word")
    assert server.sample("eyeline_attention_values_total", model="tiny") == 81 + 9
    await attend(server, [TEXTS[0]], layers=[0], heads=[1], maps=False, rollout={"from_layer": 1})
    assert server.sample("eyeline_attention_values_total", model="tiny") == 81 + 9 + HEADS * 81


async def test_too_much_to_compute(serve: Serve) -> None:
    """Statistics of all layers send little and compute much: over the limit they are refused before anything is run."""
    values = LAYERS * HEADS * 81
    async with serve(max_attention_values_computed=values - 1) as server:
        asked = {"layers": "all", "maps": False, "stats": True}
        response = await server.post("/encode", {"texts": TEXTS[0], "attention": asked})
        body = assert_problem(response, 413, "attention_too_large", "attention", values - 1)
        assert body["actual"] == values
        assert f"layers=[-1] gives {values // 2}" in body["detail"]
        assert server.embedder.batches == []
        await server.encode(TEXTS[0], attention={**asked, "layers": [-1]})


async def test_ways_out_are_taken_at_their_word(serve: Serve) -> None:
    """Each of the named changes, made to the request, is served."""
    values = LAYERS * HEADS * 81
    async with serve(max_attention_values_list=200, max_attention_values_binary=values) as server:
        asked = {"layers": "all"}
        response = await server.post("/encode", {"texts": TEXTS[0], "attention": asked})
        detail = assert_problem(response, 413, "attention_too_large", "attention", 200)["detail"]
        assert detail.endswith(
            f"Accept: application/vnd.safetensors or encoding=base64 (which may hold {values}) gives {values}; "
            f"layers=[-1] gives {values // 2}; reduce_heads=mean gives {values // 2}"
        )
        for change in ({"encoding": "base64"}, {"layers": [-1]}, {"reduce_heads": "mean"}):
            await server.encode(TEXTS[0], attention={**asked, **change})
        body = {"texts": TEXTS[0], "attention": asked}
        assert (await server.post("/encode", body, accept=SAFETENSORS)).status_code == 200
