"""Whetstone from Python, for notebooks and scripts: the same service as the studio and the command line
(docs/python.md).

import whetstone as ws
studio = ws.open()
model = studio.model("starter")
artifact = studio.optimize(model, ws.recipe("w8a8")).wait()
result = studio.evaluate([model, artifact], concurrency=[1, 4]).wait()
print(result.verdict)

Whatever goes wrong is a `WhetstoneError` of one sentence. Nothing prints.
"""

from backend.domain.errors import WhetstoneError
from backend.domain.jobs.terms import Terms
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.planner.target_choice import TargetGoal as Goal
from whetstone.evaluation import Evaluation
from whetstone.html_display import Table
from whetstone.job import Job
from whetstone.studio import Studio, open, recipe
from whetstone.variants import Artifact, Model

__all__ = [
    "Artifact",
    "Evaluation",
    "ExpectedLoad",
    "Goal",
    "Job",
    "Model",
    "Studio",
    "Table",
    "Terms",
    "WhetstoneError",
    "open",
    "recipe",
]
