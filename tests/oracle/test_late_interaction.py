"""Late interaction against plain transformers, step by step as PyLate encodes, and against MultiVectorEncoder.

sentence-transformers loads PyLate's folders and the original ColBERT's beside its own, so each layout is read by both
sides as it is.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.base.modules.normalize import Normalize
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from torch import nn

from model.contract import FloatArray
from model.embedder import Embedder
from model.errors import CheckpointError
from model.late_interaction import max_sim
from model.readings import Role
from tests.oracle.families import BY_NAME, FAMILIES
from tests.oracle.tiny import TOLERANCE, WORDS, Family, edit_json, load, write_json

pytestmark = pytest.mark.oracle

PUNCTUATION = tuple(string.punctuation)
PREFIXES = ("[Q] ", "[D] ")
WIDTH = 24

TEXTS = [
    "word1",
    "word2 word3, word4! word5 . . word6",
    "word7 something-unknown (word8)",
    " ".join(WORDS[10:42]),
    " ".join(f"{word}," for word in WORDS),
    "word1",
]

LEFT_OUT = {
    "camembert": "RoBERTa's classes under another name",
    "roberta-two-types": "its padding has the mask token's id, so that transformers takes an expansion for padding",
}
SUPPORTED = [pytest.param(family, id=family.name) for family in FAMILIES if family.name not in LEFT_OUT]
WINDOW = {"local_attention": 40}
"""Wide enough for a query: the tiny families' own is not."""


@dataclass(frozen=True)
class Saved:
    """A folder, and the parts that it was saved from."""

    folder: Path
    built: transformers.PreTrainedModel
    tokenizer: transformers.PreTrainedTokenizerFast
    dense: tuple[Dense, ...]
    settings: dict[str, Any]


def make_tokenizer(specials: Sequence[str], added: Sequence[str | AddedToken]) -> Tokenizer:
    """Build a word-level tokenizer that knows punctuation, with tokens added behind its vocabulary."""
    vocabulary = {word: index for index, word in enumerate((*specials, *WORDS, *PUNCTUATION))}
    is_bert = specials[0] == "[PAD]"
    first, last, unknown = ("[CLS]", "[SEP]", "[UNK]") if is_bert else ("<s>", "</s>", "<unk>")
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1" if is_bert else f"{first} $A {last} {last} $B {last}",
        special_tokens=[(first, vocabulary[first]), (last, vocabulary[last])],
    )
    tokenizer.add_special_tokens(list(specials))
    tokenizer.add_tokens(list(added))
    return tokenizer


def save_encoder(family: Family, folder: Path, added: Sequence[str] = PREFIXES, **options: Any) -> Saved:
    """Save an encoder of a family that has tokens of its own, as a model of transformers' base class."""
    num_tokens = len(family.specials) + len(WORDS) + len(PUNCTUATION) + len(added)
    window = WINDOW if family.name.startswith("modernbert") else {}
    built = replace(family, options={**family.options, **window, "vocab_size": num_tokens, **options}).build()
    is_bert = family.specials[0] == "[PAD]"
    names = {
        "pad_token": "[PAD]" if is_bert else "<pad>",
        "unk_token": "[UNK]" if is_bert else "<unk>",
        "cls_token": "[CLS]" if is_bert else "<s>",
        "sep_token": "[SEP]" if is_bert else "</s>",
        "mask_token": "[MASK]" if is_bert else "<mask>",
    }
    types = ["token_type_ids"] if family.has_token_types else []
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=make_tokenizer(family.specials, added),
        model_input_names=["input_ids", *types, "attention_mask"],
        **names,
    )
    built.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Saved(folder, built, tokenizer, (), {})


def projection(width: int, out: int = WIDTH, seed: int = 0, **options: Any) -> Dense:
    """A Dense module for tokens, of random weights."""
    torch.manual_seed(seed)
    fields = {"bias": False, "activation_function": nn.Identity(), **options}
    dense = Dense(width, out, module_input_name="token_embeddings", **fields)
    with torch.no_grad():
        for parameter in dense.parameters():
            parameter.copy_(torch.randn(parameter.shape) / width**0.5)
    return dense


