"""One vLLM server of the starter model, or of the same made wide, for benchmarks that load a server as it stands.

Without prefix caching: whoever asks second for the same prompt must not find it computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backend import settings
from backend.domain.evaluation import Variant
from backend.domain.recipe import Serving
from backend.hardware import engines
from backend.serving.vllm import VllmServer
from benchmarks import wide

KV_CACHE_GIB = 0.0625


@contextmanager
def serving(folder: Path, times: int = 1) -> Iterator[VllmServer]:
    """The server while it runs; its log and cache in `folder`. `times` as in `wide.build`, 1 for the starter as it is.

    Raises EngineMissing where the engine environment `serve` is not installed, ServerFailed.
    """
    model = wide.STARTER
    if times > 1:
        model = folder / "wide"
        wide.build(model, times)
    variant = Variant(
        name="starter", source=str(model), kind="model", model_path=str(model),
        serving=Serving(enforce_eager=True, prefix_caching=False),
    )  # fmt: skip
    python = engines.engine_python(settings.load(), "serve")
    log, cache = folder / "server.log", folder / "cache"
    with VllmServer(variant, python=python, log=log, cache_root=cache, kv_cache_gib=KV_CACHE_GIB) as server:
        yield server
