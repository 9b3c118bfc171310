"""Quantizes a model folder to a GGUF file with llama.cpp's own quantizer and an importance matrix of the calibration
text.

The folder that it makes has config and tokenizer, as every model folder, and the file in `gguf/`; no safetensors.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from backend import files
from backend.domain.errors import ImpossibleStack
from backend.domain.frozen import Frozen
from backend.domain.jobs.progress import Progress
from backend.domain.model.gguf.conversion import Conversion
from backend.domain.model.gguf.export import FOLDER, SUFFIX
from backend.domain.model.gguf.file_types import TYPES
from backend.engines.gguf import weights, writer
from backend.engines.gguf.gguf_file import GgufFile
from backend.engines.llama_cpp import programs
from backend.engines.native.files import checkpoint
from backend.layered import tokenizers


class GgufRequest(Frozen):
    """`kind` is a name of `TYPES`; without `texts` no importance matrix is measured. `programs` has llama.cpp's
    programs, `work_dir` what a later attempt goes on from."""

    model_dir: Path
    out_dir: Path
    name: str
    kind: str
    texts: list[str]
    samples: int
    length: int
    programs: Path
    threads: int
    work_dir: Path


class GgufResult(Frozen):
    """`file` is below `out_dir`; `types` counts the matrices by their type in the file."""

    file: str
    types: dict[str, int]
    calibration: dict[str, Any]
    versions: dict[str, str]


def quantize(request: GgufRequest, progress: Progress) -> GgufResult:
    """Fill `out_dir`. Raises InvalidModel for what a GGUF file could not state, ImpossibleStack for a text that is too
    short, WorkError with llama.cpp's words."""
    # 1. The model in 16 bits as a GGUF file; what cannot be written is known before anything is measured.
    request.work_dir.mkdir(parents=True, exist_ok=True)
    plain = request.work_dir / "plain.gguf"
    progress.phase("load", "Writing the 16-bit model as a GGUF file", weight=0.5)
    source = writer.open_source(request.model_dir, request.name)
    if not plain.exists():
        partial = plain.with_suffix(".partial")
        with files.disk_errors(partial):
            writer.write(partial, source, lambda tensor: writer.plain_form(source, tensor), file_type="MOSTLY_BF16")
        partial.replace(plain)

    # 2. The importance matrix.
    importance, calibration = _measure(request, plain, progress)

    # 3. The quantized file.
    known = TYPES[request.kind]
    progress.phase("optimize", f"Quantizing to {known.title} with llama.cpp", unit="tensors", weight=2.0)
    quantized = request.work_dir / "quantized.gguf"
    programs.quantize(
        request.programs / programs.QUANTIZE,
        plain,
        quantized,
        known.title,
        threads=request.threads,
        importance=importance,
        advance=lambda done, total: progress.advance(done),
    )

    # 4. The model's folder.
    checkpoint.make_empty_folder(request.out_dir)
    checkpoint.write_companions(request.model_dir, request.out_dir)
    name = file_name(request.name, known.title)
    (request.out_dir / FOLDER).mkdir()
    quantized.replace(request.out_dir / FOLDER / name)
    dtype = "float16" if source.weights.dtypes == {"F16"} else "bfloat16"
    checkpoint.write_config(request.model_dir, request.out_dir, dtype, None)
    shutil.rmtree(request.work_dir, ignore_errors=True)
    types = matrix_types(request.out_dir / FOLDER / name)
    return GgufResult(file=f"{FOLDER}/{name}", types=types, calibration=calibration, versions=_versions())


def file_name(model: str, kind: str) -> str:
    """Return the usual name of such a file: `SmolLM2-135M-Instruct.Q4_K_M.gguf`."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", model.rpartition("/")[2] or model)[:80]
    return f"{plain}.{kind}{SUFFIX}"


def matrix_types(path: Path) -> dict[str, int]:
    """Count the matrices of a file by their type."""
    from gguf import GGUFReader

    counted = Counter(tensor.tensor_type.name for tensor in GGUFReader(path).tensors if len(tensor.shape) > 1)
    return dict(counted.most_common())


def write_dequantized(folder: Path, file: Path, conversion: Conversion, into: Path) -> None:
    """Write the tensors of a folder's GGUF file as bfloat16 safetensors beside config and tokenizer, for scoring."""
    into.mkdir(parents=True)
    checkpoint.write_companions(folder, into)
    weights.write(GgufFile([file]), conversion, into)
    shutil.copyfile(folder / "config.json", into / "config.json")


def _measure(request: GgufRequest, plain: Path, progress: Progress) -> tuple[Path | None, dict[str, Any]]:
    """Return the importance matrix and what it was measured on; None where the type takes none."""
    if not request.texts:
        return None, {"samples": 0, "length": 0, "tokens": 0}
    # 1. The text as one file, cut into sequences by llama.cpp.
    text = "\n\n".join(request.texts)
    tokens = len(tokenizers.load(request.model_dir)(text, add_special_tokens=False)["input_ids"])
    length = min(request.length, tokens)
    chunks = min(request.samples, tokens // max(length, 1))
    if chunks < 1 or length < 8:
        raise ImpossibleStack(
            "The calibration text holds fewer than 8 tokens, too few for an importance matrix: give more, or set "
            "`imatrix: false`."
        )
    digest = hashlib.sha256(text.encode()).hexdigest()
    described = {"samples": chunks, "length": length, "tokens": chunks * length, "sha256": digest}

    # 2. The matrix, unless an earlier attempt measured it.
    matrix, mark = request.work_dir / "imatrix.gguf", request.work_dir / "imatrix.json"
    if mark.exists() and json.loads(mark.read_text()) == described:
        return matrix, described
    (request.work_dir / "calibration.txt").write_text(text, encoding="utf-8")
    title = f"Measuring which weights matter on {chunks * length:,} tokens, with llama.cpp"
    progress.phase("imatrix", title, weight=3.0)
    programs.measure_importance(
        request.programs / programs.IMATRIX,
        plain,
        request.work_dir / "calibration.txt",
        matrix,
        chunks=chunks,
        length=length,
        threads=request.threads,
    )
    files.write(mark, json.dumps(described))
    return matrix, described


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("gguf", "torch", "transformers")}
