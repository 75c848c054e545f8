"""Claims about the right answers in tests/reference: every number this server gives is one of theirs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model.batch import pack
from model.checkpoint import load_encoder
from model.convert import convert_state_dict
from model.embedder import Embedder
from model.folder import read_folder
from tests.model.answers import (
    MINILM,
    PARSED_TEXT,
    REFERENCE,
    TOLERANCES,
    MiniLMAnswer,
    check_minilm,
    check_seed,
    seed_answers,
    shuffled,
)
from tests.model.test_convert import write_tokenizer

TOLERANCE = TOLERANCES["cpu", "float32"]
documents = pytest.mark.parametrize("document", ["seed-0", "seed-2"])


def typed(answers: list[MiniLMAnswer]) -> list[MiniLMAnswer]:
    """The texts whose answer does not depend on the setting of special tokens."""
    return answers[:PARSED_TEXT] + answers[PARSED_TEXT + 1 :]


def test_the_reference_is_whole(answers: list[MiniLMAnswer]) -> None:
    """30 texts, seven of them with maps: a reference that lost some would let the other tests pass."""
    assert len(answers) == 30
    assert sum(answer.attention is not None for answer in answers) == 7
    assert {len(answer.input_ids) for answer in answers} >= {2, 3, 4, 256}
    assert [len(seed_answers(document)) for document in ("seed-0", "seed-2")] == [3, 3]


def test_ids_are_those_of_the_reference(minilm: Embedder, answers: list[MiniLMAnswer]) -> None:
    """Every text gets the reference's ids, all in one call and each alone."""
    asked = typed(answers)
    together = minilm.tokenizer.encode([answer.text for answer in asked])
    alone = [minilm.tokenizer.encode([answer.text])[0] for answer in asked]
    for answer, first, second in zip(asked, together, alone, strict=True):
        assert first.input_ids == second.input_ids == answer.input_ids


def test_a_typed_special_token_is_text(minilm: Embedder, answers: list[MiniLMAnswer]) -> None:
    """By default ``[SEP]`` in a text is the five characters somebody typed."""
    [text] = minilm.tokenizer.encode([answers[PARSED_TEXT].text])
    assert text.input_ids == [
        *(101, 1031, 19802, 1033, 21189, 2011, 1037, 5310, 1031, 18856, 2015, 1033),
        *(1031, 11687, 1033, 1031, 7308, 1033, 102),
    ]


def test_a_parsed_special_token_is_a_token(minilm_parse: Embedder, answers: list[MiniLMAnswer]) -> None:
    """Under ``parse`` every text gets the ids that sentence-transformers gives it, the one with ``[SEP]`` too."""
    texts = minilm_parse.tokenizer.encode([answer.text for answer in answers])
    assert [text.input_ids for text in texts] == [answer.input_ids for answer in answers]


@pytest.mark.parametrize("maps", ["none", "all"])
def test_each_text_alone(minilm: Embedder, answers: list[MiniLMAnswer], maps: str) -> None:
    """A text alone in its batch gets the reference's embedding and maps within 1e-5."""
    asked = typed(answers)
    check_minilm(minilm, asked, shuffled(len(asked), 1, 0), TOLERANCE, maps)


@pytest.mark.parametrize("maps", ["none", "some", "all"])
@pytest.mark.parametrize("size", [3, 8, 29])
def test_shuffled_batches(minilm: Embedder, answers: list[MiniLMAnswer], size: int, maps: str) -> None:
    """Whatever shares its batch, and whoever asks for maps, a text gets the same answer."""
    asked = typed(answers)
    check_minilm(minilm, asked, shuffled(len(asked), size, size), TOLERANCE, maps)


@pytest.mark.parametrize("size", [1, 30])
def test_the_parsed_text(minilm_parse: Embedder, answers: list[MiniLMAnswer], size: int) -> None:
    """Under ``parse`` all 30 texts agree, alone and in one batch: a typed ``[PAD]`` is attended to, not masked."""
    check_minilm(minilm_parse, answers, shuffled(len(answers), size, 1), TOLERANCE, "all")


def test_the_explicit_path(answers: list[MiniLMAnswer]) -> None:
    """The explicit attention core gives the reference's answers too."""
    asked = typed(answers)
    embedder = Embedder.load(MINILM, dtype="float32", device="cpu", threads=1, attention="explicit")
    check_minilm(embedder, asked, shuffled(len(asked), 10, 2), TOLERANCE, "some")


def test_encode_is_the_reference(minilm: Embedder, answers: list[MiniLMAnswer]) -> None:
    """``encode``, with its own batches, gives the embeddings in the order of the texts."""
    asked = typed(answers)
    embeddings = minilm.encode([answer.text for answer in asked], batch_tokens=300)
    TOLERANCE.check(embeddings, np.stack([answer.embedding for answer in asked]), "encode")


@pytest.fixture(scope="module", params=["seed-0", "seed-2"])
def seed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A folder converted from a document's state dict."""
    document: str = request.param
    return document, convert_seed(document, tmp_path_factory.mktemp(document))


def convert_seed(document: str, path: Path) -> Path:
    """Make a folder of one of the two state dicts."""
    tokenizer = write_tokenizer(path / "words.json")
    folder = path / "folder"
    convert_state_dict(REFERENCE / f"{document}.pt", folder, num_attention_heads=8, tokenizer=tokenizer)
    return folder


@pytest.mark.parametrize("attention", ["fused", "explicit"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_converted_seed(seed: tuple[str, Path], size: int, attention: str) -> None:
    """A converted document's encoder gives its own token states, maps and their mean, alone and mixed."""
    document, folder = seed
    embedder = Embedder.load(folder, dtype="float32", device="cpu", threads=1, attention=attention)
    answers = seed_answers(document)
    check_seed(embedder, answers, shuffled(len(answers), size, size), TOLERANCE)


def test_the_input_of_a_converted_seed(seed: tuple[str, Path]) -> None:
    """What goes into the first layer is the scaled token embedding plus the sinusoids, as the document computes it."""
    document, folder = seed
    encoder = load_encoder(read_folder(folder), torch.float32, torch.device("cpu")).encoder
    answers = seed_answers(document)
    batch = pack([answer.text for answer in answers])
    with torch.inference_mode():
        embedded = encoder.embedding(batch).numpy()
    for packed, index in enumerate(batch.order):
        start = batch.starts[packed]
        TOLERANCE.check(embedded[start : start + batch.lengths[packed]], answers[index].embedded, document)
