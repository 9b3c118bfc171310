"""Hash of the configuration of an evaluation: two with the same hash requested the same of the same variants. Pure."""

from __future__ import annotations

from pathlib import PurePath

from backend.domain.evaluation.document import Evaluation
from backend.domain.frozen import digest


def configuration_hash(evaluation: Evaluation) -> str:
    """SHA-256, as hex, over load, variants as served and the workload's own hash; not over prices, places or times."""
    irrelevant = {
        "workload",
        "columns",
        "time_unit",
        "price_per_hour",
        "discount",
        "input_output_ratio",
        "bearer_env",
        "tasks",
        "task_limit",
        "lossless",
    }
    decided = {"repeats"} if evaluation.options.until_decided else set()  # came of the figures
    options = evaluation.options.model_dump(mode="json", exclude=irrelevant | decided)
    served = {"name", "recipe_hash", "serving", "speculation", "served_name"}
    variants = [result.variant.model_dump(mode="json", include=served) for result in evaluation.variants]
    for variant in variants:
        (variant["speculation"] or {}).pop("draft_path", None)
    configuration: dict[str, object] = {
        "options": options,
        "variants": variants,
        "workload": evaluation.workload.sha256,
    }
    if evaluation.options.tasks:  # the folder of a task's copy ends with the hash of its files
        names = [PurePath(folder).name for folder in evaluation.options.tasks]
        configuration["tasks"] = [*names, evaluation.options.task_limit]
    return digest(configuration)
