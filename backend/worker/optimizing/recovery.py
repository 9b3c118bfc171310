"""Runs pruning, quantization and the recovery after each one after the other; a resumed job repeats none that was
finished.

What is made between them are checkpoints beside the job's scratch space, which are deleted when the job has succeeded.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from backend import files
from backend.domain.errors import DiskFull, QualityFloorMissed
from backend.domain.frozen import Frozen
from backend.domain.jobs.progress import Progress
from backend.domain.recipe.recovery import Recover, RecoverQuantized
from backend.engines.attempt_state import AttemptState

if TYPE_CHECKING:
    from backend.engines.base import QuantizeRequest, QuantizeResult
    from backend.engines.native.recovery.recovery import RecoverRequest

PRUNED, RECOVERED, QUANTIZED = "pruned", "recovered", "quantized"
TRAINED, BEFORE = "trained", "before"
"""The quantized checkpoint after its recovery, and the folder of what is made before it."""
StageResult = TypeVar("StageResult", bound=BaseModel)


class Changed(Frozen):
    """An engine's result for the weights that it changed, and the records of the recoveries for the manifest."""

    result: dict[str, Any]
    """A `QuantizeResult`."""
    recovery: dict[str, Any] | None = None
    quantized_recovery: dict[str, Any] | None = None


class _Done(AttemptState):
    """Marks a finished stage, with its result; `key` identifies everything that it was made from."""

    seconds: float
    result: dict[str, Any]


def prune_and_recover(
    request: QuantizeRequest,
    options: Recover,
    progress: Progress,
    quantize: Callable[[QuantizeRequest], QuantizeResult],
) -> Changed:
    """Fill the request's `out_dir`; return its result and the record of the recovery for the manifest.

    `request` asks for pruning, and perhaps for a quantization method, which `quantize` runs. Finished stages are stored
    in its `work_dir`. The record has the options, the results and the loss curve. Raises what the engines raise.
    """
    from backend.engines import native
    from backend.engines.base import QuantizeResult

    # 1. Prune, without quantization.
    folder = request.work_dir or request.out_dir.with_name(request.out_dir.name + ".work")
    pruning = request.model_copy(
        update={
            "method": None,
            "bits": 16,
            "group_size": None,
            "symmetric": True,
            "tuning": {},
            "out_dir": folder / PRUNED,
            "work_dir": folder / "prune",
        }
    )
    pruned, _ = run_stage(
        folder / PRUNED, request.model_dir, pruning, QuantizeResult, lambda: native.quantize(pruning, progress)
    )

    # 2. Train the weights that are left.
    linears = tuple(str(layer["name"]) for layer in pruned.layers)
    stage = RecoveryStage(
        original=request.model_dir,
        folder=folder,
        linears=linears,
        seed=request.seed,
        texts=request.calibration_texts,
        samples=request.samples,
        length=request.length,
    )
    record = recover_pruned(stage, options, request.devices[0], progress)

    # 3. Quantize the recovered weights, or take them as they are.
    if request.method:
        later = {"model_dir": folder / RECOVERED, "pruning": None, "keep_zeros": True, "work_dir": folder / "quantize"}
        result = quantize(request.model_copy(update=later))
    else:
        copy_checkpoint(folder / RECOVERED, request.out_dir)
        result = pruned

    # 4. Describe all stages.
    versions = {**pruned.versions, **result.versions}
    described = result.model_copy(update={"versions": versions, "bytes_before": pruned.bytes_before})
    return Changed(result=described.model_dump(mode="json"), recovery=record)


class RecoveryStage(NamedTuple):
    """The inputs of a recovery: the original, the folder with the pruned checkpoint, and the text."""

    original: Path
    folder: Path
    """Holds the checkpoint `pruned`, and gets `recovered`."""
    linears: tuple[str, ...]
    """The matrices that are trained, as the pruned checkpoint names their modules."""
    seed: int
    texts: list[str]
    samples: int
    """The sequences that calibrated, which are not learned from."""
    length: int
    keep_zeros: bool = True
    """False for a smaller model, in which no weight has to stay at zero."""


def recover_pruned(stage: RecoveryStage, options: Recover, device: str, progress: Progress) -> dict[str, Any]:
    """Recover the pruned checkpoint of the stage's folder, or take what an earlier attempt made of it; return the
    record for the manifest: options, results and the loss curve. Raises what the engine raises."""
    from backend.engines.native.recovery.recovery import RecoverRequest

    folder = stage.folder
    request = RecoverRequest(
        original_dir=stage.original,
        start_dir=folder / PRUNED,
        out_dir=folder / RECOVERED,
        options=options,
        linears=stage.linears,
        texts=stage.texts,
        samples=stage.samples,
        length=stage.length,
        seed=stage.seed,
        device=device,
        keep_zeros=stage.keep_zeros,
        work_dir=folder / "recover",
    )
    return _run_recovery(request, progress)


