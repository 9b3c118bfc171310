"""What a check answers: verdicts, and the plan of a recipe that nothing speaks against.

Knows nothing of the rules (`rules`) and of suggestions (`suggest`).
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from backend.domain.frozen import Frozen
from backend.domain.machine.device import Hardware
from backend.domain.model.facts import ModelFacts
from backend.domain.needs import job, recovery, serving
from backend.domain.recipe import methods, sagemaker_toolkit
from backend.domain.recipe.recipe import TECHNIQUES, Compile, Prune, Quantize, Recipe, Speculate
from backend.domain.recipe.techniques import KERNELS
from backend.domain.rules.facts import Facts, Reason

CUT_CACHE = (
    "vLLM 0.32 on processors cuts off what an FP8 cache cannot hold, where GPUs round to the nearest number: the rounding is "
    "about twice that of the quality report."
)
"""Measured: docs/decisions/0015."""


class PlannedStep(Frozen):
    """A step with its defaults filled in: what the engine is really asked. `kernel` serves the result on that hardware."""

    technique: str
    engine: str
    title: str
    options: dict[str, Any] = Field(default_factory=dict)
    kernel: str = ""


class Plan(Frozen):
    hardware: Hardware
    steps: tuple[PlannedStep, ...]
    notes: tuple[str, ...] = ()
    tensor_parallel: int = 1


class Verdict(Frozen):
    """Either a plan or reasons; `suggestion` is the nearest valid recipe where the recipe is not.

    `suggestion_target` is set where nothing is valid on the asked target: the suggestion is then for that one.
    """

    plan: Plan | None
    reasons: tuple[Reason, ...] = ()
    suggestion: Recipe | None = None
    suggestion_target: str | None = None

    @property
    def valid(self) -> bool:
        return self.plan is not None


def plan(model: ModelFacts, recipe: Recipe, facts: Facts) -> Plan:
    """The steps in the order in which they run, for a recipe that no rule refuses."""
    ordered = sorted(recipe.steps, key=lambda step: TECHNIQUES.index(step.technique))
    moved = [a.technique for a, b in zip(ordered, recipe.steps, strict=True) if a is not b]
    notes = [f"Steps run in the order {', '.join(step.technique for step in ordered)}."] if moved else []
    degree = tensor_parallel(model, recipe, facts)
    notes += _notes(model, recipe, facts, degree)
    steps = tuple(_mixed(_planned(step, facts), recipe, facts) for step in ordered)
    return Plan(hardware=facts.hardware, steps=steps, notes=tuple(notes), tensor_parallel=degree)


def tensor_parallel(model: ModelFacts, recipe: Recipe, facts: Facts) -> int:
    """The recipe's degree; on hardware that is not here raised to the lowest at which the model fits."""
    asked = recipe.serving.tensor_parallel
    if facts.place == "local" or facts.device is None:
        return asked
    draft, tokens = facts.serving_draft(recipe), serving.cache_tokens(model, recipe)
    found = serving.room(model, recipe, facts.device, asked, draft)
    if found.cache[0] >= tokens * found.kv_bytes_per_token:
        return asked
    least = serving.least_room(model, recipe, facts.device, draft, tokens=tokens)
    return least.tensor_parallel if least else asked


def _notes(model: ModelFacts, recipe: Recipe, facts: Facts, degree: int) -> list[str]:
    notes = []
    if degree != recipe.serving.tensor_parallel:
        notes.append(f"Tensor parallel degree {degree}: the model does not fit on fewer.")
    if facts.place == "managed":
        row, _ = sagemaker_toolkit.find(recipe, facts.hardware)
        notes += [row.note] if row and row.note else []
    if facts.place == "planned":
        notes.append(f"For planning: our engines on {facts.where}, which is not this machine.")
        notes += _unused(model, recipe, facts, degree)
    notes += _serving_notes(model, recipe, facts)
    notes += _context_note(model, recipe, facts, degree) + _capability_notes(model, recipe, facts)
    needed = job.needed(model, recipe, serving.weights(model, Recipe()).total)
    if facts.place == "planned" and facts.ram_bytes and recipe.step("quantize") and needed > facts.ram_bytes:
        notes.append(
            f"Quantizing takes about {needed / 1e9:.0f} GB of memory and {facts.where} has {facts.ram_bytes / 1e9:.0f}: "
            "run the job on a machine with more."
        )
    return notes


