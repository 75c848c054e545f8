"""The page in a headless Chromium, driven as people drive it, against a real server with the default model.

Every page that is opened is watched: whatever it does, nothing may be asked of another host and nothing may be written
to the console.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, Download, Locator, Page, Route, expect, sync_playwright

from app.routes.viewer import HEADERS
from tests.e2e.conftest import MODEL, ROOT, SERVER_PYTHON, Server

pytestmark = pytest.mark.browser

TEXT = "The unbelievable café reopened 👩‍🚀 today."
PAIR = ("A cat sat on the mat.", "The kitten rested on a rug.")
HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(1)> "&amp;" [SEP]'
LAYERS, HEADS, MAX_LENGTH = 6, 12, 256
PATIENCE_MILLISECONDS = 60_000
"""For what a page does by itself; only a crushed machine needs so long."""

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the default model."""
    python = SERVER_PYTHON if SERVER_PYTHON.exists() else Path(sys.executable)
    flags = ("--port", "0", "--model", str(MODEL), "--no-warmup", "--dtype", "float32")
    shared = Server(tmp_path_factory.mktemp("server") / "log", [str(python), "-m", "app.cli", "serve", *flags])
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; Playwright brings none of its own."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert path is not None, "no Chromium here; .ci/setup installs it"
    with sync_playwright() as playwright:
        expect.set_options(timeout=PATIENCE_MILLISECONDS)
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def console() -> list[str]:
    """What pages have written to the console; a test that expects some takes it out."""
    return []


@pytest.fixture
def open_page(server: Server, browser: Browser, console: list[str]) -> Iterator[Open]:
    """Open the page with choices in its fragment, and watch it until the end of the test."""
    requests: list[str] = []
    contexts = []

    def open_with(url: str | None = None, *, width: int = 1280, dark: bool = False, **flags: Any) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", accept_downloads=True
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        page.on("console", lambda message: console.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: console.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(url or f"{server.url}/#{urlencode(flags)}")
        if flags:
            settled(page)
        return page

    yield open_with
    for context in contexts:
        context.close()
    assert console == []
    assert [url for url in requests if not url.startswith((f"{server.url}/", "blob:", "data:", "file:"))] == []


KEY = "a-key-for-the-page-77"


def test_a_key_is_asked_for_and_kept_nowhere(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where the server asks for a key the page does, too: a wrong one is refused, the right one opens, and none is in
    the address, in the browser's stores, in a field, or in what is exported.
    """
    python = SERVER_PYTHON if SERVER_PYTHON.exists() else Path(sys.executable)
    flags = ("--port", "0", "--model", str(MODEL), "--no-warmup", "--dtype", "float32")
    command = [str(python), "-m", "app.cli", "serve", *flags]
    locked = Server(tmp_path_factory.mktemp("locked") / "log", command, {"EYELINE_API_KEYS": f"page:{KEY}"})
    context = browser.new_context(accept_downloads=True)
    try:
        page = context.new_page()
        page.goto(f"{locked.url}/#{urlencode({'a': TEXT})}")
        expect(page.locator("#problem")).to_contain_text("no API key was sent")
        for key in ("wrong-" + KEY, KEY):
            page.get_by_label("API key of this server").fill(key)
            page.get_by_role("button", name="Use key").click()
            if key != KEY:
                expect(page.locator("#problem")).to_contain_text("not known")
        settled(page)
        expect(page.locator("#unlock")).to_be_hidden()
        expect(page.locator("#problem")).to_be_hidden()
        for kind in ("json", "html"):
            page.locator("#files summary").click()
            with page.expect_download() as download:
                page.locator(f"[data-save={kind}]").click()
            assert KEY not in download.value.path().read_text()
        kept = page.evaluate(
            "() => JSON.stringify([location.href, document.cookie, {...localStorage}, {...sessionStorage}])"
            " + document.documentElement.outerHTML + [...document.querySelectorAll('input')].map((one) => one.value)"
        )
        assert KEY not in kept
        assert KEY not in locked.log
    finally:
        context.close()
        locked.close()


def settled(page: Page) -> Page:
    """Wait until the page shows what it was asked for, and has loaded and drawn what it loads ahead."""
    page.wait_for_function(
        """() => {
            const has = (selector) => Boolean(document.querySelector(selector));
            const isPattern = document.querySelector("[name=colour]").value === "pattern";
            return !has("#work[hidden], .busy") && document.getElementById("base").width > 300
                && (!has("#overview button") || !isPattern || !has("#overview canvas[hidden]"));
        }"""
    )
    return page


def address_of(page: Page) -> str:
    """Read the address, which follows what was chosen within a tenth of a second of the page's own timers."""
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 120))")
    address: str = page.evaluate("location.href")
    return address


def flags_of(page: Page) -> dict[str, str]:
    """Read the choices from the address."""
    return dict(parse_qsl(urlsplit(address_of(page)).fragment, keep_blank_values=True))


def choose(page: Page, name: str, value: str) -> None:
    """Click one of a row of choices, as a mouse does."""
    page.locator(f"label:has(input[name={name}][value={value}])").click()


def word(page: Page, text: str) -> Locator:
    """Find a piece of the sentence pane by its text."""
    return page.locator("#sentence [data-unit]").get_by_text(text, exact=True).first


