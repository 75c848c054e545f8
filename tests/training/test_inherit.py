"""What a student takes over from its teacher."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model.checkpoint import load_encoder
from model.config import EncoderConfig
from model.encoder import Encoder
from model.folder import read_folder
from tests.training.seeds import make_student
from training.errors import RunError
from training.inherit import inherit, spread_layers

ROWS = list[int | None](range(1000))


def load_teacher(folder: Path) -> Encoder:
    """Load a teacher as distillation does."""
    return load_encoder(read_folder(folder), torch.float32, torch.device("cpu"), pack=False).encoder


def resized(config: EncoderConfig, **changes: int) -> Encoder:
    """Build an encoder of other sizes, all its weights 7."""
    encoder = Encoder(replace(config, layers=(), **changes))
    for parameter in encoder.parameters():
        torch.nn.init.constant_(parameter, 7.0)
    return encoder


def test_layers_are_spread_from_first_to_last() -> None:
    """As many as the student has, in the teacher's order."""
    assert spread_layers(6, 6) == (0, 1, 2, 3, 4, 5)
    assert spread_layers(6, 3) == (0, 2, 5)
    assert spread_layers(12, 2) == (0, 11)
    assert spread_layers(6, 1) == (0,)
    assert spread_layers(2, 4) == (0, 0, 1, 1)


def test_products_are_copied_from_the_chosen_layers(teacher: Path) -> None:
    """Layer 0 of the student begins as layer 1 of the teacher, and the other way round."""
    theirs, ours = load_teacher(teacher), make_student().encoder
    copied = inherit(ours, theirs, [1, 0], ROWS[: ours.config.vocab_size])
    for index, layer in ((0, 1), (1, 0)):
        for part in ("self_attention.qkv", "self_attention.out", "feed_forward.expand", "feed_forward.contract"):
            for kind in ("weight", "bias"):
                name = f"layers.{index}.{part}.{kind}"
                assert torch.equal(ours.get_parameter(name), theirs.get_parameter(f"layers.{layer}.{part}.{kind}"))
                assert name in copied
    assert len(copied) == len(set(copied)) == len(ours.state_dict())


def test_a_token_begins_as_the_teachers_in_a_size_of_its_own(teacher: Path) -> None:
    """Its direction is the teacher's; the rows together have variance 1 behind the scale; unknown rows stay."""
    theirs, ours = load_teacher(teacher), make_student().encoder
    before = ours.embedding.tokens.weight.detach().clone()
    rows: list[int | None] = [None] * ours.config.vocab_size
    rows[5], rows[6] = 8, 9
    inherit(ours, theirs, [0, 1], rows)
    seen = ours.embedding.tokens(torch.tensor([5, 6])).detach()
    expected = theirs.embedding.tokens.weight[8:10]
    assert torch.allclose(seen / seen.norm(), expected / expected.norm(), atol=1e-6)
    assert float(seen.square().mean()) == pytest.approx(1)
    assert torch.equal(ours.embedding.tokens.weight[7:], before[7:])


def test_a_norm_takes_the_gains_of_the_norm_before_the_same_sublayer(teacher: Path) -> None:
    """Of a teacher that norms after the residual: one place earlier; first the embeddings', last the last layer's."""
    theirs, ours = load_teacher(teacher), make_student().encoder
    inherit(ours, theirs, [0, 1], ROWS[: ours.config.vocab_size])
    for target, source in (
        ("layers.0.sublayers.0.norm", "embedding.norm"),
        ("layers.0.sublayers.1.norm", "layers.0.sublayers.0.norm"),
        ("layers.1.sublayers.0.norm", "layers.0.sublayers.1.norm"),
        ("layers.1.sublayers.1.norm", "layers.1.sublayers.0.norm"),
        ("norm", "layers.1.sublayers.1.norm"),
    ):
        for kind in ("weight", "bias"):
            assert torch.equal(ours.get_parameter(f"{target}.{kind}"), theirs.get_parameter(f"{source}.{kind}"))


def test_a_teacher_of_the_students_family_is_copied_whole() -> None:
    """The same embeddings before any training."""
    theirs, ours = make_student(seed=1), make_student(seed=2)
    for norm in (module for name, module in theirs.encoder.named_modules() if name.endswith("norm")):
        torch.nn.init.normal_(norm.get_parameter("weight"))
    inherit(ours.encoder, theirs.encoder, [0, 1], ROWS[: ours.encoder.config.vocab_size])
    for name, tensor in theirs.encoder.state_dict().items():
        assert torch.allclose(ours.encoder.state_dict()[name], tensor), name


def test_a_student_that_norms_inside_the_residual_keeps_its_own_norms(teacher: Path) -> None:
    """What they norm is another thing."""
    ours = make_student("seed-0").encoder
    copied = inherit(ours, load_teacher(teacher), [0, 1], ROWS[: ours.config.vocab_size])
    assert not any("norm" in name for name in copied)
    assert bool((ours.get_parameter("layers.0.sublayers.0.norm.weight") == 1).all())


def test_a_narrower_feed_forward_takes_the_strongest_neurons(teacher: Path) -> None:
    """Those with the largest product of weights in and out, in the teacher's order, with their biases."""
    theirs = load_teacher(teacher)
    ours = resized(make_student().encoder.config, intermediate_size=5)
    inherit(ours, theirs, [0, 1], ROWS[: ours.config.vocab_size])
    layer = theirs.layers[0].feed_forward
    strength = layer.expand.weight.norm(dim=1) * layer.contract.weight.norm(dim=0)
    kept = sorted(sorted(range(24), key=lambda neuron: -float(strength[neuron]))[:5])
    found = ours.layers[0].feed_forward
    assert torch.equal(found.expand.weight, layer.expand.weight[kept])
    assert torch.equal(found.contract.weight, layer.contract.weight[:, kept])
    assert torch.equal(found.expand.bias, layer.expand.bias[kept])


def test_a_wider_feed_forward_keeps_its_other_neurons(teacher: Path) -> None:
    """What the teacher does not fill stays as it was drawn."""
    theirs = load_teacher(teacher)
    ours = resized(make_student().encoder.config, intermediate_size=30)
    inherit(ours, theirs, [0, 1], ROWS[: ours.config.vocab_size])
    found = ours.layers[1].feed_forward
    assert torch.equal(found.expand.weight[:24], theirs.layers[1].feed_forward.expand.weight)
    assert bool((found.expand.weight[24:] == 7).all())


def test_other_heads_leave_attention_alone_and_another_width_everything(teacher: Path) -> None:
    """A head of another size is another head; a product of another width is another product."""
    theirs, config = load_teacher(teacher), make_student().encoder.config
    copied = inherit(resized(config, num_attention_heads=4), theirs, [0, 1], ROWS[: config.vocab_size])
    assert copied
    assert not any("attention" in name for name in copied)
    assert inherit(resized(config, hidden_size=32), theirs, [0, 1], ROWS[: config.vocab_size]) == []


@pytest.mark.parametrize("layers", [[0], [0, 2], [0, -1], [0, 1, 1]])
def test_layers_that_are_not_there_are_refused(teacher: Path, layers: list[int]) -> None:
    """One layer of the teacher for each of the student."""
    ours = make_student().encoder
    with pytest.raises(RunError, match=r"one from 0 to 1 is needed for each of the student's 2 layers$"):
        inherit(ours, load_teacher(teacher), layers, ROWS[: ours.config.vocab_size])
