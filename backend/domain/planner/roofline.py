"""How fast a model is served, from what must be moved and multiplied: prefill bound by arithmetic, decoding by memory
bandwidth.

Each figure is a range: the same formula at the best and at the worst of the efficiencies below. Knows nothing of
prices.

Sources: Williams et al. 2009 (roofline); Pope et al. 2022 (transformer inference); Leviathan et al. 2023 (speculative
decoding); Shoeybi et al. 2019 (tensor parallelism: two all-reduces a layer); nccl-tests, PERFORMANCE.md (2 (n - 1) / n
per all-reduce).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from pydantic import Field

from backend.domain.frozen import Frozen
from backend.domain.kernels.conditions import Scheme
from backend.domain.kernels.kernel_choice import rounds_inputs
from backend.domain.machine import instruction_sets
from backend.domain.machine.device import Device
from backend.domain.model.facts import ModelFacts
from backend.domain.model.shapes import sizes
from backend.domain.needs.serving_memory import effective_serving, kv_bytes, stored_format, weights
from backend.domain.recipe import quantize_step
from backend.domain.recipe.recipe import Quantize, Recipe, Speculate
from backend.domain.recipe.speculation import SPECULATE

End = Literal[0, 1]
BEST: End = 0
WORST: End = 1
Gains = Callable[[float, int, float, End], float]
"""(streams, tokens a guess, acceptance, end) -> the gain of speculation, measured: at that end of the measurement's
error."""


class Efficiency(NamedTuple):
    """(best, worst) shares of the peak that are reached, and what a step costs beside traffic and arithmetic, in
    seconds."""

    bandwidth: tuple[float, float]
    arithmetic: tuple[float, float]
    step: tuple[float, float]
    all_reduce: tuple[float, float]
    """Latency of one all-reduce, in seconds."""


NOMINAL = Efficiency((0.9, 0.5), (0.7, 0.3), (0.0002, 0.003), (5e-6, 40e-6))
"""Of a GPU's or Neuron core's datasheet. Assumptions: this project has measured no accelerator yet."""
MEASURED = Efficiency((1.0, 0.8), (1.0, 0.5), (0.0005, 0.003), (0.0, 0.0))
"""Of the best that the probe saw on a processor, so nothing is above it. 0.8 is what a middling repetition of the
probe's own matrix-vector product reaches of its best; the rest is assumed."""

ACCEPTANCE = (0.8, 0.5)
"""(best, worst) probability that a token of a draft or head is accepted. An assumption: only an evaluation can tell."""
LOOKUP_ACCEPTANCE = (0.7, 0.0)
"""The same for look-up methods (n-gram, suffix, a class of one's own): nothing where the text does not repeat
itself."""


class ExpectedLoad(Frozen):
    """What is asked of the server: tokens a request, and requests at once."""

    input_tokens: int = Field(512, ge=1, le=10_000_000)
    output_tokens: int = Field(128, ge=1, le=10_000_000)
    concurrency: int = Field(1, ge=1, le=1_000_000)


class Speed(NamedTuple):
    """(least, most) of each; seconds, and tokens/s over all streams."""

    ttft: tuple[float, float]
    tpot: tuple[float, float]
    output_tokens_per_s: tuple[float, float]


class QuantizedLinears(NamedTuple):
    """The linears that are quantized, of which `Served` counts all."""

    traffic: float
    """Bytes as they are stored."""
    sixteen: float
    """Bytes of the same in 16 bit."""
    flops: float
    """Of one token."""


class ServedModel(NamedTuple):
    """A model as it is served: what a step reads and multiplies."""

    layers: int
    hidden: int
    traffic: float
    """Bytes of weights that every step reads, experts left out."""
    expert_traffic: float
    """Bytes of all experts."""
    experts: tuple[int, int] | None
    """(experts, experts a token)."""
    token_flops: float
    kv_bytes: float
    """Of one token, on one device."""
    eight_bit: bool
    bits: int
    products: QuantizedLinears
    scheme: Scheme | None = None
    """By which a GPU either multiplies in those bits or takes the weights alone."""


def served_model(model: ModelFacts, recipe: Recipe, tensor_parallel: int = 1) -> ServedModel:
    """The embedding table is looked up, not read, so it is traffic only where it is the output head too."""
    parts, chosen = sizes(model), stored_format(model, recipe)
    stored, step = weights(model, recipe), recipe.step("quantize")
    read = stored.total - (stored.embedding if parts.head else 0)
    of_experts = _expert_bytes(model, stored.linears + stored.scales)
    head = parts.head or parts.embedding
    return ServedModel(
        layers=model.layers,
        hidden=model.hidden_size,
        traffic=read - of_experts,
        expert_traffic=of_experts,
        experts=(model.experts, model.experts_per_token) if model.experts and model.experts_per_token else None,
        token_flops=2.0 * (parts.active_linears + head),
        kv_bytes=kv_bytes(model, effective_serving(recipe), tensor_parallel),
        eight_bit=chosen is not None and chosen.activations,
        bits=chosen.bits if chosen else 16,
        products=QuantizedLinears(stored.linears + stored.scales, 2.0 * parts.linears, 2.0 * parts.active_linears),
        scheme=quantize_step.method_row(step).scheme if isinstance(step, Quantize) else None,
    )