def shown_weights(page: Page) -> list[tuple[str, str]]:
    """Read the table, as it is written."""
    rows = page.locator("#table tbody tr:not([hidden])").all()
    cells = [row.locator("td").all_inner_texts() for row in rows]
    return [(name, weight) for name, weight, _ in cells]


def table(page: Page) -> dict[str, float]:
    """Read the table: what the focused token looks at."""
    return {name: float(weight) for name, weight in shown_weights(page)}


def picture(page: Page, canvas: str = "#base") -> str:
    """Return the pixels of a canvas."""
    pixels: str = page.locator(canvas).evaluate("canvas => canvas.toDataURL()")
    return pixels


def download(page: Page, kind: str) -> Download:
    """Save what is in view."""
    page.locator("#files summary").click()
    with page.expect_download() as saved:
        page.locator(f"[data-save={kind}]").click()
    return saved.value


def saved_json(page: Page) -> dict[str, Any]:
    """Save what is in view as JSON, and read it."""
    body: dict[str, Any] = json.loads(Path(download(page, "json").path()).read_text())
    return body


def test_the_pure_functions() -> None:
    """What needs no document is tested without one: node --test passes."""
    node = shutil.which("node")
    assert node is not None, "no Node here; .ci/setup installs it"
    files = [str(path) for path in sorted((ROOT / "tests/viewer").glob("*.test.mjs"))]
    run = subprocess.run([node, "--test", *files], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout
    passed = re.search(r"^# pass (\d+)$", run.stdout, re.MULTILINE)
    assert passed is not None
    assert int(passed[1]) > 50


def test_a_first_visit(open_page: Open) -> None:
    """Examples to click, and the honest line; a click shows maps, the sentence and what is looked at."""
    page = open_page()
    expect(page.locator("footer")).to_contain_text("Attention is not an explanation")
    expect(page.locator("#work")).to_be_hidden()
    page.get_by_role("button", name="What is “it”?").click()
    settled(page)
    expect(page.locator("#welcome")).to_be_hidden()
    expect(page.locator("#map-title")).to_have_text(f"Layer {LAYERS - 1} · head 0")
    expect(page.locator("#overview button")).to_have_count(LAYERS * HEADS)
    expect(page.locator("#sentence")).to_contain_text("The trophy does not fit in the suitcase")
    assert "a" in flags_of(page)


def test_every_example_works(open_page: Open, server: Server) -> None:
    """Nobody's first click ends in an error."""
    page = open_page()
    count = page.locator(".examples button").count()
    assert count >= 5
    for number in range(count):
        page.goto(f"{server.url}/?{number}")  # a new page each time
        page.locator(".examples button").nth(number).click()
        settled(page)
        expect(page.locator("#problem")).to_be_hidden()


def test_encode_and_switch_layer_and_head(open_page: Open) -> None:
    """Enter encodes; a tile of the overview or the lists choose the head; the map, the title and the address follow."""
    page = open_page()
    page.locator("[name=a]").fill(TEXT)
    page.locator("[name=a]").press("Enter")
    settled(page)
    seen = {picture(page)}
    page.get_by_role("button", name="Layer 2, head 7").click()
    expect(page.locator("#map-title")).to_have_text("Layer 2 · head 7")
    seen.add(picture(page))
    page.locator("[name=head]").select_option("3")
    page.locator("[name=layer]").select_option("0")
    expect(page.locator("#map-title")).to_have_text("Layer 0 · head 3")
    seen.add(picture(page))
    assert len(seen) == 3
    assert (flags_of(page)["layer"], flags_of(page)["head"]) == ("0", "3")
    expect(page.locator("#overview .chosen")).to_have_attribute("data-head", "3")


def test_the_numbers_are_the_servers(open_page: Open, server: Server) -> None:
    """Words, hidden specials, renormalised rows: the page computes them, and agrees with the API in each cell."""
    page = open_page(a=TEXT, layer=3, head=4)
    for unit in ("token", "word"):
        for special in ("keep", "mask", "renormalize"):
            for show, options in (("head", {"heads": [4]}), ("mean", {"reduce_heads": "mean"})):
                choose(page, "unit", unit)
                choose(page, "special", special)
                choose(page, "show", show)
                asked = {"layers": [3], "unit": unit, "special": special, "digits": 9, **options}
                [entry] = server.encode(TEXT, attention=asked)["attention"]
                shown = saved_json(page)
                np.testing.assert_allclose(shown["values"], entry["maps"]["values"][0][0], atol=6e-4)
                assert [row["tokens"][0] for row in shown["rows"]] == entry["maps"]["units"]["token"]
                if special != "keep":
                    np.testing.assert_allclose(shown["kept_mass"], entry["maps"]["kept_mass"][0][0], atol=1e-3)


def test_the_rollout_is_the_servers(open_page: Open, server: Server) -> None:
    """Rollout over all layers and heads, hidden and merged on the page as the API does it."""
    page = open_page(a=TEXT, show="rollout", unit="word", special="renormalize")
    expect(page.locator("#map-title")).to_have_text("Rollout over all layers")
    options = {"maps": False, "rollout": {}, "unit": "word", "special": "renormalize", "digits": 9}
    [entry] = server.encode(TEXT, attention=options)["attention"]
    np.testing.assert_allclose(saved_json(page)["values"], entry["rollout"]["values"], atol=1e-4)


def test_statistics_are_those_of_the_head_in_view(open_page: Open, server: Server) -> None:
    """The strip has the server's numbers, of all tokens or of those that are not special."""
    page = open_page(a=TEXT, layer=1, head=5)
    for special in ("keep", "renormalize"):
        choose(page, "special", special)
        [entry] = server.encode(TEXT, attention={"layers": [1], "maps": False, "stats": True, "special": special})[
            "attention"
        ]
        expected = entry["stats"]["effective_tokens"][0][5]
        expect(page.locator("[data-stat=effective_tokens]")).to_have_text(f"{expected:.2f}")
        expect(page.locator("[data-stat=kept_mass]")).to_be_visible(visible=special != "keep")


def test_statistics_come_first(open_page: Open, server: Server) -> None:
    """Before any map has arrived, every tile has its statistic and a tint; the maps take their places as they come."""
    page = open_page()
    held: list[Route] = []
    is_holding = True

    def hold_maps(route: Route) -> None:
        if is_holding and route.request.headers["accept"] != "application/json":
            held.append(route)
        else:
            route.continue_()

    page.route("**/encode", hold_maps)
    page.get_by_role("button", name="What is “it”?").click()
    tiles = page.locator("#overview button")
    expect(tiles).to_have_count(LAYERS * HEADS)
    expect(page.locator("#overview canvas:not([hidden])")).to_have_count(0)
    titles = "tiles => tiles.map((tile) => [tile.title, tile.style.backgroundColor])"
    shown = tiles.evaluate_all(titles)
    assert all(re.fullmatch(r"Layer \d, head \d+: entropy [\d.]+", title) for title, _ in shown)
    assert len({colour for _, colour in shown}) > 20
    is_holding = False
    for route in held:
        route.continue_()
    settled(page)
    expect(page.locator("#overview canvas:not([hidden])")).to_have_count(LAYERS * HEADS)


def test_pin(open_page: Open) -> None:
    """A click pins a word: its table stays when the pointer leaves, and comes with the address; another lets go."""
    page = open_page(a=TEXT, special="renormalize", layer=2)
    word(page, "reopened").click()
    page.mouse.move(5, 5)
    expect(page.locator("#caption")).to_have_text("reopened looks at")
    weights = table(page)
    assert list(weights.values()) == sorted(weights.values(), reverse=True)
    assert sum(weights.values()) <= 1.001
    again = open_page(address_of(page))
    settled(again)
    expect(again.locator("#caption")).to_have_text("reopened looks at")
    assert table(again) == weights
    word(again, "reopened").click()
    again.mouse.move(5, 5)
    expect(again.locator("#table")).to_be_hidden()
    assert "q" not in flags_of(again)


def test_hover_is_linked(open_page: Open) -> None:
    """A pointer on a cell marks it on the map, in the text and in the table, with its number; leaving unmarks."""
    page = open_page(a=TEXT, unit="word", special="renormalize", layer=2)
    blank, unshaded = picture(page, "#over"), picture(page, "#shade")
    box = page.locator("#base").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.6)
    expect(page.locator("#tip")).to_be_visible()
    tip = page.locator("#tip").inner_text()
    found = re.fullmatch(r"(\S+) looks at (\S+) ([\d.]+) · row kept \d+(\.\d)? %", tip)
    assert found is not None, tip
    row, column, weight = found[1], found[2], float(found[3])
    expect(page.locator("#caption")).to_have_text(f"{row} looks at")
    assert table(page)[column] == weight
    assert picture(page, "#over") != blank
    assert picture(page, "#shade") != unshaded
    page.mouse.move(5, 5)
    expect(page.locator("#table")).to_be_hidden()
    assert picture(page, "#over") == blank


