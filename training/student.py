"""The encoder that is trained: its configuration, its tokens, its embeddings with gradients.

A student is of one of the families of the two documents in seeds/: std norm, ReLU, sinusoidal positions, token
embeddings times sqrt(D), a final norm; ``seed-2`` norms before each sublayer, ``seed-0`` inside the residual.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from model.batch import PackedBatch, cut_by_tokens, pack
from model.checkpoint import load_encoder
from model.contract import EncodeInput, FloatArray
from model.encoder import Encoder
from model.folder import read_folder, read_tokenizer
from model.formats import Format
from model.formats.seeds import NORM_EPS, SEED_0, SEED_2
from model.pooling import POOLING_FUNCTIONS, PoolingMode, Spans
from model.tokenizer import Tokenizer, TokenizerConfig
from training.errors import RunError

FAMILIES: dict[str, Format] = {family.model_types[0]: family for family in (SEED_0, SEED_2)}
"""``model_type`` -> family."""


@dataclass(slots=True)
class Student:
    """Everything a model folder will hold, while it is trained.

    Attributes
    ----------
    encoder : Encoder
        With gradients, in float32.
    raw : dict
        Its ``config.json``.
    backend : tokenizers.Tokenizer
        As it will be saved.
    lowercase : bool
        Texts are lower-cased before the tokenizer sees them.
    pooling : PoolingMode
    """

    encoder: Encoder
    raw: dict[str, Any]
    backend: tokenizers.Tokenizer
    lowercase: bool = False
    pooling: PoolingMode = "mean"

    @property
    def family(self) -> Format:
        """The family that names the tensors."""
        return FAMILIES[self.raw["model_type"]]

    def tokenizer(self) -> Tokenizer:
        """Make a tokenizer as the server will; it works on a copy of the backend."""
        copy = tokenizers.Tokenizer.from_str(self.backend.to_str())
        return Tokenizer(copy, TokenizerConfig(self.raw["max_position_embeddings"], lowercase=self.lowercase))


def student_config(
    *,
    family: str,
    vocab_size: int,
    hidden_size: int,
    num_hidden_layers: int,
    num_attention_heads: int,
    intermediate_size: int,
    max_length: int,
    pad_token_id: int = 0,
) -> dict[str, Any]:
    """Write the ``config.json`` of a student.

    Raises
    ------
    RunError
        If no encoder can be of these sizes, or the family is unknown.
    """
    raw = {
        "model_type": family,
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": num_hidden_layers,
        "num_attention_heads": num_attention_heads,
        "intermediate_size": intermediate_size,
        "hidden_act": "relu",
        "norm_eps": NORM_EPS,
        "max_position_embeddings": max_length,
        "pad_token_id": pad_token_id,
        "embedding_scale": "sqrt",
    }
    if family not in FAMILIES:
        raise RunError(f"family {family!r} is not known, only {', '.join(FAMILIES)}")
    try:
        FAMILIES[family].encoder_config(raw)
    except ValueError as error:
        raise RunError(f"the student cannot be built: {error}") from error
    return raw


def new_encoder(raw: dict[str, Any], *, dropout: float = 0.0) -> Encoder:
    """Build an encoder with random weights, drawn from torch's generator.

    Notes
    -----
    Products as Glorot and Bengio 2010 (the seeds' ``xavier_uniform_``); token rows so that, times sqrt(D), a value has
    variance 1, as what the sinusoids add has 1/2.
    """
    config = replace(FAMILIES[raw["model_type"]].encoder_config(raw), dropout=dropout, attention_dropout=dropout)
    encoder = Encoder(config)
    for name, parameter in encoder.named_parameters():
        if name == "embedding.tokens.weight":
            nn.init.normal_(parameter, std=config.hidden_size**-0.5)
        elif parameter.ndim == 2:
            num_stacked = 3 if name.endswith("qkv.weight") else 1
            for product in parameter.detach().chunk(num_stacked):
                nn.init.xavier_uniform_(product)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return encoder


def load_student(folder: Path, *, dropout: float = 0.0) -> Student:
    """Take a trained model folder up again.

    Raises
    ------
    CheckpointError
        If the folder cannot be loaded.
    RunError
        If it is of another family, or has dense layers behind the encoder.
    """
    described = read_folder(folder)
    family = described.config.get("model_type")
    if family not in FAMILIES or described.dense:
        raise RunError(f"{folder} is no plain {' or '.join(FAMILIES)} encoder, which is what can be trained here")
    loaded = load_encoder(described, torch.float32, torch.device("cpu"), pack=False).encoder
    raw = dict(described.config)
    encoder = new_encoder(raw, dropout=dropout)
    encoder.load_state_dict(loaded.state_dict())
    return Student(encoder, raw, read_tokenizer(described), described.lowercase, described.pooling.mode)


class TokenStore:
    """The token ids of many texts in two arrays: a list of lists takes ten times the memory.

    Parameters
    ----------
    ids : array of int32
        Of all texts, one after another.
    lengths : array of n int64
    """

    def __init__(self, ids: NDArray[np.int32], lengths: NDArray[np.int64]) -> None:
        self._ids = ids
        self._starts = np.concatenate(([0], np.cumsum(lengths)))
        self.lengths = lengths

    @classmethod
    def of(cls, tokenizer: Tokenizer, texts: Sequence[str], chunk_texts: int = 8192) -> TokenStore:
        """Tokenize texts; each is cut to the tokenizer's maximum length."""
        ids: list[NDArray[np.int32]] = []
        lengths: list[int] = []
        for start in range(0, len(texts), chunk_texts):
            for item in tokenizer.encode(texts[start : start + chunk_texts]):
                ids.append(np.array(item.input_ids, dtype=np.int32))
                lengths.append(item.num_tokens)
        joined = np.concatenate(ids) if ids else np.zeros(0, dtype=np.int32)
        return cls(joined, np.array(lengths, dtype=np.int64))

    def __len__(self) -> int:
        """Count the texts."""
        return len(self.lengths)

    def inputs(self, places: Sequence[int] | NDArray[np.int64]) -> list[EncodeInput]:
        """Return some texts as the encoder takes them."""
        found = []
        for place in places:
            ids: list[int] = self._ids[self._starts[place] : self._starts[place + 1]].tolist()
            found.append(EncodeInput(ids, [0] * len(ids), len(ids)))
        return found


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[object]:
    """Run products in ``dtype`` while weights stay float32; nothing at all for float32."""
    if dtype == torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=dtype)


