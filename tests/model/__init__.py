"""Tests of the encoder and of everything that reads or writes a model folder."""