def test_pairs_and_their_filters(open_page: Open) -> None:
    """Two texts are read together; a filter shows one block of the map, whose weights do not change."""
    page = open_page(a=PAIR[0], b=PAIR[1], layer=3)
    whole = saved_json(page)
    segments = [row["segment"] for row in whole["rows"]]
    for name, query, key in (("aa", 0, 0), ("ab", 0, 1), ("ba", 1, 0), ("bb", 1, 1)):
        choose(page, "filter", name)
        part = saved_json(page)
        assert {row["segment"] for row in part["rows"]} == {query}
        assert {column["segment"] for column in part["columns"]} == {key}
        rows = [at for at, segment in enumerate(segments) if segment == query]
        columns = [at for at, segment in enumerate(segments) if segment == key]
        np.testing.assert_allclose(part["values"], np.array(whole["values"])[np.ix_(rows, columns)], atol=1e-6)
    expect(page.locator("#sentence p")).to_have_count(2)
    assert page.locator("#sentence p").first.get_attribute("data-name") == "A"
    choose(page, "filter", "ab")
    page.goto(page.url.split("#")[0] + "#a=one")  # at once: what was chosen before must not overwrite it
    settled(page)
    assert flags_of(page)["a"] == "one"
    expect(page.locator("fieldset:has([name=filter])")).to_be_hidden()


