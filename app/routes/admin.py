"""For whoever runs the server: ``POST /admin/reload``. Added to the app only where there is an admin key."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request

from app.requests import has_body, read_body
from app.routes.encode import PROBLEMS
from app.schemas.admin import Change, ReloadedModel, ReloadRequest, ReloadResponse
from app.schemas.encode import ProblemResponse
from app.state import max_body_bytes, reloader_of

router = APIRouter(tags=["administration"])

OPTIONAL_BODY = {
    "requestBody": {
        "required": False,
        "content": {"application/json": {"schema": ReloadRequest.model_json_schema()}},
    }
}

ANSWERS: dict[int | str, dict[str, Any]] = {
    **{status: PROBLEMS[status] for status in (400, 404, 413, 415, 422, 503)},
    409: {
        "model": ProblemResponse,
        "description": "A reload is running, or a folder did not load: nothing has changed",
    },
}


@router.post(
    "/admin/reload",
    responses=ANSWERS,
    openapi_extra=OPTIONAL_BODY,
    summary="Load model folders anew and switch to them, without a request that notices",
)
async def reload(request: Request) -> ReloadResponse:
    """Answer when the new models serve; goes on to the end if the caller leaves."""
    started = time.perf_counter()
    body = ReloadRequest()
    if has_body(request):
        body = await read_body(request, ReloadRequest, max_body_bytes(request))
    replaced = await reloader_of(request).reload(body.model)
    models = [
        ReloadedModel(
            model=one.model,
            files=list(one.files),
            changes=[
                Change(field=field, before=str(before), after=str(after))
                for field, (before, after) in one.changes.items()
            ],
        )
        for one in replaced
    ]
    return ReloadResponse(models=models, seconds=round(time.perf_counter() - started, 3))