@dataclass(frozen=True, slots=True)
class Encoded:
    """What an encoder makes of a batch.

    Attributes
    ----------
    states : Tensor, shape (T, D), float32
        The last layer's, packed: the same for every encoder that is given the same inputs.
    rows : Tensor, shape (B, D), float32
        Embeddings in the order of the inputs, not scaled to unit length.
    """

    states: Tensor
    rows: Tensor


def embed(encoder: Encoder, inputs: Sequence[EncodeInput], pooling: PoolingMode, dtype: torch.dtype) -> Tensor:
    """Run one batch for its embeddings alone: :attr:`Encoded.rows` of :func:`encode`."""
    return encode(encoder, inputs, pooling, dtype).rows


def encode(encoder: Encoder, inputs: Sequence[EncodeInput], pooling: PoolingMode, dtype: torch.dtype) -> Encoded:
    """Run one batch, with gradients where they are on.

    Parameters
    ----------
    encoder : Encoder
    inputs : sequence of B EncodeInput
    pooling : PoolingMode
    dtype : torch.dtype
        Of the products.

    Returns
    -------
    Encoded
    """
    device = encoder.embedding.tokens.weight.device
    batch = pack(inputs, device)
    with autocast(device, dtype):
        hidden_states = encoder(batch).last_hidden_state.float()  # (T, D)
    pooled = _pool(hidden_states, batch, pooling)  # (B, D), in the order of the pack
    places = torch.empty(len(batch.order), dtype=torch.int64)
    places[list(batch.order)] = torch.arange(len(batch.order))
    return Encoded(hidden_states[: sum(batch.lengths)], pooled[places.to(device)])  # idle rows stay out


def _pool(hidden_states: Tensor, batch: PackedBatch, mode: PoolingMode) -> Tensor:
    """Pool with a backward pass in one piece: a mean of slices would write zeros of (T, D) for every text."""
    if mode != "mean":
        return POOLING_FUNCTIONS[mode](hidden_states, Spans(batch.starts, _stops(batch)))
    lengths = torch.tensor(batch.lengths, device=hidden_states.device)
    text_of_token = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)  # (T,)
    sums = hidden_states.new_zeros(len(lengths), hidden_states.shape[1])
    sums = sums.index_add(0, text_of_token, hidden_states[: len(text_of_token)])  # idle rows stay out
    return sums / lengths.unsqueeze(1)


def _stops(batch: PackedBatch) -> tuple[int, ...]:
    return tuple(start + length for start, length in zip(batch.starts, batch.lengths, strict=True))


@torch.no_grad()
def embed_all(
    encoder: Encoder, store: TokenStore, pooling: PoolingMode, dtype: torch.dtype, max_tokens: int = 4096
) -> FloatArray:
    """Embed every text of a store as the server would, without dropout.

    Returns
    -------
    array, shape (n, D), float32
        Not scaled to unit length.
    """
    was_training = encoder.training
    encoder.eval()
    rows = np.empty((len(store), encoder.config.hidden_size), dtype=np.float32)
    for batch in cut_by_tokens(store.lengths.tolist(), max_tokens):
        rows[batch] = embed(encoder, store.inputs(batch), pooling, dtype).cpu().numpy()
    encoder.train(was_training)
    return rows