def test_lines(open_page: Open) -> None:
    """The lines view draws the strongest and says how many it leaves out; a word in focus fades the others."""
    page = open_page(a=PAIR[0], b=PAIR[1], view="lines", layer=2)
    note = page.locator("#map-note").inner_text()
    found = re.fullmatch(r"Drawn: the (\d+) strongest, up to 90 % of each row. Not drawn: (\d+).", note)
    assert found is not None, note
    assert int(found[1]) + int(found[2]) == len(saved_json(page)["values"]) ** 2
    word(page, "kitten").hover()
    expect(page.locator("#base")).to_have_class("dim")


def test_compare(open_page: Open, server: Server) -> None:
    """The similarity is the server's, and the cells of the map sum to it, by tokens and by words."""
    texts = ("How do I reset my password?", "I forgot the login for my account.")
    page = open_page(mode="compare", a=texts[0], b=texts[1])
    cosine = server.client.post("/similarity", json={"pairs": [texts]}).json()["similarities"][0]
    expect(page.locator("#score")).to_have_text(f"{cosine:.3f}")
    for unit in ("token", "word"):
        choose(page, "unit", unit)
        assert np.sum(saved_json(page)["values"]) == pytest.approx(cosine, abs=2e-5)
    word(page, "login").hover()
    expect(page.locator("#caption")).to_have_text("login with")
    assert set(table(page)) <= {"[CLS]", "[SEP]", *texts[0].split()}


def test_what_each_word_adds_in_all(open_page: Open, server: Server) -> None:
    """With nothing in focus a comparison shows the sums of rows and columns, as numbers and as shades of the words."""
    texts = ("How do I reset my password?", "I forgot the login for my account.")
    page = open_page(mode="compare", a=texts[0], b=texts[1], unit="word", rows="many")
    expect(page.locator("#map-title")).to_have_text("Word pairs")
    expect(page.locator("#map-axes")).to_have_text("Rows: first text, columns: second text.")
    expect(page.locator("#caption")).to_have_text("What each word adds in all")
    body = {"pairs": [texts], "explain": True, "unit": "word"}
    [found] = server.client.post("/similarity", json=body).json()["explanations"]
    expected = {}
    for side, axis, sums in (("a", "rows", "row_sums"), ("b", "columns", "column_sums")):
        table_of, part = found[side], side.upper()
        for token, of_word, value in zip(found[axis]["token"], found[axis]["word"], found[sums], strict=True):
            name = table_of["tokens"]["text"][token] if of_word is None else table_of["words"]["text"][of_word]
            expected[f"{name} ({part})"] = pytest.approx(value, abs=6e-4)
    shown = {name: float(weight.replace("−", "-")) for name, weight in shown_weights(page)}
    assert shown == expected
    shaded = picture(page, "#shade")
    word(page, "login").hover()
    expect(page.locator("#caption")).to_have_text("login with")
    assert picture(page, "#shade") != shaded
    page.mouse.move(5, 5)
    page.locator("#stage").press("ArrowDown")
    expect(page.locator("#caption")).to_have_text("[CLS] with")
    before = page.locator("#stage").evaluate("stage => stage.clientWidth")
    page.set_viewport_size({"width": 1100, "height": 900})  # as a scroll bar does that a longer table brings
    page.wait_for_function(
        "([before, base = document.getElementById('base')]) => base.clientWidth < before && base.clientWidth > 0",
        arg=[before],
    )
    expect(page.locator("#caption")).to_have_text("[CLS] with")
    choose(page, "unit", "token")
    expect(page.locator("#map-title")).to_have_text("Token pairs")


def test_mode_by_mouse(open_page: Open) -> None:
    """Two texts can be compared, and read together again, without typing them anew."""
    page = open_page(a=PAIR[0], b=PAIR[1])
    choose(page, "mode", "compare")
    expect(page.locator("#score")).to_have_text(re.compile(r"0\.\d{3}"))
    expect(page.locator("#overview")).to_be_hidden()
    choose(page, "mode", "attention")
    expect(page.locator("#overview")).to_be_visible()
    expect(page.locator("#sentence p")).to_have_count(2)