def _serving_notes(model: ModelFacts, recipe: Recipe, facts: Facts) -> list[str]:
    """What the result does not give on that hardware."""
    if facts.place == "managed":
        return []
    step, experts = recipe.step("quantize"), bool(model.experts)
    found = methods.unserved(step, facts.hardware, model_type=model.model_type, experts=experts)
    notes = [f"{found[0]}."] if found else []
    if facts.hardware == "cpu" and methods.caches_fp8(step):
        notes.append(CUT_CACHE)
    if recipe.step("prune"):
        notes.append("Pruned weights are stored as zeros: no server here skips them, so neither size nor speed gains.")
    if recovery.asked(recipe):
        notes.append(recovery.note(model, recipe))
    return notes


def _unused(model: ModelFacts, recipe: Recipe, facts: Facts, degree: int) -> list[str]:
    """What of the hardware the degree leaves idle; nothing where no higher one divides the model."""
    if facts.device is None or degree >= facts.device.units:
        return []
    most = max(serving.degrees(model, recipe, facts.device), default=degree)
    used = f"{degree} of {facts.device.units} accelerators are used"
    more = f"`serving.tensor_parallel: {most}` would use {most}" if most > degree else "no more divide the model"
    return [f"{used}: {more}."]


def _context_note(model: ModelFacts, recipe: Recipe, facts: Facts, degree: int) -> list[str]:
    if facts.place == "local" or facts.device is None or recipe.serving.max_model_len or not model.generates:
        return []
    tokens, _ = serving.room(model, recipe, facts.device, degree, facts.serving_draft(recipe)).tokens
    if tokens >= model.max_positions:
        return []
    return [
        f"The cache holds {tokens} tokens, fewer than the model's {model.max_positions}: set `max_model_len` to that or less."
    ]


def _capability_notes(model: ModelFacts, recipe: Recipe, facts: Facts) -> list[str]:
    capability = facts.device.capability if facts.device else None
    if capability is None:
        return []
    step, notes = recipe.step("quantize"), []
    if capability < (8, 0) and recipe.serving.dtype == "auto" and model.dtype == "bfloat16":
        notes.append("Served as float16: this GPU has no bfloat16.")
    if isinstance(step, Quantize) and step.method == "fp8" and capability < KERNELS["fp8"].lowest:
        notes.append("FP8 weights only: this GPU has no FP8 arithmetic.")
    return notes


def _planned(step: Any, facts: Facts) -> PlannedStep:
    found = _own(step)
    if facts.place == "managed":
        return found.model_copy(update={"engine": "sagemaker"})
    if facts.hardware == "cuda" and isinstance(step, Quantize) and step.method in KERNELS:
        return found.model_copy(update={"kernel": KERNELS[step.method].title})
    return found


def _mixed(step: PlannedStep, recipe: Recipe, facts: Facts) -> PlannedStep:
    """With the 8-bit form that this target serves, where groups of linears may differ."""
    if step.technique != "quantize" or not (step.options.get("target_bits") or recipe.limits.fall_back):
        return step
    served = "w8a8" if facts.hardware == "cpu" else "int8"
    return step.model_copy(update={"options": {"eight_bits": served, **step.options}})


def _own(step: Any) -> PlannedStep:
    match step:
        case Quantize():
            return _quantize(step)
        case Prune():
            return _prune(step)
        case Speculate():
            what = "a draft model" if step.method == "draft" else step.method
            return PlannedStep(
                technique="speculate",
                engine="vllm",
                title=f"Speculate with {what}, {step.tokens} tokens",
                options={"method": step.method, "tokens": step.tokens},
            )
        case Compile():
            return PlannedStep(technique="compile", engine="vllm", title="Compile ahead of time")
        case _:
            return PlannedStep(technique=step.technique, engine="native", title=step.technique.capitalize())


def _quantize(step: Quantize) -> PlannedStep:
    return PlannedStep(technique="quantize", engine=step.engine, title=methods.title(step), options=methods.options(step))


def _prune(step: Prune) -> PlannedStep:
    options: dict[str, Any] = {"method": step.method, "sparsity": step.sparsity, "pattern": step.pattern}
    options |= {"recover": step.recover.asked()} if step.recover else {}
    return PlannedStep(technique="prune", engine=step.engine, title=methods.prune_title(step), options=options)
