"""Tiny random models of every family, saved as their own libraries save them.

Weights are drawn anew with a large spread, norms and biases included: with a library's own initial values (norms 1,
biases 0, everything near 0) a missing bias or two swapped norms would not show.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from model.contract import AttentionSelection, EncodeInput, OutputSpec, Row
from model.embedder import Embedder
from model.tokenizer import SpecialTokens

NUM_WORDS = 90
WORDS = [f"word{index}" for index in range(NUM_WORDS)]

BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")

VOCAB_SIZE = NUM_WORDS + len(BERT_SPECIALS)

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 56,
    "max_position_embeddings": 140,
}

TOLERANCE = 1e-5


@dataclass(frozen=True)
class Family:
    """One tiny model: which classes of transformers make it, and with which configuration.

    Attributes
    ----------
    name : str
    config : str
        Class in transformers, as are ``base`` and ``heads``.
    base : str
    heads : tuple of str
        Models whose checkpoints hold the same encoder under a prefix, and a head beside it.
    options : dict
        What differs from :data:`SIZES`.
    specials : tuple of str
        Special tokens, in the order of their ids.
    has_token_types : bool
        Whether the model reads ``token_type_ids``.
    lengths : tuple of int
        Tokens of the texts that are compared.
    """

    name: str
    config: str
    base: str
    heads: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    specials: tuple[str, ...] = BERT_SPECIALS
    has_token_types: bool = True
    lengths: tuple[int, ...] = (2, 3, 7, 8, 17, 17, 31, 40)

    def build(self, class_name: str | None = None) -> transformers.PreTrainedModel:
        """Build a model of this family with eager attention, the same weights every time."""
        config = getattr(transformers, self.config)(**{**SIZES, **self.options})
        config._attn_implementation = "eager"  # the only one that hands its attention weights out
        built = getattr(transformers, class_name or self.base)(config).eval()
        return redraw(built)


def redraw(built: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """Give every parameter a value of its own, with these spreads: tables 0.7, norms 0.3 around 1, biases 0.3.

    Matrices keep the size of what they multiply (1.3 / sqrt(columns)), so that rounding stays near 1e-6. A parameter's
    value depends on its name below the family's prefix alone, so that a model with a head holds the same encoder.
    """
    prefix = f"{built.base_model_prefix}."
    tables = {id(module.weight) for module in built.modules() if isinstance(module, torch.nn.Embedding)}
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            generator = torch.Generator().manual_seed(crc32(name.removeprefix(prefix).encode()))
            noise = torch.randn(parameter.shape, generator=generator)
            if id(parameter) in tables:
                parameter.copy_(0.7 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.3 * noise + (1.0 if name.endswith("weight") else 0.0))
            else:
                parameter.copy_(1.3 / parameter.shape[1] ** 0.5 * noise)
    return built


def make_tokenizer(specials: Sequence[str] = BERT_SPECIALS, *, lowercase: bool = False) -> Tokenizer:
    """Build a word-level tokenizer: the special tokens, then :data:`WORDS`."""
    vocabulary = {word: index for index, word in enumerate((*specials, *WORDS))}
    is_bert = specials[0] == "[PAD]"
    first, last, unknown = ("[CLS]", "[SEP]", "[UNK]") if is_bert else ("<s>", "</s>", "<unk>")
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase()] if lowercase else [])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1" if is_bert else f"{first} $A {last} {last} $B {last}",
        special_tokens=[(first, vocabulary[first]), (last, vocabulary[last])],
    )
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, specials: Sequence[str] = BERT_SPECIALS) -> None:
    """Save a tokenizer the way transformers does, so that both sides can load the folder."""
    padding, unknown = ("[PAD]", "[UNK]") if specials[0] == "[PAD]" else ("<pad>", "<unk>")
    first, last = ("[CLS]", "[SEP]") if specials[0] == "[PAD]" else ("<s>", "</s>")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=unknown, pad_token=padding, cls_token=first, sep_token=last
    ).save_pretrained(folder)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a JSON file in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def save_modules(folder: Path, width: int = SIZES["hidden_size"], mode: str = "mean") -> None:
    """Write ``modules.json`` and ``1_Pooling`` as sentence-transformers wrote them until its version 5."""
    names = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens", "lasttoken": "lasttoken"}
    types = [("", "Transformer"), ("1_Pooling", "Pooling")]
    write_json(
        folder / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(types)
        ],
    )
    pooling = {f"pooling_mode_{name}": key == mode for key, name in names.items()}
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": width, **pooling})


def save(
    built: transformers.PreTrainedModel, folder: Path, specials: Sequence[str] = BERT_SPECIALS, **options: Any
) -> Path:
    """Save a model folder: weights, configuration, tokenizer, mean pooling. ``options`` go to ``save_pretrained``."""
    built.save_pretrained(folder, **options)
    save_tokenizer(make_tokenizer(specials), folder, specials)
    save_modules(folder, built.config.hidden_size)
    return folder


def random_inputs(family: Family, seed: int = 0) -> list[EncodeInput]:
    """Draw token ids, never the padding id, and for models that read them token types of two segments."""
    draw = random.Random(seed)
    first_word = len(family.specials)
    inputs = []
    for length in family.lengths:
        ids = [draw.randrange(first_word, VOCAB_SIZE) for _ in range(length)]
        border = draw.randrange(1, length + 1)
        types = [int(family.has_token_types and position >= border) for position in range(length)]
        inputs.append(EncodeInput(ids, types, length))
    return inputs


@dataclass(frozen=True)
class Answer:
    """What the reference says about one text: (L, D), (D,) and (N, H, L, L), float32."""

    last_hidden_state: torch.Tensor
    embedding: torch.Tensor
    attentions: torch.Tensor


@torch.no_grad()
def reference(built: transformers.PreTrainedModel, family: Family, inputs: Sequence[EncodeInput]) -> list[Answer]:
    """Ask transformers, each text by itself and in float64, so that only our rounding counts."""
    encoder = copy.deepcopy(built.base_model).double()
    answers = []
    for item in inputs:
        types = {"token_type_ids": torch.tensor([item.token_type_ids])} if family.has_token_types else {}
        ids = torch.tensor([item.input_ids])
        out = encoder(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True, **types)
        hidden = out.last_hidden_state[0].float()
        answers.append(Answer(hidden, hidden.mean(dim=0), torch.stack(out.attentions)[:, 0].float()))
    return answers


def everything(family_config: Any) -> OutputSpec:
    """Ask for the hidden states, the raw embedding and every map."""
    layers, heads = family_config.num_hidden_layers, family_config.num_attention_heads
    selection = AttentionSelection(tuple(range(layers)), tuple(range(heads)))
    return OutputSpec(normalize=False, token_states=True, attention=selection)


def load(folder: Path, special_tokens: SpecialTokens = "text") -> Embedder:
    """Load a folder in float32, with one thread: more of them only wait for each other on models as small as these."""
    return Embedder.load(folder, dtype="float32", threads=1, special_tokens=special_tokens)


def run(embedder: Embedder, inputs: Sequence[EncodeInput], config: Any) -> list[Row]:
    """Run inputs as one batch, asking for everything."""
    return embedder.run(inputs, [everything(config)] * len(inputs))


def assert_same(row: Row, answer: Answer, tolerance: float = TOLERANCE) -> None:
    """Compare hidden states, embedding and every map; the tolerance is for numbers up to 1, and grows with them.

    Which digits are right differs by processor: on one, float32 is 1.0e-5 off in states of up to 5.
    """
    for name, ours, theirs in (
        ("token_states", row.token_states, answer.last_hidden_state),
        ("embedding", row.embedding, answer.embedding),
        ("attention", row.maps, answer.attentions),
    ):
        assert ours is not None, name
        torch.testing.assert_close(
            torch.from_numpy(ours),
            theirs,
            rtol=0.0,
            atol=tolerance * max(1.0, float(theirs.abs().max())),
            msg=lambda message, name=name: f"{name}: {message}",
        )
