"""How fast the page is in a headless Chromium: from a click to another head's picture, from a move to its mark.

What is served for the run is a copy of all-MiniLM-L6-v2 that reads 512 tokens.
Run it with ``make bench-viewer``.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from bench.longer_model import longer_model

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "weights" / "all-MiniLM-L6-v2"
WORDS = ("the", "river", "and", "a", "small", "boat", "went", "down", "to", "sea", "while", "old", "men", "sat", "on")
LENGTHS = (32, 128, 256, 512)  # tokens, special tokens included
ROUNDS = 60
HEAD_BUDGET_MS, HOVER_BUDGET_MS = 50.0, 4.0
START_SECONDS = 120.0

MEASURE = """
async (rounds) => {
  // resolves in the first task after the next frame has been drawn, with the time at which that frame began
  const frame = () => new Promise((resolve) => requestAnimationFrame(() => {
    const begun = performance.now(), channel = new MessageChannel();
    channel.port1.onmessage = () => resolve(begun);
    channel.port2.postMessage(null);
  }));
  const heads = [], hovers = [], frames = [], tiles = [...document.querySelectorAll("#overview button")];
  const layer = tiles.filter((tile) => tile.dataset.layer === document.querySelector("[name=layer]").value);
  for (let round = 0; round < rounds; round++) {
    await frame();
    const begun = performance.now();
    layer[round % layer.length].click();
    await frame();
    heads.push(performance.now() - begun);
  }
  const stage = document.getElementById("stage"), base = document.getElementById("base").getBoundingClientRect();
  for (let round = 0; round < rounds; round++) {
    await frame();
    const share = 0.2 + (0.7 * ((round * 37) % rounds)) / rounds;
    const x = base.left + base.width * share, y = base.top + base.height * (1.1 - share);
    const before = performance.now();
    stage.dispatchEvent(new PointerEvent("pointermove", { clientX: x, clientY: y, bubbles: true }));
    const handled = performance.now();
    // The page's callback comes first in the frame: its drawing, and the layout that it causes, are the page's work.
    // What follows is the browser's painting and compositing.
    const begun = await frame();
    const work = handled - before + window.__callbacks.splice(0).reduce((sum, ms) => sum + ms, 0);
    hovers.push(work);
    frames.push(work + performance.now() - begun);
  }
  return { heads, hovers, frames };
}
"""

# Times each animation callback of the page, with the layout that it makes necessary.
TIME_CALLBACKS = """
window.__callbacks = [];
const ask = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (callback) => ask((time) => {
  const begun = performance.now();
  callback(time);
  document.body.offsetHeight;
  window.__callbacks.push(performance.now() - begun);
});
"""


@contextmanager
def serving(model: Path, log: Path) -> Iterator[str]:
    """Serve ``model`` on a free port; yields the address."""
    arguments = [sys.executable, "-m", "app.cli", "serve", "--port", "0", "--model", f"bench={model}", "--no-warmup"]
    with log.open("w") as stderr:
        process = subprocess.Popen(arguments, cwd=ROOT, stderr=stderr)
    try:
        give_up = time.monotonic() + START_SECONDS
        while (found := re.search(r"running on (http://[^ ]+)", log.read_text())) is None:
            if process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"the server did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield found[1]
    finally:
        process.terminate()
        process.wait()


def measure(page: Page, address: str, length: int) -> dict[str, list[float]]:
    """Show a text of ``length`` tokens, then time switches of head and moves of the pointer, in milliseconds."""
    page.goto(f"{address}/?{length}")
    text = " ".join(WORDS[at % len(WORDS)] for at in range(length - 2))
    page.locator("[name=a]").fill(text)
    page.locator("[name=a]").press("Enter")
    page.wait_for_selector(f"#text-note:text-matches('^{length} tokens')")
    page.wait_for_selector("#overview .chosen canvas:not([hidden])")
    page.wait_for_timeout(3000)  # what is loaded ahead is not what is measured
    times: dict[str, list[float]] = page.evaluate(MEASURE, ROUNDS)
    return times


def show(times: list[float], budget: float | None = None) -> str:
    """Write the median and the 95th percentile, and whether the median is within the budget."""
    middle, high = statistics.median(times), statistics.quantiles(times, n=20)[-1]
    verdict = "" if budget is None else "ok" if middle < budget else "over"
    return f"{middle:7.1f} {high:7.1f} {verdict:<5}"


def main() -> None:
    """Print the table."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no Chromium here; .ci/setup installs it")
    scripts = sum(path.stat().st_size for path in (ROOT / "app" / "viewer").glob("*.js"))
    print(f"JavaScript of the page: {scripts:,} bytes, comments included\n")
    titles = (f"click to frame (< {HEAD_BUDGET_MS:g})", f"hover, page (< {HOVER_BUDGET_MS:g})", "hover to frame")
    print("milliseconds, median and 95th percentile")
    print("tokens" + "".join(f"{title:>24}" for title in titles))
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        model = Path(name) / "model"
        model.mkdir()
        # Without the screen's own rhythm, whose wait for the next of 60 frames a second is no work of the page.
        flags = ["--no-sandbox", "--disable-frame-rate-limit", "--disable-gpu-vsync"]
        chromium = playwright.chromium.launch(executable_path=browser, args=flags)
        with serving(longer_model(MODEL, model), Path(name) / "log") as address:
            page = chromium.new_page(viewport={"width": 1280, "height": 900})
            page.add_init_script(TIME_CALLBACKS)
            for length in LENGTHS:
                times = measure(page, address, length)
                columns = (
                    show(times["heads"], HEAD_BUDGET_MS),
                    show(times["hovers"], HOVER_BUDGET_MS),
                    show(times["frames"]),
                )
                print(f"{length:>6}" + "".join(f"{column:>24}" for column in columns), flush=True)
        chromium.close()


if __name__ == "__main__":
    main()
