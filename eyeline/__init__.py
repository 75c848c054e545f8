"""The client of an Eyeline server: embeddings and attention maps as numpy arrays.

Needs httpx and numpy, and nothing of the server: ``docs/client.md``.
"""

from eyeline.async_client import AsyncClient
from eyeline.attention_records import HeadDistances, TextAttention
from eyeline.client import Client
from eyeline.errors import (
    AnswerError,
    ConflictError,
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
    UnauthorizedError,
    UnexpectedAnswerError,
    UnreachableError,
)
from eyeline.records import ChunkedText, Encoded, Explanation, Quantization, Similarity, TokenizedText
from eyeline.retry import RetryPolicy

__all__ = [
    "AnswerError",
    "AsyncClient",
    "ChunkedText",
    "Client",
    "ConflictError",
    "DeadlineExceededError",
    "Encoded",
    "Explanation",
    "EyelineError",
    "HeadDistances",
    "InferenceFailedError",
    "InvalidRequestError",
    "NoAnswerInTimeError",
    "NotFoundError",
    "NotReadyError",
    "NotSupportedError",
    "OverloadedError",
    "Quantization",
    "RetryPolicy",
    "Similarity",
    "TextAttention",
    "TokenizedText",
    "TooLargeError",
    "TruncationWarning",
    "UnauthorizedError",
    "UnexpectedAnswerError",
    "UnreachableError",
]
