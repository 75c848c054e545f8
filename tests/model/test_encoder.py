"""Claims about the encoder: every family's choices against a slow one, its norm, and that it can be trained."""

from __future__ import annotations

import random
import weakref
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

import model.attention
import model.attention_cores
from model.attention_cores import attend_alone, attend_explicit, attend_fused, attention_weights
from model.batch import GROUPING, Grouping, pack
from model.config import EncoderConfig, LayerConfig, RotaryConfig
from model.contract import AttentionSelection, EncodeInput, RolloutSelection, TextAttention, TokenTable
from model.encoder import Encoder, FeedForward, StdNorm, make_norm
from model.linear import pack_linear_layers
from tests.model.slow_encoder import slow_encoder

VOCAB = 23
LENGTHS = (1, 2, 9, 5, 5, 14, 3, 12)


def make_config(**changes: object) -> EncoderConfig:
    """BERT in small, changed where asked."""
    sizes: dict[str, object] = {
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 20,
        "norm": "layer",
        "norm_placement": "post",
        "norm_eps": 1e-6,
        "activation": "gelu",
        "positions": "learned",
        "max_positions": 16,
    }
    return EncoderConfig(**{**sizes, **changes})


SEED = {"norm": "std", "positions": "sinusoidal", "activation": "relu", "final_norm": True, "embedding_scale": 4.0}
NO_BIAS = {"norm_bias": False, "attention_bias": False, "attention_out_bias": False, "feed_forward_bias": False}
ROTARY = RotaryConfig(base=160.0)

CONFIGS = {
    "bert": make_config(num_token_types=2, embedding_norm=True),
    "roberta": make_config(num_token_types=1, embedding_norm=True, position_offset=2, activation="gelu_tanh"),
    "seed 0": make_config(norm_placement="residual", **SEED),
    "seed 2": make_config(norm_placement="pre", **SEED),
    "mpnet": make_config(positions="relative", position_offset=2, relative_num_buckets=8, relative_max_distance=10),
    "electra": make_config(embedding_size=6, embedding_norm=True, num_token_types=2),
    "nomic": make_config(
        positions="rotary",
        activation="swiglu",
        embedding_norm=True,
        layers=(LayerConfig(rotary=ROTARY),) * 2,
        **NO_BIAS,
    ),
    "nomic, interleaved half": make_config(
        positions="rotary",
        activation="swiglu",
        layers=(LayerConfig(rotary=RotaryConfig(fraction=0.5, interleaved=True, scaling=2.0)),) * 2,
    ),
    "modernbert": make_config(
        num_hidden_layers=3,
        positions="rotary",
        activation="geglu",
        norm_placement="pre",
        embedding_norm=True,
        final_norm=True,
        layers=(
            LayerConfig(rotary=RotaryConfig(base=900.0), attention_norm=False),
            LayerConfig(rotary=ROTARY, window=2),
            LayerConfig(rotary=ROTARY, window=2),
        ),
        **NO_BIAS,
    ),
    "rms, silu, no positions": make_config(norm="rms", norm_bias=False, activation="silu", positions="none"),
    "causal": make_config(causal=True),
    "causal window": make_config(causal=True, layers=(LayerConfig(window=3),) * 2),
    "window over relative positions": make_config(
        positions="relative", relative_num_buckets=8, relative_max_distance=10, layers=(LayerConfig(window=2),) * 2
    ),
}
cores = pytest.mark.parametrize("core", [attend_fused, attend_alone, attend_explicit])


@pytest.fixture(autouse=True)
def nothing_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the short texts of these tests computed as long ones are, where that is asked for."""
    monkeypatch.setattr(model.attention_cores, "LONG_TEXT", 1)


def make_encoder(config: EncoderConfig, attend: object = attend_fused) -> Encoder:
    """An encoder whose every parameter, norms and biases included, is drawn with a large spread."""
    encoder = Encoder(config, attend)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in encoder.parameters():
            spread = 0.5 if parameter.dim() == 1 else 1.2 / parameter.shape[-1] ** 0.5
            parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
    return encoder.eval()


def make_texts(lengths: tuple[int, ...] = LENGTHS) -> list[EncodeInput]:
    """Texts of random ids; the second half of each is of type 1."""
    drawn = random.Random(3)
    return [
        EncodeInput(drawn.choices(range(VOCAB), k=length), [int(2 * i >= length) for i in range(length)], length)
        for length in lengths
    ]


def run(
    encoder: Encoder, texts: list[EncodeInput], selection: AttentionSelection | None, grouping: Grouping = GROUPING
) -> list[tuple[Tensor, Tensor | None]]:
    """Encode a batch; states and maps of each text in the texts' own order."""
    batch = pack(texts, grouping=grouping)
    with torch.inference_mode():
        output = encoder(batch, [selection] * len(texts))
    results: list[tuple[Tensor, Tensor | None]] = [(torch.empty(0), None)] * len(texts)
    for place, text in enumerate(batch.order):
        start = batch.starts[place]
        states = output.last_hidden_state[start : start + batch.lengths[place]]
        attended = output.attentions[place]
        results[text] = (states, None if attended is None else torch.from_numpy(attended.maps))
    return results