def test_labels_have_their_own_room(open_page: Open) -> None:
    """Long names of columns beside short names of rows, and the other way round, are written out in both shapes."""
    for a, b in (PAIR, PAIR[::-1]):
        page = open_page(a=a, b=b, unit="word", special="mask", filter="ab")
        for view in ("heat", "lines"):
            choose(page, "view", view)
            tree = ElementTree.parse(download(page, "svg").path())
            texts = {element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")}
            assert set(f"{a} {b}".split()) <= texts


def test_what_a_picture_means_stands_beside_it(open_page: Open, server: Server) -> None:
    """Which side looks, what stripes are, what a tint is, how heads are in order: in words, where it is true."""
    page = open_page(a=TEXT, layer=5, head=1, special="keep")
    expect(page.locator("#map-axes")).to_have_text("Rows look, columns are looked at.")
    expect(page.locator("#heads-note")).to_be_empty()
    asked = {"layers": [5], "special": "renormalize"}
    [entry] = server.encode(TEXT, attention=asked)["attention"]
    least = [min(rows) for rows in entry["maps"]["kept_mass"][0]]
    assert min(least) < 0.045
    assert max(least) > 0.055
    for head in (int(np.argmin(least)), int(np.argmax(least))):
        page.locator("[name=head]").select_option(str(head))
        choose(page, "special", "renormalize")
        expect(page.locator("#map-note")).to_have_text(
            re.compile("^A striped row kept" if least[head] < 0.05 else "^$")
        )
        choose(page, "special", "mask")
        expect(page.locator("#map-note")).to_be_empty()
    choose(page, "view", "lines")
    expect(page.locator("#map-axes")).to_have_text("Left look, right are looked at.")
    page.locator("[name=colour]").select_option("to_sep")
    page.locator("[name=order]").select_option("value")
    expect(page.locator("#heads-note")).to_have_text("Tinted from 0 to 1.00. Largest weight on separator first.")
    page.locator("[name=order]").select_option("likeness")
    expect(page.locator("#heads-note")).to_have_text("Tinted from 0 to 1.00. Neighbours look alike.")


def test_no_choice_without_an_effect(open_page: Open) -> None:
    """A mean has no head to choose and a rollout no layer; neither has a key for it."""
    page = open_page(a=TEXT, layer=2, head=3)
    layer, head = page.locator("[name=layer]"), page.locator("[name=head]")
    for show, has_layer, has_head in (("mean", True, False), ("rollout", False, False), ("head", True, True)):
        choose(page, "show", show)
        expect(layer).to_be_visible(visible=has_layer)
        expect(head).to_be_visible(visible=has_head)
        if not has_head:
            page.keyboard.press(".")
            assert flags_of(page)["head"] == "3"


def test_the_export_menu_closes(open_page: Open) -> None:
    """By Escape, which unpins nothing meanwhile and gives the focus back, and by a click elsewhere."""
    page = open_page(a=TEXT, q=2)
    opener, entry = page.locator("#files summary"), page.locator("[data-save=png]")
    opener.focus()
    page.keyboard.press("Enter")
    expect(entry).to_be_visible()
    page.keyboard.press("Tab")
    expect(entry).to_be_focused()
    page.keyboard.press("Escape")
    expect(entry).to_be_hidden()
    expect(opener).to_be_focused()
    assert flags_of(page)["q"] == "2"
    opener.click()
    expect(entry).to_be_visible()
    page.locator("#text-title").click()
    expect(entry).to_be_hidden()


def test_switching_asks_nothing(open_page: Open) -> None:
    """Units, special tokens, mean, scale, shape and heads switch without a request once a layer is there."""
    page = open_page(a=TEXT, special="renormalize")
    choose(page, "special", "keep")
    settled(page)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url) if request.method == "POST" else None)
    seen = [picture(page)]
    for name, value in (
        ("unit", "word"),
        ("special", "renormalize"),
        ("show", "mean"),
        ("scale", "linear"),
        ("scale", "rowmax"),
        ("view", "lines"),
    ):
        choose(page, name, value)
        expect(page.locator(f"[name={name}][value={value}]")).to_be_checked()
        page.wait_for_function("before => document.getElementById('base').toDataURL() !== before", arg=seen[-1])
        seen.append(picture(page))
    page.get_by_role("button", name="Layer 0, head 9").click()
    expect(page.locator("#map-title")).to_have_text("Layer 0 · mean of its heads")
    assert requests == []
    assert len(set(seen)) == len(seen)


def test_the_overview_by_statistics(open_page: Open, server: Server) -> None:
    """Heads can be coloured by a statistic, and put in order by it or by likeness; none is lost."""
    page = open_page(a=TEXT, colour="confidence", order="value")
    [entry] = server.encode(TEXT, attention={"layers": "all", "maps": False, "stats": True})["attention"]
    confidence = np.array(entry["stats"]["confidence"])
    layer, head = np.unravel_index(confidence.argmax(), confidence.shape)
    first = page.locator("#overview button").first
    expect(first).to_have_attribute("title", f"Layer {layer}, head {head}: confidence {confidence.max():.3f}")
    titles = "[...document.querySelectorAll('#overview button')].map((button) => button.title)"
    by_value = page.evaluate(titles)
    page.locator("[name=order]").select_option("likeness")
    page.wait_for_function(f"before => String({titles}) !== String(before)", arg=by_value)
    assert sorted(page.evaluate(titles)) == sorted(set(by_value))
    assert len(by_value) == LAYERS * HEADS
    page.locator("[name=colour]").select_option("pattern")
    expect(page.locator("#overview canvas:not([hidden])")).to_have_count(LAYERS * HEADS)


def test_the_address_holds_every_choice(open_page: Open) -> None:
    """What is chosen is in the fragment, and a new page with it shows the same, to the pixel."""
    flags = {
        "a": PAIR[0], "b": PAIR[1], "layer": "4", "head": "7", "show": "mean", "unit": "word", "special": "mask",
        "scale": "linear", "view": "lines", "filter": "ab", "colour": "entropy", "order": "value", "q": "3", "k": "10",
        "rows": "many", "theme": "dark", "keys": "off",
    }  # fmt: skip
    page = open_page(**flags)
    assert flags_of(page) == flags
    for name in ("show", "unit", "special", "scale", "view", "filter"):
        expect(page.locator(f"[name={name}][value={flags[name]}]")).to_be_checked()
    for name in ("layer", "head", "colour", "order", "rows", "theme", "keys"):
        expect(page.locator(f"select[name={name}]")).to_have_value(flags[name])
    expect(page.locator("[name=b]")).to_have_value(PAIR[1])
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    for name, value in (("view", "heat"), ("unit", "token"), ("special", "renormalize"), ("filter", "all")):
        choose(page, name, value)
    changed = {**flags, "special": "renormalize"}
    del changed["view"], changed["unit"], changed["filter"]
    assert flags_of(page) == changed
    copy = settled(open_page(address_of(page)))
    assert flags_of(copy) == changed
    assert picture(copy) == picture(page)


