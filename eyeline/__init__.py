"""The client of an Eyeline server: embeddings and attention maps as numpy arrays.

Needs httpx and numpy, and nothing of the server: ``docs/client.md``.
"""

from eyeline.async_client import AsyncClient
from eyeline.client import Client
from eyeline.errors import (
    AnswerError,
    DeadlineExceededError,
    EyelineError,
    InferenceFailedError,
    InvalidRequestError,
    NoAnswerInTimeError,
    NotFoundError,
    NotReadyError,
    NotSupportedError,
    OverloadedError,
    TooLargeError,
    TruncationWarning,
    UnexpectedAnswerError,
    UnreachableError,
)
from eyeline.records import Encoded, Explanation, Similarity, TextAttention, TokenizedText
from eyeline.retry import RetryPolicy

__all__ = [
    "AnswerError",
    "AsyncClient",
    "Client",
    "DeadlineExceededError",
    "Encoded",
    "Explanation",
    "EyelineError",
    "InferenceFailedError",
    "InvalidRequestError",
    "NoAnswerInTimeError",
    "NotFoundError",
    "NotReadyError",
    "NotSupportedError",
    "OverloadedError",
    "RetryPolicy",
    "Similarity",
    "TextAttention",
    "TokenizedText",
    "TooLargeError",
    "TruncationWarning",
    "UnexpectedAnswerError",
    "UnreachableError",
]
