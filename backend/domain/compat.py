"""Which recipe works on which model and target: (model, recipe, target) -> Plan, or every reason why not.

Pure and table-driven: the capability table says what an engine can do on a kind of hardware; the rules below say what may be
stacked. Every refusal names its rule and its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from backend.domain.model import ModelCard
from backend.domain.recipe import Compile, Quantize, Recipe, Speculate
from backend.domain.techniques import GROUP_SIZE, capability

Hardware = Literal["cpu", "cuda", "neuron"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Reason(_Frozen):
    rule: str
    message: str
    source: str


class PlannedStep(_Frozen):
    """A step with its defaults filled in: what the engine is really asked."""

    technique: str
    engine: str
    title: str
    options: dict[str, Any] = {}


class Plan(_Frozen):
    hardware: Hardware
    steps: tuple[PlannedStep, ...]
    notes: tuple[str, ...] = ()


class Verdict(_Frozen):
    """Either a plan or reasons; `suggestion` is the nearest valid recipe where the recipe is not."""

    plan: Plan | None
    reasons: tuple[Reason, ...] = ()
    suggestion: Recipe | None = None

    @property
    def valid(self) -> bool:
        return self.plan is not None


class Facts(_Frozen):
    """What the rules may know beside the model: the hardware, the resolved draft, and whether a C++ compiler exists."""

    hardware: Hardware = "cpu"
    draft: ModelCard | None = None
    compiler: bool = True


Rule = Callable[[ModelCard, Recipe, Facts], Iterator[Reason]]


def check(model: ModelCard, recipe: Recipe, facts: Facts) -> Verdict:
    """The plan, or every reason why not with the nearest valid recipe."""
    reasons = tuple(reason for rule in RULES for reason in rule(model, recipe, facts))
    if not reasons:
        return Verdict(plan=_plan(recipe, facts))
    return Verdict(plan=None, reasons=reasons, suggestion=_nearest(model, recipe, facts))


def _capabilities(model: ModelCard, recipe: Recipe, facts: Facts) -> Iterator[Reason]:
    for step in recipe.steps:
        method = getattr(step, "method", None)
        engine = step.engine if isinstance(step, Quantize) else "native"
        row = capability(step.technique, method, engine, facts.hardware)
        if not row.supported:
            yield Reason(rule="capability", message=row.reason, source=row.source)


def _one_weight_quantization(model: ModelCard, recipe: Recipe, facts: Facts) -> Iterator[Reason]:
    methods = [step.method for step in recipe.steps if isinstance(step, Quantize)]
    if len(methods) > 1:
        yield Reason(
            rule="one-weight-quantization",
            message=f"The recipe quantizes the weights {len(methods)} times ({', '.join(methods)}): keep one of them.",
            source="weights that are already integers have no scales left to search",
        )


def _once_each(model: ModelCard, recipe: Recipe, facts: Facts) -> Iterator[Reason]:
    for technique in ("speculate", "compile"):
        if sum(step.technique == technique for step in recipe.steps) > 1:
            yield Reason(rule="once", message=f"The recipe has `{technique}` more than once: keep one.", source="vLLM takes one")


def _already_quantized(model: ModelCard, recipe: Recipe, facts: Facts) -> Iterator[Reason]:
    if model.quantization and recipe.step("quantize"):
        yield Reason(
            rule="already-quantized",
            message=f"{model.id} is already quantized ({model.quantization}): start from its 16-bit original.",
            source="config.json, quantization_config",
        )


def _group_size(model: ModelCard, recipe: Recipe, facts: Facts) -> Iterator[Reason]:
    for step in recipe.steps:
        if not isinstance(step, Quantize) or step.method not in GROUP_SIZE:
            continue
        size = step.group_size or GROUP_SIZE[step.method]
        for name, width in (
            ("hidden", model.hidden_size),
            ("intermediate", model.intermediate_size),
            ("attention", model.heads * model.head_dim),
        ):
            if width % size:
                yield Reason(
                    rule="group-size",
                    message=f"Group size {size} does not divide the {name} size {width} of {model.id}: use {_divisor(model)}.",
                    source="compressed-tensors, group quantization",
                )


def _divisor(model: ModelCard) -> int:
    widths = (model.hidden_size, model.intermediate_size, model.heads * model.head_dim)
    return next((size for size in (128, 64, 32) if all(width % size == 0 for width in widths)), 32)


def _method_options(model: ModelCard, recipe: Recipe, facts: Facts) -> Iterator[Reason]:
    for step in recipe.steps:
        if not isinstance(step, Quantize):
            continue
        if step.method == "w8a8" and (step.bits == 4 or step.group_size or step.symmetric is False):
            yield Reason(
                rule="w8a8-options",
                message="w8a8 is 8 bits, symmetric, per output channel: leave out bits, group_size and symmetric.",
                source="vLLM, INT8 W8A8 kernels",
            )
        if step.method == "awq" and step.bits == 8:
            yield Reason(rule="awq-options", message="awq is 4 bits: leave `bits` out, or use w8a8.", source="Lin et al. 2023")


def _draft(model: ModelCard, recipe: Recipe, facts: Facts) -> Iterator[Reason]:
    step = recipe.step("speculate")
    if not isinstance(step, Speculate) or step.method != "draft":
        return
    if facts.draft is None:
        yield Reason(
            rule="no-draft",
            message=f"{model.id} has no provided draft model: name one with `draft: FOLDER`, or use `method: ngram`.",
            source="catalog",
        )
    elif facts.draft.tokenizer_hash != model.tokenizer_hash or facts.draft.vocabulary != model.vocabulary:
        yield Reason(
            rule="draft-vocabulary",
            message=f"The draft {facts.draft.id} has another vocabulary ({facts.draft.vocabulary}) than {model.id} "
            f"({model.vocabulary}): use a draft made for it, or `method: ngram`.",
            source="Leviathan et al. 2023, section 2.3: draft and target share one vocabulary",
        )


def _compiler(model: ModelCard, recipe: Recipe, facts: Facts) -> Iterator[Reason]:
    if recipe.step("compile") and facts.hardware == "cpu" and not facts.compiler:
        yield Reason(
            rule="no-compiler",
            message="`compile` needs a C++ compiler, and this machine has none: install g++ and the Python headers.",
            source="torch.compile, inductor's C++ backend",
        )


def _eager_compile(model: ModelCard, recipe: Recipe, facts: Facts) -> Iterator[Reason]:
    if recipe.step("compile") and recipe.serving.enforce_eager:
        yield Reason(
            rule="eager-compile",
            message="`compile` and `serving.enforce_eager: true` contradict each other: keep one.",
            source="vLLM, --enforce-eager",
        )


def _context(model: ModelCard, recipe: Recipe, facts: Facts) -> Iterator[Reason]:
    wanted = recipe.serving.max_model_len
    if wanted is not None and wanted > model.max_positions:
        yield Reason(
            rule="context",
            message=f"max_model_len {wanted} is beyond the {model.max_positions} positions of {model.id}: lower it.",
            source="config.json, max_position_embeddings",
        )


RULES: tuple[Rule, ...] = (
    _one_weight_quantization,
    _once_each,
    _already_quantized,
    _capabilities,
    _group_size,
    _method_options,
    _draft,
    _compiler,
    _eager_compile,
    _context,
)

ORDER = {"prune": 0, "quantize": 1, "speculate": 2, "compile": 3}


def _plan(recipe: Recipe, facts: Facts) -> Plan:
    ordered = sorted(recipe.steps, key=lambda step: ORDER[step.technique])
    moved = [a.technique for a, b in zip(ordered, recipe.steps, strict=True) if a is not b]
    notes = (f"Steps run in the order {', '.join(step.technique for step in ordered)}.",) if moved else ()
    return Plan(hardware=facts.hardware, steps=tuple(_planned(step) for step in ordered), notes=notes)


def _planned(step: Any) -> PlannedStep:
    match step:
        case Quantize(method="w8a8"):
            return PlannedStep(
                technique="quantize",
                engine=step.engine,
                title="Quantize to INT8 (W8A8)",
                options={"method": "w8a8", "bits": 8, "symmetric": True},
            )
        case Quantize():
            symmetric = bool(step.symmetric)
            group = step.group_size or GROUP_SIZE.get(step.method, 128)
            return PlannedStep(
                technique="quantize",
                engine=step.engine,
                title=f"Quantize to INT4 ({step.method.upper()})",
                options={"method": step.method, "bits": step.bits or 4, "group_size": group, "symmetric": symmetric},
            )
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


def _nearest(model: ModelCard, recipe: Recipe, facts: Facts) -> Recipe | None:
    """Mend one thing at a time, the least first: options, then single steps; give up at the original."""
    for candidate in _candidates(model, recipe):
        if not any(reason for rule in RULES for reason in rule(model, candidate, facts)):
            return candidate
    return None


def _candidates(model: ModelCard, recipe: Recipe) -> Iterator[Recipe]:
    mended = _mend_options(model, recipe)
    yield mended
    steps = mended.steps
    swapped = tuple(Speculate(method="ngram", tokens=s.tokens) if isinstance(s, Speculate) else s for s in steps)
    yield mended.model_copy(update={"steps": swapped})
    for base in (steps, swapped):
        for left_out in range(len(base)):
            yield mended.model_copy(update={"steps": base[:left_out] + base[left_out + 1 :]})
    for step in (*steps, *swapped):
        yield mended.model_copy(update={"steps": (step,)})
    yield mended.model_copy(update={"steps": ()})


def _mend_options(model: ModelCard, recipe: Recipe) -> Recipe:
    serving = recipe.serving
    if serving.max_model_len and serving.max_model_len > model.max_positions:
        serving = serving.model_copy(update={"max_model_len": model.max_positions})
    if recipe.step("compile"):
        serving = serving.model_copy(update={"enforce_eager": False})
    kept: list[Any] = []
    for step in recipe.steps:
        if any(step.technique == other.technique for other in kept):
            continue
        if isinstance(step, Quantize):
            options: dict[str, Any] = {"bits": None, "group_size": None, "symmetric": None}
            if step.method in GROUP_SIZE:
                options = {"bits": None, "group_size": _divisor(model)}
            step = step.model_copy(update=options)
        kept.append(step)
    return recipe.model_copy(update={"steps": tuple(kept), "serving": serving})
