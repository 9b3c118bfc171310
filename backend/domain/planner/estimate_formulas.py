"""The formulas of an estimate in words, with the efficiencies and rates that were assumed. Pure."""

from __future__ import annotations

from backend.domain.machine import instruction_sets
from backend.domain.needs import engine_costs, job_duration, job_memory, recovery_needs, serving_memory, structure
from backend.domain.needs.hardware_rates import HardwareRates
from backend.domain.planner import request_rate, token_work
from backend.domain.recipe import quantize_step
from backend.domain.recipe.recipe import Quantize, Recipe
from backend.domain.rules.target_facts import TargetFacts

FORMULAS = {
    "weights": (
        "16-bit embeddings, output head and norms + linears x bits / 8 + a 16-bit scale and a zero point a group, or "
        "a 32-bit scale a channel"
    ),
    "disk": "optimized weights + draft + compile cache (200 MB) + 64 MB margin",
    "memory": job_memory.FORMULA,
    "kv_cache": "2 x layers x KV heads x head size x bytes of an element, per token",
    "cache": serving_memory.FORMULA,
    "compression": "original weights / weights of the recipe, in bytes",
    "token_work": token_work.FORMULA,
    "ttft": "(2 x parameters x tokens + attention) / arithmetic rate; at most all streams' prompts in a row",
    "tpot": (
        "(weights + cache read) / bandwidth, or arithmetic where that is longer, + all-reduces + the step's own "
        "time; at most the other streams' prompts too"
    ),
    "speculation": "(pass over k + 1 tokens + k draft steps) / ((1 - a^(k+1)) / (1 - a)), a = acceptance",
    "output_tokens_per_s": (
        "streams x output tokens / (streams x prefill + output tokens x step), summed over the replicas"
    ),
    "price": "hourly price / (output tokens/s x 3600 / 10^6)",
    "job": job_duration.FORMULA,
}


def rate_formulas() -> dict[str, str]:
    """Return the formulas that hold where the load is a rate of requests."""
    return {
        "in_flight": request_rate.FORMULA,
        "price": "instances x hourly price / (rate x output tokens x 3600 / 10^6)",
    }


def need_formulas(recipe: Recipe) -> dict[str, str]:
    """Return FORMULAS as far as they depend on the recipe."""
    cut = structure.find_step(recipe) is not None
    formulas = FORMULAS | {"weights": f"{FORMULAS['weights']}, of the smaller model"} if cut else FORMULAS
    disk = FORMULAS["disk"]
    if quantize_step.rotates(recipe):
        disk += " + twice the rotated weights in 16 bit"
        formulas = formulas | {"disk": disk}
    if not recovery_needs.find_recoveries(recipe):
        return formulas
    disk += " + the pruned and the recovered weights in 16 bit" if recovery_needs.find_recovery(recipe) else ""
    disk += " + the quantized weights" if recovery_needs.find_quantized_recovery(recipe) else ""
    return formulas | {"memory": f"{FORMULAS['memory']}; in recovery {recovery_needs.FORMULA}", "disk": disk}


def estimate_formulas(facts: TargetFacts, recipe: Recipe, runs: HardwareRates | None) -> dict[str, str]:
    """Return FORMULAS with the efficiencies that were assumed."""
    if facts.device is None:
        return need_formulas(recipe)
    engine = recipe.serving.engine_name
    shares = engine_costs.efficiency(facts.device, engine)
    if shares is None:
        return need_formulas(recipe)
    basis = "of what was measured here" if facts.device.measured else "of the nominal peak, assumed"
    rates = {
        "arithmetic": f"{shares.arithmetic[1]:g} to {shares.arithmetic[0]:g} {basis}",
        "bandwidth": f"{shares.bandwidth[1]:g} to {shares.bandwidth[0]:g} {basis}",
    }
    rates |= _product_formula(facts, recipe)
    if engine_costs.shares_pool(recipe.serving):
        rates |= {"cache": serving_memory.POOL_FORMULA, "weights": "the GGUF file's own size"}
    job = {"job": f"{job_duration.FORMULA}; {runs.basis}"} if runs else {}
    return need_formulas(recipe) | rates | job


def _product_formula(facts: TargetFacts, recipe: Recipe) -> dict[str, str]:
    """Return the assumed gain of the processor's instruction set on quantized linears, where there is one."""
    step, device = recipe.step("quantize"), facts.device
    bits = quantize_step.bits(step) if isinstance(step, Quantize) and step.method != "kv_cache" else None
    if (
        device is None
        or bits is None
        or device.hardware != "cpu"
        or (device.instructions, bits) not in instruction_sets.PRODUCTS
    ):
        return {}
    return {"products": f"quantized linears: {instruction_sets.describe_speeds(device.instructions, bits)}"}


def payoff_formula(measured_at: str) -> dict[str, str]:
    """Return what replaces the formula of speculation where a payoff map was measured at that time."""
    basis = f"of the payoff map measured here on {measured_at[:10]}, acceptance as below"
    return {"speculation": f"a step without it / the gain (accepted + 1) x step without / step with, {basis}"}
