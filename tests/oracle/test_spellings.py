"""Configurations in their other spellings, and rotations transformers knows under other names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb, create_sinusoidal_positions
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from model.config import RotaryConfig
from model.embedder import Embedder
from model.positions import relative_buckets, rotary_tables, rotate
from tests.oracle.families import BY_NAME, MODERNBERT_IDS
from tests.oracle.tiny import (
    SIZES,
    Family,
    assert_same,
    edit_json,
    load,
    random_inputs,
    reference,
    run,
    save,
    write_json,
)

pytestmark = pytest.mark.oracle

# A gated size is rounded up to a multiple of 256 in the authors' spelling.
NOMIC = Family(
    "nomic-authors",
    "NomicBertConfig",
    "NomicBertModel",
    options={"intermediate_size": 256, "rope_parameters": {"rope_type": "default", "rope_theta": 700.0}},
)

AUTHORS_CONFIG = {
    "model_type": "nomic_bert",
    "activation_function": "swiglu",
    "attn_pdrop": 0.0,
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 64,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": SIZES["hidden_size"],
    "n_head": SIZES["num_attention_heads"],
    "n_inner": 200,
    "n_layer": SIZES["num_hidden_layers"],
    "n_positions": SIZES["max_position_embeddings"],
    "pad_vocab_size_multiple": 1,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 700,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": SIZES["vocab_size"],
}


def assert_agrees(family: Family, folder: Path) -> Embedder:
    """Load the folder and compare one mixed batch with the family's own model."""
    built, inputs = family.build(), random_inputs(family, seed=5)
    embedder = load(folder)
    for row, answer in zip(run(embedder, inputs, built.config), reference(built, family, inputs), strict=True):
        assert_same(row, answer)
    return embedder


def test_nomic_authors_config(tmp_path: Path) -> None:
    """NomicBERT with its authors' config.json, named after GPT-2's fields, is the model transformers builds."""
    save(NOMIC.build(), tmp_path)
    write_json(tmp_path / "config.json", AUTHORS_CONFIG)
    assert_agrees(NOMIC, tmp_path)


def test_nomic_dynamic_scaling_is_not_reached(tmp_path: Path) -> None:
    """With rotary_scaling_factor, texts get the trained base, and are cut to max_trained_positions tokens."""
    save(NOMIC.build(), tmp_path)
    write_json(tmp_path / "config.json", {**AUTHORS_CONFIG, "rotary_scaling_factor": 2.0})
    assert assert_agrees(NOMIC, tmp_path).tokenizer.max_length == 64


def test_nomic_both_spellings(tmp_path: Path) -> None:
    """A config.json that holds the fields of both spellings loads as either does."""
    save(NOMIC.build(), tmp_path)
    edit_json(tmp_path / "config.json", lambda raw: raw.update(AUTHORS_CONFIG))
    assert_agrees(NOMIC, tmp_path)


def to_older_modernbert(raw: dict[str, Any]) -> None:
    """Rewrite a config.json of today as the library wrote it before version 5."""
    every = 2
    raw.pop("layer_types")
    rope = raw.pop("rope_parameters")
    raw["global_attn_every_n_layers"] = every
    raw["global_rope_theta"] = rope["full_attention"]["rope_theta"]
    raw["local_rope_theta"] = rope["sliding_attention"]["rope_theta"]


def test_modernbert_older_config(tmp_path: Path) -> None:
    """ModernBERT's older fields mean what layer_types and rope_parameters mean."""
    layers = MODERNBERT_IDS["num_hidden_layers"]
    family = Family(
        "modernbert-older",
        "ModernBertConfig",
        "ModernBertModel",
        options={
            **MODERNBERT_IDS,
            "layer_types": ["full_attention" if index % 2 == 0 else "sliding_attention" for index in range(layers)],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 800.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 60.0},
            },
        },
        has_token_types=False,
    )
    save(family.build(), tmp_path)
    edit_json(tmp_path / "config.json", to_older_modernbert)
    assert "layer_types" not in json.loads((tmp_path / "config.json").read_text())
    assert_agrees(family, tmp_path)


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("bert", ("type_vocab_size", "layer_norm_eps")),
        ("roberta-two-types", ("type_vocab_size", "layer_norm_eps")),
        ("xlm-roberta", ("pad_token_id",)),
        ("mpnet", ("relative_attention_num_buckets", "layer_norm_eps", "pad_token_id")),
        ("nomic", ("rope_parameters", "layer_norm_eps", "type_vocab_size", "head_dim", "hidden_act")),
        (
            "modernbert",
            (
                "layer_types",
                "rope_parameters",
                "norm_eps",
                "norm_bias",
                "attention_bias",
                "mlp_bias",
                "hidden_activation",
            ),
        ),
    ],
)
def test_left_out_fields(name: str, left_out: tuple[str, ...], tmp_path: Path) -> None:
    """A field that config.json leaves out has the default it has in transformers."""
    family = BY_NAME[name]
    save(family.build(), tmp_path, family.specials)

    def leave_out(raw: dict[str, Any]) -> None:
        for field in left_out:
            del raw[field]

    edit_json(tmp_path / "config.json", leave_out)
    built = AutoModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    inputs = random_inputs(family, seed=7)
    rows = run(load(tmp_path), inputs, built.config)
    for row, answer in zip(rows, reference(built, family, inputs), strict=True):
        assert_same(row, answer)


def test_modernbert_windows_matter() -> None:
    """The tiny ModernBERT has layers whose window hides tokens at length 40, and layers that hide none."""
    family = BY_NAME["modernbert"]
    answer = reference(family.build(), family, random_inputs(family))[-1]
    hidden = [(maps == 0).any().item() for maps in answer.attentions]
    assert hidden == [False, True, True, False, True]


@pytest.mark.parametrize("rotated", [2, 4, 8])
def test_interleaved_share_of_a_head(rotated: int) -> None:
    """Rotating neighbours, and a share of each head, is what GPT-J does (base 10,000)."""
    length, heads, size = 50, 3, 8
    x = torch.randn(length, heads, size, generator=torch.Generator().manual_seed(6))
    sine, cosine = create_sinusoidal_positions(length, rotated).chunk(2, dim=-1)
    theirs = apply_rotary_pos_emb(x[None, :, :, :rotated], sine[None], cosine[None])[0]
    rotary = RotaryConfig(fraction=rotated / size, interleaved=True)
    ours = rotate(x, *rotary_tables(torch.arange(length), size, rotary), interleaved=True)
    torch.testing.assert_close(ours[..., :rotated], theirs, rtol=0.0, atol=1e-5)
    assert torch.equal(ours[..., rotated:], x[..., rotated:])


def test_relative_buckets() -> None:
    """Every distance up to 600 falls into the bucket MPNet puts it in, also where the logarithm is whole."""
    positions = torch.arange(600)
    theirs = MPNetEncoder.relative_position_bucket(positions[None, :] - positions[:, None])
    assert torch.equal(relative_buckets(600, 32, 128), theirs)
