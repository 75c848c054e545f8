"""Draws docs/masks.svg from the functions in model/masks.py: run ``python docs/draw_masks.py`` after changing them."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from model.masks import padding_mask, subsequent_mask

CELL = 14
VISIBLE, HIDDEN = "#3b7dd8", "#e6e6e6"
TARGET = Path(__file__).with_suffix("").with_name("masks.svg")


def panel(mask: Tensor, left: int, title: str, rows: str, columns: str) -> str:
    """Draw one boolean mask as squares: True is dark."""
    height, width = mask.shape
    parts = [f'<g transform="translate({left},46)"><text x="0" y="-28" font-weight="bold">{title}</text>']
    parts.append(f'<text x="0" y="-8">{columns} &#8594;</text>')
    parts.append(f'<text transform="translate(-8,{height * CELL}) rotate(-90)">{rows} &#8592;</text>')
    for row in range(height):
        for column in range(width):
            colour = VISIBLE if mask[row, column] else HIDDEN
            parts.append(
                f'<rect x="{column * CELL}" y="{row * CELL}" width="{CELL - 1}" height="{CELL - 1}" fill="{colour}"/>'
            )
    return "".join([*parts, "</g>"])


def main() -> None:
    """Write the picture: a padding mask, the causal mask, and both together for one padded text."""
    lengths, length = (20, 14, 9, 5), 20
    padding = padding_mask(lengths, length)
    causal = subsequent_mask(length)
    both = causal & padding[1].unsqueeze(0)
    panels = (
        panel(padding, 30, "padding_mask([20, 14, 9, 5], 20)", "texts", "tokens"),
        panel(causal, 370, "subsequent_mask(20)", "queries", "keys"),
        panel(both, 710, "both, for the text of 14 tokens", "queries", "keys"),
    )
    TARGET.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1010 340" font-family="sans-serif" font-size="12">'
        f'<rect width="1010" height="340" fill="white"/>{"".join(panels)}</svg>\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