def all_maps(config: EncoderConfig) -> AttentionSelection:
    """Every head of every layer."""
    return AttentionSelection(tuple(range(config.num_hidden_layers)), tuple(range(config.num_attention_heads)))


@cache
def slow_answers(name: str) -> list[tuple[Tensor, Tensor]]:
    """States and maps of every text by the slow encoder."""
    parameters = make_encoder(CONFIGS[name]).state_dict()
    return [slow_encoder(CONFIGS[name], parameters, text) for text in make_texts()]


@cores
@pytest.mark.parametrize("name", CONFIGS)
def test_every_choice_agrees_with_the_slow_encoder(name: str, core: object) -> None:
    """Token states and every map of a mixed batch are those of an encoder that knows neither packing nor kernels."""
    config = CONFIGS[name]
    encoder = make_encoder(config, core)
    texts = make_texts()
    results = zip(slow_answers(name), run(encoder, texts, all_maps(config)), strict=True)
    for (expected_states, expected_maps), (states, maps) in results:
        torch.testing.assert_close(states.double(), expected_states, rtol=0, atol=2e-5)
        assert maps is not None
        assert maps.dtype == torch.float32
        torch.testing.assert_close(maps.double(), expected_maps, rtol=0, atol=1e-5)
        torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]), rtol=0, atol=1e-6)


@cores
@pytest.mark.parametrize("grouping", [Grouping(align=16), Grouping(0.0), Grouping(alone_from=5)])
@pytest.mark.parametrize("name", CONFIGS)
def test_how_texts_are_grouped_changes_no_answer(name: str, grouping: Grouping, core: object) -> None:
    """Longer groups, groups of one length, groups of one text."""
    encoder = make_encoder(CONFIGS[name], core)
    results = zip(slow_answers(name), run(encoder, make_texts(), all_maps(CONFIGS[name]), grouping), strict=True)
    for (expected_states, expected_maps), (states, maps) in results:
        assert maps is not None
        torch.testing.assert_close(states.double(), expected_states, rtol=0, atol=2e-5)
        torch.testing.assert_close(maps.double(), expected_maps, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_packed_layers_agree_with_the_slow_encoder(name: str) -> None:
    """The layout for serving changes no answer."""
    encoder = make_encoder(CONFIGS[name]).requires_grad_(requires_grad=False)
    pack_linear_layers(encoder)
    results = zip(slow_answers(name), run(encoder, make_texts(), all_maps(CONFIGS[name])), strict=True)
    for (expected_states, expected_maps), (states, maps) in results:
        torch.testing.assert_close(states.double(), expected_states, rtol=0, atol=2e-5)
        assert maps is not None
        torch.testing.assert_close(maps.double(), expected_maps, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_neighbours_change_nothing(name: str) -> None:
    """Alone, in a batch, and in the reversed batch a text has the same states and maps, the deeper layers' too."""
    encoder = make_encoder(CONFIGS[name])
    texts, wanted = make_texts(), all_maps(CONFIGS[name])
    mixed = run(encoder, texts, wanted)
    backwards = run(encoder, texts[::-1], wanted)[::-1]
    for text, together, reversed_ in zip(texts, mixed, backwards, strict=True):
        [alone] = run(encoder, [text], wanted)
        for actual in (together, reversed_):
            torch.testing.assert_close(actual[0], alone[0], rtol=0, atol=1e-5)
            torch.testing.assert_close(actual[1], alone[1], rtol=0, atol=1e-5)


@cores
@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_that_nobody_looks_at_change_no_other(name: str, core: object) -> None:
    """Nor do texts that have such: states and maps of the others are as without them. They look themselves."""
    encoder = make_encoder(CONFIGS[name], core)
    texts = make_texts()
    longer = [
        replace(item, input_ids=[*item.input_ids, 1, 2], token_type_ids=[*item.token_type_ids, 0, 0], num_seen=length)
        for item in texts
        if 2 <= (length := item.num_tokens) <= 14
    ]
    selection = all_maps(CONFIGS[name])
    results = run(encoder, [*texts, *longer], selection)
    plain = {tuple(item.input_ids): found for item, found in zip(texts, run(encoder, texts, selection), strict=True)}
    for item, (states, maps) in zip([*texts, *longer], results, strict=True):
        seen = item.num_seen or item.num_tokens
        expected_states, expected_maps = plain[tuple(item.input_ids[:seen])]
        assert maps is not None
        assert expected_maps is not None
        torch.testing.assert_close(states[:seen], expected_states, rtol=0, atol=1e-5)
        torch.testing.assert_close(maps[:, :, :seen, :seen], expected_maps, rtol=0, atol=1e-5)
        assert maps[..., seen:].count_nonzero() == 0
        torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]), rtol=0, atol=1e-6)
        assert states.isfinite().all()


