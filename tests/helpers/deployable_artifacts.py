"""Artifacts to deploy and the role that deploys them."""

from __future__ import annotations

import json
from typing import Any

from backend.artifacts import artifact_folder
from backend.domain.jobs.artifact import Manifest
from backend.domain.model.facts import ModelCard
from backend.domain.recipe.recipe import Recipe
from backend.service import Workspace
from backend.service.serving.endpoints import DeploymentRequest
from backend.store.tables import ArtifactRow
from tests.small_artifacts import CARD

ROLE = "arn:aws:iam::123456789012:role/serving"
REQUEST = DeploymentRequest(instance="ml.g6.12xlarge", role=ROLE, bucket="weights")
AWQ = Recipe.model_validate(
    {"name": "int4", "steps": [{"quantize": {"method": "awq"}}], "serving": {"tensor_parallel": 2}}
)


def artifact(
    home: Workspace,
    recipe: Recipe = AWQ,
    size: int = 1000,
    quantization: Any = None,
    job: str = "j-1",
    parts: Any = ("model", "draft"),
    parent: ModelCard = CARD,
) -> str:
    """One of a few bytes in the home's own folder of artifacts. `size`: what it says of its bytes."""
    staged = home.settings.home / "staged"
    for part in parts:
        (staged / part).mkdir(parents=True)
        config = (
            {"quantization_config": quantization or {"quant_method": "compressed-tensors"}} if part == "model" else {}
        )
        (staged / part / "config.json").write_text(json.dumps(config))
    manifest = Manifest(
        job=job,
        parent=parent,
        recipe=recipe,
        recipe_hash=recipe.hash,
        files=artifact_folder.describe(staged),
        bytes_before=size,
        bytes_after=size,
    )
    artifact_folder.write_manifest(staged, manifest)
    path = home.settings.artifacts / manifest.id
    path.parent.mkdir(parents=True, exist_ok=True)
    staged.rename(path)
    row = ArtifactRow(
        id=manifest.id,
        job_id=job,
        owner="ann",
        model="m",
        recipe=recipe.name,
        recipe_hash=recipe.hash,
        path=str(path),
        bytes=size,
        manifest=manifest.model_dump_json(),
    )
    with home.store.session() as session:
        session.add(row)
    return manifest.id
