"""Claims about the families of the two documents in seeds/."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.batch import pack
from model.contract import AttentionSelection, EncodeInput
from model.encoder import Encoder
from model.formats import Format
from model.formats.seeds import SEED_0, SEED_2

REFERENCE = Path(__file__).parents[2] / "reference"
RAW = {
    "vocab_size": 97,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "intermediate_size": 128,
    "hidden_act": "relu",
    "norm_eps": 1e-6,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "embedding_scale": "sqrt",
}
families = pytest.mark.parametrize("family", [SEED_0, SEED_2], ids=lambda family: family.model_types[0])


def raw_config(family: Format, **changes: object) -> dict[str, Any]:
    """The configuration of the reference encoder, changed where asked."""
    return {"model_type": family.model_types[0], **RAW, **changes}


def reference_tensors(family: Format) -> dict[str, torch.Tensor]:
    """The state dict of the original encoder."""
    return torch.load(REFERENCE / f"{family.model_types[0]}.pt", weights_only=True)


def reference_encoder(family: Format) -> Encoder:
    """Our encoder with the original's weights."""
    config = family.encoder_config(raw_config(family))
    theirs = reference_tensors(family)
    encoder = Encoder(config)
    encoder.load_state_dict(
        {ours: torch.cat([theirs[name] for name in names]) for ours, names in family.sources(config).items()}
    )
    return encoder.eval()


@families
def test_the_family_uses_every_tensor_of_its_reference_once(family: Format) -> None:
    """No tensor of the original encoder is left out, none is used twice, none is made up."""
    sources = family.sources(family.encoder_config(raw_config(family)))
    used = [name for names in sources.values() for name in names]
    assert sorted(used) == sorted(reference_tensors(family))


@families
def test_hidden_states_are_those_of_the_original(family: Format) -> None:
    """The output after the final norm agrees with the original code within 1e-5 at every real position."""
    answers = np.load(REFERENCE / f"{family.model_types[0]}.npz")
    encoder = reference_encoder(family)
    lengths = answers["padding_mask"].sum(axis=1)
    for ids, length, expected in zip(answers["input_ids"], lengths, answers["output"], strict=True):
        text = EncodeInput(ids[:length].tolist(), [0] * int(length), int(length))
        with torch.inference_mode():
            states = encoder(pack([text])).last_hidden_state[:length].numpy()
        np.testing.assert_allclose(states, expected[:length], atol=1e-5, rtol=0)


@families
def test_attention_maps_are_those_of_the_original(family: Format) -> None:
    """Every head of every layer agrees with the original code within 1e-5, with the texts in one batch."""
    answers = np.load(REFERENCE / f"{family.model_types[0]}.npz")
    encoder = reference_encoder(family)
    lengths = answers["padding_mask"].sum(axis=1).tolist()
    texts = [
        EncodeInput(ids[:length].tolist(), [0] * length, length)
        for ids, length in zip(answers["input_ids"], lengths, strict=True)
    ]
    batch = pack(texts)
    everything = AttentionSelection(layers=(0, 1, 2), heads=tuple(range(8)))
    with torch.inference_mode():
        maps = encoder(batch, [everything] * len(texts)).attentions
    for place, text in enumerate(batch.order):
        length = lengths[text]
        expected = answers["attentions"][:, text, :, :length, :length]
        np.testing.assert_allclose(maps[place].maps, expected, atol=1e-5, rtol=0)


@families
def test_token_embeddings_are_scaled_by_the_root_of_the_width(family: Format) -> None:
    """Without a word about it, and with "sqrt", token embeddings are multiplied by sqrt(D)."""
    silent = raw_config(family)
    del silent["embedding_scale"]
    assert family.encoder_config(silent).embedding_scale == math.sqrt(64)
    assert family.encoder_config(raw_config(family)).embedding_scale == math.sqrt(64)


@families
def test_the_scale_of_token_embeddings_may_be_a_number(family: Format) -> None:
    """A model trained without the scale says so with 1."""
    assert family.encoder_config(raw_config(family, embedding_scale=1)).embedding_scale == 1.0


@families
@pytest.mark.parametrize("scale", ["root", True, None, math.inf])
def test_a_scale_that_is_no_number_is_refused(family: Format, scale: object) -> None:
    """Anything but "sqrt" or a finite number is refused with the field's name."""
    with pytest.raises(ValueError, match="embedding_scale"):
        family.encoder_config(raw_config(family, embedding_scale=scale))


@families
def test_the_activation_is_read_and_relu_without_one(family: Format) -> None:
    """``hidden_act`` chooses the activation; both documents use ReLU where nothing is said."""
    silent = raw_config(family)
    del silent["hidden_act"]
    assert family.encoder_config(silent).activation == "relu"
    assert family.encoder_config(raw_config(family, hidden_act="gelu")).activation == "gelu"


@families
@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "num_attention_heads", "max_position_embeddings"])
def test_a_missing_size_is_named(family: Format, field: str) -> None:
    """A size that the configuration does not give is a KeyError with its name, never a default."""
    incomplete = raw_config(family)
    del incomplete[field]
    with pytest.raises(KeyError, match=field):
        family.encoder_config(incomplete)


def test_the_two_documents_put_the_norm_in_different_places() -> None:
    """Seed 0 norms what a sublayer gives, seed 2 what it gets."""
    assert SEED_0.encoder_config(raw_config(SEED_0)).norm_placement == "residual"
    assert SEED_2.encoder_config(raw_config(SEED_2)).norm_placement == "pre"
