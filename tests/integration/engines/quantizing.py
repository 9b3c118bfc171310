"""Quantizes a model in a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.domain.jobs.progress import NoProgress
from backend.engines.base import QuantizeRequest, QuantizeResult
from backend.engines.native import quantize
from tests.tiny import TEXT

OPTIONS: dict[str, dict[str, Any]] = {
    "w8a8": {"bits": 8, "symmetric": True},
    "awq": {"bits": 4, "symmetric": False, "group_size": 32},
    "rtn": {"bits": 4, "symmetric": False, "group_size": 32},
}


def run(model: Path, out: Path, method: Any, progress: NoProgress | None = None, **changes: Any) -> QuantizeResult:
    defaults = {"calibration_texts": [TEXT], "samples": 8, "length": 32}
    request = QuantizeRequest(model_dir=model, out_dir=out, method=method, **(defaults | OPTIONS[method] | changes))
    return quantize(request, progress or NoProgress())