def _expert_bytes(model: ModelFacts, linears: float) -> float:
    if not model.experts or not model.experts_per_token:
        return 0.0
    parts = sizes(model)
    share = (parts.linears - parts.active_linears) / (1 - model.experts_per_token / model.experts) / parts.linears
    return linears * share


def efficiency(device: Device) -> Efficiency:
    return MEASURED if device.measured else NOMINAL


def step_seconds(
    what: ServedModel, device: Device, degree: int, load: ExpectedLoad, end: End, tokens: int = 1
) -> float:
    """One pass over `tokens` tokens of each of `load.concurrency` sequences, in the middle of their answers.

    max(bytes / bandwidth, operations / rate) / degree + all-reduces + what a step costs in any case. On a processor the
    quantized linears take the time of the same in 16 bit, over what its instruction set makes of them.
    """
    assert device.bandwidth and device.flops
    shares, batch = efficiency(device), load.concurrency * tokens
    context = load.input_tokens + load.output_tokens / 2
    read = (what.traffic + what.expert_traffic * expert_share(what.experts, batch)) / degree
    read += load.concurrency * context * what.kv_bytes
    apart = what.products if _has_measured_gain(what, device) else QuantizedLinears(0.0, 0.0, 0.0)
    bandwidth, rate = device.bandwidth * shares.bandwidth[end], _arithmetic_rate(what, device) * shares.arithmetic[end]
    moving, working = (
        (read - apart.traffic / degree) / bandwidth,
        batch * (what.token_flops - apart.flops) / degree / rate,
    )
    core = max(moving, working)
    if apart.traffic:
        sixteen = max(apart.sixteen / degree / bandwidth, batch * apart.flops / degree / rate)
        core += sixteen / instruction_sets.speed_range(device.instructions, what.bits, batch)[end]
    return core + _all_reduce_seconds(what, device, degree, batch, end) + shares.step[end]


def expert_share(experts: tuple[int, int] | None, tokens: int) -> float:
    """Share of the experts that `tokens` tokens use together when each picks its own at random: 1 - (1 - k / n) ^
    tokens."""
    return 1.0 - (1.0 - experts[1] / experts[0]) ** tokens if experts else 0.0


def _has_measured_gain(what: ServedModel, device: Device) -> bool:
    """Whether it was measured what the device makes of the quantized linears, rather than of their bytes."""
    return device.hardware == "cpu" and what.experts is None and (what.bits == 4 or (what.bits == 8 and what.eight_bit))


def _arithmetic_rate(what: ServedModel, device: Device) -> float:
    assert device.flops
    rounded = what.eight_bit and rounds_inputs(what.scheme, device.capability)
    return device.int8_ops or device.flops if rounded else device.flops


def _all_reduce_seconds(what: ServedModel, device: Device, degree: int, tokens: int, end: End) -> float:
    """Two a layer, each of tokens x hidden size x 2 bytes: 2 (n - 1) / n of them over the link, and its latency."""
    if degree == 1:
        return 0.0
    shares = efficiency(device)
    size = tokens * what.hidden * 2 * 2 * (degree - 1) / degree
    moving = size / (device.link * shares.bandwidth[end]) if device.link else 0.0
    return 2 * what.layers * (moving + shares.all_reduce[end])


def prefill_seconds(what: ServedModel, device: Device, degree: int, tokens: int, end: End) -> float:
    """One prompt: 2 x parameters x tokens operations and 2 x tokens^2 x hidden a layer for causal attention, or one
    read of the weights where that takes longer."""
    assert device.bandwidth and device.flops
    shares = efficiency(device)
    attention = 2.0 * what.layers * tokens**2 * what.hidden
    working = (
        (what.token_flops * tokens / _arithmetic_rate(what, device) + attention / device.flops)
        / degree
        / shares.arithmetic[end]
    )
    read = (what.traffic + what.expert_traffic * expert_share(what.experts, tokens)) / degree
    moving = read / (device.bandwidth * shares.bandwidth[end])
    return max(moving, working) + _all_reduce_seconds(what, device, degree, tokens, end) + shares.step[end]


def tokens_per_pass(acceptance: float, drafted: int) -> float:
    """Expected tokens of one verified pass: (1 - a^(k+1)) / (1 - a) (Leviathan et al. 2023, the expected number of
    tokens)."""
    return drafted + 1.0 if acceptance >= 1 else (1 - acceptance ** (drafted + 1)) / (1 - acceptance)


