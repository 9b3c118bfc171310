"""The rules by which a recipe is refused, each a few lines that yield reasons.

`RULES` has those of each kind of target.

Knows nothing of suggestions (`nearest_recipe` tries them against these rules).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from backend.domain.evaluation import llama_cpp_speculation
from backend.domain.machine.device import Device
from backend.domain.model import shapes
from backend.domain.model.facts import ModelCard, ModelFacts, PublishedModel
from backend.domain.needs import serving_memory, structure
from backend.domain.neuron import software_stacks
from backend.domain.recipe import methods, quantize_step, sagemaker_toolkit
from backend.domain.recipe.capability_table import (
    BFLOAT16,
    FP8_CACHE,
    MULTIMODAL_FAMILIES,
    NATIVE_FAMILIES,
    capability,
)
from backend.domain.recipe.recipe import Prune, Quantize, Recipe, Speculate
from backend.domain.recipe.serving_engines import (
    AUTO,
    ENGINES,
    Combination,
    EngineName,
    Unsupported,
    find_unsupported,
    list_readers,
)
from backend.domain.rules import (
    gguf_rules,
    kernel_rules,
    method_rules,
    neuron_rules,
    rotation_rules,
    speculation_rules,
    structure_rules,
)
from backend.domain.rules.target_facts import MEMORY, Reason, TargetFacts

Rule = Callable[[ModelFacts, Recipe, TargetFacts], Iterator[Reason]]
THREADS = "llama.cpp 0c1e57098, ggml/src/ggml-cpu/ggml-cpu.c: the threads of a step wait for each other in a loop"
PAGE = "AWS documentation, models that support inference optimization"


def reasons(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> tuple[Reason, ...]:
    """Return every reason against the recipe, without repeats, in the order of the rules."""
    return tuple(dict.fromkeys(_all_reasons(model, recipe, facts)))


def is_refused(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> bool:
    """Return whether there is a reason against the recipe; stops at the first."""
    return any(True for _ in _all_reasons(model, recipe, facts))


def _all_reasons(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    # What is made and served is the smaller model of a structured pruning; how it is made goes by the original.
    smaller, rest = structure.apply(model, recipe)
    for rule in RULES[facts.place]:
        yield from rule(model, recipe, facts) if rule in OF_ORIGINAL else rule(smaller, rest, facts)


def _check_one_quantization(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    methods = [step.method for step in recipe.steps if isinstance(step, Quantize)]
    if len(methods) > 1:
        yield Reason(
            rule="one-weight-quantization",
            message=f"The recipe quantizes the weights {len(methods)} times ({', '.join(methods)}): keep one of them.",
            source="weights that are already integers have no scales left to search",
        )


def _check_once_each(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    for technique in ("prune", "speculate", "compile", "shard"):
        if sum(step.technique == technique for step in recipe.steps) > 1:
            source = "pruned once, the scores are gone" if technique == "prune" else "vLLM takes one"
            yield Reason(rule="once", message=f"The recipe has `{technique}` more than once: keep one.", source=source)


def _check_already_quantized(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    steps = [step for step in recipe.steps if isinstance(step, Quantize | Prune)]
    stored = model.stored if isinstance(model, ModelCard) else None
    head = f"{model.id} is already quantized ({stored.layout if stored else model.quantization})"
    # its libraries load weights as they are, whatever announces them
    if stored is not None and facts.place == "neuron":
        yield _already_quantized_reason(
            f"{head}, which Neuron's libraries do not read: start from its 16-bit original."
        )
        return
    if not model.quantization or not steps:
        return
    if stored is None or facts.place in {"managed", "neuron"}:
        yield _already_quantized_reason(f"{head}: start from its 16-bit original.")
    elif stored.refusal is not None:
        yield _already_quantized_reason(f"{head}, and {stored.refusal}: start from its 16-bit original.")
    elif any(step.engine != "native" for step in steps):
        yield _already_quantized_reason(
            f"{head}, which only the native engine reads: use `engine: native`, or its 16-bit original."
        )
    elif any(step.recover for step in steps):
        yield _already_quantized_reason(
            f"{head}, and recovery trains plain weights only: leave `recover` out, or use its 16-bit original."
        )


def _already_quantized_reason(message: str) -> Reason:
    return Reason(rule="already-quantized", message=message, source="the headers of the weight files")


def _check_capabilities(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    for step in recipe.steps:
        method = getattr(step, "method", None)
        engine = getattr(step, "engine", "native")
        row = capability(step.technique, method, engine, facts.hardware)
        if not row.supported:
            yield Reason(rule="capability", message=row.reason, source=row.source)


def _check_family(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    own = [step for step in recipe.steps if isinstance(step, Prune | Quantize) and step.engine == "native"]
    steps = [step for step in own if step is not gguf_rules.find_step(recipe)]
    if steps and model.model_type not in NATIVE_FAMILIES | MULTIMODAL_FAMILIES:
        yield Reason(
            rule="family",
            message=f"The native engine cannot optimize models of type {model.model_type} yet: it knows "
            f"{', '.join(sorted(NATIVE_FAMILIES | MULTIMODAL_FAMILIES))}.",
            source="docs/decisions/0012-streaming-engine.md, Families",
        )


def _check_engine(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    if facts.hardware == "neuron":
        yield Reason(
            rule="no-engine",
            message=(
                f"Our servers do not run on Inferentia and Trainium, so nothing is planned on {facts.where}: compile "
                f"for it (`neuron:{facts.instance or 'ml.inf2.48xlarge'}`, or the managed toolkit by `sagemaker:`), "
                "or choose a GPU."
            ),
            source="capability table",
        )


def _check_serving_types(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    has = facts.device.capability if facts.device else None
    if has is None:
        return
    mine = f"{facts.where} has compute capability {has[0]}.{has[1]}"
    if recipe.serving.dtype == "bfloat16" and has < BFLOAT16[0]:
        message = f"`serving.dtype: bfloat16` needs compute capability 8.0 and {mine}: use float16 or auto."
        yield Reason(rule="compute-capability", message=message, source=BFLOAT16[1])
    cached = recipe.serving.kv_cache_dtype == "fp8" or quantize_step.caches_fp8(recipe.step("quantize"))
    if cached and has < FP8_CACHE[0]:
        message = f"An FP8 key-value cache needs compute capability 8.9 and {mine}: leave it out."
        yield Reason(rule="compute-capability", message=message, source=FP8_CACHE[1])


def _check_serving_engine(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse what the engine of the recipe does not serve. llama.cpp and OpenVINO read the GGUF file that a step makes,
    or the one that a model was imported from, which no step changes."""
    # 1. One engine, or all of them where the choice is open.
    chosen = recipe.serving.engine
    engines = tuple(ENGINES) if chosen == AUTO else (chosen,)
    refusals = [_find_unserved(model, recipe, facts, engine) for engine in engines]
    # 2. One of them must serve it.
    first = refusals[0]
    if first is not None and all(refusals):
        yield Reason(rule="serving-engine", message=first.sentence, source=first.source)


