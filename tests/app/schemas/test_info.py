"""The wire contract of /health and /info. What they hold: tests/app/routes/test_health.py."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import ValidationError

from app.schemas.info import Health, InfoResponse

TEI_FIELDS = (
    "model_id",
    "model_dtype",
    "model_type",
    "served_model_name",
    "max_concurrent_requests",
    "max_input_length",
    "max_batch_tokens",
    "max_client_batch_size",
    "auto_truncate",
    "tokenization_workers",
    "version",
)
TEI_NULLS = ("model_sha", "max_batch_requests", "sha", "docker_label")


def test_health_knows_five_words() -> None:
    """The states a probe can see, and no others."""
    assert get_args(Health.model_fields["status"].annotation) == ("ready", "live", "loading", "draining", "failing")
    with pytest.raises(ValidationError):
        Health(status="fine")  # type: ignore[arg-type]


def test_info_has_what_tei_clients_read() -> None:
    """None of those fields is ever left out, so that such a client never meets a hole; some are always null there."""
    for name in TEI_FIELDS:
        assert InfoResponse.model_fields[name].is_required()
    for name in TEI_NULLS:
        assert InfoResponse.model_fields[name].default is None
