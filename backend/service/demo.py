"""The demo: the whole loop on the starter model. Optimize three ways, evaluate all against the original, write a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from backend.service import evaluations, optimize, recipes
from backend.service.evaluations import EvaluationView
from backend.service.jobs import JobView
from backend.service.workspace import Workspace

RECIPES = ("w8a8", "draft", "w8a8-draft")
MODEL = "starter"
ASSUMED_PRICE = 0.10
"""US dollars an hour: an assumption that makes the price charts readable, not a quote."""

Finish = Callable[[JobView], JobView]


def run(workspace: Workspace, finish: Finish, *, repeats: int = 5, price_per_hour: float = ASSUMED_PRICE) -> EvaluationView:
    """Submit and wait for every job through `finish`, which raises where one fails or is cancelled."""
    artifacts = [str(finish(job).result["artifact"]) for job in _optimize(workspace)]
    options = evaluations.options(concurrency=(1, 4), repeats=repeats, price_per_hour=price_per_hour)
    spec = evaluations.prepare(workspace, [MODEL, *artifacts], options)
    ended = finish(evaluations.submit(workspace, spec))
    return evaluations.show(workspace, str(ended.result["evaluation"]))


def _optimize(workspace: Workspace) -> Iterator[JobView]:
    for name in RECIPES:
        yield optimize.submit(workspace, optimize.prepare(workspace, MODEL, recipes.read_file(Path(name))))


def report_path(view: EvaluationView) -> Path:
    return Path(view.path) / "report.html"
