"""Makes the GGUF file of an optimize job with llama.cpp's programs, and a folder by which it can be scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend import settings as configuration
from backend.channel import JobChannel
from backend.domain.jobs.jobs import OptimizeSpec
from backend.domain.jobs.progress import Progress
from backend.domain.recipe import quantize_step
from backend.domain.recipe.recipe import Quantize
from backend.domain.rules.plan import PlannedStep
from backend.hardware import engine_status, probe
from backend.worker.optimizing import calibration


def write(
    spec: OptimizeSpec, step: PlannedStep, model: Path, folder: Path, channel: JobChannel, progress: Progress
) -> tuple[Path, dict[str, Any]]:
    """Fill `folder` with the file of `model`, a checkpoint; return the folder of the dequantized weights, which goes
    with the attempt, and the manifest's facts.

    Raises EngineMissing without llama.cpp's quantizer, and what the quantization raises.
    """
    from backend.catalog.cards import gguf as heads
    from backend.engines.gguf import quantize

    # 1. Write and quantize the file.
    options = step.options
    quantized = spec.recipe.step("quantize")
    reads = isinstance(quantized, Quantize) and quantize_step.uses_imatrix(quantized)
    defaults = Quantize.model_fields
    request = quantize.GgufRequest(
        model_dir=model,
        out_dir=folder,
        name=spec.model.id,
        kind=options["type"],
        texts=calibration.texts(spec.calibration_path, model) if reads else [],
        samples=options.get("samples", defaults["samples"].default),
        length=options.get("length", defaults["length"].default),
        programs=engine_status.quantizer_folder(configuration.load()),
        threads=probe.cores(),
        work_dir=channel.resume("gguf"),
    )
    result = quantize.quantize(request, progress)

    # 2. Dequantize it for scoring.
    file, plain = folder / result.file, channel.work / "dequantized"
    quantize.write_dequantized(folder, file, heads.read_model(file).conversion, plain)

    # 3. Collect what the manifest says of it.
    source = spec.calibration_path or ("bundled" if reads else "none")
    described = {**result.calibration, "source": source, "seed": spec.seed}
    stored = {"file": f"{folder.name}/{result.file}", "types": result.types}
    return plain, {"gguf": stored, "calibration": described, "versions": result.versions}
