"""Claims about what a token sees of its text; test_encoder.py has those about whole layers."""

from __future__ import annotations

import pytest
import torch

from model.attention import LayerView
from model.batch import pack
from model.config import LayerConfig
from tests.model.test_encoder import make_config, make_texts


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 2])
def test_every_real_query_sees_its_own_text_alone(window: int | None, causal: bool) -> None:
    """In a padded group a real query sees exactly the real keys that window and causality leave, no row is empty."""
    config = make_config(causal=causal, num_hidden_layers=1, layers=(LayerConfig(window=window),))
    batch = pack(make_texts((8, 9, 10, 10, 3)))
    view = LayerView.of(config.layers[0], config, batch, None, torch.float32)
    place = 0
    assert any(group.mask is not None for group in batch.groups)
    for group, mask in zip(batch.groups, view.masks, strict=True):
        full = torch.ones(1, dtype=torch.bool) if mask is None else mask
        full = full.broadcast_to(group.num_texts, 1, group.length, group.length)
        assert full.any(-1).all()
        for text in range(group.num_texts):
            length = batch.lengths[place]
            place += 1
            for i in range(length):
                expected = [
                    j < length and (window is None or abs(i - j) <= window) and (not causal or j <= i)
                    for j in range(group.length)
                ]
                assert full[text, 0, i].tolist() == expected
