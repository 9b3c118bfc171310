"""Runs a structured pruning and the recovery after it; a resumed job repeats neither once it was finished.

The smaller model is a 16-bit checkpoint beside the job's scratch space, which the steps that follow go on from.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.domain.jobs.jobs import OptimizeSpec
from backend.domain.jobs.progress import Progress
from backend.domain.needs import recovery_needs
from backend.domain.needs.structure import Structure
from backend.domain.recipe.recovery import Recover
from backend.domain.rules.plan import PlannedStep
from backend.worker.optimizing import calibration, recovery
from backend.worker.optimizing.recovery import PRUNED

if TYPE_CHECKING:
    from backend.engines.native.structured.request import CutRequest, CutResult


class SmallerModel(NamedTuple):
    """The checkpoint of the smaller model, and what the manifest says of it."""

    folder: Path
    facts: dict[str, Any]


def run(spec: OptimizeSpec, step: PlannedStep, folder: Path, progress: Progress) -> SmallerModel:
    """Make the smaller model that the step asks for in `folder`, and recover it where the recipe says so.

    Raises what the engines raise.
    """
    from backend.engines.native import devices
    from backend.engines.native.structured.request import CutRequest

    # 1. Remove the parts, and train what is left.
    options, model = step.options, Path(spec.model.path)
    samples, length = recovery_needs.calibration_size(spec.recipe)
    request = CutRequest(
        model_dir=model,
        out_dir=folder / PRUNED,
        method=options["method"],
        structure=Structure(**options["structure"]),
        importance=options.get("importance", "similarity"),
        calibration_texts=calibration.texts(spec.calibration_path, model),
        samples=samples,
        length=length,
        seed=spec.seed,
        devices=devices()[:1],
    )
    recover = Recover(**options["recover"]) if "recover" in options else None
    smaller = make_smaller(request, recover, folder, progress)
    # 2. Say which text decided it.
    source = {"source": spec.calibration_path or "bundled", "seed": spec.seed}
    return smaller._replace(facts=smaller.facts | {"calibration": {**smaller.facts["calibration"], **source}})


def make_smaller(request: CutRequest, recover: Recover | None, folder: Path, progress: Progress) -> SmallerModel:
    """Make the smaller model of `request` in `folder`, and recover it where that is asked for.

    `out_dir` and `work_dir` of the request are replaced by places in `folder`. Raises what the engines raise.
    """
    from backend.engines.native.structured.cut import cut
    from backend.engines.native.structured.request import CutResult

    # 1. Remove the parts.
    placed = request.model_copy(update={"out_dir": folder / PRUNED, "work_dir": folder / "cut"})
    result, seconds = recovery.run_stage(
        folder / PRUNED, request.model_dir, placed, CutResult, lambda: cut(placed, progress)
    )
    facts = _facts(result, request, seconds)
    if recover is None:
        return SmallerModel(folder / PRUNED, facts)
    # 2. Train what is left.
    trained = recovery.RecoveryStage(
        original=request.model_dir,
        folder=folder,
        linears=result.linears,
        seed=request.seed,
        texts=request.calibration_texts,
        samples=request.samples,
        length=request.length,
        keep_zeros=False,
    )
    facts["recovery"] = recovery.recover_pruned(trained, recover, request.devices[0], progress)
    return SmallerModel(folder / recovery.RECOVERED, facts)


def _facts(result: CutResult, request: CutRequest, seconds: float) -> dict[str, Any]:
    """Return the manifest's fields of a structured pruning."""
    record: dict[str, Any] = {
        "method": request.method,
        "before": result.before.model_dump(exclude_none=True),
        "after": result.after.model_dump(exclude_none=True),
        "removed": result.removed,
        "ranking": result.ranking,
        "bytes": result.bytes_after,
        "seconds": seconds,
    }
    if request.method == "depth" or request.importance == "gradients":
        record["importance"] = request.importance
    return {
        "structure": record,
        "layers": result.layers,
        "kept_16bit": [],
        "calibration": result.calibration,
        "versions": result.versions,
    }