def _check_threads(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse more threads than this machine has cores: they would wait for each other at every layer."""
    for option in ("threads", "batch_threads"):
        threads = getattr(recipe.serving, option)
        if threads is not None and facts.cores is not None and threads > facts.cores:
            has = f"{facts.where} has {facts.cores} core{'s' * (facts.cores != 1)} for it"
            message = f"`serving.{option}: {threads}` is too many, since {has}: use at most {facts.cores}."
            yield Reason(rule="threads", message=message, source=THREADS)


def _find_unserved(model: ModelFacts, recipe: Recipe, facts: TargetFacts, engine: EngineName) -> Unsupported | None:
    """Return why that engine does not serve the recipe; None where it does."""
    step = recipe.step("speculate")
    unsupported = find_unsupported(_combination(model, recipe, facts, engine))
    if unsupported is None and engine == "llama.cpp" and isinstance(step, Speculate):
        unsupported = llama_cpp_speculation.find_unsupported_option(step)
        unsupported = unsupported or llama_cpp_speculation.find_unread_draft(step, facts.draft)
    return unsupported


def _combination(model: ModelFacts, recipe: Recipe, facts: TargetFacts, engine: EngineName) -> Combination:
    """Return what that engine would have to serve."""
    step = recipe.step("speculate")
    is_changed = any(isinstance(other, Quantize | Prune) for other in recipe.steps)
    makes_gguf = gguf_rules.find_step(recipe) is not None
    reads_gguf = engine in list_readers("gguf") and model.gguf_kept and not is_changed
    combination = Combination(
        engine=engine,
        format="gguf" if makes_gguf or reads_gguf else "safetensors",
        hardware=facts.hardware,
        speculation=step.method if isinstance(step, Speculate) else None,
        cache=recipe.serving.kv_cache_dtype,
        parallel=recipe.serving.tensor_parallel,
    )
    if engine == "vllm" and not makes_gguf:  # its hardware and its drafts have rules of their own
        combination = combination._replace(hardware="cuda", speculation=None)
    return combination


def _check_group_size(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    for step in recipe.steps:
        if not isinstance(step, Quantize) or step.method not in methods.GROUP_SIZE:
            continue
        size = step.group_size or methods.GROUP_SIZE[step.method]
        usual = shapes.usual_group(model)
        mend = f"use {usual}" if usual else "use a method without groups, such as w8a8"
        for width, name in {shape.inputs: shape.name for shape in shapes.undivided(size, model)}.items():
            what = f"the {width} inputs of the {name} matrices of {model.id}"
            yield Reason(
                rule="group-size",
                message=f"Group size {size} does not divide {what}: {mend}.",
                source="compressed-tensors, group quantization",
            )


def _check_compiler(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    if recipe.step("compile") and facts.hardware == "cpu" and not facts.compiler:
        yield Reason(
            rule="no-compiler",
            message="`compile` needs a C++ compiler, and this machine has none: install g++ and the Python headers.",
            source="torch.compile, inductor's C++ backend",
        )


def _check_eager_compile(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    if recipe.step("compile") and recipe.serving.enforce_eager:
        yield Reason(
            rule="eager-compile",
            message="`compile` and `serving.enforce_eager: true` contradict each other: keep one.",
            source="vLLM, --enforce-eager",
        )


def _check_context(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    stated = recipe.serving.max_model_len
    if stated is not None and stated > model.max_positions:
        yield Reason(
            rule="context",
            message=f"max_model_len {stated} is beyond the {model.max_positions} positions of {model.id}: lower it.",
            source="config.json, max_position_embeddings",
        )


def _check_devices(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse more accelerators than there are, stages without layers, and expert parallelism without experts."""
    serving = recipe.serving
    if facts.device and serving.devices > facts.device.units:
        names = ("tensor_parallel", "pipeline_parallel", "data_parallel")
        degrees = [f"{name} {getattr(serving, name)}" for name in names if (getattr(serving, name) or 1) > 1]
        words = f"{' x '.join(degrees)} needs {serving.devices} devices and {facts.where} has {facts.device.units}"
        mend = "lower it" if len(degrees) == 1 else "lower one of them"
        yield Reason(rule="tensor-parallel", message=f"{words}: {mend}.", source="vLLM, --tensor-parallel-size")
    if (serving.pipeline_parallel or 1) > model.layers:
        words = f"pipeline_parallel {serving.pipeline_parallel} is more than the {model.layers} layers of {model.id}"
        yield Reason(rule="pipeline-parallel", message=f"{words}: lower it.", source="vLLM, --pipeline-parallel-size")
    spread = serving.tensor_parallel * (serving.data_parallel or 1)
    if serving.expert_parallel and not model.experts:
        message = f"expert_parallel goes with a mixture of experts, and {model.id} has none: leave it out."
        yield Reason(rule="expert-parallel", message=message, source="vLLM, --enable-expert-parallel")
    elif serving.expert_parallel and spread == 1:
        message = "expert_parallel spreads experts over tensor_parallel x data_parallel devices: set one above 1."
        yield Reason(rule="expert-parallel", message=message, source="vLLM, --enable-expert-parallel")


def _check_tensor_parallel(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    degree = recipe.serving.tensor_parallel
    if degree == 1:
        return
    chosen = serving_memory.stored_format(model, recipe)
    if facts.hardware != "neuron" and not serving_memory.divides(model, degree, chosen.cut if chosen else None):
        parts = f"the {model.heads} heads, {model.kv_heads} KV heads and matrices of {model.id}"
        message = f"tensor_parallel {degree} does not divide {parts} into equal parts: use another degree."
        yield Reason(rule="tensor-parallel", message=message, source="vLLM 0.32.0, ModelConfig and AutoAWQConfig")


def _check_memory(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse a model whose weights and cache do not fit where it is served.

    On this machine at the recipe's own degree, unless any may be chosen.
    """
    # 1. It fits at the stated degree, or at another where the plan may choose one.
    device, stated = facts.device, recipe.serving.tensor_parallel
    if device is None or not device.memory_bytes or recipe.serving.devices > device.units:
        return
    draft, tokens = facts.serving_draft(recipe), serving_memory.required_cache_tokens(model, recipe)
    if serving_memory.device_memory(model, recipe, device, stated, draft).holds(tokens):
        return
    least = serving_memory.find_smallest_fit(model, recipe, device, draft, tokens=tokens)
    if least is not None and (facts.place != "local" or facts.any_degree):
        return
    # 2. What it takes, what is there, and what to change.
    wants = f"{serving_memory.weights(model, recipe).total / 1e9:.1f} GB of weights and a cache of {tokens:,} tokens"
    mend = "use fewer bits or a larger instance"
    if least is not None:
        mend = f"set `serving.tensor_parallel: {least.tensor_parallel}`"
    message = f"{model.id} does not fit on {facts.where}: {wants} against {_memory_words(device)}: {mend}."
    has = f"{device.units * device.memory_bytes / 1e9:.0f} GB"
    yield Reason(
        rule=MEMORY, message=message, source=serving_memory.FORMULA, brief=f"too large for {facts.where} ({has})"
    )


def _memory_words(device: Device) -> str:
    unit_gb = device.memory_bytes / 1e9
    if device.units == 1:
        return f"{unit_gb:.0f} GB"
    return f"{device.units} x {unit_gb:.0f} GB ({device.units * unit_gb:.0f} GB), cut so that the heads divide"


def _check_stacking(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    row, refusal = sagemaker_toolkit.find_stack(recipe, facts.hardware)
    if refusal is not None:
        yield Reason(rule="sagemaker-stacking", message=refusal, source=sagemaker_toolkit.SDK)
    if row is not None and "shard" in row.parts and recipe.serving.tensor_parallel == 1:
        message = "Sharding needs a tensor parallel degree: set `serving.tensor_parallel`."
        yield Reason(rule="sagemaker-shard", message=message, source=sagemaker_toolkit.SDK)


def _check_instance(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    if recipe.steps and not sagemaker_toolkit.accepts_instance(
        facts.family or "", facts.optimization_job, facts.hardware
    ):
        known = ", ".join(family for families in sagemaker_toolkit.FAMILIES.values() for family in families)
        message = (
            f"The SageMaker toolkit optimizes for the families {known}, and {facts.where} is none of them: choose one."
        )
        yield Reason(rule="sagemaker-instance", message=message, source=sagemaker_toolkit.SDK)


def _check_neuron_family(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    known = software_stacks.families("sagemaker")
    if facts.hardware == "neuron" and model.model_type not in known:
        yield Reason(
            rule="neuron-family",
            message=f"Neuron's libraries name no support for models of type {model.model_type}, so nothing says that "
            f"{facts.where} can compile {model.id}: choose a GPU instance. They name {', '.join(sorted(known))}.",
            source=software_stacks.SAGEMAKER_SOURCE,
        )


def _check_published(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    cells = model.published if isinstance(model, PublishedModel) else None
    if cells is None:
        return
    if recipe.step("quantize") and cells.quantization == "No":
        message = f"The page lists {model.id} without quantization: leave it out."
        yield Reason(rule="sagemaker-model", message=message, source=PAGE)
    if recipe.step("speculate") and cells.speculative_decoding == "No":
        message = f"The page lists {model.id} without speculative decoding: leave it out."
        yield Reason(rule="sagemaker-model", message=message, source=PAGE)


_COMMON: tuple[Rule, ...] = (
    _check_one_quantization,
    _check_once_each,
    _check_already_quantized,
    structure_rules.check_structure,
    _check_group_size,
    *method_rules.COMMON,
    rotation_rules.check_rotation,
    gguf_rules.check_gguf,
    *speculation_rules.COMMON,
    _check_eager_compile,
    _check_context,
    _check_devices,
    _check_tensor_parallel,
    _check_serving_types,
    _check_serving_engine,
    _check_threads,
    neuron_rules.check_elsewhere,
)
_OURS: tuple[Rule, ...] = (
    _check_engine,
    *_COMMON,
    _check_capabilities,
    _check_family,
    *method_rules.LIBRARY,
    kernel_rules.check_kernels,
    _check_compiler,
    *speculation_rules.OURS,
)
OF_ORIGINAL: frozenset[Rule] = frozenset(
    {
        _check_one_quantization,
        _check_once_each,
        _check_already_quantized,
        structure_rules.check_structure,
        _check_capabilities,
        _check_family,
        method_rules.check_recovery,
        _check_stacking,
        *neuron_rules.RULES,
    }
)
"""Rules on how a recipe is made; the others are on what is made, which a structured pruning leaves smaller."""
RULES: dict[str, tuple[Rule, ...]] = {
    "local": (*_OURS, _check_memory),
    "planned": (*_OURS, _check_memory),
    "managed": (*_COMMON, _check_stacking, _check_instance, _check_neuron_family, _check_published, _check_memory),
    "neuron": (
        *(rule for rule in _COMMON if rule not in (_check_devices, _check_tensor_parallel)),
        *neuron_rules.RULES,
    ),
}
