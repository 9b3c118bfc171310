"""Quantizes a tiny model in a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.domain.jobs.progress import NoProgress
from backend.engines.base import QuantizeRequest, QuantizeResult
from backend.engines.native import quantize
from backend.engines.native.methods import pipelines
from tests.tiny import TEXT


def run(model: Path, out: Path, **options: Any) -> QuantizeResult:
    tuning = {name: options.pop(name) for name in pipelines.TUNING & options.keys()}
    values = {"calibration_texts": [TEXT], "samples": 8, "length": 32, "tuning": tuning, **options}
    return quantize(QuantizeRequest(model_dir=model, out_dir=out, **values), NoProgress())
