"""The routes of a gateway, as a Starlette application."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backend.gateway import metrics
from backend.gateway.admission import identify
from backend.gateway.gateway import Gateway
from backend.gateway.passing import PassedRoute
from backend.gateway.refusals import Refusal, error_body, json_headers

PASSED = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
"""Paths that are passed on to the server of the model that the body names."""


def make_app(gateway: Gateway) -> Starlette:
    """Return the application. Its lifespan is the gateway's."""

    async def models(request: Request) -> Response:
        identify(gateway.keys, request.scope["headers"])
        return _json(json.dumps(gateway.document()).encode())

    async def health(request: Request) -> Response:
        return _json(json.dumps(gateway.health()).encode())

    async def show_metrics(request: Request) -> Response:
        identify(gateway.keys, request.scope["headers"])
        return Response(gateway.metrics.render(), media_type=metrics.CONTENT_TYPE)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with gateway.running():
            yield

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/health", health),
            Route("/metrics", show_metrics),
            *gateway.more_routes,
            *(Route(path, PassedRoute(gateway, path), methods=["POST"], name=path) for path in PASSED),
        ],
        exception_handlers={
            Refusal: _refuse,  # type: ignore[dict-item]
            HTTPException: _refuse_path,  # type: ignore[dict-item]
            Exception: _answer_defect,
        },
        lifespan=lifespan,
    )


async def _refuse(request: Request, refusal: Refusal) -> Response:
    response = Response(refusal.body(), status_code=refusal.status)
    response.raw_headers = refusal.headers()
    return response


async def _answer_defect(request: Request, error: Exception) -> Response:
    """Answer where the gateway itself failed; the error goes on to the log."""
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    sentence = "The gateway itself failed: its standard error says why."
    return _json(error_body(status, sentence, code="gateway_failed"), status=status)


async def _refuse_path(request: Request, error: HTTPException) -> Response:
    """Answer for a path or a method that the gateway does not have."""
    path = request.url.path[:100]
    sentence = f"The gateway has no {path}: it answers /v1/models, {', '.join(PASSED)}, /health and /metrics."
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        sentence = f"{path} does not take {request.method}: it takes {(error.headers or {}).get('Allow', 'another')}."
    body = error_body(error.status_code, sentence, code="unknown_path")
    return _json(body, status=error.status_code)


def _json(body: bytes, *, status: int = HTTPStatus.OK) -> Response:
    response = Response(body, status_code=status)
    response.raw_headers = json_headers(body)
    return response
