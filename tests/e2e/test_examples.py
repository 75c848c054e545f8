"""The example of docs/attention.md does what the page says it does."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from tests.e2e.conftest import ROOT, Server

pytestmark = pytest.mark.e2e

EXAMPLE = ROOT / "docs" / "plot_head.py"
DEFAULT_ADDRESS = "http://127.0.0.1:8080"
PNG = b"\x89PNG\r\n\x1a\n"


def test_the_plotted_head_is_the_servers(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pointed at this server, the example draws the weights of the head that it names, labelled by their tokens; the
    tokens that the page mentions look where the page says.
    """
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # behind the choice of a backend without a window

    source = EXAMPLE.read_text(encoding="utf-8")
    assert source.count(DEFAULT_ADDRESS) == 1
    names: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    try:
        exec(compile(source.replace(DEFAULT_ADDRESS, server.url), str(EXAMPLE), "exec"), names)
        [image] = names["axes"].get_images()
        drawn = np.asarray(image.get_array())
        labels = [[label.get_text() for label in names["axes"].get_yticklabels()]]
        labels.append([label.get_text() for label in names["axes"].get_xticklabels()])
        title = names["axes"].get_title()
    finally:
        plt.close("all")
    assert (tmp_path / "head.png").read_bytes().startswith(PNG)

    attention = {"layers": [3], "heads": [1], "encoding": "base64", "dtype": "float32"}
    [entry] = server.encode(names["text"], attention=attention)["attention"]
    tokens = entry["tokens"]["text"]
    expected = np.frombuffer(base64.b64decode(entry["maps"]["data"]), "<f4").reshape(len(tokens), len(tokens))
    np.testing.assert_allclose(drawn, expected, atol=5e-5, rtol=0)  # four significant digits
    assert labels == [tokens, tokens]
    assert title == "layer 3, head 1"

    looks_at = {token: tokens[key] for token, key in zip(tokens, drawn.argmax(axis=1), strict=True)}
    expected_targets = {"lost": "keys", "her": "keys", "she": "sister"}
    expected_targets |= dict.fromkeys(("sister", "keys", "landlord"), "[CLS]")
    assert {token: looks_at[token] for token in expected_targets} == expected_targets


def test_the_picture_is_small() -> None:
    """The picture on the page is a PNG that nobody waits for."""
    content = (ROOT / "docs" / "head.png").read_bytes()
    assert content.startswith(PNG)
    assert len(content) < 60_000