def test_back_and_forward(open_page: Open) -> None:
    """An address that changes under the page changes the page."""
    page = open_page(a="one two", layer=1)
    page.evaluate("location.hash = 'a=three+four&layer=2&unit=word'")
    expect(page.locator("#sentence")).to_contain_text("three four")
    expect(page.locator("#map-title")).to_have_text("Layer 2 · head 0")
    expect(page.locator("[name=a]")).to_have_value("three four")


def test_keyboard_alone(open_page: Open) -> None:
    """From typing to a pinned cell without a mouse, and every step is announced."""
    page = open_page()
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == "a":
            break
    page.keyboard.type("A cat sat.")
    page.keyboard.press("Enter")
    settled(page)
    page.locator("#overview [tabindex='0']").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#map-title")).to_have_text(f"Layer {LAYERS - 2} · head 1")
    page.keyboard.press("[")
    page.keyboard.press(".")
    expect(page.locator("#map-title")).to_have_text(f"Layer {LAYERS - 3} · head 2")
    expect(page.locator("#announce")).to_have_text("Head: 2")
    page.keyboard.press("w")
    expect(page.locator("#announce")).to_have_text("Units: Words")
    page.keyboard.press("s")
    page.keyboard.press("v")
    page.keyboard.press("v")
    chosen = {"unit": "word", "special": "mask", "layer": str(LAYERS - 3), "head": "2", "a": "A cat sat."}
    assert flags_of(page) == chosen
    expect(page.locator("#stage")).to_have_attribute("aria-rowcount", "3")
    page.locator("#stage").focus()
    for key in ("ArrowDown", "ArrowDown", "End"):
        page.keyboard.press(key)
    expect(page.locator("#announce")).to_have_text(re.compile(r"^cat looks at sat\.: \d\.\d+$"))
    expect(page.locator("#cell")).to_have_attribute("aria-colindex", "3")
    for key, head in ((".", 3), (",", 2)):  # the same place of another head
        page.keyboard.press(key)
        expect(page.locator("#map-title")).to_have_text(f"Layer {LAYERS - 3} · head {head}")
        expect(page.locator("#caption")).to_have_text("cat looks at")
    page.keyboard.press("Enter")
    assert (flags_of(page)["q"], flags_of(page)["k"]) == ("2", "3")
    page.keyboard.press("Escape")
    assert flags_of(page) == chosen
    page.keyboard.press("h")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()


def test_letters_typed_in_a_text_are_letters(open_page: Open) -> None:
    """Single keys mean nothing inside a text, with a modifier, or where they are switched off."""
    page = open_page(a="one", layer=1)
    page.locator("[name=a]").press_sequentially("wsv[")
    page.locator("#stage").focus()
    page.keyboard.press("Control+w")
    assert flags_of(page).keys() == {"a", "layer", "head"}
    page.goto(address_of(page) + "&keys=off")
    settled(page)
    page.locator("#stage").focus()
    page.keyboard.press("w")
    expect(page.locator("[name=unit][value=token]")).to_be_checked()


def test_screen_readers_find_structure(open_page: Open) -> None:
    """Panes have names, the grid has rows and named heads, the table has a caption and headers."""
    page = open_page(a=TEXT, q=2)
    for name in ("All heads", "The text"):
        expect(page.get_by_role("region", name=name)).to_be_visible()
    grid = page.get_by_role("grid", name="All heads")
    expect(grid.get_by_role("row")).to_have_count(LAYERS + 1)
    expect(grid.get_by_role("gridcell", selected=True)).to_have_count(1)
    expect(grid.locator("[tabindex='0']")).to_have_count(1)
    stage = page.get_by_role("grid", name=re.compile("Layer 5"))
    assert int(stage.get_attribute("aria-rowcount") or 0) == len(saved_json(page)["values"])
    expect(page.get_by_role("table")).to_be_visible()
    expect(page.locator("#caption")).not_to_be_empty()
    expect(page.get_by_role("columnheader", name="Weight")).to_be_visible()
    for select in page.locator("select:visible, textarea:visible, input").all():
        assert select.evaluate("control => control.labels.length") == 1


def test_export_pictures(open_page: Open) -> None:
    """The PNG has the map's size twice over; the SVG is XML with every label as text."""
    page = open_page(a=TEXT, unit="word", layer=2)
    png = Path(download(page, "png").path()).read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width = int.from_bytes(png[16:20], "big")
    assert width == 2 * page.locator("#stage").evaluate("stage => stage.clientWidth")
    saved = download(page, "svg")
    assert saved.suggested_filename == "eyeline-layer-2-head-0.svg"
    for view in ("heat", "lines"):
        choose(page, "view", view)
        tree = ElementTree.parse(download(page, "svg").path())
        texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
        assert texts.count("reopened") == 2
        assert texts[0] == "Layer 2 · head 0 · word · keep · all · sqrt"
        shapes = {element.tag.rpartition("}")[2] for element in tree.iter()}
        assert ("image" if view == "heat" else "path") in shapes


