"""Eyeline next to its peers, in one run: ``make bench-peers``."""
