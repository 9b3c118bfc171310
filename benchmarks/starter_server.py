"""One vLLM server of the starter model, or of the same made wide, for benchmarks that load a server as it stands.

Without prefix caching: whoever asks second for the same prompt must not find it computed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from backend import settings
from backend.domain.evaluation.document import Variant
from backend.domain.recipe.recipe import Serving
from backend.hardware import engine_status
from backend.serving.vllm import VllmServer
from benchmarks import wide

KV_CACHE_GIB = 0.0625


class Cores(NamedTuple):
    """Who has which: so that the generator at work takes nothing from the server that it measures."""

    server: int
    others: set[int]


def apart() -> Cores:
    """The first core for the server, all others for the rest. Raises SystemExit where there is one core only."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        raise SystemExit("There is one core only: give --shared to let the server and the generators share it.")
    return Cores(first, set(others))


@contextmanager
def serving(folder: Path, times: int = 1, cores: Cores | None = None) -> Iterator[VllmServer]:
    """The server while it runs; its log and cache in `folder`. `times` as in `wide.build`, 1 for the starter as it is.

    With `cores` every process of the server keeps to its core, and the caller and what it starts to the others.
    Raises EngineMissing where the engine environment `serve` is not installed, ServerFailed.
    """
    model = wide.STARTER
    if times > 1:
        model = folder / "wide"
        wide.build(model, times)
    variant = Variant(
        name="starter",
        source=str(model),
        kind="model",
        model_path=str(model),
        serving=Serving(enforce_eager=True, prefix_caching=False),
    )
    python = engine_status.engine_python(settings.load(), "serve")
    log, cache = folder / "server.log", folder / "cache"
    server = VllmServer(variant, python=python, log=log, cache_root=cache, kv_cache_gib=KV_CACHE_GIB)
    with kept_to({cores.server} if cores else None):
        server.start()
    try:
        with kept_to(cores.others if cores else None):
            yield server
    finally:
        server.stop()


@contextmanager
def kept_to(cores: set[int] | None) -> Iterator[None]:
    """This process, and what it starts meanwhile, on these cores only; None changes nothing."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
