"""What can go wrong with a request, and the one table from error to answer.

::

    Exception
    ├── ServiceError                 raised by app/
    │   ├── MalformedBodyError       400  the body is not JSON
    │   ├── EmptyInputError          400  no text, or an empty one, where a compatible API takes none
    │   ├── UnauthorizedError        401  no key, or none that opens the path
    │   ├── NotAcceptableError       406  no format in Accept that we write
    │   ├── UnknownModelError        404  no such model is served
    │   ├── ReloadRunningError       409  a reload was asked for while another one runs
    │   ├── ReloadFailedError        409  a model folder did not load, and what was served still is
    │   ├── BodyTooLargeError        413  bytes
    │   ├── TooManyTextsError        413  texts in one request
    │   ├── RequestTooLargeError     413  one request over the whole queue's capacity: waiting would not help
    │   ├── AttentionTooLargeError   413  attention values in one request
    │   ├── AnswerTooLargeError      413  an answer about tokens that would hold too much
    │   ├── UnsupportedMediaTypeError  415  the body's content type
    │   ├── InvalidRequestError      422  a field's value
    │   ├── QueueFullError           429  no room now, Retry-After says when
    │   ├── KeyQueueFullError        429  the caller's key has its share of the queue waiting already
    │   ├── NotReadyError            503  loading or shutting down, with Retry-After
    │   ├── ServerStoppingError      503  the time of a stopping server was up before the answer was there
    │   ├── OutOfMemoryError         503  not even this text alone fits into the memory that is free
    │   ├── WorkerUnavailableError   503  the worker thread has died or hangs, with Retry-After
    │   ├── DeadlineExceededError    504  the caller's deadline passed while it waited
    │   ├── InferenceError           500  the encoder failed on a text; the reason is in the log only
    │   └── NonFiniteError           500  the encoder's result holds a NaN or an infinity
    ├── model.errors.ModelError
    │   ├── CheckpointError          start-up only: the command line prints it, no request ever sees it
    │   └── InputError               413, 422 or 501, its leaves are in the table below
    ├── starlette HTTPException      404, 405, ...: the status, in our shape
    ├── RequestValidationError       as InvalidRequestError (or MalformedBodyError)
    └── anything else                500  internal_error: a bug, logged and not explained

``app/problems.py`` writes an error as an answer; ``app/validation.py`` makes one of pydantic's findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from model.errors import (
    AttentionNotSupportedError,
    AttentionSelectionError,
    CheckpointError,
    ChunkingError,
    DimensionsError,
    ExplanationError,
    ModelKindError,
    OutputDtypeError,
    PairError,
    PromptError,
    TextTooLongError,
    TokenIdError,
    TooManyChunksError,
)


class ServiceError(Exception):
    """Base of every error this package raises on purpose.

    Parameters
    ----------
    message : str
        One sentence for people, with the limit and the value; never the caller's text.
    param : str, optional
        The field at fault, in the words of the wire, such as ``texts[3]``.
    limit, actual : int or float, optional
        The limit and the value that broke it, where there are such numbers.
    retry_after_seconds : float, optional
        When the same request is likely to succeed.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        limit: float | None = None,
        actual: float | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.limit = limit
        self.actual = actual
        self.retry_after_seconds = retry_after_seconds


class MalformedBodyError(ServiceError):
    """The body is not JSON."""


class EmptyInputError(ServiceError):
    """No text, or an empty one, where a compatible API takes none."""


class UnauthorizedError(ServiceError):
    """The request shows no key that opens its path."""


class NotAcceptableError(ServiceError):
    """The Accept header names no format that we write."""


class UnknownModelError(ServiceError):
    """The request names a model that is not served."""


class ReloadRunningError(ServiceError):
    """A reload was asked for while another one runs."""


class ReloadFailedError(ServiceError):
    """A model folder did not load; what was served before still is."""


class BodyTooLargeError(ServiceError):
    """More bytes than a body may have."""


class TooManyTextsError(ServiceError):
    """More texts than one request may hold."""


class RequestTooLargeError(ServiceError):
    """One request over the queue's whole capacity. Not a 429: it would never fit."""


class AttentionTooLargeError(ServiceError):
    """More attention values than one request may ask for."""


class AnswerTooLargeError(ServiceError):
    """An answer about tokens that would hold more than one may."""


class UnsupportedMediaTypeError(ServiceError):
    """The body's content type is not one that we read."""


class InvalidRequestError(ServiceError):
    """A field that is missing, unknown, of the wrong kind or out of range."""


class QueueFullError(ServiceError):
    """The request does not fit into the queue now."""


class KeyQueueFullError(ServiceError):
    """The request does not fit into its key's share of the queue now."""


