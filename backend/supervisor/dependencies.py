"""Fills in the result of an earlier job where a later job's specification names that job.

The row keeps what was requested; only the specification in the channel names the artifact.
"""

from __future__ import annotations

from pydantic import TypeAdapter

from backend.artifacts import variants
from backend.domain.errors import BelowFloor
from backend.domain.jobs.artifact import read_manifest
from backend.domain.jobs.jobs import EvaluateSpec, JobSpec
from backend.settings import Settings
from backend.store import history, queue
from backend.store.database import Store
from backend.store.tables import JobRow


def fill_specification(settings: Settings, store: Store, row: JobRow) -> str:
    """Return the specification of the job's next attempt, as JSON.

    Raises NotFound if the artifact has been deleted since, BelowFloor if its quality is below the floor.
    """
    # 1. Most specifications name no earlier job.
    if row.after is None or row.after not in row.spec:
        return row.spec
    spec: JobSpec = TypeAdapter(JobSpec).validate_json(row.spec)
    if not isinstance(spec, EvaluateSpec) or row.after not in {variant.source for variant in spec.variants}:
        return row.spec
    # 2. Find the artifact that the earlier job made.
    with store.read() as session:
        artifact = history.get_artifact(
            session, str(history.read_result(queue.get(session, row.after)).get("artifact"))
        )
    manifest = read_manifest(artifact.manifest)
    if ruined := (manifest.quality or {}).get("below_floor"):
        raise BelowFloor(
            f"{manifest.recipe.name} ({artifact.id}): {ruined} Evaluate it by itself and say that it is meant."
        )
    # 3. Put it in place of the job, under the name that the variant has.
    optimized = variants.variant_of_artifact(settings, artifact.path, manifest, artifact.id)
    filled = tuple(
        optimized.model_copy(update={"name": variant.name}) if variant.source == row.after else variant
        for variant in spec.variants
    )
    return spec.model_copy(update={"variants": filled}).model_dump_json()
