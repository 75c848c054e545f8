"""Tiny students, and a teacher that gives nonsense."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.tiny import make_wordpiece_tokenizer
from training.student import Student, new_encoder, student_config


def make_student(family: str = "seed-2", *, dropout: float = 0.0, seed: int = 0, hidden_size: int = 16) -> Student:
    """Build a student of two layers with random weights."""
    backend = make_wordpiece_tokenizer()
    raw = student_config(
        family=family,
        vocab_size=backend.get_vocab_size(),
        hidden_size=hidden_size,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_length=32,
    )
    torch.manual_seed(seed)
    return Student(new_encoder(raw, dropout=dropout), raw, backend)


def spoil(folder: Path) -> None:
    """Give a model folder finite weights with which its embeddings overflow."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for part in ("weight", "bias"):
        tensors[f"encoder.layer.1.output.LayerNorm.{part}"].fill_(3e38)
    save_file(tensors, file, metadata={"format": "pt"})
