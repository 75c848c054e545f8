"""Draws what `make bench-peers` wrote with --json as performance.svg: python docs/draw_performance.py FILE."""

import json
import statistics
import sys
from pathlib import Path

from matplotlib import pyplot as plt

COLOURS = {"float32": "#7a8ca3", "bfloat16": "#2f6db5", "int8": "#d9822b"}

run = json.loads(Path(sys.argv[1]).read_text())
model = run["libraries"][0]["model"]  # the one that all libraries load
figures = [figure for figure in run["libraries"] if figure["model"] == model]
text_sets = list(dict.fromkeys(figure["text_set"] for figure in figures))
libraries = list(dict.fromkeys(figure["library"] for figure in figures if figure["library"] != "ceiling"))
ceiling_style = {"linestyle": ":", "linewidth": 1.5}

plot, panels = plt.subplots(len(text_sets), 1, figsize=(8, 2.4 * len(text_sets)), layout="constrained", squeeze=False)
for axes, text_set in zip(panels[:, 0], text_sets, strict=True):
    for figure in (figure for figure in figures if figure["text_set"] == text_set):
        rate = figure["num_tokens"] / statistics.median(figure["seconds"])
        dtype = figure["dtype"]
        if figure["library"] == "ceiling":
            axes.axvline(rate, color=COLOURS[dtype], **ceiling_style)
            continue
        at = libraries.index(figure["library"]) + (list(COLOURS).index(dtype) - 1) * 0.27
        axes.barh(at, rate, 0.25, color=COLOURS[dtype])
        axes.annotate(f" {rate:,.0f}", (rate, at), va="center", fontsize=7)
    mean = figure["num_tokens"] / figure["num_texts"]
    axes.set(title=f"{text_set if text_set == 'mixed' else 'texts'}, {mean:.0f} tokens on average", xlabel="tokens/s")
    axes.set_yticks(range(len(libraries)), libraries)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
bars = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
ceiling = plt.Line2D([], [], color="black", **ceiling_style)
plot.legend([*bars, ceiling], [*COLOURS, "matrix products alone"], loc="outside lower center", ncols=4, frameon=False)
plot.savefig("performance.svg", metadata={"Date": None})
