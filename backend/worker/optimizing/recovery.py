"""Runs pruning, recovery and quantization one after the other; a resumed job repeats none that was finished.

The pruned and the recovered weights are 16-bit checkpoints beside the job's scratch space, and are deleted when the job
has succeeded.
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
    return result.model_copy(update={"versions": versions, "bytes_before": pruned.bytes_before}), record


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


def recover_pruned(stage: RecoveryStage, options: Recover, device: str, progress: Progress) -> dict[str, Any]:
    """Recover the pruned checkpoint of the stage's folder, or take what an earlier attempt made of it; return the
    record for the manifest: options, results and the loss curve. Raises what the engine raises."""
    from backend.engines.native.recovery.recovery import RecoverRequest, RecoverResult, recover

    folder = stage.folder
    request = RecoverRequest(
        original_dir=stage.original,
        pruned_dir=folder / PRUNED,
        out_dir=folder / RECOVERED,
        options=options,
        linears=stage.linears,
        texts=stage.texts,
        samples=stage.samples,
        length=stage.length,
        seed=stage.seed,
        device=device,
        work_dir=folder / "recover",
    )
    recovered, seconds = run_stage(
        folder / RECOVERED, folder / PRUNED, request, RecoverResult, lambda: recover(request, progress)
    )
    objective = "kl" if options.teacher else "next token"
    record = {"asked": options.all_options(), "objective": objective, "seconds": seconds}
    return record | recovered.model_dump(mode="json", exclude={"versions"})


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
