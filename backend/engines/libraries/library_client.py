"""Runs a library engine in a child process under another interpreter, and passes on its progress and its result.

The libraries pin versions that the studio's environment cannot hold, and cannot be interrupted in the middle of a
layer: as a process they can be ended at any moment. The child (`library_process`) reads the request from its standard
input, which stays open while this process lives, and answers in lines of JSON. Knows no library.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from backend import processes
from backend.domain import errors
from backend.domain.errors import WhetstoneError, WorkError
from backend.domain.jobs.progress import Progress
from backend.engines.base import QuantizeRequest, QuantizeResult
from backend.settings import CHECKOUT

NATIVE_TOO = frozenset({"llm-compressor", "autoawq"})
"""Engines whose methods the native engine has too."""
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}
"""Nothing is fetched, nothing is reported: the model and the text are on this disk."""


def quantize(engine: str, python: Path, request: QuantizeRequest, progress: Progress) -> QuantizeResult:
    """Run `engine` (llm-compressor, autoawq) on `request` under the interpreter `python`.

    Raises what the engine raised, or WorkError where the process ended without an answer. Whatever ends this call ends
    the process: a cancelled job waits for nothing.
    """
    return QuantizeResult.model_validate(ask(engine, python, request, progress))


def ask(engine: str, python: Path, request: BaseModel, progress: Progress) -> dict[str, Any]:
    """Return the document of the engine's answer; `request` is of the kind that it takes. Raises as `quantize`."""
    environment = {**os.environ, **QUIET, "PYTHONPATH": str(CHECKOUT)}
    command = [str(python), "-m", "backend.engines.libraries.library_process", engine]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, errors="replace", env=environment
    ) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            processes.send_line(process, request.model_dump_json())  # one that has ended says why by its exit code
            answer = _listen(process.stdout, progress)
        except BaseException:
            process.kill()
            raise
        process.stdin.close()
    if answer is None:
        raise WorkError(_silence(engine, process.returncode))
    return answer


def _listen(lines: Iterable[str], progress: Progress) -> dict[str, Any] | None:
    """Pass progress on until the result comes; None if the lines end without one. Raises the child's error."""
    for line in lines:
        answer = json.loads(line)
        if "result" in answer:
            result: dict[str, Any] = answer["result"]
            return result
        if "error" in answer:
            raise _error(answer["error"], answer["message"])
        getattr(progress, answer["call"])(*answer["args"], **answer["data"])
    return None


def _error(kind: str, message: str) -> WhetstoneError:
    """Make the error of that name in `errors`; anything else is a WorkError."""
    error_type = getattr(errors, kind, None)
    known = isinstance(error_type, type) and issubclass(error_type, WhetstoneError)
    return error_type(message) if known else WorkError(message)  # type: ignore[misc]


def _silence(engine: str, code: int) -> str:
    if code == -signal.SIGKILL:
        mend = "use the native engine, or a smaller model" if engine in NATIVE_TOO else "use a machine with more memory"
        return f"{engine} was ended by the system, most likely because memory ran out: {mend}."
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return f"{engine} ended {how} without a result; the job's log says why."
