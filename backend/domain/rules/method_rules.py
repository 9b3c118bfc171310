"""The rules on a method's options and on what makes it, and whether there is memory for a recovery."""

from __future__ import annotations

import math
from collections.abc import Iterator

from backend.domain.kernels.kernel_choice import rounds_inputs
from backend.domain.model.facts import ModelFacts
from backend.domain.needs import recovery_needs
from backend.domain.recipe import methods, quantization_engines, quantize_step, recovery, sagemaker_toolkit
from backend.domain.recipe.capability_table import MULTIMODAL_FAMILIES
from backend.domain.recipe.recipe import Prune, Quantize, Recipe
from backend.domain.rules import kernel_rules
from backend.domain.rules.target_facts import Reason, TargetFacts

AUTOAWQ_FORMAT = "vLLM 0.32.0, AutoAWQConfig"
NO_SPARSE = (
    "vLLM pull request 36799: its integration and kernels of Sparse24 were removed; llm-compressor pull request 2720: "
    "so were the tests of 2:4 from vLLM 0.19.1 on"
)
SPARSE_FOLLOWERS = ("nvfp4", "fp8", "w8a8")
"""Methods that multiply at a multiple of the 16-bit rate, the fastest first."""
MIXED = "docs/decisions/0013-mixed-precision.md"
RECOVERY = "docs/decisions/0014-recovery.md"


