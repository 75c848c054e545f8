"""Draws one head of a running server as head.png: python docs/plot_head.py."""

import httpx
import numpy as np
from matplotlib import pyplot as plt

layer, head = 3, 1
text = "My sister lost her keys, so she called the landlord."
body = {"texts": text, "attention": {"layers": [layer], "heads": [head]}}
answer = httpx.post("http://127.0.0.1:8080/encode", json=body).raise_for_status().json()
tokens = answer["attention"][0]["tokens"]["text"]
weights = np.array(answer["attention"][0]["maps"]["values"][0][0])  # row: who looks; column: what is looked at

figure, axes = plt.subplots(figsize=(5.5, 5), layout="constrained")
figure.colorbar(axes.imshow(weights, cmap="Blues", vmin=0, vmax=1), shrink=0.8)
axes.set_xticks(range(len(weights)), tokens, rotation=90)
axes.set_yticks(range(len(weights)), tokens)
axes.set(title=f"layer {layer}, head {head}", xlabel="token looked at", ylabel="token that looks")
figure.savefig("head.png", dpi=90)