def acceptance_from_rate(rate: float, drafted: int) -> float:
    """The probability a whose expected accepted / drafted is `rate`, which servers report: a + a^2 + ... + a^k = rate x
    k."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_per_pass(middle, drafted) - 1 < rate * drafted else (low, middle)
    return (low + high) / 2


def acceptance_range(step: Speculate, measured: float | None) -> tuple[float, float]:
    """(best, worst) probability of acceptance."""
    if measured is not None:
        return measured, measured
    return ACCEPTANCE if step.drafts else LOOKUP_ACCEPTANCE


def token_seconds(
    what: ServedModel,
    device: Device,
    degree: int,
    load: ExpectedLoad,
    end: End,
    step: Speculate | None,
    draft: ServedModel | None,
    acceptance: float | None = None,
    gains: Gains | None = None,
) -> float:
    """Seconds a token of one stream. With speculation: one pass over k + 1 tokens and k steps of the draft (one where
    it proposes all at once), divided by the tokens that a pass is expected to give; k as the recipe has it for so many
    streams. Where it was measured what these cost, a step without them, divided by the gain."""
    tokens = step.tokens_at(load.concurrency) if step else 0
    nothing = step is not None and SPECULATE[step.method].only_likely and acceptance is None and end == WORST
    if step is None or not tokens or nothing:
        return step_seconds(what, device, degree, load, end)
    likely = acceptance_range(step, acceptance)[end]
    if gains is not None:
        return step_seconds(what, device, degree, load, end) / gains(load.concurrency, tokens, likely, end)
    verified = step_seconds(what, device, degree, load, end, tokens + 1)
    passes = 1 if SPECULATE[step.method].once else tokens
    drafting = passes * step_seconds(draft, device, degree, load, end) if draft else 0.0
    return (verified + drafting) / tokens_per_pass(likely, tokens)


def speed(
    model: ModelFacts,
    recipe: Recipe,
    device: Device,
    degree: int,
    load: ExpectedLoad,
    draft: ModelFacts | None = None,
    acceptance: float | None = None,
    held: tuple[int, int] | None = None,
    gains: Gains | None = None,
) -> Speed | None:
    """Time to first token, time per output token, and output tokens/s of a closed loop of `load.concurrency` streams.

    Streams prefill one after the other and decode together, so a round of them takes n x prefill + output tokens x
    step. At worst all other prompts fall into a stream's answer and lengthen its tokens. `held`: (least, most)
    sequences that the cache holds; those beyond wait for whole rounds.
    None where the device's rates are not known, or the draft that the recipe needs is not.
    """
    step = recipe.step("speculate")
    chosen = step if isinstance(step, Speculate) else None
    if not device.bandwidth or not device.flops or not model.generates:
        return None
    if chosen is not None and chosen.drafts and draft is None:
        return None
    what = served_model(model, recipe, degree)
    small = served_model(draft, Recipe(serving=recipe.serving), degree) if draft else None
    sequences = (held[1], held[0]) if held else (load.concurrency, load.concurrency)
    given = (what, device, degree, load)
    best, worst = (_batch_cycle(*given, end, chosen, small, acceptance, sequences[end], gains) for end in (BEST, WORST))
    return Speed((best.first, worst.last), (best.token, worst.token + worst.interrupted), (worst.rate, best.rate))


def replicated_speed(
    model: ModelFacts,
    recipe: Recipe,
    device: Device,
    degree: int,
    load: ExpectedLoad,
    draft: ModelFacts | None = None,
    acceptance: float | None = None,
    held: tuple[int, int] | None = None,
    replicas: int = 1,
    gains: Gains | None = None,
) -> Speed | None:
    """`speed` of `replicas` that share the streams evenly: those with one more are the slowest, and all their tokens
    count."""
    fewest, longer = divmod(load.concurrency, replicas)
    shares = [(fewest + 1, longer), (fewest, replicas - longer)]
    found = []
    for streams, many in shares:
        part = load.model_copy(update={"concurrency": streams}) if streams and many else None
        made = speed(model, recipe, device, degree, part, draft, acceptance, held, gains) if part else None
        found += [(many, made)] if made else []
    if not found:
        return None
    slowest, quickest = found[0][1], found[-1][1]
    rates = [sum(many * made.output_tokens_per_s[end] for many, made in found) for end in (0, 1)]
    return Speed((quickest.ttft[0], slowest.ttft[1]), (quickest.tpot[0], slowest.tpot[1]), (rates[0], rates[1]))


class _BatchCycle(NamedTuple):
    """Seconds until the first and the last stream's first token, seconds a token, what the prompts of all other streams
    add to each token where they fall into its answer, and tokens/s."""

    first: float
    last: float
    token: float
    interrupted: float
    rate: float


def _batch_cycle(
    what: ServedModel,
    device: Device,
    degree: int,
    load: ExpectedLoad,
    end: End,
    step: Speculate | None,
    draft: ServedModel | None,
    acceptance: float | None,
    held: int,
    gains: Gains | None,
) -> _BatchCycle:
    streams = max(1, min(load.concurrency, held))
    together = load if streams == load.concurrency else load.model_copy(update={"concurrency": streams})
    prefill = prefill_seconds(what, device, degree, load.input_tokens, end)
    token = token_seconds(what, device, degree, together, end, step, draft, acceptance, gains)
    seconds = streams * prefill + load.output_tokens * token
    waiting = (load.concurrency / streams - 1) * seconds
    interrupted = (streams - 1) * prefill / load.output_tokens
    return _BatchCycle(prefill, streams * prefill + waiting, token, interrupted, streams * load.output_tokens / seconds)