def save_pylate(
    family: Family,
    folder: Path,
    dense: Sequence[Dense] | None = None,
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> Saved:
    """Save a folder as PyLate does; ``changes`` are fields of ``config_sentence_transformers.json``."""
    saved = save_encoder(family, folder, **(options or {}))
    dense = [projection(saved.built.config.hidden_size)] if dense is None else dense
    modules = [("", "sentence_transformers.models.Transformer")]
    for number, module in enumerate(dense, start=1):
        activation = type(module.activation_function)
        write_json(
            folder / f"{number}_Dense/config.json",
            {
                "in_features": module.in_features,
                "out_features": module.out_features,
                "bias": module.bias,
                "activation_function": f"{activation.__module__}.{activation.__name__}",
                "use_residual": module.use_residual,
            },
        )
        save_file(dict(module.state_dict()), folder / f"{number}_Dense/model.safetensors")
        modules.append((f"{number}_Dense", "pylate.models.Dense.Dense"))
    write_json(
        folder / "modules.json",
        [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules)],
    )
    settings = {
        "query_prefix": PREFIXES[0],
        "document_prefix": PREFIXES[1],
        "query_length": 16,
        "document_length": 40,
        "attend_to_expansion_tokens": False,
        "skiplist_words": list(PUNCTUATION),
        "do_query_expansion": True,
        **changes,
    }
    header = {"model_type": "ColBERT", "prompts": {}, "default_prompt_name": None, "similarity_fn_name": "MaxSim"}
    write_json(folder / "config_sentence_transformers.json", {**header, **settings})
    # one token less than documents have, as PyLate leaves it behind: no limit to anything
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": False})
    return replace(saved, dense=tuple(dense), settings=settings)


def encode_as_pylate(saved: Saved, texts: Sequence[str], *, is_query: bool) -> list[FloatArray]:
    """Encode with transformers alone: cut, put the prefix in, fill up, hide the expansion, project, drop, scale."""
    settings, tokenizer = saved.settings, saved.tokenizer
    prefix = settings["query_prefix" if is_query else "document_prefix"]
    length = settings["query_length" if is_query else "document_length"]
    found = []
    for text in texts:
        own = tokenizer(text, truncation=True, max_length=length - bool(prefix))["input_ids"]
        ids = [own[0], *([tokenizer.convert_tokens_to_ids(prefix)] if prefix else []), *own[1:]]
        num_real = len(ids)
        if is_query and settings["do_query_expansion"]:
            ids += [tokenizer.mask_token_id] * (length - len(ids))
        mask = torch.zeros(1, len(ids), dtype=torch.int64)
        mask[:, : len(ids) if settings["attend_to_expansion_tokens"] else num_real] = 1
        with torch.no_grad():
            states = saved.built(input_ids=torch.tensor([ids]), attention_mask=mask).last_hidden_state[0]
            for dense in saved.dense:
                states = dense({"token_embeddings": states})["token_embeddings"]
            states = nn.functional.normalize(states, dim=-1)
        skipped = set() if is_query else set(tokenizer.convert_tokens_to_ids(settings["skiplist_words"]))
        found.append(states[[place for place, token in enumerate(ids) if token not in skipped]].numpy())
    return found


def our_vectors(embedder: Embedder, texts: Sequence[str], role: Role) -> list[FloatArray]:
    """Our vectors of texts, run as one batch with texts of the other role among them."""
    inputs = embedder.tokenizer.encode(texts, prompt=embedder.tokenizer.prompt(role, None), role=role)
    other: Role = "query" if role == "document" else "document"
    inputs += embedder.tokenizer.encode(texts[:3], prompt=embedder.tokenizer.prompt(other, None), role=other)
    rows = embedder.run(inputs, [embedder.own_output] * len(inputs))
    return [row.token_vectors for row in rows[: len(texts)] if row.token_vectors is not None]


def assert_same(ours: Sequence[FloatArray], theirs: Sequence[FloatArray]) -> None:
    """As many vectors of each text, and the same."""
    assert [one.shape for one in ours] == [one.shape for one in theirs]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE)


