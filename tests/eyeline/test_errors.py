"""The client's exceptions."""

from __future__ import annotations

import app.errors
from eyeline import AnswerError, EyelineError
from eyeline.errors import BY_STATUS


def test_every_status_of_the_server_has_a_class() -> None:
    """Nothing that the server answers with is left to the base class, and each class is a leaf of the tree."""
    statuses = {answer.status for answer in app.errors.ANSWERS.values()} | {app.errors.INTERNAL.status, 405}
    assert statuses <= BY_STATUS.keys()
    assert all(issubclass(kind, AnswerError) and kind is not AnswerError for kind in BY_STATUS.values())
    assert issubclass(AnswerError, EyelineError)


def test_the_message_names_the_field_once() -> None:
    """Whoever reads only the last line of a traceback knows status, code, field and reason."""
    error = AnswerError(413, "the text has 502 tokens", code="text_too_long", param="texts[3]")
    assert str(error) == "413 text_too_long at texts[3]: the text has 502 tokens"
    assert str(AnswerError(422, "texts: none", code="c", param="texts")) == "422 c: texts: none"
    assert str(AnswerError(502, "Bad Gateway")) == "502: Bad Gateway"
