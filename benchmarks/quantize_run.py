"""One measured quantization for benchmarks/quantize.py, in a process of its own under the engine's interpreter.

    python -m benchmarks.quantize_run ENGINE REQUEST.json [RECOVER.json]

RECOVER.json has the options of a training of what is stored, which follows in the same call (quantization-aware
training). Imports everything the engine will need, notes the resident memory (the import floor), quantizes, and prints
one line of JSON: `seconds` of the whole call (load, calibrate, quantize, write), `peak_bytes`, the peak resident memory
above the floor, and `device_bytes`, the most that tensors took on the first device where that is a CUDA device.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe.recovery import RecoverQuantized
from backend.engines.base import QuantizeRequest, QuantizeResult
from backend.worker.optimizing import recovery

NEEDED = {
    "native": ("torch", "compressed_tensors.quantization", "safetensors.torch"),
    "llm-compressor": (
        "llmcompressor",
        "llmcompressor.modifiers.transform.awq",
        "llmcompressor.modifiers.quantization",
        "datasets",
    ),
    "autoawq": ("awq", "awq.quantize.quantizer"),
}
MODULES = {
    "native": "backend.engines.native",
    "llm-compressor": "backend.engines.libraries.llm_compressor",
    "autoawq": "backend.engines.libraries.autoawq",
}


def main(engine: str, path: str, recover: str | None = None) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is not the answer
    module = _import(engine)
    request = QuantizeRequest.model_validate_json(Path(path).read_text())
    Path("/proc/self/clear_refs").write_text("5")  # proc_pid_clear_refs(5): the peak is counted from here
    floor, began = _status("VmRSS"), time.monotonic()
    options = RecoverQuantized.model_validate_json(Path(recover).read_text()) if recover else None
    result = module.quantize(request, NoProgress()) if options is None else _train(module, request, options)
    seconds = time.monotonic() - began
    values = {
        "seconds": seconds,
        "floor_bytes": floor,
        "peak_bytes": _status("VmHWM") - floor,
        "device_bytes": _device_bytes(request.devices[0]),
        "calibration": result.calibration,
        "versions": result.versions,
        "bytes_after": result.bytes_after,
    }
    print(json.dumps(values), file=answers, flush=True)


def _train(module: Any, request: QuantizeRequest, options: RecoverQuantized) -> QuantizeResult:
    def quantize(placed: QuantizeRequest) -> recovery.Changed:
        return recovery.Changed(result=module.quantize(placed, NoProgress()).model_dump(mode="json"))

    changed = recovery.quantize_and_recover(request, options, request.model_dir, NoProgress(), quantize)
    return QuantizeResult.model_validate(changed.result)


def _import(engine: str) -> Any:
    for name in (*NEEDED[engine], "transformers.models.llama.modeling_llama", "transformers.models.auto.modeling_auto"):
        importlib.import_module(name)
    return importlib.import_module(MODULES[engine])


def _device_bytes(device: str) -> int | None:
    import torch

    return torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else None


def _status(field: str) -> int:
    """Bytes, from /proc/self/status."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
