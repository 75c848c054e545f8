"""Takes the page's pictures from a running server: python docs/draw_page.py [ADDRESS [FOLDER]].

Light and dark, 1280 and 400 pixels wide. Those in the documents are two of them: page-light-1280.png and
page-dark-400.png.
"""

import shutil
import sys
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

ATTENTION = {
    "a": "My sister lost her keys, so she called the landlord.",
    "layer": 3,
    "head": 1,
    "special": "renormalize",
    "q": 8,  # she
}
COMPARISON = {
    "mode": "compare",
    "unit": "word",
    "a": "How do I reset my password?",
    "b": "I forgot the login for my account.",
    "q": 4,  # reset
}
VIEWS = {1280: ATTENTION, 400: COMPARISON}


def main() -> None:
    """Take all four."""
    address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for width, flags in VIEWS.items():
            for theme in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": 800})
                page.goto(f"{address}/#{urlencode({**flags, 'theme': theme})}")
                page.wait_for_selector("#table:not([hidden])")
                page.wait_for_load_state("networkidle")
                page.wait_for_timeout(1000)  # the overview's last thumbnails
                page.screenshot(path=folder / f"page-{theme}-{width}.png", full_page=True)
                page.close()
        browser.close()


if __name__ == "__main__":
    main()