def test_export_npz(open_page: Open, server: Server) -> None:
    """The npz opens in NumPy without pickle, and holds the map in view."""
    page = open_page(a=TEXT, unit="word", special="renormalize", layer=2, head=3)
    shown = saved_json(page)["values"]
    content = Path(download(page, "npz").path()).read_bytes()
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        np.testing.assert_allclose(arrays["attention.0.maps"][0, 0], shown, atol=6e-4)
        assert json.loads(arrays["response"].tobytes())["attention"][0]["words"]["text"][0] == "The"


@pytest.mark.parametrize("mode", ["attention", "compare"])
def test_the_page_as_one_file(open_page: Open, tmp_path: Path, mode: str) -> None:
    """It opens without the server, shows the same map, switches without a network, and its texts stay texts."""
    page = open_page(mode=mode, a=HOSTILE, b=PAIR[1] if mode == "compare" else "", unit="word")
    path = tmp_path / "page.html"
    download(page, "html").save_as(path)
    alerts: list[str] = []
    file = open_page(path.as_uri())
    file.on("dialog", lambda dialog: alerts.append(dialog.message))
    settled(file)
    expect(file.locator("#sentence")).to_contain_text("</script><script>alert(1)</script><img src=x onerror=alert(1)>")
    expect(file.locator("#composer")).to_be_hidden()
    assert picture(file) == picture(page)
    choose(file, "unit", "token")
    choose(page, "unit", "token")
    assert picture(file) == picture(page)
    if mode == "attention":
        file.get_by_role("button", name="Layer 1, head 2").click()
        expect(file.locator("#map-title")).to_have_text("Layer 1 · head 2")
        file.evaluate("location.hash = 'a=other'")
        expect(file.locator("#problem")).to_have_text("This file does not hold that.")
    assert alerts == []
    assert file.locator("#sentence img, #sentence script").count() == 0


def test_a_file_switches_like_the_page(open_page: Open, tmp_path: Path) -> None:
    """What was not looked at before the export can be chosen all the same: hidden tokens, rollout, likeness."""
    page = open_page(a=TEXT)
    path = tmp_path / "page.html"
    download(page, "html").save_as(path)
    file = settled(open_page(path.as_uri()))
    choose(file, "special", "mask")
    choose(file, "show", "rollout")
    file.locator("[name=order]").select_option("likeness")
    expect(file.locator("#map-title")).to_have_text("Rollout over all layers")
    expect(file.locator("#problem")).to_be_hidden()
    assert saved_json(file)["kept_mass"] is not None


def test_a_file_holds_no_earlier_text(open_page: Open, tmp_path: Path) -> None:
    """Who is given a page as one file reads the text in it, and none that was typed before."""
    page = open_page(a="confidential")
    page.locator("[name=a]").fill("public")
    page.locator("[name=a]").press("Enter")
    expect(page.locator("#sentence")).to_contain_text("public")
    settled(page)
    path = tmp_path / "page.html"
    download(page, "html").save_as(path)
    content = path.read_text()
    assert "public" in content
    assert "confidential" not in content


def test_markup_in_a_text_is_text(open_page: Open) -> None:
    """A hostile text is shown letter for letter on the page, and as text in the SVG."""
    page = open_page(a=HOSTILE, unit="word", q=1)
    alerts: list[str] = []
    page.on("dialog", lambda dialog: alerts.append(dialog.message))
    expect(page.locator("#sentence")).to_contain_text(HOSTILE)
    tree = ElementTree.parse(download(page, "svg").path())
    assert not [element for element in tree.iter() if element.tag.rpartition("}")[2] in {"script", "img"}]
    assert alerts == []
    assert page.locator("#work img, #work script").count() == 0


def test_dark_mode(open_page: Open) -> None:
    """The system's wish is followed and can be overruled; the map is drawn in the theme's colours."""
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = open_page(a=TEXT), open_page(a=TEXT, dark=True)
    assert light.evaluate(background) == "rgb(246, 247, 249)"
    assert dark.evaluate(background) == "rgb(14, 16, 21)"
    assert picture(light) != picture(dark)
    light.locator("[name=theme]").select_option("dark")
    assert light.evaluate(background) == "rgb(14, 16, 21)"
    light.wait_for_function("before => document.getElementById('base').toDataURL() === before", arg=picture(dark))
    dark.emulate_media(color_scheme="light")
    expect(dark.locator("body")).to_have_css("background-color", "rgb(246, 247, 249)")


@pytest.mark.parametrize("mode", ["attention", "compare"])
def test_it_fits(open_page: Open, mode: str) -> None:
    """Nothing is wider than the window, from a phone's 360 pixels on; after a change of width the map fits again."""
    page = open_page(width=400, mode=mode, a=PAIR[0], b=PAIR[1], q=2)
    for width in (400, 360, 800, 1280, 700):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(
            "() => document.getElementById('base').clientWidth === document.getElementById('stage').clientWidth"
        )
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        for scale in ("rowmax", "sqrt"):
            choose(page, "scale", scale)
            right, edge = page.locator("#ticks span").last.bounding_box(), page.locator(".main").bounding_box()
            assert right is not None
            assert edge is not None
            assert right["x"] + right["width"] < edge["x"] + edge["width"]


