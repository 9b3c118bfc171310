"""Pruning, recovery and quantization of one job in a row, each from what the one before it wrote, none done twice on
resuming.

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
Made = TypeVar("Made", bound=BaseModel)


class _Done(AttemptState):
    """That a stage is through, and what it said. `key` names all that it was made from."""

    seconds: float
    result: dict[str, Any]


def prune_and_recover(
    request: QuantizeRequest,
    options: Recover,
    progress: Progress,
    quantize: Callable[[QuantizeRequest], QuantizeResult],
) -> tuple[QuantizeResult, dict[str, Any]]:
    """Fill the request's `out_dir`, by `quantize` where a method is asked for; the answer's second part is the
    recovery's own, for the manifest: what was asked, what came of it, and the loss curve.

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
    pruned, _ = _once(
        folder / PRUNED, request.model_dir, alone, QuantizeResult, lambda: native.quantize(alone, progress)
    )
    asked = RecoverRequest(
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
    found, took = _once(folder / RECOVERED, folder / PRUNED, asked, RecoverResult, lambda: recover(asked, progress))
    later = {"model_dir": folder / RECOVERED, "pruning": None, "keep_zeros": True, "work_dir": folder / "quantize"}
    made = quantize(request.model_copy(update=later)) if request.method else _moved(request, folder, pruned)
    versions = {**pruned.versions, **made.versions}
    told = {"asked": options.all_options(), "objective": "kl" if options.teacher else "next token", "seconds": took}
    told |= found.model_dump(mode="json", exclude={"versions"})
    return made.model_copy(update={"versions": versions, "bytes_before": pruned.bytes_before}), told


def _once(
    folder: Path, source: Path, base_model: BaseModel, kind: type[Made], make: Callable[[], Made]
) -> tuple[Made, float]:
    """What `make` answers, and the seconds it took; from an earlier attempt where that had finished the same from the
    same."""
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
    made = make()
    done = _Done(key=key, seconds=round(time.monotonic() - began, 2), result=made.model_dump(mode="json"))
    files.write(mark, done.model_dump_json())
    return made, done.seconds


def _moved(request: QuantizeRequest, folder: Path, pruned: QuantizeResult) -> QuantizeResult:
    """The recovered checkpoint as it is; copied, since a stopped attempt must find it again."""
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
    """What lies between the steps goes when the job has succeeded, and where it would only stay in the way of another
    attempt."""
    try:
        yield
    except (DiskFull, QualityFloorMissed):
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