def _run_recovery(request: RecoverRequest, progress: Progress) -> dict[str, Any]:
    """Run a recovery as a stage; return its record for the manifest."""
    from backend.engines.native.recovery.recovery import RecoverResult, recover

    recovered, seconds = run_stage(
        request.out_dir, request.start_dir, request, RecoverResult, lambda: recover(request, progress)
    )
    objective = "kl" if request.options.teacher else "next token"
    record = {"asked": request.options.all_options(), "objective": objective, "seconds": seconds}
    return record | recovered.model_dump(mode="json", exclude={"versions"})


def quantize_and_recover(
    request: QuantizeRequest,
    options: RecoverQuantized,
    original: Path,
    progress: Progress,
    quantize: Callable[[QuantizeRequest], Changed],
) -> Changed:
    """Fill the request's `out_dir` with a quantized checkpoint that was trained; return what `quantize` says, which
    runs the request, with the record of the recovery.

    `original` teaches; it is larger than the request's model after a structured pruning. Raises what the engines raise.
    """
    from backend.engines.native.recovery.recovery import RecoverRequest

    # 1. Quantize.
    folder = request.work_dir or request.out_dir.with_name(request.out_dir.name + ".work")
    placed = request.model_copy(update={"out_dir": folder / QUANTIZED, "work_dir": folder / BEFORE})
    changed, _ = run_stage(folder / QUANTIZED, request.model_dir, placed, Changed, lambda: quantize(placed))
    # 2. Train what is stored. The 16-bit weights are those of the model, or of a recovery after pruning.
    recovered_plain = folder / BEFORE / RECOVERED
    training = RecoverRequest(
        original_dir=original,
        plain_dir=recovered_plain if recovered_plain.is_dir() else request.model_dir,
        start_dir=folder / QUANTIZED,
        out_dir=folder / TRAINED,
        options=options,
        texts=request.calibration_texts,
        samples=request.samples,
        length=request.length,
        seed=request.seed,
        device=request.devices[0],
        work_dir=folder / "train",
    )
    record = _run_recovery(training, progress)
    copy_checkpoint(folder / TRAINED, request.out_dir)
    return changed.model_copy(update={"quantized_recovery": record})


def run_stage(
    folder: Path, source: Path, request: BaseModel, kind: type[StageResult], make: Callable[[], StageResult]
) -> tuple[StageResult, float]:
    """Return the result of `make` and the seconds it took, or those of an earlier attempt with the same inputs.

    `request` and the weights in `source` are those inputs.
    """
    from backend.engines.native.files import resume
    from backend.layered.weight_source import weight_files

    # 1. Take the result of an earlier attempt.
    key = resume.request_key(request.model_dump(mode="json"), weight_files(source))
    mark = folder.with_name(folder.name + ".json")
    with suppress(ValidationError):
        earlier = _Done.read(mark, key)
        if earlier is not None:
            return kind.model_validate(earlier.result), earlier.seconds

    # 2. Else make it anew, and mark it as finished.
    mark.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    result = make()
    done = _Done(key=key, seconds=round(time.monotonic() - began, 2), result=result.model_dump(mode="json"))
    files.write(mark, done.model_dump_json())
    return result, done.seconds


def copy_checkpoint(folder: Path, output: Path) -> None:
    """Copy a stage's checkpoint to the output; it is not moved, since a later attempt may need it."""
    with files.disk_errors(output):
        shutil.copytree(folder, output, dirs_exist_ok=True)


def score_stages(
    folder: Path, quality: dict[str, Any], score: Callable[[Path], dict[str, Any]], *, quantized: bool
) -> dict[str, dict[str, float]]:
    """Return perplexity and mean KL of the `original`, `pruned` and `recovered` 16-bit weights, on held-out text.

    `quality` is the artifact's own report, which is that of the recovered weights unless they were `quantized` after.
    """
    recovered = score(folder / RECOVERED) if quantized else _artifact_scores(quality)
    return _stage_scores(quality, {PRUNED: score(folder / PRUNED), RECOVERED: recovered})


def score_quantized(
    folder: Path, quality: dict[str, Any], score: Callable[[Path], dict[str, Any]]
) -> dict[str, dict[str, float]]:
    """Return the same of the `original`, and the `quantized` weights as they were before and `recovered` after it."""
    return _stage_scores(quality, {QUANTIZED: score(folder / QUANTIZED), RECOVERED: _artifact_scores(quality)})


def _artifact_scores(quality: dict[str, Any]) -> dict[str, Any]:
    return {"perplexity": quality["perplexity_after"], **quality}


def _stage_scores(quality: dict[str, Any], stages: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    scores = {"original": {"perplexity": quality["perplexity_before"], "kl_mean": 0.0}}
    for name, scored in stages.items():
        scores[name] = {metric: scored[metric] for metric in ("perplexity", "kl_mean")}
    return scores


@contextmanager
def removing_stages(folder: Path) -> Iterator[None]:
    """Remove the checkpoints between the steps after success, and after failures that a retry would only repeat."""
    try:
        yield
    except (DiskFull, QualityFloorMissed):
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
