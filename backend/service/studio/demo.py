"""The demo: the whole loop on a model. Fetch it, optimize it, evaluate all on two engines against the original, write
a report.

Which model is `demo_model`; which ways depends on it and on the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from backend.catalog.cards import gguf
from backend.domain.errors import JobCancelled, WhetstoneError
from backend.domain.jobs.jobs import EvaluateSpec
from backend.domain.machine.environments import LLAMA_CPP
from backend.domain.machine.instruction_sets import AMX, VNNI
from backend.domain.model.facts import ModelCard
from backend.domain.recipe.recipe import Recipe, read
from backend.hardware import engine_status, probe
from backend.service.evaluations import evaluations
from backend.service.evaluations.evaluations import EvaluationView
from backend.service.jobs.jobs import JobView
from backend.service.models import imports, models, variants
from backend.service.plans import cases, optimize
from backend.service.plans.optimize import PreparedOptimize
from backend.service.studio import demo_model
from backend.service.workspace import Workspace

ASSUMED_PRICE = 0.10
"""US dollars an hour: an assumption that makes the price charts readable, not a quote."""
W8A8 = {"quantize": {"method": "w8a8"}}
SMOOTH = {"quantize": {"method": "smoothquant", "samples": 16}}
DRAFT = {"speculate": {"method": "draft", "draft": "auto", "tokens": 4}}
NGRAM = {"speculate": {"method": "ngram_adaptive"}}
AWQ = {"quantize": {"method": "awq", "group_size": 64}}
"""Groups of 64, since 576, the width of the real model, is no multiple of 128."""
EAGER = {"enforce_eager": True}
RECIPES = {
    recipe.name: recipe
    for recipe in (
        read({"name": "w8a8", "steps": [W8A8]}),
        read({"name": "awq 4-bit", "steps": [AWQ]}),
        read({"name": "adaptive n-gram", "steps": [NGRAM]}),
        read({"name": "smoothquant", "steps": [SMOOTH]}),
        read({"name": "smoothquant + adaptive n-gram", "steps": [SMOOTH, NGRAM]}),
        read({"name": "draft", "steps": [DRAFT], "serving": EAGER}),
        read({"name": "w8a8 + draft", "steps": [W8A8, DRAFT], "serving": EAGER}),
    )
}
MOST, FEW_CORES = 3, 3
"""Recipes that are tried at the most; one less of the real model on fewer cores than `FEW_CORES`, where vLLM compiles a
variant for 30 to 95 seconds; and one less where the file that it was imported from is a candidate as it came."""
UNTIL_DECIDED: dict[str, Any] = {"until_decided": True, "max_blocks": 6}
"""Six blocks: the one test of the rule that is fixed beforehand (`domain.evaluation.blocks.stopping_rule`) then has all
of its significance, and the end is known. What is left open may be continued."""
QUICK_OPTIONS: dict[str, Any] = {
    "max_tokens": 24,
    "warmup_requests": 1,
    "warmup_seconds": 0.5,
    "prefix_cache": "per-run",
    "quality_prompts": 6,
}
"""A load for the real model, whose every token takes tens of milliseconds on two cores. Runs keep prefixes apart, so
that blocks may ask the same prompts. Half a second warms a server that stays up: of 42 comparisons of one engine with
itself that were warmed so, one named a difference (benchmarks/results/aa_engines.jsonl)."""

SCORED_WINDOWS = 8
"""Windows of 512 tokens that are scored, in place of 24: nothing is measured before, and the interval says how sure
the figure is."""
AMPLE_BYTES = 12e9
"""Free memory by which all servers fit, whatever they hold while they start: those of a model of 135 M parameters take
2 GB each at most. The first one then need not start alone to show how much it takes."""

Finish = Callable[[JobView], JobView]
Say = Callable[[str], None]


def candidate_names(*, starter: bool, gpu: bool, features: Collection[str]) -> tuple[str, ...]:
    """The recipes that can win, the likeliest first: more than are tried, since some may not be valid on a machine.

    Eight bits use the same kernel with and without SmoothQuant, but lose half as much with it: a KL divergence of
    0.0165 (0.0151 to 0.0179) instead of 0.0312 (0.0289 to 0.0334) on SmolLM2 (benchmarks/results/real_quality.md). Four
    bits are fast on a processor only where vLLM runs them as W4A8, with AMX (`domain.machine.instruction_sets`). N-gram
    speculation on 16-bit weights costs no quality, and proposes only when it pays off (decision 0038).
    """
    if starter:
        return "w8a8", "draft", "w8a8 + draft"
    if gpu or {AMX, "amx_bf16"} <= set(features):
        return "smoothquant + adaptive n-gram", "awq 4-bit", "adaptive n-gram", "smoothquant"
    if VNNI & set(features):
        return "smoothquant + adaptive n-gram", "adaptive n-gram", "smoothquant", "awq 4-bit"
    return "adaptive n-gram", "smoothquant + adaptive n-gram", "smoothquant", "awq 4-bit"


def count_tried(*, starter: bool, gguf: bool) -> int:
    """Return how many recipes are tried on this machine, of a model whose GGUF file is measured too (`gguf`) or not."""
    return MOST if starter else MOST - (probe.cores() < FEW_CORES) - gguf


def find_gguf(model: ModelCard) -> Path | None:
    """Return the GGUF file that the model was imported from, which llama.cpp serves as it came; None without one."""
    return gguf.find_original(Path(model.path))


def valid_recipes(workspace: Workspace, model: ModelCard) -> tuple[Recipe, ...]:
    """Return the recipes that are tried on this machine: valid by the rules, and served here."""
    own = model.origin == demo_model.STARTER
    names = candidate_names(starter=own, gpu=probe.has_nvidia(), features=tuple(probe.probe()["flags"]))
    served = (RECIPES[name] for name in names if cases.resolve(workspace, model, RECIPES[name]).served)
    return tuple(islice(served, count_tried(starter=own, gguf=find_gguf(model) is not None)))


def run_demo(
    workspace: Workspace,
    finish: Finish,
    say: Say,
    *,
    starter: bool = False,
    repeats: int | None = None,
    price_per_hour: float = ASSUMED_PRICE,
) -> EvaluationView:
    """Submit and wait for every job through `finish`, which raises where one fails or is cancelled; `say` which model
    it is."""
    model = demo_model.starter_card(workspace) if starter else _model(workspace, finish, say)
    # 1. Make an artifact by every recipe that is valid for the model, one job at a time.
    queued = (
        optimize.submit(workspace, prepare(workspace, model, recipe)) for recipe in valid_recipes(workspace, model)
    )
    artifact_ids = [str(finish(job).result["artifact"]) for job in queued]
    # 2. Measure them against the original.
    spec = evaluate_spec(workspace, model, artifact_ids, repeats=repeats, price_per_hour=price_per_hour)
    ended = finish(evaluations.submit(workspace, spec))
    return evaluations.show(workspace, str(ended.result["evaluation"]))


def _model(workspace: Workspace, finish: Finish, say: Say) -> ModelCard:
    """The real one, fetched where it is not here; where it cannot be, the starter."""
    model_card, obstacle = demo_model.find_present(workspace), None
    if model_card is None:
        try:
            fetched = finish(imports.submit(workspace, demo_model.prepare(workspace)))
            model_card = models.resolve(workspace, str(fetched.result["path"]))
        except JobCancelled:
            raise
        except WhetstoneError as error:
            obstacle = str(error)
    model_card = model_card or demo_model.starter_card(workspace)
    say(demo_model.describe_choice(model_card, obstacle))
    return model_card


def prepare(workspace: Workspace, model: ModelCard, recipe: Recipe) -> PreparedOptimize:
    """Raises what `optimize.prepare` does."""
    return optimize.prepare(workspace, cases.resolve(workspace, model, recipe), scored_windows=SCORED_WINDOWS)


def evaluate_spec(
    workspace: Workspace,
    model: ModelCard,
    artifacts: Sequence[str],
    *,
    repeats: int | None = None,
    price_per_hour: float = ASSUMED_PRICE,
) -> EvaluateSpec:
    """All that was made against the original, until it is decided, or so many blocks. Raises what `evaluations.prepare`
    does."""
    own, blocks = model.origin == demo_model.STARTER, UNTIL_DECIDED if repeats is None else {"repeats": repeats}
    load = {"concurrency": (1, 4), "price_per_hour": price_per_hour, **blocks, **({} if own else QUICK_OPTIONS)}
    if probe.free_memory() > AMPLE_BYTES:
        load["interleave"] = "resident"
    sources = [model.id if own else model.path, *artifacts]
    # The file as it came is a candidate wherever llama.cpp is installed: it needs no recipe and is ready first.
    if find_gguf(model) is not None and engine_status.read_marker(workspace.settings.engines, LLAMA_CPP.name):
        sources.append(variants.with_engine(model.path, "llama.cpp"))
    return evaluations.prepare(workspace, sources, evaluations.read_options(**load))


def report_path(view: EvaluationView) -> Path:
    return Path(view.path) / "report.html"
