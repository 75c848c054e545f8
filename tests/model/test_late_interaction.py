"""How folders say that their model is one of late interaction, every reason to refuse them, and what is computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.errors import CheckpointError
from model.folder import read_folder
from model.heads import Dense
from model.late_interaction import PUNCTUATION, LateInteraction, LateInteractionHead, find_late_interaction, max_sim
from tests.model.folders import write_dense, write_json, write_modules
from tests.tiny import PYLATE, make_bert_folder

COLBERT = {
    "query_token_id": "[unused0]",
    "doc_token_id": "[unused1]",
    "query_maxlen": 12,
    "doc_maxlen": 30,
    "attend_to_mask_tokens": False,
    "mask_punctuation": True,
    "dim": 8,
    "similarity": "cosine",
    "interaction": "colbert",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A late interaction model as PyLate writes it."""
    return make_bert_folder(tmp_path / "late", late=True)


def edit(file: Path, **changes: Any) -> Path:
    """Change fields of a JSON file; None takes one away. Returns the folder."""
    content = {**json.loads(file.read_text()), **changes} if file.exists() else changes
    write_json(file, {name: value for name, value in content.items() if value is not None})
    return file.parent


def refused(folder: Path, *parts: str) -> None:
    """Refused in one sentence with these parts."""
    with pytest.raises(CheckpointError) as caught:
        read_folder(folder)
    for part in parts:
        assert part in str(caught.value)


def settings(folder: Path) -> LateInteraction:
    """What a folder says."""
    described = read_folder(folder)
    assert (described.kind, described.pooling_name) == ("late_interaction", "none")
    assert described.late_interaction is not None
    return described.late_interaction


# --- PyLate's layout ---


def test_pylates_fields_are_read(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a warning where all of them are stated; the maximum length beside the Transformer is no limit."""
    file = folder / "config_sentence_transformers.json"
    found = settings(folder)
    assert found == LateInteraction(file, "[Q] ", "[D] ", 10, 20, 10, None, False, (".", ",", "!"))
    assert caplog.text == ""
    edit(file, do_query_expansion=False, attend_to_expansion_tokens=True, query_prefix="")
    found = settings(folder)
    assert (found.expansion_length, found.attend_to_expansion, found.query_prefix) == (0, True, "")


def test_what_is_not_stated_is_pylates_default(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With a warning for each."""
    edit(folder / "config_sentence_transformers.json", **dict.fromkeys(PYLATE))
    found = settings(folder)
    assert (found.query_prefix, found.document_prefix, found.query_length, found.document_length) == (
        *("[Q] ", "[D] "),
        *(32, 180),
    )
    assert (found.expansion_length, found.attend_to_expansion, found.skiplist) == (32, False, PUNCTUATION)
    assert caplog.text.count("the default") == len(PYLATE) - 2  # all but model_type and similarity_fn_name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("query_prefix", 5),
        ("document_prefix", ["[D] "]),
        ("query_length", 0),
        ("query_length", "32"),
        ("query_length", True),
        ("document_length", 1e30),
        ("document_length", 2**25),
        ("attend_to_expansion_tokens", "no"),
        ("do_query_expansion", 1),
        ("skiplist_words", "."),
        ("skiplist_words", [1]),
        ("similarity_fn_name", "cosine"),
    ],
)
def test_a_value_that_is_not_built_is_refused(folder: Path, name: str, value: object) -> None:
    """By file, field and value."""
    edit(folder / "config_sentence_transformers.json", **{name: value})
    refused(folder, f"config_sentence_transformers.json: {name} {value!r} is not supported")


@pytest.mark.parametrize(
    "kinds",
    [
        ("Dense", "Transformer"),
        ("Transformer", "Dense", "Normalize", "MultiVectorMask", "Normalize"),
        ("Transformer", "MultiVectorMask", "Dense"),
        ("MultiVectorMask",),
        ("Transformer", "Pooling", "MultiVectorMask"),
    ],
)
def test_modules_that_do_not_go_together_are_refused(folder: Path, kinds: tuple[str, ...]) -> None:
    """With the list, and what would be served."""
    places = {"Transformer": "", "Dense": "1_Dense"}
    write_modules(folder, *((kind, places.get(kind, f"2_{kind}")) for kind in kinds))
    refused(folder, "modules.json", str(list(kinds)), "and nothing else")


def test_normalize_changes_nothing_in_pylates_layout(folder: Path) -> None:
    """PyLate scales in any case."""
    write_modules(folder, ("Transformer", ""), ("Dense", "1_Dense"), ("Normalize", "2_Normalize"))
    assert settings(folder).normalize


