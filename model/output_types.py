"""The names of the number types of embeddings, apart from numpy, so that a command line knows them at once."""

from __future__ import annotations

from typing import Literal

OutputDtype = Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"]
"""What each of them is: :mod:`model.output_dtype`."""
