"""The rules of a compilation for Neuron, and the nearest recipe that can be compiled there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from backend.domain.model.facts import ModelFacts
from backend.domain.needs import engine_costs, serving_memory
from backend.domain.neuron import compile_plan, cores, software_stacks
from backend.domain.neuron.software_stacks import STACKS
from backend.domain.recipe.recipe import Compile, Quantize, Recipe, Speculate
from backend.domain.rules.speculation_rules import check_head
from backend.domain.rules.target_facts import MEMORY, Reason, TargetFacts

FORMULA = (
    "memory of a core - weights / tensor parallel - runtime (2 to 3 GB) >= sequences x positions x cache per token"
)
ALONE = "AWS Neuron SDK 2.33, vllm-neuron, CPU compilation, Limitations"
ONE_SEQUENCE = "AWS Neuron SDK 2.33, NxD Inference, feature guide, Speculative Decoding with a Draft model"
EAGLE = "neuronx-distributed-inference 4bcdc54, modeling_llama.py; vllm-neuron, speculative decoding design (SDK 2.33)"
OPTIONS = ("stack", "buckets", "optimize_level")


def _compile_step(recipe: Recipe) -> Compile:
    step = recipe.step("compile")
    return step if isinstance(step, Compile) else Compile()


def check_elsewhere(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse options for a Neuron stack on other targets: vLLM's and the managed toolkit's compilation ignore them."""
    stated = [name for name in OPTIONS if getattr(_compile_step(recipe), name) is not None]
    if stated and facts.place != "neuron":
        names = ", ".join(f"`{name}`" for name in stated)
        message = f"{names} of `compile` is for a Neuron target such as `neuron:ml.inf2.48xlarge`: leave it out."
        yield Reason(rule="neuron-options", message=message, source="docs/neuron.md")


