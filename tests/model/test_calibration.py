"""Claims about the calibration texts: of many kinds and lengths, and all of them are read."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from model.calibration import BATCH_TOKENS, calibration_batches, calibration_texts
from model.embedder import Embedder


def test_the_texts_are_of_many_kinds() -> None:
    """Twelve scripts and more, digits, code; single words and paragraphs; none empty, none twice."""
    texts = calibration_texts()
    scripts = {unicodedata.name(letter, "").split()[0] for text in texts for letter in text if letter.isalpha()}
    assert {
        "LATIN", "CYRILLIC", "GREEK", "CJK", "HIRAGANA", "HANGUL", "ARABIC", "HEBREW", "DEVANAGARI", "THAI",
    } <= scripts  # fmt: skip
    assert len(set(texts)) == len(texts)
    assert min(map(len, texts)) == 1
    assert any("def mean(xs)" in text for text in texts)


def test_paragraphs_are_joined_lines(tmp_path: Path) -> None:
    """Lines, every fourth run of six of them, and all of them as one text."""
    (tmp_path / "lines").write_text("".join(f"{number}\n" for number in range(30)), encoding="utf-8")
    texts = calibration_texts(tmp_path / "lines")
    everything = " ".join(str(number) for number in range(30))
    assert texts == [*(str(number) for number in range(30)), "0 1 2 3 4 5", "24 25 26 27 28 29", everything]


def test_every_text_is_in_one_batch(minilm: Embedder) -> None:
    """Batches hold all texts, the longest cut at what the model reads, and no batch is too large."""
    texts = calibration_texts()
    lengths = [length for batch in calibration_batches(minilm.tokenizer, texts) for length in batch.lengths]
    assert sorted(lengths) == sorted(item.num_tokens for item in minilm.tokenizer.encode(texts))
    assert max(lengths) == minilm.info.max_length
    for batch in calibration_batches(minilm.tokenizer, texts):
        assert sum(batch.lengths) <= BATCH_TOKENS
