"""What was asked of an evaluation, as one hash: two evaluations with the same one asked the same of the same variants. Pure."""

from __future__ import annotations

import hashlib
import json

from backend.domain.evaluation import Evaluation


def configuration_hash(evaluation: Evaluation) -> str:
    """SHA-256, as hex, over load, variants as served and the workload's own hash; not over prices, places or times."""
    options = evaluation.options.model_dump(
        mode="json", exclude={"workload", "columns", "price_per_hour", "discount", "input_output_ratio", "bearer_env"}
    )
    served = {"name", "recipe_hash", "serving", "speculation", "served_name"}
    variants = [result.variant.model_dump(mode="json", include=served) for result in evaluation.variants]
    for variant in variants:
        (variant["speculation"] or {}).pop("draft_path", None)
    asked = {"options": options, "variants": variants, "workload": evaluation.workload.get("sha256")}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
