"""Runs llama.cpp's own programs to the end: its quantizer, and the program that measures what weights matter.

Options are those of llama.cpp 0c1e57098 (tools/quantize/README.md, tools/imatrix/README.md). Knows no recipe.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from backend.domain.errors import DiskFull, WorkError
from backend.engines.finished_run import run_to_end, shorten_reason

QUANTIZE, IMATRIX = "llama-quantize", "llama-imatrix"
_TENSOR = re.compile(r"^\[\s*(\d+)/\s*(\d+)\]")
_FAILURE = re.compile(r"error|failed|terminate", re.IGNORECASE)
_BATCH = 512


def measure_importance(
    program: Path, model: Path, text: Path, result: Path, *, chunks: int, length: int, threads: int
) -> None:
    """Write the importance matrix of `chunks` sequences of `length` tokens of a text. All files are in one folder.

    Raises WorkError with the program's own words.
    """
    files = ["-m", model.name, "-f", text.name, "-o", result.name, "--output-format", "gguf"]
    sizes = ["-c", str(length), "-b", str(max(length, _BATCH)), "--chunks", str(chunks), "-t", str(threads)]
    # Special tokens of chat templates count as such; the perplexity of the text is not needed.
    _run([str(program), *files, *sizes, "--parse-special", "--no-ppl"], model.parent, "measuring what weights matter")


def quantize(
    program: Path,
    model: Path,
    result: Path,
    kind: str,
    *,
    threads: int,
    importance: Path | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write the model in another type. All files are in one folder, whose path is not written into the result.

    `advance` is told the tensors that are done, and all of them. Raises WorkError with the program's own words.
    """
    matrix = ["--imatrix", importance.name] if importance else []

    def follow(line: str) -> None:
        match = _TENSOR.match(line)
        if match is not None:
            advance(int(match[1]), int(match[2]))

    _run([str(program), *matrix, model.name, result.name, kind, str(threads)], model.parent, "quantizing", follow)


def _run(command: list[str], folder: Path, doing: str, follow: Callable[[str], None] = lambda line: None) -> None:
    """Run to the end. Raises DiskFull, and WorkError with the program's own words."""
    # 1. Threads sleep at barriers: a job gives way to what else uses the cores.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    environment.pop("OMP_NUM_THREADS", None)
    finished = run_to_end(command, folder=folder, environment=environment, follow=follow)
    # 2. Say what it said last.
    if finished.code == 0:
        return
    if finished.is_disk_full:
        raise DiskFull(f"The disk filled up while {doing} with llama.cpp: free some space, then resume the job.")
    reason = shorten_reason(finished.matching_lines(_FAILURE)[-1])
    raise WorkError(f"llama.cpp failed while {doing}: {reason}; the job's log has all of it.")