def test_a_model_that_pylate_would_project_at_random_is_refused(folder: Path) -> None:
    """Without a Dense module it would be another model each time."""
    write_modules(folder, ("Transformer", ""))
    refused(folder, "modules.json", "without a Dense module", "at random")


def test_an_embedding_model_stays_one(tmp_path: Path) -> None:
    """Dense behind Pooling, or none at all."""
    assert read_folder(make_bert_folder(tmp_path / "plain")).late_interaction is None
    path = make_bert_folder(tmp_path / "dense")
    write_dense(path / "2_Dense", {})
    write_modules(path, ("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"))
    assert read_folder(path).kind == "embedding"


def test_a_dense_layer_must_state_its_activation(folder: Path) -> None:
    """The libraries that read such folders have different defaults; a residual is read as well."""
    edit(folder / "1_Dense/config.json", activation_function=None)
    refused(folder, "1_Dense/config.json does not state activation_function")
    edit(folder / "1_Dense/config.json", activation_function="torch.nn.Identity", use_residual=True)
    assert read_folder(folder).dense[0].has_residual


def test_a_classifier_is_not_one_as_well(folder: Path) -> None:
    """Nobody could tell what was meant."""
    edit(folder / "config.json", architectures=["BertForSequenceClassification"])
    refused(folder, "config.json", "classification head", "late interaction")


# --- sentence-transformers' own layout ---


def own_layout(folder: Path, mask: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Turn a folder into what MultiVectorEncoder writes."""
    modules = [("Transformer", ""), ("Dense", "1_Dense"), ("MultiVectorMask", "2_MultiVectorMask")]
    write_modules(folder, *modules, ("Normalize", "3_Normalize"))
    write_json(folder / "2_MultiVectorMask/config.json", mask or {"skiplist_words": ["."]})
    fields = {"model_type": "MultiVectorEncoder", "prompts": {"query": "[Q] "}, "similarity_fn_name": "maxsim"}
    write_json(folder / "config_sentence_transformers.json", fields)
    return edit(folder / "sentence_bert_config.json", **changes)


def test_multi_vector_encoders_fields_are_read(folder: Path) -> None:
    """Lengths and expansion beside the Transformer, the skiplist beside the mask; prefixes are in the prompts."""
    fixed = {"strategy": "fixed", "length": 9, "attend": True, "token": "[PAD]"}
    found = settings(own_layout(folder, query_expansion=fixed, query_length=12, document_length=21))
    file = folder / "sentence_bert_config.json"
    assert found == LateInteraction(file, None, None, 9, 21, 9, "[PAD]", True, (".",), normalize=True)
    at_least = {"strategy": "min", "length": 9}
    for length, expected in ((None, None), (5, 9), (12, 12)):
        found = settings(own_layout(folder, query_expansion=at_least, query_length=length))
        assert (found.query_length, found.expansion_length, found.expansion_token, found.attend_to_expansion) == (
            expected,
            9,
            None,
            False,
        )
    (folder / "sentence_bert_config.json").unlink()
    found = settings(own_layout(folder, max_seq_length=30))
    assert (found.query_length, found.document_length, found.expansion_length) == (None, None, 0)


def test_normalize_is_a_module_there(folder: Path) -> None:
    """Without it vectors are as the projection gives them; and without a mask none is left out."""
    own_layout(folder)
    write_modules(folder, ("Transformer", ""), ("Dense", "1_Dense"))
    found = settings(folder)
    assert (found.normalize, found.skiplist) == (False, ())


@pytest.mark.parametrize(
    ("mask", "changes", "words"),
    [
        ({"skiplist_tasks": ["query", "document"]}, {}, "skiplist_tasks"),
        ({"keep_only_token_ids": [4]}, {}, "keep_only_token_ids"),
        ({"skiplist_words": "."}, {}, "skiplist_words"),
        (None, {"query_expansion": {"strategy": "max", "length": 9}}, "query_expansion.strategy 'max'"),
        (None, {"query_expansion": {"strategy": "fixed"}}, "length None"),
        (None, {"query_expansion": {"strategy": "fixed", "length": 9, "attend": 1}}, "attend 1"),
        (None, {"query_expansion": {"strategy": "fixed", "length": 9, "token": 4}}, "token 4"),
        (None, {"query_expansion": 9}, "query_expansion 9"),
        (None, {"query_length": -1}, "query_length -1"),
    ],
)
def test_what_is_not_built_of_it_is_refused(
    folder: Path, mask: dict[str, Any] | None, changes: dict[str, Any], words: str
) -> None:
    """By the field."""
    refused(own_layout(folder, mask, **changes), words, "is not supported")


# --- the original ColBERT's layout ---


def colbert_layout(folder: Path, **changes: Any) -> Path:
    """Turn a folder into what ColBERT writes."""
    for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        (folder / name).unlink()
    edit(folder / "config.json", architectures=["HF_ColBERT"])
    return edit(folder / "artifact.metadata", **{**COLBERT, **changes})


def test_colberts_fields_are_read(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Queries are always filled up; the projection is among the encoder's tensors."""
    found = settings(colbert_layout(folder))
    file = folder / "artifact.metadata"
    assert found == LateInteraction(
        file, "[unused0]", "[unused1]", 12, 30, 12, None, False, PUNCTUATION, normalize=True, dimensions=8
    )
    [dense] = read_folder(folder).dense
    assert (dense.folder, dense.in_features, dense.out_features, dense.bias) == (folder, 16, 8, False)
    assert dense.is_inline
    assert caplog.text == ""
    assert settings(edit(file, mask_punctuation=False)).skiplist == ()
    assert settings(edit(file, doc_maxlen=None)).document_length == 220
    assert "does not state doc_maxlen" in caplog.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"similarity": "l2"}, "similarity 'l2'"),
        ({"interaction": "flipr"}, "interaction 'flipr'"),
        ({"dim": "8"}, "dim '8'"),
        ({"query_token_id": 1}, "query_token_id 1"),
        (dict.fromkeys(COLBERT), "is missing or empty"),
    ],
)
def test_what_is_not_built_of_colbert_is_refused(folder: Path, changes: dict[str, Any], words: str) -> None:
    """By the field; and a folder without the file, as nothing else says how its model reads."""
    refused(colbert_layout(folder, **changes), "artifact.metadata", words)


