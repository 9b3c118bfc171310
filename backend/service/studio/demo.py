"""The demo: the whole loop on the starter model. Optimize three ways, evaluate all against the original, write a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from backend.domain.jobs.jobs import EvaluateSpec
from backend.service.evaluations import evaluations
from backend.service.evaluations.evaluations import EvaluationView
from backend.service.jobs.jobs import JobView
from backend.service.models import models
from backend.service.plans import cases, optimize, recipes
from backend.service.plans.optimize import Prepared
from backend.service.workspace import Workspace

RECIPES = ("w8a8", "draft", "w8a8-draft")
MODEL = "starter"
ASSUMED_PRICE = 0.10
"""US dollars an hour: an assumption that makes the price charts readable, not a quote."""

Finish = Callable[[JobView], JobView]


def run(workspace: Workspace, finish: Finish, *, repeats: int = 5, price_per_hour: float = ASSUMED_PRICE) -> EvaluationView:
    """Submit and wait for every job through `finish`, which raises where one fails or is cancelled."""
    made = [str(finish(job).result["artifact"]) for job in _optimize(workspace)]
    spec = evaluate_spec(workspace, made, repeats=repeats, price_per_hour=price_per_hour)
    ended = finish(evaluations.submit(workspace, spec))
    return evaluations.show(workspace, str(ended.result["evaluation"]))


def _optimize(workspace: Workspace) -> Iterator[JobView]:
    for name in RECIPES:
        yield optimize.submit(workspace, prepare(workspace, name))


def prepare(workspace: Workspace, recipe: str) -> Prepared:
    """The starter model with one of RECIPES. Raises what `optimize.prepare` does."""
    chosen = recipes.read_file(Path(recipe))
    return optimize.prepare(workspace, cases.resolve(workspace, models.resolve(workspace, MODEL), chosen))


def evaluate_spec(
    workspace: Workspace, artifacts: Sequence[str], *, repeats: int = 5, price_per_hour: float = ASSUMED_PRICE
) -> EvaluateSpec:
    """All that was made against the original. Raises what `evaluations.prepare` does."""
    options = evaluations.options(concurrency=(1, 4), repeats=repeats, price_per_hour=price_per_hour)
    return evaluations.prepare(workspace, [MODEL, *artifacts], options)


def report_path(view: EvaluationView) -> Path:
    return Path(view.path) / "report.html"
