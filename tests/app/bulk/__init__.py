"""Encoding files."""
