"""The wire contract of /admin/reload. What it does: tests/app/routes/test_admin.py."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from app.schemas.admin import ReloadRequest


def test_every_field_may_be_left_out() -> None:
    """All models, then."""
    assert ReloadRequest.model_validate_json("{}").model is None


@pytest.mark.parametrize("body", ['{"model":1}', '{"models":["a"]}', '{"folder":"/tmp"}', "[]", '"a"'])
def test_what_is_no_request(body: str) -> None:
    """No coercion, no unknown field."""
    with pytest.raises(ValidationError):
        ReloadRequest.model_validate_json(body)


def test_the_examples_are_valid() -> None:
    """What /docs offers can be sent."""
    for example in ReloadRequest.model_json_schema()["examples"]:
        ReloadRequest.model_validate(example)
