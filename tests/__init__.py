"""Mirrors the packages under test, one test module per module."""