@pytest.mark.parametrize("name", CONFIGS)
def test_maps_change_no_state(name: str) -> None:
    """The hidden states are the same numbers with maps and without."""
    encoder = make_encoder(CONFIGS[name])
    texts = make_texts()
    with_maps = run(encoder, texts, all_maps(CONFIGS[name]))
    without = run(encoder, texts, None)
    for (states, _), (bare, maps) in zip(with_maps, without, strict=True):
        torch.testing.assert_close(states, bare, rtol=0, atol=1e-6)
        assert maps is None


@pytest.mark.parametrize("positions", ["learned", "relative"])
def test_maps_come_in_the_asked_order_for_those_who_ask(positions: str) -> None:
    """Layers and heads stand as the selection names them, text by text; who did not ask gets None."""
    config = make_config(num_hidden_layers=3, num_attention_heads=4, positions=positions)
    encoder = make_encoder(config)
    texts = make_texts((4, 7, 4))
    whole = [maps for _, maps in run(encoder, texts, all_maps(config))]
    selections = [AttentionSelection((2, 0), (3, 1)), None, AttentionSelection((1,), (0, 2, 3))]
    batch = pack(texts)
    with torch.inference_mode():
        got = encoder(batch, [selections[text] for text in batch.order]).attentions
    for place, text in enumerate(batch.order):
        selection, attended, full = selections[text], got[place], whole[text]
        assert (attended is None) == (selection is None)
        if selection is not None:
            assert attended is not None
            assert full is not None
            expected = full[list(selection.layers)][:, list(selection.heads)]
            np.testing.assert_array_equal(attended.maps, expected)


def test_maps_own_their_memory() -> None:
    """A text's maps are as large as they look: whoever keeps them keeps no batch alive."""
    config = make_config()
    for text, (_, maps) in zip(make_texts(), run(make_encoder(config), make_texts(), all_maps(config)), strict=True):
        assert maps is not None
        assert maps.untyped_storage().nbytes() == 4 * 2 * 2 * text.num_tokens**2
        assert maps.device.type == "cpu"