class NotReadyError(ServiceError):
    """The server is loading or shutting down."""


class ServerStoppingError(ServiceError):
    """The request had been let in, and the server stopped before its answer was there. Another server may answer it."""


def stopped_too_soon() -> ServerStoppingError:
    """Return what is told to whoever still waits when the time of a stopping server is up."""
    return ServerStoppingError("the server stopped before the answer was there", retry_after_seconds=1)


class OutOfMemoryError(ServiceError):
    """There is not enough free memory for a text, though it was run alone."""


class WorkerUnavailableError(ServiceError):
    """The thread that runs the models has died or hangs; what it ran is lost."""


class DeadlineExceededError(ServiceError):
    """The caller's deadline passed before its texts were run."""


class InferenceError(ServiceError):
    """The encoder failed on a text. The reason is logged, not returned."""


class NonFiniteError(ServiceError):
    """The encoder's result for a text holds a NaN or an infinity, so it is withheld."""


class Answer(NamedTuple):
    """How an error looks on the wire: status, stable code, title for people."""

    status: int
    code: str
    title: str


ANSWERS: Mapping[type[Exception], Answer] = {
    MalformedBodyError: Answer(400, "malformed_json", "The body is not JSON"),
    EmptyInputError: Answer(400, "empty_input", "Empty input"),
    UnauthorizedError: Answer(401, "unauthorized", "No valid API key"),
    UnknownModelError: Answer(404, "model_not_found", "No such model"),
    NotAcceptableError: Answer(406, "not_acceptable", "No such response format"),
    ReloadRunningError: Answer(409, "reload_running", "A reload is running"),
    ReloadFailedError: Answer(409, "reload_failed", "The model did not load"),
    BodyTooLargeError: Answer(413, "body_too_large", "Body too large"),
    TooManyTextsError: Answer(413, "too_many_texts", "Too many texts"),
    RequestTooLargeError: Answer(413, "request_too_large", "Request larger than the queue"),
    AttentionTooLargeError: Answer(413, "attention_too_large", "Too many attention values"),
    AnswerTooLargeError: Answer(413, "answer_too_large", "Answer too large"),
    UnsupportedMediaTypeError: Answer(415, "unsupported_media_type", "Unsupported content type"),
    InvalidRequestError: Answer(422, "invalid_request", "Invalid request"),
    QueueFullError: Answer(429, "queue_full", "Queue full"),
    KeyQueueFullError: Answer(429, "key_queue_full", "Share of the queue full"),
    InferenceError: Answer(500, "inference_failed", "Inference failed"),
    NonFiniteError: Answer(500, "non_finite_output", "Non-finite output"),
    NotReadyError: Answer(503, "not_ready", "Not ready"),
    ServerStoppingError: Answer(503, "server_stopping", "Server stopping"),
    OutOfMemoryError: Answer(503, "out_of_memory", "Out of memory"),
    WorkerUnavailableError: Answer(503, "worker_unavailable", "Worker unavailable"),
    DeadlineExceededError: Answer(504, "deadline_exceeded", "Deadline exceeded"),
    TextTooLongError: Answer(413, "text_too_long", "Text too long"),
    TokenIdError: Answer(422, "token_id_out_of_range", "Token id out of range"),
    ModelKindError: Answer(422, "wrong_model_kind", "Another kind of model"),
    PairError: Answer(422, "pair_not_supported", "Pairs not supported"),
    PromptError: Answer(422, "unknown_prompt", "Unknown prompt"),
    DimensionsError: Answer(422, "dimensions_out_of_range", "Dimensions out of range"),
    OutputDtypeError: Answer(422, "output_dtype_not_possible", "Output dtype not possible"),
    ChunkingError: Answer(422, "chunks_not_possible", "Chunks not possible"),
    TooManyChunksError: Answer(413, "too_many_chunks", "Too many chunks"),
    AttentionSelectionError: Answer(422, "attention_out_of_range", "Layer or head out of range"),
    AttentionNotSupportedError: Answer(501, "attention_not_supported", "Attention not supported"),
    ExplanationError: Answer(501, "explanation_not_supported", "Explanation not supported"),
}
"""The one table from error to answer. A leaf of the trees that is missing here fails a test."""

START_UP_ONLY: frozenset[type[Exception]] = frozenset({CheckpointError})
"""Leaves that have no row because no request can meet them."""

INTERNAL = Answer(500, "internal_error", "Internal error")

FRAMEWORK_CODES = ("not_found", "method_not_allowed")
"""Codes of the errors that Starlette raises itself."""


def error_codes() -> list[str]:
    """Return every code that an answer can have."""
    return [*(answer.code for answer in ANSWERS.values()), INTERNAL.code, *FRAMEWORK_CODES]
