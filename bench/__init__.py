"""Benchmarks of the library and of the server; nothing here is part of the product."""