def assert_as_pylate(saved: Saved) -> Embedder:
    """Encode :data:`TEXTS` as queries and as documents with both sides; returns our side."""
    embedder = load(saved.folder, special_tokens="parse")
    assert embedder.info.kind == "late_interaction"
    for role in ("query", "document"):
        assert_same(our_vectors(embedder, TEXTS, role), encode_as_pylate(saved, TEXTS, is_query=role == "query"))
    return embedder


def assert_as_multi_vector_encoder(folder: Path) -> Embedder:
    """The same against sentence-transformers, which reads the same folder; and the scores of all with all."""
    embedder = load(folder, special_tokens="parse")
    encoder = MultiVectorEncoder(str(folder), device="cpu")
    normalize = {"normalize_embeddings": False, "convert_to_numpy": True}
    queries = encoder.encode_query(TEXTS, batch_size=2, **normalize)
    documents = encoder.encode_document(TEXTS, batch_size=3, **normalize)
    ours = {role: our_vectors(embedder, TEXTS, role) for role in ("query", "document")}
    assert_same(ours["query"], queries)
    assert_same(ours["document"], documents)
    scores = [[max_sim(query, document) for document in ours["document"]] for query in ours["query"]]
    np.testing.assert_allclose(scores, encoder.similarity(queries, documents).numpy(), rtol=0, atol=1e-4)
    return embedder


@pytest.mark.parametrize("family", SUPPORTED)
def test_every_family(family: Family, tmp_path: Path) -> None:
    """A query's expansion looks and is not looked at, a document's punctuation has no vector, in every family."""
    assert_as_pylate(save_pylate(family, tmp_path / "model"))


OPTIONS: dict[str, dict[str, Any]] = {
    "seen": {"attend_to_expansion_tokens": True},
    "not expanded": {"do_query_expansion": False},
    "no prefixes": {"query_prefix": "", "document_prefix": ""},
    "all tokens kept": {"skiplist_words": []},
    "some dropped": {"skiplist_words": ["word2", "!", "word20"]},
    "other lengths": {"query_length": 7, "document_length": 9},
    "longer queries than documents": {"query_length": 22, "document_length": 8},
}


