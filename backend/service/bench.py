"""The load generator alone, against any OpenAI-compatible endpoint: one level a concurrency, each in its own subprocess."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from backend.domain.errors import EndpointUnreachable, WorkError
from backend.domain.evaluation import EvaluateOptions
from backend.service import workloads
from backend.service.workspace import Workspace

UNREACHABLE = 3
"""Exit code of the bench process where nothing answers."""


def run(
    workspace: Workspace, url: str, model: str | None, chosen: EvaluateOptions, *, bearer_env: str | None = None
) -> list[Any]:
    """One document of `levels` a concurrency, as dictionaries.

    Raises InvalidWorkload; EndpointUnreachable where nothing answers at the address.
    """
    workload_path = workloads.path(chosen.workload)
    workloads.read(chosen.workload)
    request = {
        "url": url.rstrip("/"), "model": model, "bearer_env": bearer_env,
        "options": chosen.model_copy(update={"workload": str(workload_path)}).model_dump(mode="json"),
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="whetstone-bench-") as folder:
        (Path(folder) / "request.json").write_text(json.dumps(request))
        done = subprocess.run([sys.executable, "-m", "backend.evaluate.bench", folder], stdout=subprocess.DEVNULL, check=False)
        outcome = Path(folder) / "levels.json"
        if not outcome.exists():
            raise WorkError(f"The load generator ended with exit code {done.returncode} and no result.")
        document = json.loads(outcome.read_text())
    if done.returncode == UNREACHABLE:
        raise EndpointUnreachable(document["error"])
    if done.returncode:
        raise WorkError(document["error"])
    levels: list[Any] = document["levels"]
    return levels