def test_a_text_that_is_too_long_says_what_was_read(open_page: Open) -> None:
    """A truncated text is named as such, what was not read is shown apart, and the address says what it lacks."""
    text = " ".join(f"word{at}" for at in range(1000))
    page = open_page()
    page.locator("[name=a]").fill(text)
    page.locator("[name=a]").press("Enter")
    settled(page)
    expect(page.locator("#text-note")).to_have_text(re.compile(rf"^{MAX_LENGTH} of \d{{4}} tokens"))
    expect(page.locator("#sentence .unread")).to_contain_text("word999")
    expect(page.locator("#cut")).to_be_visible()
    assert "a" not in flags_of(page)


def test_no_words_at_all(open_page: Open) -> None:
    """A text of spaces has its special tokens and, with those hidden, nothing: no error, no broken picture."""
    page = open_page(a=" ")
    assert len(saved_json(page)["values"]) == 2
    choose(page, "special", "renormalize")
    choose(page, "unit", "word")
    choose(page, "view", "lines")
    expect(page.locator("#problem")).to_be_hidden()
    assert saved_json(page)["values"] == []


def test_a_refusal_is_told(open_page: Open, console: list[str]) -> None:
    """What the server says about a refusal is what the page says; the next text is served again."""
    page = open_page(a="one")
    with page.expect_response("**/encode") as answered:
        page.evaluate("location.hash = 'a=two&prompt=x'")
    assert answered.value.status == 422
    expect(page.locator("#problem")).to_be_visible()
    assert answered.value.json()["code"] == "unknown_prompt"
    expect(page.locator("#problem")).to_have_text(answered.value.json()["detail"])
    expect(page.locator("#work")).to_be_hidden()
    assert "422" in console.pop()  # Chromium's own line
    page.evaluate("location.hash = 'a=three'")
    expect(page.locator("#sentence")).to_contain_text("three")
    expect(page.locator("#problem")).to_be_hidden()


@pytest.mark.parametrize("name", ["model", "prompt"])
def test_a_link_to_what_is_not_here_can_be_left(open_page: Open, console: list[str], name: str) -> None:
    """A model or prompt that this server lacks is shown as chosen, and another can be chosen in its place."""
    page = open_page()
    page.evaluate(f"location.hash = 'a=two&{name}=nonsense'")
    expect(page.locator("#problem")).to_be_visible()
    assert console.pop().startswith("error: Failed to load resource")  # Chromium's own line
    expect(page.locator(f"[name={name}]")).to_have_value("nonsense")
    page.locator(f"[name={name}]").select_option("")
    expect(page.locator("#sentence")).to_contain_text("two")
    expect(page.locator("#problem")).to_be_hidden()


def test_a_server_that_was_away_at_first(open_page: Open, console: list[str]) -> None:
    """A page that did not learn what is served says so, and asks again with the next text."""
    page = open_page()
    page.route("**/info", lambda route: route.abort())
    page.reload()
    expect(page.locator("#problem")).to_have_text("The server does not answer.")
    assert console.pop().startswith("error: Failed to load resource")  # Chromium's own line
    page.unroute("**/info")
    page.locator("[name=a]").fill("early")
    page.locator("[name=a]").press("Enter")
    settled(page)
    expect(page.locator("#overview button")).to_have_count(LAYERS * HEADS)


def test_a_text_sent_before_the_page_knows_what_is_served(open_page: Open) -> None:
    """It is read once the answer is there, and nothing of the page is missing."""
    page = open_page()
    late: list[Route] = []
    page.route("**/info", lambda route: late.append(route))
    with page.expect_request("**/info"):
        page.reload(wait_until="commit")
    page.locator("[name=a]").fill("early")
    page.locator("[name=a]").press("Enter")
    expect(page.locator("#welcome")).to_be_hidden()
    assert len(late) == 1
    late[0].continue_()
    settled(page)
    expect(page.locator("#overview button")).to_have_count(LAYERS * HEADS)
    expect(page.locator("#sentence")).to_contain_text("early")


def test_a_word_of_a_hundred_thousand_letters(open_page: Open) -> None:
    """It is shown at once, and its label is short."""
    page = open_page()
    page.locator("[name=a]").fill("x" * 100_000)
    page.locator("[name=a]").press("Enter")
    settled(page)
    assert [len(row["label"]) for row in saved_json(page)["rows"]] == [5, 50, 5]


def test_the_policy_is_in_force(open_page: Open, console: list[str]) -> None:
    """The browser refuses a request that is not to this server."""
    assert "default-src 'self'" in HEADERS["Content-Security-Policy"]
    page = open_page(a="one")
    blocked = page.evaluate(
        """async () => {
            const violations = [];
            document.addEventListener("securitypolicyviolation", (event) => violations.push(event.effectiveDirective));
            await fetch("data:text/plain,x").catch(() => {});
            await new Promise((resolve) => setTimeout(resolve, 50));
            return violations;
        }"""
    )
    assert blocked == ["connect-src"]
    assert "Content Security Policy" in " ".join(console)
    console.clear()