@pytest.mark.parametrize("changes", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", ["bert", "modernbert", "mpnet"])
def test_every_setting(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Each field of PyLate's configuration does there what it does here."""
    assert_as_pylate(save_pylate(BY_NAME[name], tmp_path / "model", **changes))


DENSE: dict[str, Callable[[int], list[Dense]]] = {
    "bias": lambda width: [projection(width, bias=True)],
    "two": lambda width: [projection(width, 48, bias=True), projection(48, 12, seed=1)],
    "gelu": lambda width: [projection(width, 20, activation_function=nn.GELU()), projection(20, 10, seed=1)],
    "residual": lambda width: [projection(width, 20, use_residual=True), projection(20, 20, 1, use_residual=True)],
}


@pytest.mark.parametrize("make", DENSE.values(), ids=DENSE)
def test_every_projection(make: Callable[[int], list[Dense]], tmp_path: Path) -> None:
    """Biases, several layers, activations and residuals."""
    saved = save_pylate(BY_NAME["bert"], tmp_path / "model", make(32))
    embedder = assert_as_pylate(saved)
    assert embedder.info.dimensions == saved.dense[-1].out_features


def test_windows_and_expansion(tmp_path: Path) -> None:
    """Through a narrow window the expansion sees what is left of a query; a folder where that is nothing is refused."""
    family = BY_NAME["modernbert"]
    assert_as_pylate(save_pylate(family, tmp_path / "near", options={"local_attention": 12}, query_length=9))
    with pytest.raises(CheckpointError, match=r"query_length is 10, which must be at most 9: .*would see nothing"):
        load(save_pylate(family, tmp_path / "far", options={"local_attention": 12}, query_length=10).folder)


def test_prompts_stand_behind_the_prefix(tmp_path: Path) -> None:
    """Models with both are read as MultiVectorEncoder reads them."""
    saved = save_pylate(BY_NAME["bert"], tmp_path / "model")
    prompts = {"query": "word30 word31 ", "document": "word32 "}
    edit_json(saved.folder / "config_sentence_transformers.json", lambda config: config.update(prompts=prompts))
    embedder = assert_as_multi_vector_encoder(saved.folder)
    [item] = embedder.tokenizer.encode(["word1"], prompt=prompts["query"], role="query", details=True)
    assert item.tokens is not None
    assert item.tokens.texts[:5] == ["[CLS]", "[Q] ", "word30", "word31", "word1"]


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_pylates_folders_in_multi_vector_encoder(name: str, tmp_path: Path) -> None:
    """The third witness: sentence-transformers, on the folder as it is."""
    assert_as_multi_vector_encoder(save_pylate(BY_NAME[name], tmp_path / "model").folder)


@pytest.mark.parametrize("expansion", ["fixed", "min", "seen", None])
@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_multi_vector_encoders_own_layout(name: str, expansion: str | None, tmp_path: Path) -> None:
    """Prefixes are special tokens at the head of the prompts, the rest stands beside the Transformer and the mask."""
    added = [AddedToken(spelling, special=True, normalized=False) for spelling in PREFIXES]
    saved = save_encoder(BY_NAME[name], tmp_path / "plain", added)  # type: ignore[arg-type]
    strategy = "min" if expansion == "min" else "fixed"
    asked = {"strategy": strategy, "attend": expansion == "seen", "length": 16}
    modules = [
        Transformer(
            str(saved.folder),
            document_length=40,
            query_expansion=asked if expansion else None,
            query_length=None if expansion == "fixed" else 24,
        ),
        projection(saved.built.config.hidden_size),
        MultiVectorMask(skiplist_words=list(PUNCTUATION)),
        Normalize(module_input_name="token_embeddings"),
    ]
    prompts = {"query": PREFIXES[0], "document": f"{PREFIXES[1]}word9 "}
    MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu").save_pretrained(str(tmp_path / "own"))
    assert_as_multi_vector_encoder(tmp_path / "own")


@pytest.mark.parametrize("changes", [{}, {"attend_to_mask_tokens": True}, {"mask_punctuation": False}])
def test_the_original_colberts_layout(changes: dict[str, Any], tmp_path: Path) -> None:
    """The projection is one of the encoder's tensors, and ``artifact.metadata`` has the rest."""
    saved = save_encoder(BY_NAME["bert"], tmp_path / "model", ["[unused0]", "[unused1]"])
    dense = projection(saved.built.config.hidden_size)
    file = saved.folder / "model.safetensors"
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(file).items()}
    save_file({**tensors, "linear.weight": dense.linear.weight.detach()}, file, {"format": "pt"})
    edit_json(saved.folder / "config.json", lambda config: config.update(architectures=["HF_ColBERT"]))
    metadata = {
        "query_token_id": "[unused0]",
        "doc_token_id": "[unused1]",
        "query_maxlen": 16,
        "doc_maxlen": 40,
        "attend_to_mask_tokens": False,
        "mask_punctuation": True,
        "dim": WIDTH,
        "similarity": "cosine",
        "interaction": "colbert",
        **changes,
    }
    write_json(saved.folder / "artifact.metadata", metadata)
    embedder = assert_as_multi_vector_encoder(saved.folder)
    assert embedder.info.dimensions == WIDTH
    settings = {
        "query_prefix": "[unused0]",
        "document_prefix": "[unused1]",
        "query_length": 16,
        "document_length": 40,
        "attend_to_expansion_tokens": metadata["attend_to_mask_tokens"],
        "skiplist_words": list(PUNCTUATION) if metadata["mask_punctuation"] else [],
        "do_query_expansion": True,
    }
    assert_as_pylate(replace(saved, dense=(dense,), settings=settings))


def test_half_precision_stays_near(tmp_path: Path) -> None:
    """In bfloat16 and int8 the vectors point where they do in float32."""
    saved = save_pylate(BY_NAME["bert"], tmp_path / "model")
    for role in ("query", "document"):
        exact = np.concatenate(encode_as_pylate(saved, TEXTS, is_query=role == "query"))
        for dtype, lowest in (("bfloat16", 0.999), ("int8", 0.97)):
            near = np.concatenate(our_vectors(Embedder.load(saved.folder, dtype=dtype, threads=1), TEXTS, role))
            assert (exact * near).sum(axis=1).min() > lowest
