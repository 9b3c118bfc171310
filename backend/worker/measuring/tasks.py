"""The lm-eval tasks of an evaluation: made before a server starts, scored on every served variant after it was
measured."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from backend.domain.errors import EndpointUnreachable, ServerFailed, WorkError
from backend.domain.evaluation.document import Variant
from backend.domain.evaluation.tasks.task_scores import SampledScore, TaskScore, compare_scores
from backend.domain.jobs.jobs import EvaluateSpec
from backend.domain.jobs.progress import Progress
from backend.endpoint import bearer, models, parse_address
from backend.evaluate.quality import token_match
from backend.evaluate.tasks import tasks
from backend.hardware import engine_status
from backend.layered import tokenizers
from backend.settings import Settings
from backend.worker.measuring.server_pool import Endpoint, ServerPool

SAMPLES = "task_samples.jsonl"


class TaskScoring:
    """What is scored, variant by variant. A variant that cannot be scored takes nothing of the measurement with it."""

    def __init__(self, spec: EvaluateSpec, settings: Settings, folder: Path, progress: Progress) -> None:
        self._spec, self._progress, self._cache = spec, progress, folder / "tasks"
        self._settings = settings
        self._tasks, self._limit = spec.options.tasks if spec.continues is None else (), spec.options.task_limit
        self._python = engine_status.engine_python(settings, "quality") if self._tasks else None
        self._scores: dict[int, list[SampledScore]] = {}
        self.warnings: list[str] = []

    def check(self) -> None:
        """Make every request once, without a model. Raises WorkError for a task that lm-eval cannot use."""
        if self._python is None:
            return
        self._progress.phase("read-tasks", "Reading the tasks", weight=0.2)
        requests = tasks.count_requests(self._python, self._tasks, self._limit, self._cache)
        self._progress.note(", ".join(f"{name}: {count} requests" for name, count in requests.items()) + " a variant.")

    def score(self, pool: ServerPool, lost: Collection[int]) -> None:
        """Ask each variant's server; those whose server went away before are left out."""
        if self._python is None:
            return
        variants = self._spec.variants
        self._progress.phase("tasks", "Scoring tasks", total=len(variants), unit="variants", weight=2.0)
        for index in range(len(variants)):
            if index in lost:
                self.warnings.append(
                    f"`{variants[index].name}` was not scored on the tasks, since it stopped answering."
                )
            else:
                self._variant(index, self._python, pool)
            self._progress.advance(index + 1)

    def _variant(self, index: int, python: Path, pool: ServerPool) -> None:
        variant = self._spec.variants[index]
        try:
            server = self._server(variant, pool.use(index))
            self._scores[index] = tasks.score_tasks(python, self._tasks, self._limit, server, self._cache)
        except (WorkError, EndpointUnreachable, ServerFailed) as error:
            self.warnings.append(f"`{variant.name}` was not scored on the tasks: {error}")
            return
        if cut := sum({score.task: score.cut for score, _ in self._scores[index]}.values()):
            self.warnings.append(
                f"`{variant.name}`: {cut} prompts of the tasks were longer than its context and lost their beginning."
            )

    def _server(self, variant: Variant, endpoint: Endpoint) -> tasks.TaskServer:
        """An address is asked in the tokens of the first model here that it reads. Raises WorkError where it reads
        none."""
        if variant.model_path is not None:
            key = bearer(None, parse_address(endpoint.url))
            return tasks.TaskServer(
                endpoint.url, endpoint.served_name or "", self._tokenizer(Path(variant.model_path)), key
            )
        if variant.remote is not None:
            raise WorkError(
                "lm-eval asks plain HTTP addresses, and an endpoint of SageMaker takes signed requests only."
            )
        if self._spec.shared:
            raise WorkError(
                "others reach this studio, and lm-eval follows redirects and looks names up by itself: score addresses on a "
                "studio of your own."
            )
        bearer_env, why = self._spec.options.bearer_env, ""
        model = endpoint.served_name or models(endpoint.url, bearer_env)[0]
        for other in self._spec.variants:
            if other.model_path is None:
                continue
            why = token_match.token_mismatch(endpoint.url, model, Path(other.model_path), bearer_env) or ""
            if not why:
                self._progress.note(f"{variant.name} reads the tokens of {other.name}: its tasks are asked in them.")
                place = parse_address(endpoint.url)
                return tasks.TaskServer(
                    place.base, model, self._tokenizer(Path(other.model_path)), bearer(bearer_env, place)
                )
        raise WorkError(why)

    def _tokenizer(self, folder: Path) -> Path:
        """The folder from which lm-eval builds the tokenizer that the server reads with."""
        return tokenizers.prepared(folder, self._settings.cache / "tokenizers") or folder

    def scores(self) -> dict[int, list[TaskScore]]:
        """By variant, with their differences to the first variant's."""
        return compare_scores(self._scores)

    def write(self, output: Path) -> None:
        """Every sample's own scores, a line each, where there are any."""
        if not self._scores:
            return
        with (output / SAMPLES).open("w") as stream:
            for index, scored in self._scores.items():
                for score, each in scored:
                    for sample, value in (each or {}).items():
                        told = {"task": score.task, "metric": score.metric, "sample": sample, "score": value}
                        stream.write(json.dumps({"variant": self._spec.variants[index].name, **told}) + "\n")