def check_compiled(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    if not recipe.step("compile"):
        message = "Nothing runs on Inferentia and Trainium uncompiled: add `compile: {}`."
        yield Reason(rule="neuron-compile", message=message, source="docs/neuron.md")


def check_family(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse architectures that the stack does not name for that accelerator."""
    # 1. A stack that names the model type is enough.
    device, stack = facts.device, _compile_step(recipe).stack
    name = device.name if device else facts.where
    if software_stacks.choose_stack(name, model.model_type, stack) is not None:
        return
    # 2. Else say which stack or type would do.
    rest = software_stacks.choose_stack(name, model.model_type)
    known = ", ".join(sorted(STACKS[stack].model_types) if stack else software_stacks.named_model_types(name))
    if stack and name not in STACKS[stack].accelerators:
        message = f"{STACKS[stack].title} does not compile for {name}: leave `stack` out."
    elif rest is not None and stack:
        message = f"{STACKS[stack].title} names no {model.model_type} among {known}: use `stack: {rest}`."
    else:
        who = STACKS[stack].title if stack else f"The libraries for {name}"
        message = f"{who}: no support for models of type {model.model_type}, only for {known}: choose a GPU instance."
    sources = [STACKS[one].source for one in ([stack] if stack else software_stacks.ORDER.get(name, ()))]
    yield Reason(rule="neuron-family", message=message, source="; ".join(sources) or "docs/neuron.md")


def check_steps(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse the parts of the recipe that the stack cannot compile."""
    name = software_stacks.choose_stack(
        facts.device.name if facts.device else "", model.model_type, _compile_step(recipe).stack
    )
    if name is None:
        return
    stack = STACKS[name]
    # 1. Parts of the recipe.
    for part in compile_plan.recipe_parts(recipe):
        if part not in stack.can:
            known = ", ".join(sorted(stack.can - {"compile"}))
            message = f"{stack.title} compiles no `{part}` ahead of time: leave it out, or use one of {known}."
            yield Reason(rule="neuron-stack", message=message, source=stack.source)
    # 2. The compiler's level.
    if _compile_step(recipe).optimize_level is not None and not stack.levels:
        message = f"{stack.title} sets the compiler's level itself: leave `optimize_level` out."
        yield Reason(rule="neuron-stack", message=message, source=stack.source)


def check_speculation(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse drafts and EAGLE heads that the vendor's documents and code exclude."""
    step = recipe.step("speculate")
    name = software_stacks.choose_stack(
        facts.device.name if facts.device else "", model.model_type, _compile_step(recipe).stack
    )
    if name is None or not isinstance(step, Speculate) or step.method not in STACKS[name].can:
        return
    stack = STACKS[name]
    # 1. Where it is compiled.
    if not stack.alone and not facts.attached:
        message = (
            f"{stack.title} compiles speculation only where its device is: use `local:neuron` on that instance, or "
            "no draft."
        )
        yield Reason(rule="neuron-speculation", message=message, source=ALONE)
    # 2. A draft: one sequence.
    if step.method == "draft":
        if name == "nxd-inference" and cores.batch_size(recipe) > 1:
            message = (
                f"{stack.title} speculates with a plain draft for one sequence: set `max_num_seqs: 1`, or use an "
                "EAGLE head."
            )
            yield Reason(rule="neuron-speculation", message=message, source=ONE_SEQUENCE)
        return
    # 3. A head: the families and heads that the stack has.
    if model.model_type not in stack.eagle:
        known = ", ".join(sorted(stack.eagle))
        message = f"{stack.title} compiles EAGLE heads for {known}, not for {model.model_type}: leave the step out."
        yield Reason(rule="neuron-speculation", message=message, source=EAGLE)
    yield from check_head(model, step.method, facts.draft, EAGLE)


def check_degree(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse a tensor parallel degree that the runtime does not have."""
    device, stated = facts.device, recipe.serving.tensor_parallel
    if device is None or device.name not in cores.SILICON:
        return
    possible = cores.degrees(device)
    if stated in possible:
        return
    nearest = min(possible, key=lambda degree: (abs(degree - stated), -degree))
    known = ", ".join(map(str, possible))
    message = f"tensor_parallel {stated} is not a degree of {facts.where}, which has {known}: the nearest is {nearest}."
    yield Reason(rule="tensor-parallel", message=message, source=cores.SILICON[device.name].source)


def check_buckets(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse buckets that do not rise to the positions that are compiled for."""
    buckets, positions = _compile_step(recipe).buckets, cores.positions(model, recipe)
    if buckets and (list(buckets) != sorted(set(buckets)) or buckets[-1] != positions):
        message = f"`buckets` must rise to the {positions} positions of the recipe: end them there, or leave them out."
        yield Reason(
            rule="neuron-buckets",
            message=message,
            source="vllm-neuron, num_batched_tokens_buckets; NeuronConfig of NxD Inference",
        )


def check_memory(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse a model that does not fit on the cores at the stated degree."""
    # 1. Does it fit at the stated degree, or at another?
    device, stated = facts.device, recipe.serving.tensor_parallel
    if device is None or not device.memory_bytes:
        return
    draft, possible = facts.serving_draft(recipe), cores.degrees(device)
    if stated in possible and cores.fits(model, recipe, device, stated, draft):
        return
    enough = [degree for degree in possible if cores.fits(model, recipe, device, degree, draft)]
    if stated not in possible and enough:
        return
    # 2. What it needs, what there is, and what to change.
    logical = cores.logical_device(device)
    core_gb = logical.memory_bytes / 1e9
    core = cores.core_memory(model, recipe, device, stated, draft)
    tokens = f"{cores.batch_size(recipe)} x {cores.positions(model, recipe):,} tokens"
    needed = f"{core.weights_per_device / 1e9:.1f} GB of weights per core and a cache of {tokens}"
    remedy = "use a larger instance, INT8 weights or fewer positions"
    if enough:
        remedy = f"set `serving.tensor_parallel: {enough[0]}`"
    where = f"{facts.where} at tensor parallel {stated}"
    message = f"{model.id} does not fit on {where}: {needed} against {core_gb:.0f} GB: {remedy}."
    has = f"{logical.units} x {core_gb:.0f} GB"
    yield Reason(rule=MEMORY, message=message, source=FORMULA, brief=f"too large for {facts.where} ({has})")


RULES = (check_compiled, check_family, check_steps, check_speculation, check_degree, check_buckets, check_memory)


def candidates(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Recipe]:
    """Yield recipes with a compile step, the least changed first: degree, positions, stack, then fewer steps."""
    device = facts.device
    if device is None:
        return
    # 1. Lengths and degrees to try, the recipe's own first.
    name, own = device.name, _compile_step(recipe)
    stated, usual = recipe.serving.max_model_len, serving_memory.usual_context(model)
    lengths = dict.fromkeys([None if stated is None else min(stated, model.max_positions), usual])
    degrees = sorted(cores.degrees(device), key=lambda degree: (degree < recipe.serving.tensor_parallel, degree))
    for stack in dict.fromkeys([own.stack, None, *software_stacks.ORDER.get(name, ())]):
        # 2. The steps that the stack compiles, those with INT8 weights, and none.
        chosen = software_stacks.choose_stack(name, model.model_type, stack)
        can = STACKS[chosen].can if chosen else frozenset()
        compile_step = own.model_copy(update={"stack": stack, "buckets": None, "optimize_level": None})
        possible = tuple(step for step in recipe.steps if getattr(step, "method", "") in can)
        narrow: tuple[Quantize, ...] = ()
        if "int8" in can and not any(isinstance(step, Quantize) for step in possible):
            narrow = (Quantize(method="int8"),)
        # 3. Each with every length and degree.
        for steps in dict.fromkeys([possible, (*narrow, *possible), ()]):
            for tokens in lengths:
                for degree in degrees:
                    update: dict[str, Any] = {
                        "tensor_parallel": degree,
                        "max_model_len": tokens,
                        "enforce_eager": False,
                    }
                    update |= {"kv_cache_dtype": "auto"} if "fp8-cache" not in can else {}
                    served = recipe.serving.model_copy(update=update)
                    yield recipe.model_copy(update={"steps": (*steps, compile_step), "serving": served})


def notes(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> list[str]:
    """Return the notes of the plan: the stack's age, padded heads, memory."""
    assert facts.device is not None
    # 1. The stack.
    name = software_stacks.choose_stack(facts.device.name, model.model_type, _compile_step(recipe).stack)
    degree = recipe.serving.tensor_parallel
    sentences = [f"{STACKS[name].title} is legacy: {STACKS[name].legacy}"] if name and STACKS[name].legacy else []
    # 2. Heads, which each core has a whole number of.
    heads, kv_heads = cores.padded_heads(model, degree)
    if (heads, kv_heads) != (model.heads, model.kv_heads):
        sentences.append(
            f"Padded for {degree} cores: {model.heads} heads to {heads}, {model.kv_heads} KV heads to {kv_heads}."
        )
    # 3. Memory of a core.
    memory = cores.core_memory(model, recipe, facts.device, degree, facts.serving_draft(recipe))
    weights_gb, left_gb = memory.weights_per_device / 1e9, memory.cache[0] / 1e9
    sentences.append(
        f"Each of {degree} cores holds {weights_gb:.2f} GB of weights; {left_gb:.1f} GB are free for the KV cache "
        f"after {engine_costs.NEURON_RUNTIME[1] / 1e9:.0f} GB of runtime."
    )
    return sentences
