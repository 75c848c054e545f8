"""What can go wrong when a server is asked, as exceptions.

::

    Exception
    ├── EyelineError
    │   ├── AnswerError                  the server, or something before it, answered with an error
    │   │   ├── InvalidRequestError      400, 405, 406, 415, 422  the request as it is sent
    │   │   ├── UnauthorizedError        401  no API key, or one that the server does not know
    │   │   ├── NotFoundError            404  no such model, or no Eyeline at this address
    │   │   ├── ConflictError            409  a reload that cannot be, which only an operator asks for
    │   │   ├── TooLargeError            413  a text, a request, or the answer to it
    │   │   ├── OverloadedError          429  still no room when the deadline came
    │   │   ├── InferenceFailedError     500  the server's fault
    │   │   ├── NotSupportedError        501  something that this model cannot do
    │   │   ├── NotReadyError            503  still starting or stopping when the deadline came
    │   │   └── DeadlineExceededError    504  a time limit of the server's, or ``request_timeout_seconds``
    │   ├── UnreachableError             no connection, or one that broke before the answer was complete
    │   ├── NoAnswerInTimeError          a connection, but no answer before the time-out
    │   └── UnexpectedAnswerError        an answer that is not Eyeline's, or two of different models
    └── UserWarning
        └── TruncationWarning            texts were cut to what the model reads
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import httpx

INDEXED = re.compile(r"(texts|pairs)\[(\d+)\]")


class EyelineError(Exception):
    """Base of every error that this package raises about a server or its answer."""


class AnswerError(EyelineError):
    """The server answered with an error (RFC 9457).

    Parameters
    ----------
    status : int
        Of HTTP.
    detail : str
        One sentence for people; never your text.
    code : str, optional
        Stable, for programs, as ``docs/api.md`` lists them; None if it is a proxy's answer, for instance.
    param : str, optional
        The field at fault, as ``texts[3]``: an index into what you gave, also where it was sent in several requests.
    limit, actual : int or float, optional
        What was exceeded, and by what.
    request_id : str, optional
        What the server's log calls the request.

    Attributes
    ----------
    status, detail, code, param, limit, actual, request_id
        The parameters.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        code: str | None = None,
        param: str | None = None,
        limit: float | None = None,
        actual: float | None = None,
        request_id: str | None = None,
    ) -> None:
        place = f" at {param}" if param and param not in detail else ""
        super().__init__(f"{status}{f' {code}' if code else ''}{place}: {detail}")
        self.status = status
        self.detail = detail
        self.code = code
        self.param = param
        self.limit = limit
        self.actual = actual
        self.request_id = request_id


class InvalidRequestError(AnswerError):
    """A field's value, or something else about the request; sending it again will not help."""


class UnauthorizedError(AnswerError):
    """The server, or a gateway, asks for a key: none was sent, or one that is not known there."""


class NotFoundError(AnswerError):
    """No such model is served, or there is no Eyeline at this address."""


class ConflictError(AnswerError):
    """A reload that cannot be; no method of a client asks for one."""


class TooLargeError(AnswerError):
    """A text, a request or the answer to it is over a limit; ``limit`` and ``actual`` say which."""


class OverloadedError(AnswerError):
    """The queue was full, and still was when the deadline for trying came."""


class InferenceFailedError(AnswerError):
    """The server failed on this request."""


class NotSupportedError(AnswerError):
    """The model cannot do what was asked, such as explaining a cosine."""


class NotReadyError(AnswerError):
    """The server starts or stops, and still did when the deadline for trying came."""


class DeadlineExceededError(AnswerError):
    """A time limit for the request passed: the server's own, or ``request_timeout_seconds``."""


class UnreachableError(EyelineError):
    """No connection to the server, or one that broke before the answer was complete."""


class NoAnswerInTimeError(EyelineError):
    """No answer before the time-out, or a server that did not become ready in time."""


class UnexpectedAnswerError(EyelineError):
    """An answer that cannot be decoded, one of success that cannot be read, or two of different models to one call."""


class TruncationWarning(UserWarning):
    """Texts were cut to what the model reads."""


BY_STATUS: Mapping[int, type[AnswerError]] = {
    400: InvalidRequestError,
    401: UnauthorizedError,
    404: NotFoundError,
    405: InvalidRequestError,
    406: InvalidRequestError,
    409: ConflictError,
    413: TooLargeError,
    415: InvalidRequestError,
    422: InvalidRequestError,
    429: OverloadedError,
    500: InferenceFailedError,
    501: NotSupportedError,
    503: NotReadyError,
    504: DeadlineExceededError,
}
"""Status -> class; any other status is an :class:`AnswerError`."""


def answer_error(response: httpx.Response, first: int = 0) -> AnswerError:
    """Make the exception of an error answer; one that is not Eyeline's has only a status and HTTP's own words."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        body = {}
    param = body.get("param")
    if isinstance(param, str):
        param = INDEXED.sub(lambda match: f"{match[1]}[{first + int(match[2])}]", param)
    return BY_STATUS.get(response.status_code, AnswerError)(
        response.status_code,
        str(body.get("detail") or response.reason_phrase or "no reason given"),
        code=body.get("code"),
        param=param,
        limit=body.get("limit"),
        actual=body.get("actual"),
        request_id=response.headers.get("X-Request-ID"),
    )