def test_a_layers_maps_are_freed_before_the_next_ones_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics and rollout of all layers hold the maps of one layer at a time: those of the texts that ask."""
    config = make_config(num_hidden_layers=5)
    encoder, texts = make_encoder(config), make_texts((4, 7, 4))
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    held: list[int] = []

    def counting(query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        weights = attention_weights(query, key, mask)
        alive.add(weights)
        held.append(len(alive))
        return weights

    monkeypatch.setattr(model.attention, "attention_weights", counting)
    everything = RolloutSelection(0.5, "mean", tuple(range(5)), 2)
    wish = replace(all_maps(config), maps=False, stats=True, rollout=everything)
    batch = pack(texts)
    tables = [plain_table(length) for length in batch.lengths]
    with torch.inference_mode():
        found = encoder(batch, [wish] * 3, tables).attentions
    assert held == [1, 2, 3] * 5
    assert all(attended is not None and attended.stats is not None for attended in found)


def plain_table(length: int) -> TokenTable:
    """A text whose first and last tokens are special, every other one a word."""
    special = [index in (0, length - 1) for index in range(length)]
    words = [None if flag else index - 1 for index, flag in enumerate(special)]
    return TokenTable([0] * length, [""] * length, [0] * length, [0] * length, special, [None] * length, words)


@pytest.mark.parametrize("name", ["bert", "mpnet", "modernbert"])
def test_nothing_made_of_maps_sees_neighbours(name: str) -> None:
    """Alone and in batches of several lengths: the same words, statistics, sparse rows and rollout, all layers'."""
    config = CONFIGS[name]
    encoder, texts = make_encoder(config), make_texts()
    layers = tuple(range(config.num_hidden_layers))
    wish = replace(all_maps(config), special="renormalize", stats=True, rollout=RolloutSelection(0.5, "max", layers, 2))
    for changed in (wish, replace(wish, reduce_heads="mean", unit="word", special="mask")):
        together = attended(encoder, texts, changed)
        backwards = attended(encoder, texts[::-1], changed)[::-1]
        for text, one, other in zip(texts, together, backwards, strict=True):
            [alone] = attended(encoder, [text], changed)
            for found in (one, other):
                for field in ("maps", "kept_mass", "rollout", "rollout_kept_mass"):
                    np.testing.assert_allclose(getattr(found, field), getattr(alone, field), rtol=0, atol=1e-5)
                assert found.stats is not None
                assert alone.stats is not None
                for statistic, values in found.stats.items():
                    np.testing.assert_allclose(values, alone.stats[statistic], rtol=1e-4, atol=1e-5)


def attended(encoder: Encoder, texts: list[EncodeInput], wish: AttentionSelection) -> list[TextAttention]:
    """What is made of each text's attention, in the texts' own order."""
    batch = pack(texts)
    with torch.inference_mode():
        found = encoder(batch, [wish] * len(texts), [plain_table(length) for length in batch.lengths]).attentions
    by_text = dict(zip(batch.order, found, strict=True))
    return [by_text[text] for text in range(len(texts))]


def test_one_token_type_means_every_token_has_it() -> None:
    """Where the table has one row, a tokenizer that numbers the second text 1 does not look past it."""
    encoder = make_encoder(CONFIGS["roberta"])
    [text] = make_texts((6,))
    zeros = EncodeInput(text.input_ids, [0] * 6, 6)
    torch.testing.assert_close(run(encoder, [text], None)[0][0], run(encoder, [zeros], None)[0][0], rtol=0, atol=0)


def test_two_token_types_tell_segments_apart() -> None:
    """Where the table has two rows, the second text's tokens differ."""
    encoder = make_encoder(CONFIGS["bert"])
    [text] = make_texts((6,))
    zeros = EncodeInput(text.input_ids, [0] * 6, 6)
    assert (run(encoder, [text], None)[0][0] - run(encoder, [zeros], None)[0][0]).abs().max() > 0.01


# --- the norm of the two documents ---


def document_norm(x: Tensor, a: Tensor, b: Tensor, eps: float) -> Tensor:
    """The documents' formula."""
    return a * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps) + b


@pytest.mark.parametrize("eps", [1e-6, 0.5])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 300.0])
def test_the_std_norm_is_the_documents(spread: float, eps: float) -> None:
    """A (x - mean) / (std + eps) + b with the unbiased std, forward and, where eps is small, backward."""
    torch.manual_seed(0)
    norm = StdNorm(12, eps)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(12))
        norm.bias.copy_(torch.randn(12))
    x = (spread * (torch.randn(7, 12) + 2)).requires_grad_()
    y = x.detach().clone().requires_grad_()
    ours, theirs = norm(x), document_norm(y, norm.weight, norm.bias, eps)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    if eps > 1e-5 * spread:
        return
    weights = torch.randn(7, 12)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-4 / spread)


def test_the_std_norm_is_not_layer_norm() -> None:
    """With few columns the unbiased std differs from LayerNorm's visibly: the two are not exchanged."""
    x = torch.tensor([[1.0, 2.0, 4.0]])
    std = StdNorm(3)(x)
    assert (std - torch.nn.LayerNorm(3)(x)).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [0.1, 0.7, -3.3, 60.01])
def test_a_constant_row_becomes_the_bias_in_every_format(value: float, dtype: torch.dtype) -> None:
    """Also where the mean of equal numbers is rounded to another one."""
    out = StdNorm(384).to(dtype)(torch.full((2, 384), value, dtype=dtype))
    assert out.abs().max() < 1


