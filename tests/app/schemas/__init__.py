"""Tests of the wire contracts."""
