"""Chooses the server of a variant by its engine."""

from __future__ import annotations

from pathlib import Path

from backend.domain.evaluation.document import Variant
from backend.domain.jobs.progress import Progress
from backend.serving.gguf.server import GgufServer
from backend.serving.installed_packages import is_cpu_build
from backend.serving.llama_cpp import LlamaCppServer
from backend.serving.model_server import ModelServer
from backend.serving.openvino.server import OpenVinoServer
from backend.serving.vllm import VllmServer


def make_server(
    variant: Variant,
    *,
    program: Path,
    log: Path,
    cache_root: Path,
    progress: Progress | None = None,
    tokens_in_flight: int | None = None,
    streams: int | None = None,
    port: int | None = None,
) -> ModelServer:
    """Return the server of a variant, which is not started yet.

    `program` is what `engine_status.server_program` returns; `tokens_in_flight` and `streams` are the most tokens and
    requests at one time, None where the load is not known. Raises RequestError for a variant without files.
    """
    readers: dict[str, type[GgufServer]] = {"llama.cpp": LlamaCppServer, "openvino": OpenVinoServer}
    if variant.serving.engine in readers:
        return readers[variant.serving.engine](
            variant,
            program=program,
            log=log,
            progress=progress,
            tokens_in_flight=tokens_in_flight,
            streams=streams,
            port=port,
        )
    return VllmServer(
        variant,
        python=program,
        log=log,
        cache_root=cache_root,
        progress=progress,
        tokens_in_flight=tokens_in_flight,
        port=port,
    )


def runs_on_processor(variant: Variant, program: Path) -> bool:
    """Tell whether the variant is served by the processor."""
    return variant.serving.engine != "vllm" or is_cpu_build(program)
