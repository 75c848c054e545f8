"""Makes what is in weights/: distillation, contrastive training, evaluation. Imports ``model/``, never ``app/``.

Every command is a module of its own::

    python -m training.distil --help
    python -m training.contrastive --help
    python -m training.evaluate --help

Dimension key: that of :mod:`model`, and ``n`` for the number of texts in a corpus. ``docs/training.md`` is the guide.
"""
