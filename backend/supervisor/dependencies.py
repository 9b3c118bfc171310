"""Puts the result of an earlier job into the specification of the one that names it.

What was asked stays as it was asked, in the job's row: only the channel's specification names the artifact.
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
    """Of the job's attempt. Raises NotFound where the artifact has been deleted since, BelowFloor where it came out
    ruined."""
    if row.after is None or row.after not in row.spec:
        return row.spec
    spec: JobSpec = TypeAdapter(JobSpec).validate_json(row.spec)
    if not isinstance(spec, EvaluateSpec) or row.after not in {variant.source for variant in spec.variants}:
        return row.spec
    with store.read() as session:
        artifact = history.get_artifact(
            session, str(history.read_result(queue.get(session, row.after)).get("artifact"))
        )
    manifest = read_manifest(artifact.manifest)
    if ruined := (manifest.quality or {}).get("below_floor"):
        raise BelowFloor(
            f"{manifest.recipe.name} ({artifact.id}): {ruined} Evaluate it by itself and say that it is meant."
        )
    found = variants.variant_of_artifact(settings, artifact.path, manifest, artifact.id)
    put = tuple(
        found.model_copy(update={"name": each.name}) if each.source == row.after else each for each in spec.variants
    )
    return spec.model_copy(update={"variants": put}).model_dump_json()
