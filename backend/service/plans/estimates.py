"""The estimate of a case, corrected by the newest evaluation of the same model, recipe and hardware.

Only evaluations against the model itself are looked at, and of those the newest SEARCHED: a document is a few dozen
kilobytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from backend.domain.errors import ImpossibleStack, Unreadable
from backend.domain.evaluation.document import Level, Variant, read_evaluation
from backend.domain.model.facts import ModelCard, ModelFacts
from backend.domain.needs import serving_memory, structure
from backend.domain.planner import estimate, estimate_correction, request_rate, roofline
from backend.domain.planner.draft_payoff import PayoffMap
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.estimate_context import EstimateContext
from backend.domain.planner.estimate_correction import Calibration
from backend.domain.planner.roofline import ExpectedLoad, Speed
from backend.domain.recipe.recipe import Recipe, Serving, Speculate
from backend.domain.recipe.serving_engines import ENGINES
from backend.domain.what_if.slice_means import with_slice_means
from backend.hardware import probe
from backend.present.source_names import recorded_names
from backend.service.plans import auto_target, payoff_maps
from backend.service.plans.cases import Case
from backend.service.workspace import Workspace
from backend.store import history
from backend.store.database import Store

SEARCHED = 40


class MeasuredVariant(NamedTuple):
    """One variant of a stored evaluation, as far as a prediction can be held against it."""

    evaluation: str
    measured_at: str
    hardware: tuple[Any, ...]
    variant: Variant
    levels: tuple[Level, ...]
    ready_seconds: float | None = None


def estimate_one(
    workspace: Workspace,
    case: Case,
    load: ExpectedLoad | None = None,
    *,
    acceptance: float | None = None,
    price_per_hour: float | None = None,
) -> Estimate:
    """Return the estimate of the case under that load. `price_per_hour` in USD is for machines without a published
    price.

    Raises ImpossibleStack with every reason where the case is not valid.
    """
    return estimate_loads(
        workspace, case, [load or ExpectedLoad()], acceptance=acceptance, price_per_hour=price_per_hour
    )[0]


def estimate_loads(
    workspace: Workspace,
    case: Case,
    loads: Sequence[ExpectedLoad],
    *,
    acceptance: float | None = None,
    price_per_hour: float | None = None,
) -> list[Estimate]:
    """Like `of`, one a load: what was measured is looked up once."""
    if case.verdict.plan is None:
        raise ImpossibleStack(" ".join(reason.message for reason in case.verdict.reasons))
    # 1. Look up once what was measured: a payoff map, a trained draft, an evaluation.
    known = {
        "acceptance": acceptance,
        "payoff": _find_map(workspace, case),
        "trained": _trained_acceptance(workspace, case),
    }
    plan, (subject, measured), estimates = case.verdict.plan, _find_nearest_measured(workspace, case), []
    # 2. Estimate each load, corrected by the evaluation.
    for load in loads:
        context = auto_target.make_context(case.target, case.facts, load, price_per_hour).model_copy(update=known)
        layout = (plan.tensor_parallel, plan.replicas)
        served = structure.apply(case.model, case.recipe)
        if measured and (in_flight := request_rate.predict_in_flight(*served, context, *layout)):
            context = context.at_concurrency(in_flight.concurrency)  # which measured level is the nearest
        if measured and (corrected := _correction(case, subject, context, measured)):
            assumed = corrected[1] if acceptance is None else acceptance
            context = context.model_copy(update={"calibration": corrected[0], "acceptance": assumed})
        estimates.append(estimate.estimate(case.model, case.recipe, context, *layout))
    return estimates


def find_evaluation(workspace: Workspace, model: ModelCard, recipe: Recipe) -> MeasuredVariant | None:
    """The newest evaluation of this recipe of this model on hardware like this machine's; None where there is none."""
    here = _hardware(probe.probe())
    baselines = recorded_names(model.id)
    if serving_memory.serves_kept_gguf(model, recipe):  # by its own name, where a GGUF file was the first variant
        engine = ENGINES[recipe.serving.engine_name].title
        baselines.append(f"{serving_memory.weight_format(model, recipe)} on {engine}")
    with workspace.store.read() as session:
        ids = [
            identity
            for baseline in baselines
            for identity in history.list_evaluation_ids(session, baseline=baseline, limit=SEARCHED)
        ]
    candidates = (variant for identity in ids for variant in _measured_variants(workspace.store, identity))
    return next(
        (
            variant
            for variant in candidates
            if variant.hardware == here and _is_same(variant.variant, model, recipe) and variant.levels
        ),
        None,
    )


def find_ready_seconds(workspace: Workspace, variant: Variant) -> float | None:
    """Return how many seconds a server of this variant's files took to start, by the newest evaluation on hardware like
    this machine's; None where none timed it."""
    # 1. The newest evaluations.
    here = _hardware(probe.probe())
    with workspace.store.read() as session:
        ids = history.list_evaluation_ids(session, limit=SEARCHED)
    # 2. The first that served the same files on the same engine.
    served = (variant.model_path, variant.gguf, variant.serving.engine_name)
    for measured in (measured for identity in ids for measured in _measured_variants(workspace.store, identity)):
        files = (measured.variant.model_path, measured.variant.gguf, measured.variant.serving.engine_name)
        if measured.ready_seconds is not None and measured.hardware == here and files == served:
            return measured.ready_seconds
    return None


@lru_cache(maxsize=512)
def _measured_variants(store: Store, identity: str) -> tuple[MeasuredVariant, ...]:
    """Read once a process: an evaluation never changes. Loads that the client limited say nothing of the server."""
    with store.read() as session:
        row = history.get_evaluation(session, identity)
    try:
        document = with_slice_means(read_evaluation(row.document))
    except Unreadable:  # `damaged` names it; the other evaluations are still good
        return ()
    where = _hardware(document.hardware)
    return tuple(
        MeasuredVariant(
            identity,
            document.measured_at,
            where,
            result.variant,
            tuple(level for level in result.levels if _usable(level)),
            result.ready_seconds,
        )
        for result in document.variants
    )


