"""Fills vLLM's compile cache ahead of time and packs it, so that a later start on another machine need not compile.

The model's path is part of vLLM's key of the cache; `VllmServer` gives it a path that never changes, which makes the
cache relocatable. Knows nothing of artifacts or jobs.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from backend import files
from backend.domain.errors import ServerFailed
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.progress import Progress
from backend.serving import compile_key, vllm_options
from backend.serving.vllm import VllmServer

COMPILED = ("*.so", "*.cubin", "*.ptx", "artifact_compile_range_*", "model")
"""Files of a filled cache; one without any of them was not filled."""


def build_compile_cache(variant: Variant, python: Path, out_dir: Path, log: Path, progress: Progress) -> dict[str, Any]:
    """Start the variant once with an empty cache, stop it, and put the filled cache in `out_dir` with its key.

    Returns the key: processor, vllm, torch, python, and `seconds`, what the first start took. `out_dir` must not exist;
    it appears only when complete. Raises ServerFailed.
    """
    with files.staged_folder(out_dir) as staging:
        fresh = variant.model_copy(update={"compile_cache": None})
        with VllmServer(fresh, python=python, log=log, cache_root=staging, progress=progress) as server:
            seconds = server.started_seconds
        _prune(staging)
        key = {**compile_key.current(python), "seconds": round(seconds, 1)}
        (staging / compile_key.KEY_FILE).write_text(json.dumps(key, indent=2) + "\n")
    return key


def _prune(folder: Path) -> None:
    """Remove what a later start does not read. Raises ServerFailed if nothing was compiled."""
    shutil.rmtree(folder / vllm_options.TOKENIZERS, ignore_errors=True)
    for locks in list(folder.rglob("locks")):
        shutil.rmtree(locks)
    if not any(next(folder.rglob(pattern), None) for pattern in COMPILED):
        raise ServerFailed(
            "vLLM compiled nothing at start, so there is no compile cache: leave the `compile` step out."
        )
