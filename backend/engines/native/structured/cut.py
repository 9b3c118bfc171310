"""The entry of structured pruning: a request becomes a smaller checkpoint, or an error before anything is written."""

from __future__ import annotations

from backend.domain.jobs.progress import Progress
from backend.engines.native.files import checkpoint
from backend.engines.native.files.resume import WorkFolder
from backend.engines.native.structured.depth import DepthCut
from backend.engines.native.structured.experts import ExpertCut
from backend.engines.native.structured.request import CutRequest, CutResult
from backend.engines.native.structured.run import CutRun
from backend.engines.native.structured.width import WidthCut
from backend.layered.freed_memory import keep_freed_memory
from backend.layered.layer_passes import memory_errors
from backend.layered.matrix_products import fast_products

METHODS: dict[str, type[CutRun]] = {"depth": DepthCut, "width": WidthCut, "experts": ExpertCut}


def cut(request: CutRequest, progress: Progress) -> CutResult:
    """Make the smaller model of `request` in `out_dir`. Phases: load, structure (unit: layers), write.

    Deterministic: the same request gives the same bytes. Raises ImpossibleStack (unknown family, no experts),
    ModelDamaged, InvalidModel, InvalidWorkload (text too short), RequestError (`out_dir` not empty), WorkError (values
    that are not finite, memory ran out) and DiskFull.
    """
    progress.phase("load", "Reading the model's outline", weight=0.1)
    folder = request.work_dir or request.out_dir.with_name(request.out_dir.name + ".work")
    with fast_products(), keep_freed_memory(), WorkFolder(folder, resumable=False) as work, memory_errors():
        run = METHODS[request.method](request, work, progress)
        checkpoint.make_empty_folder(request.out_dir)
        return run.run()