def _usable(level: Level) -> bool:
    return bool(level.input_tokens and level.output_tokens) and not level.client_limited and not level.invocation_errors


def _hardware(facts: dict[str, Any]) -> tuple[Any, ...]:
    return facts.get("cpu"), facts.get("cores"), tuple(row.get("name") for row in facts.get("accelerators") or ())


def _is_same(variant: Variant, model: ModelCard, recipe: Recipe) -> bool:
    if variant.original_path != model.path:
        return False
    if variant.kind == "artifact":
        return variant.recipe_hash == recipe.hash
    return variant.kind == "model" and not recipe.steps and _plain(variant.serving) == _plain(recipe.serving)


def _plain(serving: Serving) -> Serving:
    """Return the settings without the prefix cache, which an evaluation sets by its own option, and where a slot's
    cache is off because its prompts repeat."""
    return serving.model_copy(update={"prefix_caching": None})


def _find_map(workspace: Workspace, case: Case) -> PayoffMap | None:
    """Return the payoff map for a draft on this machine; None elsewhere or without a draft."""
    here = isinstance(case.model, ModelCard) and case.facts.place == "local" and case.facts.serving_draft(case.recipe)
    return (
        payoff_maps.find_map(workspace, case.model, case.recipe) if here and isinstance(case.model, ModelCard) else None
    )


def _find_nearest_measured(workspace: Workspace, case: Case) -> tuple[Recipe, MeasuredVariant | None]:
    """Return what was measured, and its recipe: the case's own, else none of its steps on the same engine, so that the
    original and the recipe are corrected alike."""
    serving = case.recipe.serving
    unchanged = (Recipe(serving=serving), Recipe(serving=Serving(engine=serving.engine)))
    for recipe in (case.recipe, *(unchanged if case.recipe.steps else ())):
        measured = _find_measured(workspace, case, recipe)
        if measured is not None:
            return recipe, measured
    return case.recipe, None


def _find_measured(workspace: Workspace, case: Case, recipe: Recipe) -> MeasuredVariant | None:
    """On this machine alone: elsewhere nothing has been measured. With a GPU attached the evaluations are the GPU's."""
    facts = case.facts
    if not isinstance(case.model, ModelCard) or facts.place != "local" or facts.device is None:
        return None
    if facts.hardware == "cpu" and probe.accelerators():
        return None
    return find_evaluation(workspace, case.model, recipe)


def _correction(
    case: Case, subject: Recipe, context: EstimateContext, measured: MeasuredVariant
) -> tuple[Calibration, float | None] | None:
    """The correction and the measured acceptance for the load's streams; None where nothing is predicted.

    `subject`: the recipe that was measured.
    """
    concurrency = context.load.concurrency
    predicted = ((_predict(case.model, subject, context, level), level) for level in measured.levels)
    pairs = [(speed, level) for speed, level in predicted if speed is not None]
    calibration = estimate_correction.calibrate(
        pairs, concurrency, evaluation=measured.evaluation, measured_at=measured.measured_at
    )
    if calibration is None:
        return None
    if subject != case.recipe:  # it starts otherwise, and accepts nothing
        return calibration.model_copy(update={"of_original": True}), None
    calibration = calibration.model_copy(update={"ready_seconds": measured.ready_seconds})
    nearest = next(level for level in measured.levels if level.concurrency == calibration.concurrency)
    return calibration, _acceptance(subject, nearest)


def _acceptance(recipe: Recipe, level: Level) -> float | None:
    """The measured probability that a proposed token is accepted; None without speculation."""
    step = recipe.step("speculate")
    if not isinstance(step, Speculate) or level.acceptance_rate is None:
        return None
    return roofline.acceptance_from_rate(level.acceptance_rate, step.tokens)


def _trained_acceptance(workspace: Workspace, case: Case) -> float | None:
    """The probability of acceptance that gives as many tokens a step as the recipe's draft gave when it was trained."""
    step, draft = case.recipe.step("speculate"), payoff_maps.find_trained_draft(workspace, case.model, case.recipe)
    if not isinstance(step, Speculate) or draft is None:
        return None
    tokens = min(step.tokens, len(draft.lengths))
    return roofline.acceptance_from_rate((draft.lengths[tokens - 1] - 1) / tokens, tokens)


def _predict(model: ModelFacts, recipe: Recipe, context: EstimateContext, level: Level) -> Speed | None:
    """Predict the speed for a load that was measured, without the correction."""
    # 1. The load as it was measured, of what is served.
    facts, (model, recipe) = context.facts, structure.apply(model, recipe)
    assert facts.device is not None
    load = ExpectedLoad(
        input_tokens=max(1, round(level.input_tokens or 1)),
        output_tokens=max(1, round(level.output_tokens or 1)),
        concurrency=level.concurrency,
    )
    # 2. The prediction for it.
    degree, draft = recipe.serving.tensor_parallel, facts.serving_draft(recipe)
    sequences = serving_memory.concurrent_sequences(
        serving_memory.device_memory(model, recipe, facts.device, degree, draft),
        recipe,
        load.input_tokens + load.output_tokens,
    )
    acceptance, gains = _acceptance(recipe, level), context.gains(recipe)
    scenario = roofline.make_scenario(
        model, recipe, facts.device, degree, load, draft=draft, acceptance=acceptance, gains=gains
    )
    return roofline.speed(scenario, sequences) if scenario else None
