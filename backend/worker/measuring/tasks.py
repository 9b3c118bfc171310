"""Scores the lm-eval tasks of an evaluation: checked before a server starts, scored after the loads were measured."""

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
from backend.serving import vllm_options
from backend.settings import Settings
from backend.worker.measuring.server_pool import Endpoint, ServerPool

SAMPLES = "task_samples.jsonl"
POOLED = "llama.cpp"
"""The engine whose server does not say its context, and whose slots share a cache that is sure to hold one full
sequence only: of two long prompts at a time one may fail."""


class TaskScoring:
    """Scores every task on every variant; one that cannot be scored gets a warning and keeps its other figures."""

    def __init__(self, spec: EvaluateSpec, settings: Settings, folder: Path, progress: Progress) -> None:
        self._spec, self._progress, self._cache = spec, progress, folder / "tasks"
        self._settings = settings
        self._tasks = spec.options.tasks if spec.continues is None else ()
        self._limit = spec.options.task_limit
        self._python = engine_status.engine_python(settings, "quality") if self._tasks else None
        self._scores: dict[int, list[SampledScore]] = {}
        self.warnings: list[str] = []

    def check(self) -> None:
        """Build every request once, without a model. Raises WorkError for a task that lm-eval cannot use."""
        if self._python is None:
            return
        self._progress.phase("read-tasks", "Reading the tasks", weight=0.2)
        requests = tasks.count_requests(self._python, self._tasks, self._limit, self._cache)
        counts = ", ".join(f"{name}: {count} requests" for name, count in requests.items())
        self._progress.note(f"{counts} per variant.")

    def score(self, pool: ServerPool, lost: Collection[int]) -> None:
        """Score the tasks on each variant's server, except those that stopped answering before."""
        if self._python is None:
            return
        variants = self._spec.variants
        self._progress.phase("tasks", "Scoring tasks", total=len(variants), unit="variants", weight=2.0)
        for index, variant in enumerate(variants):
            if index in lost:
                self.warnings.append(f"`{variant.name}` was not scored on the tasks, since it stopped answering.")
            else:
                self._score_variant(index, self._python, pool)
            self._progress.advance(index + 1)

    def _score_variant(self, index: int, python: Path, pool: ServerPool) -> None:
        variant = self._spec.variants[index]
        try:
            server = self._server(variant, pool.use(index))
            scores = tasks.score_tasks(python, self._tasks, self._limit, server, self._cache)
        except (WorkError, EndpointUnreachable, ServerFailed) as error:
            self.warnings.append(f"`{variant.name}` was not scored on the tasks: {error}")
            return
        self._scores[index] = scores
        cut_by_task = {score.task: score.cut for score, _ in scores}
        cut = sum(cut_by_task.values())
        if cut:
            self.warnings.append(
                f"`{variant.name}`: {cut} prompts of the tasks were longer than its context and lost their beginning."
            )

    def _server(self, variant: Variant, endpoint: Endpoint) -> tasks.TaskServer:
        """Return the server to score on, with the tokenizer that its prompts are encoded with.

        A URL gets the first model here whose token ids it reads. Raises WorkError if there is none.
        """
        # 1. A server that was started here: its own model's tokenizer.
        if variant.model_path is not None:
            key = bearer(None, parse_address(endpoint.url))
            tokenizer = self._tokenizer(Path(variant.model_path))
            server = tasks.TaskServer(endpoint.url, endpoint.served_name or "", tokenizer, key)
            if variant.serving.engine_name != POOLED:
                return server
            context = variant.serving.max_model_len or vllm_options.context_length(variant)
            return server._replace(context=context, streams=1)

        # 2. Addresses that lm-eval cannot or must not ask.
        if variant.remote is not None:
            raise WorkError(
                "lm-eval asks plain HTTP addresses, and an endpoint of SageMaker takes signed requests only."
            )
        if self._spec.shared:
            raise WorkError(
                "others reach this studio, and lm-eval follows redirects and looks names up by itself: score addresses "
                "on a studio of your own."
            )

        # 3. Any other URL: the first tokenizer here that it reads as well.
        bearer_env, reason = self._spec.options.bearer_env, ""
        model = endpoint.served_name or models(endpoint.url, bearer_env)[0]
        for other in self._spec.variants:
            if other.model_path is None:
                continue
            reason = token_match.token_mismatch(endpoint.url, model, Path(other.model_path), bearer_env) or ""
            if not reason:
                self._progress.note(f"{variant.name} reads the tokens of {other.name}: its tasks are asked in them.")
                location = parse_address(endpoint.url)
                tokenizer = self._tokenizer(Path(other.model_path))
                return tasks.TaskServer(location.base, model, tokenizer, bearer(bearer_env, location))
        raise WorkError(reason)

    def _tokenizer(self, folder: Path) -> Path:
        """Return the folder from which lm-eval builds the tokenizer that the server reads with."""
        return tokenizers.prepared(folder, self._settings.cache / "tokenizers") or folder

    def scores(self) -> dict[int, list[TaskScore]]:
        """Return the scores by variant, with their differences to the first variant's."""
        return compare_scores(self._scores)

    def write(self, output: Path) -> None:
        """Write every sample's own score, one per line; no file if there are none."""
        if not self._scores:
            return
        with (output / SAMPLES).open("w") as stream:
            for index, scores in self._scores.items():
                for score, samples in scores:
                    head = {"variant": self._spec.variants[index].name, "task": score.task, "metric": score.metric}
                    for sample, value in (samples or {}).items():
                        stream.write(json.dumps({**head, "sample": sample, "score": value}) + "\n")
