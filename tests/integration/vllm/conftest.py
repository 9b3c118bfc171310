"""The one server with a draft that these tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.domain.evaluation.document import Speculation, Variant
from backend.domain.recipe.recipe import Serving
from backend.serving.vllm import VllmServer


@pytest.fixture(scope="module")
def drafted_server(
    tmp_path_factory: pytest.TempPathFactory,
    starter_target: Path,
    starter_draft: Path,
    serve_python: Path,
    vllm_cache: Path,
) -> Iterator[VllmServer]:
    """The starter with its draft, eager, four tokens a guess."""
    variant = Variant(
        name="starter",
        source="starter",
        kind="model",
        model_path=str(starter_target),
        serving=Serving(enforce_eager=True),
        speculation=Speculation(method="draft", tokens=4, draft_path=str(starter_draft)),
    )
    log = tmp_path_factory.mktemp("drafted") / "server.log"
    with VllmServer(variant, python=serve_python, log=log, cache_root=vllm_cache, kv_cache_gib=0.0625) as server:
        yield server
