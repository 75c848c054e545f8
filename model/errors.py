"""What can go wrong between a text and its row, as one tree.

::

    ModelError
    ├── CheckpointError          the folder cannot be served: names the file and the key (start-up only)
    └── InputError               the caller's input cannot be encoded: names the field, the limit, the value
        ├── TextTooLongError     more characters or tokens than allowed, and truncation was refused
        ├── TokenIdError         a token id outside the vocabulary
        ├── ModelKindError       something that only another kind of model gives
        ├── PairError            a pair of texts, and the model was not made for pairs
        ├── PromptError          an unknown prompt name
        ├── DimensionsError      more dimensions than the model has
        ├── OutputDtypeError     a number type that these embeddings cannot have
        ├── ChunkingError        chunks that these texts, or this model, cannot have
        ├── TooManyChunksError   more chunks than a request may hold
        ├── AttentionSelectionError   a layer or head that does not exist
        ├── AttentionNotSupportedError   a model that cannot give attention maps
        └── ExplanationError     a model whose embedding is no sum over its tokens

Nothing here knows a status code: ``app/errors.py`` holds the one table from error to answer.
"""


class ModelError(Exception):
    """Base of every error this package raises on purpose."""


class CheckpointError(ModelError):
    """A model folder that cannot be served. The message is one sentence with the file and the key."""


class InputError(ModelError):
    """An input that cannot be encoded.

    Parameters
    ----------
    message : str
        One sentence with the limit and the value; never the text itself.
    param : str
        The field at fault, in the words of the wire, such as ``texts[3]``.
    limit, actual : int or None
        The limit and the value that broke it, where there are such numbers.
    """

    def __init__(self, message: str, *, param: str, limit: int | None = None, actual: int | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.limit = limit
        self.actual = actual


class TextTooLongError(InputError):
    """More characters, or more tokens than the model reads while truncation was refused."""


class TokenIdError(InputError):
    """A token id that is not in the vocabulary."""


class ModelKindError(InputError):
    """An embedding of a model that scores, or a score of a model that embeds."""


class PairError(InputError):
    """A pair of texts for a model that was not made for pairs."""


class PromptError(InputError):
    """A prompt name that the model folder does not define."""


class DimensionsError(InputError):
    """More dimensions than the embedding has."""


class OutputDtypeError(InputError):
    """A number type that the embeddings asked for cannot have."""


class ChunkingError(InputError):
    """Chunks that the texts or the model cannot have."""


class TooManyChunksError(InputError):
    """More chunks than there is room for."""


class AttentionSelectionError(InputError):
    """A layer or a head that the model does not have."""


class AttentionNotSupportedError(InputError):
    """Attention, of a model that cannot give it as maps."""


class ExplanationError(InputError):
    """An explanation of a cosine, by a model whose embedding is not the mean of one vector per token."""