def check_options(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    for step in recipe.steps:
        if isinstance(step, Quantize) and step.method in methods.QUANTIZE:
            for message in quantize_step.option_problems(step):
                yield Reason(
                    rule=f"{step.method}-options", message=message, source=quantize_step.method_row(step).source
                )


def check_format(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    step = recipe.step("quantize")
    if (
        isinstance(step, Quantize)
        and step.format == "autoawq"
        and (quantize_step.group_size(step) is None or quantize_step.bits(step) != 4)
    ):
        message = (
            f"AutoAWQ's format holds 4-bit weights in groups, and {step.method} makes none: leave `format` out, or "
            "use awq."
        )
        yield Reason(rule="autoawq-format", message=message, source=AUTOAWQ_FORMAT)
    elif isinstance(step, Quantize) and step.format == "autoawq" and quantize_step.caches_fp8(step):
        message = "AutoAWQ's format has no place for scales of the key-value cache: leave `kv_cache` or `format` out."
        yield Reason(rule="autoawq-format", message=message, source=AUTOAWQ_FORMAT)


def check_cache_scales(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    if quantize_step.caches_fp8(recipe.step("quantize")) and model.model_type in methods.NO_CACHE_SCALES:
        yield Reason(
            rule="cache-scales",
            message=(
                f"FP8 cache scales of models of type {model.model_type} are not offered, since none were served and "
                "scored yet: leave `kv_cache` out."
            ),
            source="capability table",
        )


def check_experts(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse a form for linears outside of experts where the model has none, or the toolkit makes one form alone."""
    step = recipe.step("quantize")
    if not isinstance(step, Quantize) or step.outside_experts is None:
        return
    if not model.experts:
        message = f"`outside_experts` is for mixtures of experts, and {model.id} has none: leave it out."
        yield Reason(rule="outside-experts", message=message, source="config.json, the number of experts")
    elif facts.place == "managed":
        message = "The SageMaker toolkit gives every linear the same precision: leave `outside_experts` out."
        yield Reason(rule="outside-experts", message=message, source=sagemaker_toolkit.SDK)


def check_loss_weights(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse weights of tokens for experts, each of which reads tokens of its own."""
    step = recipe.step("quantize")
    if isinstance(step, Quantize) and step.loss_weights and model.experts:
        message = f"`loss_weights` is for dense models, and {model.id} is a mixture of experts: leave it out."
        yield Reason(rule="loss-weights", message=message, source="config.json, the number of experts")


def check_pattern(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    step = recipe.step("prune")
    if isinstance(step, Prune) and step.pattern != "unstructured" and step.sparsity != 0.5:
        message = (
            f"The pattern {step.pattern} drops exactly half of the weights: leave `sparsity` out, or use unstructured."
        )
        yield Reason(rule="pattern", message=message, source="the pattern keeps N of each M weights")


def check_sparse_serving(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse 2:4 for a GPU, whose kernels for it vLLM removed: what is there in their place is named."""
    step = recipe.step("prune")
    if not isinstance(step, Prune) or step.pattern != "2:4" or facts.hardware != "cuda":
        return
    follower = find_sparse_follower(model, facts)
    mend = f"use `quantize: {{method: {follower}}}` in its place" if follower else "leave the step out"
    if recipe.step("quantize") is not None:
        mend = "leave the `prune` step out: the quantized weights are faster by themselves"
    message = (
        f"vLLM removed its kernels for 2:4 sparsity, so {facts.where} would serve the zeros like any other weights"
    )
    yield Reason(rule="sparse-serving", message=f"{message}, no smaller and no faster: {mend}.", source=NO_SPARSE)


def find_sparse_follower(model: ModelFacts, facts: TargetFacts) -> str | None:
    """Return the method that gives that GPU what 2:4 promised, products at twice the rate; None where none does."""
    capability = facts.device.capability if facts.device else None
    for name in SPARSE_FOLLOWERS:
        recipe = Recipe(steps=(Quantize(method=name),))
        fast = rounds_inputs(methods.QUANTIZE[name].scheme, capability)
        if fast and kernel_rules.find_unserved(model, recipe, facts) is None:
            return name
    return None


def check_one_pass(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse two engines where weights are pruned and quantized: both happen in one pass."""
    prune, quantize = recipe.step("prune"), recipe.step("quantize")
    if not isinstance(prune, Prune) or not isinstance(quantize, Quantize):
        return
    for engine in dict.fromkeys(step.engine for step in (prune, quantize) if step.engine != "native"):
        message = (
            f"Only the native engine prunes and quantizes in one pass: leave out `engine: {engine}`, or one of the "
            "steps."
        )
        yield Reason(rule="library", message=message, source="capability table")


def check_mixed_precision(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse `target_bits` and a floor to fall back from where something they need is missing."""
    # 1. An option that means nothing by itself.
    step, fall_back = recipe.step("quantize"), recipe.limits.fall_back
    has_average = getattr(step, "target_bits", None) is not None
    if not fall_back and not has_average:
        if getattr(step, "eight_bits", None):
            message = "`eight_bits` says what 8 bits are beside 4: give `target_bits` too, or leave it out."
            yield Reason(rule="mixed-precision", message=message, source=MIXED)
        return
    # 2. A fall-back needs a floor.
    name = "limits.fall_back" if fall_back else "target_bits"
    if fall_back and recipe.limits.max_kl is None and recipe.limits.max_perplexity_increase is None:
        message = "`limits.fall_back` needs a floor to fall back from: give `max_kl` or `max_perplexity_increase`."
        yield Reason(rule="no-floor", message=message, source="recipe limits")
    # 3. Only the native engine, quantizing in its own format, gives groups different precisions.
    if facts.place == "managed":
        message = f"The SageMaker toolkit gives every linear the same precision: leave `{name}` out."
        yield Reason(rule="mixed-precision", message=message, source=sagemaker_toolkit.SDK)
    elif not isinstance(step, Quantize) or step.method == "kv_cache":
        message = f"`{name}` raises the precision of quantized weights, and the recipe quantizes none: leave it out."
        yield Reason(rule="mixed-precision", message=message, source=MIXED)
    elif step.method in methods.GROUP_SIZE and step.method not in methods.MIXABLE:
        message = f"{step.method} makes all linears alike: leave `{name}` out, or use gptq."
        yield Reason(rule="mixed-precision", message=message, source=MIXED)
    elif step.engine != "native":
        message = f"Only the native engine gives groups of linears their own precision: leave `{name}` or `engine` out."
        yield Reason(rule="mixed-precision", message=message, source=MIXED)
    elif step.format == "autoawq":
        message = f"AutoAWQ's format has one precision for all linears: leave `{name}` or `format` out."
        yield Reason(rule="mixed-precision", message=message, source=AUTOAWQ_FORMAT)


def check_library(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    for step in recipe.steps:
        if isinstance(step, Quantize):
            for message, source in quantization_engines.refusals(step, model.id, model.model_type):
                yield Reason(rule="library", message=message, source=source)


def check_recovery(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse a recovery of experts, and one without the time or the memory for it where the job runs."""
    recoveries = recovery_needs.find_recoveries(recipe)
    if not recoveries:
        return
    # 1. The model.
    if model.experts:
        yield Reason(rule="recovery-experts", message=recovery.NO_EXPERTS, source=RECOVERY)
    if model.model_type in MULTIMODAL_FAMILIES:
        message = f"Recovery trains text models, and {model.id} is a multimodal one: leave `recover` out."
        yield Reason(rule="recovery-multimodal", message=message, source=RECOVERY)
    # 2. The time, at the best rate that the target has.
    for step in recoveries:
        least = recovery_needs.least_minutes(model, recipe, facts.device, step)
        if step.minutes is not None and least > step.minutes:
            budget = f"`recover.minutes: {step.minutes}` is too short for a first result"
            where = f"which takes at least {least:.1f} minutes on {facts.where}"
            smaller = "a smaller `batch`, or `answers: false`" if step.answers else "or a smaller `batch`"
            message = f"{budget}, {where}: use {math.ceil(least)} or more, {smaller}."
            yield Reason(rule="recovery-minutes", message=message, source=recovery_needs.TIME_FORMULA)
    # 3. The memory.
    available, where = _recovery_memory(facts)
    needed = recovery_needs.memory_bytes(model, recipe)
    if available is not None and needed > available:
        alone = all(isinstance(step, recovery.Recover) and step.teacher for step in recoveries)
        smaller = "`teacher: false`, a smaller `batch`" if alone else "a smaller `batch`"
        sizes = f"about {recovery_needs.format_bytes(needed)}, and {where} has {recovery_needs.format_bytes(available)}"
        message = f"Recovery holds the whole model in memory, {sizes}"
        yield Reason(
            rule="recovery-memory",
            message=f"{message}: use {smaller}, or leave `recover` out.",
            source=recovery_needs.FORMULA,
        )


def check_trained_quantization(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse to train quantized weights where zeros would not stay, or where several tries are made."""
    step, prune = recovery_needs.find_quantized_recovery(recipe), recipe.step("prune")
    if step is None:
        return
    if step.learn == "weights" and isinstance(prune, Prune) and not prune.structured:
        message = "`recover: {learn: weights}` would not keep the zeros of the pruning: use `learn: scales`."
        yield Reason(rule="recovery-zeros", message=message, source=RECOVERY)
    if recipe.limits.fall_back:
        message = "`limits.fall_back` makes several precisions, and `recover` trains one: leave one of them out."
        yield Reason(rule="recovery-precision", message=message, source=RECOVERY)
    if facts.place == "managed":
        message = "The SageMaker toolkit does not train what it quantizes: leave `recover` out."
        yield Reason(rule="recovery-managed", message=message, source=sagemaker_toolkit.SDK)


def _recovery_memory(facts: TargetFacts) -> tuple[int | None, str]:
    """Return (memory of the device that would hold the model, its name); None where the memory is not known."""
    if facts.hardware == "cuda" and facts.device is not None:
        return facts.device.memory_bytes, f"one accelerator of {facts.where}"
    if facts.hardware == "cpu" and facts.ram_bytes is None and facts.device is not None:
        return facts.device.memory_bytes or None, facts.where
    return facts.ram_bytes, facts.where


COMMON = (
    check_options,
    check_format,
    check_cache_scales,
    check_experts,
    check_loss_weights,
    check_pattern,
    check_mixed_precision,
    check_trained_quantization,
)
LIBRARY = (check_library, check_one_pass, check_recovery, check_sparse_serving)