def test_a_width_that_is_none_is_refused(folder: Path) -> None:
    """The projection takes what the encoder gives."""
    edit(colbert_layout(folder) / "config.json", hidden_size=None)
    refused(folder, "config.json", "hidden_size None")


def test_modules_come_before_the_architecture(folder: Path) -> None:
    """A folder of both layouts is PyLate's."""
    edit(folder / "config.json", architectures=["HF_ColBERT"])
    assert settings(folder).file.name == "config_sentence_transformers.json"
    assert not read_folder(folder).dense[0].is_inline


def test_many_modules_are_not_all_repeated(tmp_path: Path) -> None:
    """A message stays one sentence, whatever a folder holds."""
    modules = [("Transformer", tmp_path), ("Dense", tmp_path), *[("Normalize", tmp_path)] * 10_000]
    with pytest.raises(
        CheckpointError, match=r"modules\.json: modules \['Transformer', 'Dense', .*nothing else"
    ) as caught:
        find_late_interaction(tmp_path, modules, is_inline=False)
    assert len(str(caught.value)) < len(str(tmp_path)) + 500


# --- what is computed ---


@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_are_projected_token_by_token(normalize: bool) -> None:
    """Through every layer, of the places asked for, in their order; each text's array is its own."""
    torch.manual_seed(1)
    layers = [Dense(6, 5, bias=True, activation="gelu"), Dense(5, 3, bias=False, activation="identity")]
    states = torch.randn(9, 6)
    head = LateInteractionHead(layers, normalize=normalize)
    with torch.inference_mode():
        first, none, second = head.vectors(states, [[0, 2], [], [8, 3, 4]])
        expected = layers[1](layers[0](states))
        if normalize:
            expected = expected / expected.norm(dim=1, keepdim=True)
    np.testing.assert_allclose(first, expected[[0, 2]], atol=1e-6)
    np.testing.assert_allclose(second, expected[[8, 3, 4]], atol=1e-6)
    assert none.shape == (0, 3)
    assert first.base is None


def test_max_sim_sums_the_best_matches() -> None:
    """Of each vector of the query, as written out with loops."""
    draw = np.random.default_rng(3)
    query, document = (draw.standard_normal((rows, 4)).astype(np.float32) for rows in (5, 7))
    expected = sum(max(float(one @ other) for other in document) for one in query)
    assert max_sim(query, document) == pytest.approx(expected, abs=1e-5)
    assert max_sim(query[:0], document) == max_sim(query, document[:0]) == 0.0
