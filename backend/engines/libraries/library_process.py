"""The library engines' process: reads one request on standard input, runs the engine, answers in lines of JSON.

    python -m backend.engines.libraries.library_process ENGINE

Runs under the interpreter of the engine's environment: standard library, pydantic and the engine's own libraries. What
a library prints goes to standard error, which is the job's log. When the other side goes away, so does this process.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import IO, Any

from backend.domain.errors import DiskFull, WhetstoneError
from backend.engines.base import QuantizeRequest
from backend.engines.libraries.library_client import NATIVE_TOO
from backend.engines.neuron.compilation import CompileRequest

ENGINES = {
    "llm-compressor": ("libraries.llm_compressor", "quantize"),
    "autoawq": ("libraries.autoawq", "quantize"),
    "transformers-neuronx": ("neuron.tnx", "build"),
    "nxd-inference": ("neuron.nxd", "build"),
    "vllm-neuron": ("neuron.vllm_plugin", "build"),
}
"""Name in a recipe -> module below backend.engines, and its function of a request and a progress."""


class LineProgress:
    """A Progress whose every call is a line."""

    def __init__(self, sink: IO[str]) -> None:
        self._sink = sink

    def say(self, document: dict[str, Any]) -> None:
        self._sink.write(json.dumps(document) + "\n")
        self._sink.flush()

    def __getattr__(self, call: str) -> Callable[..., None]:
        return lambda *args, **data: self.say({"call": call, "args": args, "data": data})


def main(engine: str) -> int:
    """Run the engine on the request; return 0 with a result, 1 with an error's sentence."""
    # 1. Keep standard output for answers; what a library prints goes to standard error.
    progress = LineProgress(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)

    # 2. Read the request, and end with the process that sent it.
    name, call = ENGINES[engine]
    kind = QuantizeRequest if call == "quantize" else CompileRequest
    request = kind.model_validate_json(sys.stdin.readline())
    threading.Thread(target=_outlive_nobody, daemon=True).start()

    # 3. Run the engine, and turn every exception into an answer.
    try:
        result = getattr(importlib.import_module(f"backend.engines.{name}"), call)(request, progress)
        progress.say({"result": result.model_dump(mode="json")})
        return 0
    except WhetstoneError as error:
        progress.say({"error": type(error).__name__, "message": str(error)})
    except Exception as error:  # noqa: BLE001 - a library may raise anything; it must become a sentence
        traceback.print_exc()
        progress.say(_sentence(engine, error))
    return 1


def _outlive_nobody() -> None:
    """End this process when standard input ends: the process that started it is gone, for whatever reason."""
    while sys.stdin.read(1):
        continue
    os._exit(1)


def _sentence(engine: str, error: Exception) -> dict[str, str]:
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        mend = "use the native engine, fewer or shorter calibration sequences, or a smaller model"
        message = f"Memory ran out in {engine}: {mend if engine in NATIVE_TOO else 'use a machine with more'}."
        return {"error": "WorkError", "message": message}
    if getattr(error, "errno", None) == errno.ENOSPC or "No space left on device" in str(error):
        return {"error": "DiskFull", "message": str(DiskFull())}
    first = (str(error).strip() or type(error).__name__).partition("\n")[0].rstrip(".")
    still = "the native engine may still do it; " if engine in NATIVE_TOO else ""
    message = f"{engine} failed ({type(error).__name__}: {first}): {still}the job's log has the rest."
    return {"error": "WorkError", "message": message}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
