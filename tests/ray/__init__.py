"""deploy/ray on a local cluster of two nodes: ``make check-ray``.

The cluster runs in an environment of its own, ``.venv-ray``, as processes; these tests look at it from outside.
"""
