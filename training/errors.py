"""What can go wrong in training, as one tree.

::

    TrainingError
    ├── CorpusError      a file of texts, pairs or scores that cannot be used: names the file, and the line
    ├── CacheError       stored teacher embeddings that belong to something else, or cannot be written
    ├── RunError         a run that cannot start, go on or be resumed
    └── ExportError      a model folder that cannot be written

Each message is one sentence: the command lines print it and nothing else.
"""


class TrainingError(Exception):
    """Base of every error this package raises on purpose."""


class CorpusError(TrainingError):
    """A file of texts, pairs or scores that cannot be used. The message names the file."""


class CacheError(TrainingError):
    """Stored teacher embeddings that belong to something else, or cannot be written."""


class RunError(TrainingError):
    """A run that cannot start, go on or be resumed."""


class ExportError(TrainingError):
    """A model folder that cannot be written."""
