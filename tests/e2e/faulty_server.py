"""The real server, with a model that fails on cue: ``python -m tests.e2e.faulty_server serve ...``.

A text with one of the cue words decides what becomes of the batch that it is in; every other text is encoded as ever.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path

import numpy as np

from app.cli import main
from model.contract import EncodeInput, OutputSpec, Row
from model.embedder import Embedder
from model.tokenizer import Tokenizer

CUES = ("explode", "shrink", "ghost", "heavy", "wait", "freeze", "murder", "poison", "medicine")
"""Raise; give one row too few; a row of NaN; no memory for more than this text; wait until the file that is the gate
is gone; never end; lose the thread afterwards; give nothing but NaN from now on; no longer."""

HOLD = "hold"
"""A model is not read to its end while its folder holds a file of this name."""

Run = Callable[[Embedder, Sequence[EncodeInput], Sequence[OutputSpec]], list[Row]]


def failing_on_cue(run: Run) -> Run:
    """Wrap ``Embedder.run``."""
    is_poisoned = False

    @wraps(run)
    def wrapped(embedder: Embedder, inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        nonlocal is_poisoned
        cues = {embedder.tokenizer.encode([word])[0].input_ids[1]: word for word in CUES}
        found = {cues[token] for text in inputs for token in text.input_ids if token in cues}
        if "explode" in found:
            raise ValueError("exploded")
        if "heavy" in found and len(inputs) > 1:
            raise MemoryError
        if found & {"wait", "freeze"}:
            gate = Path(os.environ["TESTS_GATE"])
            gate.with_suffix(".reached").touch()
            while gate.exists():
                time.sleep(0.01)
        if "freeze" in found:
            threading.Event().wait()  # takes no processor time at all
        if "murder" in found:
            threading.Thread(target=end_when_idle, args=[threading.current_thread()]).start()
        is_poisoned = "poison" in found or (is_poisoned and "medicine" not in found)
        rows = run(embedder, inputs, specs)
        for text, row in zip(inputs, rows, strict=True):
            if is_poisoned or any(cues.get(token) == "ghost" for token in text.input_ids):
                row.embedding = np.full_like(row.embedding, np.nan)
        return rows[:-1] if "shrink" in found else rows

    return wrapped


def holding(load: Callable[..., Embedder]) -> Callable[..., Embedder]:
    """Wrap ``Embedder.load``."""

    @wraps(load)
    def wrapped(folder: Path, **options: object) -> Embedder:
        if (folder / HOLD).exists():
            logging.getLogger("tests").warning("held")
        while (folder / HOLD).exists():
            time.sleep(0.01)
        return load(folder, **options)

    return wrapped


def end_when_idle(thread: threading.Thread) -> None:
    """Have a thread of an executor end as soon as it takes up its next call, which is lost."""
    assert thread.ident is not None
    while sys._current_frames()[thread.ident].f_code.co_name != "_worker":
        time.sleep(0.01)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    logging.getLogger("tests").warning("doomed")


def panicking_on_cue(encode: Callable[..., list[EncodeInput]]) -> Callable[..., list[EncodeInput]]:
    """Wrap ``Tokenizer.encode``: a text with ``panic`` raises what a library in Rust raises."""

    class PanicException(BaseException):
        pass

    @wraps(encode)
    def wrapped(tokenizer: Tokenizer, texts: Sequence[object], **options: object) -> list[EncodeInput]:
        if any(isinstance(text, str) and "panic" in text for text in texts):
            raise PanicException("called `Option::unwrap()` on a `None` value")
        return encode(tokenizer, texts, **options)

    return wrapped


if __name__ == "__main__":
    Embedder.run = failing_on_cue(Embedder.run)  # type: ignore[method-assign, assignment]
    Embedder.load = holding(Embedder.load)  # type: ignore[method-assign]
    Tokenizer.encode = panicking_on_cue(Tokenizer.encode)  # type: ignore[method-assign]
    sys.exit(main())