@pytest.mark.parametrize("value", [0.0, 3.5, -1e4])
def test_a_constant_row_is_finite_forward_and_backward(value: float) -> None:
    """A row without spread becomes the bias, and its gradient is a number."""
    norm = StdNorm(8)
    with torch.no_grad():
        norm.bias.copy_(torch.arange(8.0))
    x = torch.full((2, 8), value, requires_grad=True)
    out = norm(x)
    torch.testing.assert_close(out, torch.arange(8.0).repeat(2, 1), rtol=0, atol=1e-5)
    (out * torch.randn(2, 8)).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in norm.parameters())


def test_the_std_norm_keeps_the_dtype() -> None:
    """bfloat16 in, bfloat16 out, computed in float32."""
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).bfloat16() + 30
    norm = StdNorm(64).bfloat16()
    out = norm(x)
    assert out.dtype == torch.bfloat16
    exact = document_norm(x.float(), torch.ones(64), torch.zeros(64), 1e-6)
    torch.testing.assert_close(out.float(), exact, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("kind", ["std", "layer", "rms"])
def test_a_norm_has_its_own_eps_and_bias(kind: str) -> None:
    """The configured eps reaches the norm; a bias is there when asked and where the kind has one."""
    x = torch.tensor([[1.0, -1.0, 2.0, 0.5]])
    small, large = (make_norm(kind, 4, eps, bias=False) for eps in (1e-9, 1.0))  # type: ignore[arg-type]
    assert (small(x) - large(x)).abs().max() > 0.05
    assert set(small.state_dict()) == {"weight"}
    if kind != "rms":
        assert set(make_norm(kind, 4, 1e-6, bias=True).state_dict()) == {"weight", "bias"}  # type: ignore[arg-type]


# --- training ---


@pytest.mark.parametrize("core", [attend_fused, attend_explicit])
@pytest.mark.parametrize("name", ["bert", "seed 0", "seed 2", "mpnet", "modernbert"])
def test_every_parameter_learns(name: str, core: object) -> None:
    """In training mode with dropout the gradient of every parameter is finite, and not zero throughout."""
    torch.manual_seed(1)
    encoder = make_encoder(CONFIGS[name], core).train()
    output = encoder(pack(make_texts())).last_hidden_state
    (output * torch.randn_like(output)).sum().backward()
    for parameter_name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name


def test_a_text_of_equal_tokens_trains() -> None:
    """The seeds' norm over a row without spread (all embeddings 0) does not poison the gradient."""
    encoder = make_encoder(make_config(norm_placement="pre", **{**SEED, "positions": "none"})).train()
    with torch.no_grad():
        encoder.embedding.tokens.weight.zero_()
    encoder(pack(make_texts((3, 5)))).last_hidden_state.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in encoder.parameters())


@cores
def test_dropout_is_for_training_alone(core: object) -> None:
    """Two runs in training mode differ; two runs when serving are the same numbers."""
    encoder = make_encoder(make_config(dropout=0.0, attention_dropout=0.4), core)
    texts = make_texts()
    first, second = (run(encoder, texts, None) for _ in range(2))
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(first, second, strict=True))
    encoder.train()
    third, fourth = (run(encoder, texts, None) for _ in range(2))
    assert any(not torch.equal(a, b) for (a, _), (b, _) in zip(third, fourth, strict=True))


@pytest.mark.parametrize("placement", ["pre", "residual", "post"])
def test_dropout_acts_outside_attention_too(placement: str) -> None:
    """Sublayers, feed-forward and embeddings drop in training."""
    encoder = make_encoder(make_config(norm_placement=placement, dropout=0.3, attention_dropout=0.0)).train()
    first, second = (run(encoder, make_texts(), None) for _ in range(2))
    assert any(not torch.equal(a, b) for (a, _), (b, _) in zip(first, second, strict=True))


def test_maps_are_whole_while_training() -> None:
    """Maps are the weights before dropout: their rows sum to 1."""
    config = make_config(attention_dropout=0.5)
    for _, maps in run(make_encoder(config).train(), make_texts(), all_maps(config)):
        assert maps is not None
        torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]), rtol=0, atol=1e-6)


def test_a_gate_is_twice_as_wide() -> None:
    """Gated feed-forwards have 2 F outputs first, plain ones F."""
    assert FeedForward(make_config(activation="geglu")).expand.weight.shape == (40, 16)
    assert FeedForward(make_config(activation="gelu")).expand.weight.shape == (20, 16)
