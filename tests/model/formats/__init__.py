"""Tests of the checkpoint families: each is compared with what its original computes."""
