"""The instances that `create_optimization_job` takes: the enum OptimizationJobDeploymentInstanceType of botocore
1.44.5.

botocore itself lets any name pass, and the service answers only then; which of them the toolkit optimizes for is
`recipe.sagemaker_toolkit.FAMILIES`.
"""

from __future__ import annotations

from backend.domain.errors import InvalidRecipe
from backend.domain.similar_names import nearest

BOTOCORE = "1.44.5"
SIZES = {
    "p4d": "24xlarge",
    "p4de": "24xlarge",
    "p5": "48xlarge",
    "p5e": "48xlarge",
    "p5en": "48xlarge",
    "g4dn": "xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge",
    "g5": "xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge",
    "g6": "xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge",
    "g6e": "xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge",
    "inf2": "xlarge 8xlarge 24xlarge 48xlarge",
    "trn1": "2xlarge 32xlarge",
    "trn1n": "32xlarge",
    "p6-b200": "48xlarge",
    "g7e": "2xlarge 4xlarge 8xlarge 12xlarge 24xlarge 48xlarge",
    "g7": "2xlarge 4xlarge 8xlarge 12xlarge 24xlarge 48xlarge",
}
"""Sizes by family, in the enum's order."""
INSTANCE_TYPES = tuple(f"ml.{family}.{size}" for family, sizes in SIZES.items() for size in sizes.split())


def check(name: str) -> str:
    """Return the name. Raises InvalidRecipe with the nearest ones for what is not in the enum."""
    if name not in INSTANCE_TYPES:
        near = ", ".join(nearest(name, INSTANCE_TYPES))
        raise InvalidRecipe(
            f"SageMaker optimizes nothing for {name[:60]}: the nearest instances that it does are {near}."
        )
    return name
