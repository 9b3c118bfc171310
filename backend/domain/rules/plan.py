"""The answers of a check: verdicts, and the plan of a recipe that no rule refuses.

Knows nothing of the rules (`rules`) and of suggestions (`nearest_recipe`).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from backend.domain.frozen import Frozen
from backend.domain.kernels.kernel_choice import rounds_inputs
from backend.domain.kernels.number_formats import ARITHMETIC
from backend.domain.kernels.table import CPU_MULTIPLE
from backend.domain.machine.device import Hardware
from backend.domain.model.facts import ModelCard, ModelFacts
from backend.domain.needs import job_memory, parallel_layout, recovery_needs, serving_memory, structure
from backend.domain.needs.parallel_layout import ParallelLayout
from backend.domain.recipe import quantize_step, sagemaker_toolkit, step_words
from backend.domain.recipe.methods import GGUF
from backend.domain.recipe.recipe import Compile, Prune, Quantize, Recipe, Speculate, Step, run_order
from backend.domain.rules import (
    gguf_rules,
    kernel_rules,
    neuron_rules,
    processor_notes,
    rotation_rules,
    speculation_rules,
)
from backend.domain.rules.target_facts import MEMORY, Reason, TargetFacts

CUT_CACHE = (
    "vLLM 0.32 on processors cuts off what an FP8 cache cannot hold, where GPUs round to the nearest number: the "
    "rounding is about twice that of the quality report."
)
"""Measured: docs/decisions/0015."""


class PlannedStep(Frozen):
    """A step with its defaults filled in, as the engine receives it. `kernel` serves the result on that hardware."""

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
    replicas: int = 1
    """Copies of the model, each over `tensor_parallel` accelerators."""


Outcome = Literal["valid", "does-not-fit", "refused"]


class Verdict(Frozen):
    """Either a plan or reasons; `suggestion` is the nearest valid recipe where the recipe is not valid.

    `suggestion_target` is set where nothing is valid on the requested target: the suggestion is then for that one.
    """

    plan: Plan | None
    reasons: tuple[Reason, ...] = ()
    suggestion: Recipe | None = None
    suggestion_target: str | None = None

    @property
    def valid(self) -> bool:
        return self.plan is not None

    @property
    def outcome(self) -> Outcome:
        """`does-not-fit` where only memory is missing: another target would work, or fewer bits."""
        if self.valid:
            return "valid"
        return "does-not-fit" if self.reasons and all(reason.rule == MEMORY for reason in self.reasons) else "refused"


def make_plan(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Plan:
    """Return the plan, with the steps in the order in which they run, for a recipe that no rule refuses."""
    # 1. The order in which the steps run.
    ordered = sorted(recipe.steps, key=run_order)
    notes = []
    if tuple(ordered) != recipe.steps:
        notes.append(f"Steps run in the order {', '.join(step.technique for step in ordered)}.")
    # 2. How devices share the model, which is the smaller one of a structured pruning.
    smaller, rest = structure.apply(model, recipe)
    layout = planned_layout(smaller, rest, facts)
    degree, replicas = (layout.degree, layout.replicas) if layout else (recipe.serving.tensor_parallel, 1)
    notes += _notes(model, recipe, facts, layout)
    # 3. The steps with their defaults, and the kernel that serves the result.
    kernel = kernel_rules.kernel_title(smaller, rest, facts, degree) if facts.place in {"local", "planned"} else ""
    planned = [_with_eight_bits(_planned_step(step, recipe, facts, kernel), recipe, facts) for step in ordered]
    steps = tuple(_with_structure(step, model, recipe) for step in planned)
    return Plan(hardware=facts.hardware, steps=steps, notes=tuple(notes), tensor_parallel=degree, replicas=replicas)


def planned_layout(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> ParallelLayout | None:
    """Return how devices share the model; None where their size is not known.

    On this machine, and where nothing fits, it is the recipe's own degree; elsewhere all accelerators are used.
    """
    device, draft = facts.device, facts.serving_draft(recipe)
    if device is None:
        return None
    tokens = serving_memory.required_cache_tokens(model, recipe)
    layout = None
    if facts.place not in {"local", "neuron"} or facts.any_degree:
        layout = parallel_layout.default_layout(model, recipe, device, draft, tokens=tokens)
    return layout or parallel_layout.stated_layout(model, recipe, device, draft)


def _notes(model: ModelFacts, recipe: Recipe, facts: TargetFacts, shared: ParallelLayout | None) -> list[str]:
    if facts.place == "neuron":
        return neuron_rules.notes(model, recipe, facts)
    # 1. The model as it is, and where it is served.
    original, whole = model, recipe
    model, recipe = structure.apply(original, whole)
    rewrites = whole.step("quantize") or whole.step("prune")
    notes = [original.stored.sentence] if isinstance(original, ModelCard) and original.stored and rewrites else []
    if shared is not None and recipe.serving.tensor_parallel not in {1, shared.degree}:
        notes.append(f"Tensor parallel degree {shared.degree}: the model does not fit on fewer.")
    if facts.place == "managed":
        row, _ = sagemaker_toolkit.find_stack(recipe, facts.hardware)
        notes += [row.note] if row and row.note else []
    if facts.place == "planned":
        notes.append(f"For planning: our engines on {facts.where}, which is not this machine.")
    # 2. What the result gives there.
    notes += _pruning_and_recovery_notes(original, whole)
    notes += _layout_notes(model, recipe, facts, shared) + _serving_notes(model, recipe, facts)
    notes += _context_note(model, recipe, facts, shared) + _capability_notes(model, recipe, facts)
    # 3. Memory of the job.
    needed = job_memory.peak_bytes(original, whole, serving_memory.weights(original, Recipe()).total)
    if facts.place == "planned" and facts.ram_bytes and recipe.step("quantize") and needed > facts.ram_bytes:
        notes.append(
            f"Quantizing takes about {needed / 1e9:.0f} GB of memory and {facts.where} has "
            f"{facts.ram_bytes / 1e9:.0f}: run the job on a machine with more."
        )
    return notes


def _serving_notes(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> list[str]:
    """Return what the result does not give on that hardware."""
    if facts.place == "managed":
        return []
    # 1. What it does not give on that hardware.
    step = recipe.step("quantize")
    unserved = kernel_rules.find_unserved_format(model, recipe, facts)
    notes = [f"{unserved}."] if unserved else []
    if facts.hardware == "cpu" and quantize_step.caches_fp8(step):
        notes.append(CUT_CACHE)
    vllm_serves = gguf_rules.find_step(recipe) is None
    if vllm_serves and facts.hardware == "cpu" and facts.features is not None:
        for of_processor in (processor_notes.processor_note, processor_notes.dtype_note):
            note = of_processor(model, recipe, facts.features)
            notes += [note] if note else []
    # 2. What it does not give anywhere.
    notes += _kernel_notes(model, recipe, facts) + gguf_rules.notes(model, recipe)
    notes += rotation_rules.notes(model, recipe)
    return notes + speculation_rules.notes(recipe)


def _pruning_and_recovery_notes(model: ModelFacts, recipe: Recipe) -> list[str]:
    """Return what a pruning leaves of the original, and the memory that a recovery takes."""
    sentence = structure.sentence(model, recipe)
    notes = [sentence] if sentence else []
    prune = recipe.step("prune")
    if isinstance(prune, Prune) and sentence is None:
        kernels = " (vLLM removed its kernels for 2:4)" if prune.pattern == "2:4" else ""
        consequence = f"no server here skips them{kernels}, so neither size nor speed gains"
        notes.append(f"Pruned weights are stored as zeros: {consequence}.")
    if recovery_needs.find_recoveries(recipe):
        notes.append(recovery_needs.memory_note(model, recipe))
    return notes


def _kernel_notes(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> list[str]:
    """Return notes on matrices that stay 16-bit, and on groups that only a processor serves."""
    step = recipe.step("quantize")
    if not isinstance(step, Quantize):
        return []
    notes = []
    names = kernel_rules.unquantized_matrices(model, step)
    if names:
        multiple = quantize_step.method_row(step).multiple
        who = "vLLM's kernel for processors" if multiple == CPU_MULTIPLE else "the format"
        why = f"their sizes are no multiples of {multiple}, which {who} needs"
        notes.append(f"The {' and '.join(names)} matrices stay 16-bit: {why}.")
    if kernel_rules.is_processor_only(model, recipe, facts):
        groups = f"groups of {quantize_step.group_size(step)}"
        notes.append(f"No GPU kernel of vLLM takes {groups}: the artifact is for a processor alone.")
    return notes


def _layout_notes(model: ModelFacts, recipe: Recipe, facts: TargetFacts, shared: ParallelLayout | None) -> list[str]:
    """Return how the accelerators share the model, and how many are idle."""
    if facts.device is None or shared is None or shared.units == 1:
        return []
    most = max(serving_memory.degrees(model, recipe, facts.device), default=shared.degree)
    more = f": `serving.tensor_parallel: {most}` would use {most}" if shared.idle and most > shared.degree else ""
    return [f"{shared.units} accelerators: {shared.words}{more}."]


def _context_note(model: ModelFacts, recipe: Recipe, facts: TargetFacts, shared: ParallelLayout | None) -> list[str]:
    if facts.place == "local" or shared is None or recipe.serving.max_model_len or not model.generates:
        return []
    tokens, _ = shared.memory.tokens
    if tokens >= model.max_positions:
        return []
    return [
        f"The cache holds {tokens} tokens, fewer than the model's {model.max_positions}: set `max_model_len` to that "
        "or less."
    ]


def _capability_notes(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> list[str]:
    capability = facts.device.capability if facts.device else None
    if capability is None:
        return []
    step, notes = recipe.step("quantize"), []
    if capability < (8, 0) and recipe.serving.dtype == "auto" and model.dtype == "bfloat16":
        notes.append("Served as float16: this GPU has no bfloat16.")
    scheme = quantize_step.method_row(step).scheme if isinstance(step, Quantize) else None
    asks = isinstance(step, Quantize) and quantize_step.option_value(step, "activations") != "none"
    if scheme is not None and asks and not rounds_inputs(scheme, capability):
        name, first = kernel_rules.SCHEME_WORDS[scheme][0], ARITHMETIC[scheme]
        has = f"{facts.where} has compute capability {capability[0]}.{capability[1]}"
        lacks = "no FP8 arithmetic" if scheme == "fp8" else f"vLLM multiplies it from {first[0]}.{first[1]} on"
        notes.append(f"{name} weights only: {has} and {lacks}, so it saves memory and traffic, not operations.")
    return notes


def _planned_step(step: Step, recipe: Recipe, facts: TargetFacts, kernel: str) -> PlannedStep:
    planned = _with_defaults(step, recipe.serving.engine_name)
    if facts.place == "neuron":
        return planned.model_copy(update={"engine": "neuron"})
    if facts.place == "managed":
        return planned.model_copy(update={"engine": "sagemaker"})
    return planned.model_copy(update={"kernel": kernel}) if isinstance(step, Quantize) else planned


def _with_eight_bits(step: PlannedStep, recipe: Recipe, facts: TargetFacts) -> PlannedStep:
    """Return the step with the 8-bit form that this target serves, where groups of linears may differ."""
    if step.technique != "quantize" or not (step.options.get("target_bits") or recipe.limits.fall_back):
        return step
    served = "w8a8" if facts.hardware == "cpu" else "int8"
    return step.model_copy(update={"options": {"eight_bits": served, **step.options}})


def _with_structure(step: PlannedStep, model: ModelFacts, recipe: Recipe) -> PlannedStep:
    """Return the step with the sizes that a structured pruning leaves, which the engine then makes."""
    if step.technique != "prune" or structure.find_step(recipe) is None:
        return step
    sizes = structure.find_structure(model, recipe).structure.model_dump(exclude_none=True)
    return step.model_copy(update={"options": {**step.options, "structure": sizes}})


def _structure_defaults(step: Prune) -> dict[str, Any]:
    if step.method == "depth":
        return {"importance": step.importance or "similarity"}
    if step.method != "width":
        return {}
    return {"parts": step.parts or "mlp"} | ({"importance": step.importance} if step.importance else {})


def _with_defaults(step: Step, served_by: str) -> PlannedStep:
    """Return the step as an engine on this machine receives it. `served_by` is the engine that serves the result."""
    engine, options = "native", dict[str, Any]()
    # Options that nobody wrote have the values that the method has for them.
    match step:
        case Quantize():
            engine, options = step.engine, quantize_step.engine_options(step)
            engine = "llama.cpp" if step.method == GGUF else engine
        case Prune():
            engine = step.engine
            options = {"method": step.method, "sparsity": step.sparsity, "pattern": step.pattern}
            if step.structured:
                options = {"method": step.method, **_structure_defaults(step)}
            if step.recover:
                options["recover"] = step.recover.all_options()
        case Speculate():
            engine, options = served_by, dict(step.model_dump(mode="json")["speculate"])
            options.pop("draft", None)
            options["tokens"] = step.tokens
        case Compile():
            engine = served_by
    return PlannedStep(technique=step.technique, engine=engine, title=step_words.plan_title(step), options=options)
