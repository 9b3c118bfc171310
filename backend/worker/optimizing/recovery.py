"""Runs pruning, recovery and quantization in a row, each on what the one before wrote; a resumed job repeats none.

The pruned and the recovered weights are checkpoints in 16 bit beside the job's scratch space; they go with the job's
success.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from backend import files
from backend.domain.errors import DiskFull, QualityFloorMissed
from backend.domain.jobs.progress import Progress
from backend.domain.recipe.recovery import Recover
from backend.engines.attempt_state import AttemptState

if TYPE_CHECKING:
    from backend.engines.base import QuantizeRequest, QuantizeResult

PRUNED, RECOVERED = "pruned", "recovered"
StageResult = TypeVar("StageResult", bound=BaseModel)


class _Done(AttemptState):
    """Marks a finished stage, with its result; `key` identifies everything that it was made from."""

    seconds: float
    result: dict[str, Any]


def prune_and_recover(
    request: QuantizeRequest,
    options: Recover,
    progress: Progress,
    quantize: Callable[[QuantizeRequest], QuantizeResult],
) -> tuple[QuantizeResult, dict[str, Any]]:
    """Fill the request's `out_dir`, with `quantize` if the request has a method.

    The second part of the answer is the record of the recovery for the manifest: options, results and the loss curve.

    `request` asks for pruning, and a method or none; its `work_dir` is where stages are kept. Raises what the engines
    raise.
    """
    from backend.engines import native
    from backend.engines.base import QuantizeResult
    from backend.engines.native.recovery.recovery import RecoverRequest, RecoverResult, recover

    folder = request.work_dir or request.out_dir.with_name(request.out_dir.name + ".work")
    alone = request.model_copy(
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
    pruned, _ = _run_stage(
        folder / PRUNED, request.model_dir, alone, QuantizeResult, lambda: native.quantize(alone, progress)
    )
    recovery_request = RecoverRequest(
        original_dir=request.model_dir,
        pruned_dir=folder / PRUNED,
        out_dir=folder / RECOVERED,
        options=options,
        linears=tuple(str(layer["name"]) for layer in pruned.layers),
        texts=request.calibration_texts,
        samples=request.samples,
        length=request.length,
        seed=request.seed,
        device=request.devices[0],
        work_dir=folder / "recover",
    )
    recovered, took = _run_stage(
        folder / RECOVERED,
        folder / PRUNED,
        recovery_request,
        RecoverResult,
        lambda: recover(recovery_request, progress),
    )
    later = {"model_dir": folder / RECOVERED, "pruning": None, "keep_zeros": True, "work_dir": folder / "quantize"}
    result = quantize(request.model_copy(update=later)) if request.method else _moved(request, folder, pruned)
    versions = {**pruned.versions, **result.versions}
    record = {"asked": options.all_options(), "objective": "kl" if options.teacher else "next token", "seconds": took}
    record |= recovered.model_dump(mode="json", exclude={"versions"})
    return result.model_copy(update={"versions": versions, "bytes_before": pruned.bytes_before}), record


def _run_stage(
    folder: Path, source: Path, base_model: BaseModel, kind: type[StageResult], make: Callable[[], StageResult]
) -> tuple[StageResult, float]:
    """Return the result of `make` and the seconds it took, or those of an earlier attempt with the same inputs."""
    from backend.engines.native.files import resume
    from backend.layered.weight_source import weight_files

    key = resume.request_key(base_model.model_dump(mode="json"), weight_files(source))
    mark = folder.with_name(folder.name + ".json")
    with suppress(ValidationError):
        if earlier := _Done.read(mark, key):
            return kind.model_validate(earlier.result), earlier.seconds
    mark.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    result = make()
    done = _Done(key=key, seconds=round(time.monotonic() - began, 2), result=result.model_dump(mode="json"))
    files.write(mark, done.model_dump_json())
    return result, done.seconds


def _moved(request: QuantizeRequest, folder: Path, pruned: QuantizeResult) -> QuantizeResult:
    """Copy the recovered checkpoint to the output; a stopped attempt must find the original again."""
    with files.disk_errors(request.out_dir):
        shutil.copytree(folder / RECOVERED, request.out_dir, dirs_exist_ok=True)
    return pruned


def score_stages(
    folder: Path, quality: dict[str, Any], score: Callable[[Path], dict[str, Any]], *, quantized: bool
) -> dict[str, dict[str, float]]:
    """Perplexity and mean KL of the `original`, `pruned` and `recovered` weights in 16 bit, on held-out text.

    `quality` is the artifact's own report, which is the recovered weights' unless they were `quantized` after.
    """
    pruned = score(folder / PRUNED)
    recovered = score(folder / RECOVERED) if quantized else {"perplexity": quality["perplexity_after"], **quality}
    names = ("perplexity", "kl_mean")
    return {
        "original": {"perplexity": quality["perplexity_before"], "kl_mean": 0.0},
        PRUNED: {name: pruned[name] for name in names},
        RECOVERED: {name: recovered[name] for name in names},
    }


@contextmanager
def removing_stages(folder: Path) -> Iterator[None]:
    """Remove the checkpoints between the steps after success, and after failures that a retry would only repeat."""
    try:
        yield
    except (DiskFull, QualityFloorMissed):
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
