"""Our answers against those of transformers and sentence-transformers, on tiny random models.

Run from the oracle environment: ``.venv-oracle/bin/python -m pytest -m oracle tests/oracle``.
"""
