"""Loss and dev score of a run as a picture. Needs matplotlib, which the ``training`` extra installs."""

from __future__ import annotations

import io
from pathlib import Path

from training.files import replace_file
from training.journal import read_log


def write_plot(log: Path, picture: Path) -> bool:
    """Draw the log of a run.

    Returns
    -------
    bool
        False where matplotlib is not installed; nothing is written then.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    entries = read_log(log)
    losses = [(entry["step"], entry["loss"]) for entry in entries if "loss" in entry]
    scores = [(entry["step"], entry["dev"]) for entry in entries if "dev" in entry]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*losses, strict=True) if losses else ((), ()), color="tab:blue", label="loss")
    axes.set_xlabel("step")
    axes.set_ylabel("loss", color="tab:blue")
    if scores:
        right = axes.twinx()
        right.plot(*zip(*scores, strict=True), color="tab:orange", marker="o", markersize=3, label="dev score")
        right.set_ylabel("dev score", color="tab:orange")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    replace_file(picture, buffer.getvalue())
    return True
