"""Speed of a served model, from the bytes that must be moved and the operations that must be made.

Prefill is bound by arithmetic, decoding by memory bandwidth. Each figure is a range: the same formula with the best and
with the worst of the efficiencies below. Knows nothing of prices.

Sources: Williams et al. 2009 (roofline); Pope et al. 2022 (transformer inference); Leviathan et al. 2023 (speculative
decoding); Shoeybi et al. 2019 (tensor parallelism: two all-reduces a layer); nccl-tests, PERFORMANCE.md (2 (n - 1) / n
per all-reduce).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from pydantic import Field

from backend.domain.figures import streams
from backend.domain.frozen import Frozen
from backend.domain.kernels.conditions import Scheme
from backend.domain.kernels.kernel_choice import rounds_inputs
from backend.domain.machine import instruction_sets
from backend.domain.machine.device import Device
from backend.domain.model.facts import ModelFacts
from backend.domain.model.shapes import sizes
from backend.domain.needs import engine_costs, rotation
from backend.domain.needs.engine_costs import Efficiency
from backend.domain.needs.serving_memory import effective_serving, kv_bytes, stored_format, weights
from backend.domain.recipe import quantize_step
from backend.domain.recipe.recipe import Quantize, Recipe, Speculate
from backend.domain.recipe.serving_engines import EngineName
from backend.domain.recipe.speculation import SPECULATE

End = Literal[0, 1]
BEST: End = 0
WORST: End = 1
Gains = Callable[[float, int, float, End], float]
"""(streams, draft tokens, acceptance, end) -> the measured gain of speculation, at that end of its error."""


ACCEPTANCE = (0.8, 0.5)
"""(best, worst) probability that a token of a draft or head is accepted. An assumption: only an evaluation can tell."""
LOOKUP_ACCEPTANCE = (0.7, 0.0)
"""The same for look-up methods (n-gram, suffix, a user's own class): 0 where the text does not repeat itself."""


MOST_RATE = 100_000.0
"""Requests per second."""


class ExpectedLoad(Frozen):
    """The load that a server is planned for: tokens of a request, and requests at the same time or per second."""

    input_tokens: int = Field(512, ge=1, le=10_000_000)
    output_tokens: int = Field(128, ge=1, le=10_000_000)
    concurrency: int = Field(1, ge=1, le=1_000_000)
    """With a rate, an estimate replaces it by the requests that each instance has in flight."""
    rate: float | None = Field(None, gt=0, le=MOST_RATE)
    """Requests per second over all instances; None for a fixed number of requests at the same time."""

    @property
    def demand(self) -> str:
        """`16 streams` or `2.5 requests/s`: what is asked for, without tokens."""
        return streams(self.concurrency) if self.rate is None else f"{self.rate:,.6g} requests/s"

    @property
    def text(self) -> str:
        """`622 tokens in, 250 out, 16 streams`."""
        return f"{self.input_tokens:,} tokens in, {self.output_tokens:,} out, {self.demand}"

    def is_asked_by(self, other: ExpectedLoad) -> bool:
        """Tell whether another load asks for the same rate, or without one for the same concurrency."""
        if self.rate is None or other.rate is None:
            return self.rate == other.rate and self.concurrency == other.concurrency
        return self.rate == other.rate

    def list_with(self, concurrencies: Iterable[int]) -> list[ExpectedLoad]:
        """Return this load among its tokens at these concurrencies, ascending; a load with a rate is the last."""
        own = [self.concurrency] if self.rate is None else []
        levels = sorted({*concurrencies, *own})
        loads = [self.model_copy(update={"concurrency": level, "rate": None}) for level in levels]
        return loads if self.rate is None else [*loads, self]


class Speed(NamedTuple):
    """(least, most) of each: seconds, and tokens per second over all streams."""

    ttft: tuple[float, float]
    tpot: tuple[float, float]
    output_tokens_per_s: tuple[float, float]


class QuantizedLinears(NamedTuple):
    """The part of a model that is quantized; `ServedModel` counts it too."""

    traffic: float
    """Bytes as they are stored."""
    sixteen: float
    """Bytes of the same in 16 bit."""
    flops: float
    """Operations per token."""


class ServedModel(NamedTuple):
    """A model as it is served: what a step reads and multiplies."""

    layers: int
    hidden: int
    traffic: float
    """Bytes of weights that every step reads, experts left out."""
    expert_traffic: float
    """Bytes of all experts."""
    experts: tuple[int, int] | None
    """(experts, experts per token)."""
    token_flops: float
    kv_bytes: float
    """Bytes of one token on one device."""
    eight_bit: bool
    bits: int
    products: QuantizedLinears
    scheme: Scheme | None = None
    """Decides whether a GPU multiplies in those bits or only stores weights in them."""
    engine: EngineName = "vllm"


class Scenario(NamedTuple):
    """Everything that decides the speed of one replica: model, hardware, load and speculation."""

    model: ServedModel
    device: Device
    degree: int
    """Tensor parallel degree."""
    load: ExpectedLoad
    step: Speculate | None = None
    draft: ServedModel | None = None
    acceptance: float | None = None
    """Measured probability of acceptance; None: the assumed range."""
    gains: Gains | None = None
    """Measured gains of speculation; None: by the formula."""

    def with_streams(self, streams: int) -> Scenario:
        """Return the same with another number of streams."""
        if streams == self.load.concurrency:
            return self
        return self._replace(load=self.load.model_copy(update={"concurrency": streams}))


def make_scenario(
    model: ModelFacts,
    recipe: Recipe,
    device: Device,
    degree: int,
    load: ExpectedLoad,
    *,
    draft: ModelFacts | None = None,
    acceptance: float | None = None,
    gains: Gains | None = None,
) -> Scenario | None:
    """Return the scenario; None where the rates of the device or engine, or the draft of the recipe, are not known."""
    engine = recipe.serving.engine_name
    if not device.bandwidth or not device.flops or not model.generates:
        return None
    if engine_costs.efficiency(device, engine) is None:
        return None
    # 1. The draft, where the recipe has one.
    step = recipe.step("speculate")
    speculate = step if isinstance(step, Speculate) else None
    if speculate is not None and speculate.drafts and draft is None:
        return None
    small = served_model(draft, Recipe(serving=recipe.serving), degree) if draft else None
    # 2. The model as it is served.
    served = served_model(model, recipe, degree)
    return Scenario(served, device, degree, load, speculate, small, acceptance, gains)


def served_model(model: ModelFacts, recipe: Recipe, tensor_parallel: int = 1) -> ServedModel:
    """Return what a step reads and multiplies.

    The embedding table is looked up, not read, so it is traffic only where it is the output head too.
    """
    # 1. Bytes: all weights but the embedding table, experts apart.
    model = rotation.untied(model, recipe)
    parts, stored, quantized = sizes(model), weights(model, recipe), stored_format(model, recipe)
    linear_bytes = stored.linears + stored.scales
    expert_bytes = _expert_bytes(model, linear_bytes)
    traffic = stored.total - (stored.embedding if parts.head else 0) - expert_bytes
    # 2. Operations: two for each weight that a token meets.
    head = parts.head or parts.embedding
    linears = QuantizedLinears(linear_bytes, 2.0 * parts.linears, 2.0 * parts.active_linears)
    # 3. How the quantized part is multiplied.
    step = recipe.step("quantize")
    scheme = quantize_step.method_row(step).scheme if isinstance(step, Quantize) else None
    experts = (model.experts, model.experts_per_token) if model.experts and model.experts_per_token else None
    return ServedModel(
        layers=model.layers,
        hidden=model.hidden_size,
        traffic=traffic,
        expert_traffic=expert_bytes,
        experts=experts,
        token_flops=2.0 * (parts.active_linears + head),
        kv_bytes=kv_bytes(model, effective_serving(recipe), tensor_parallel),
        eight_bit=quantized is not None and quantized.activations,
        bits=quantized.bits if quantized else 16,
        products=linears,
        scheme=scheme,
        engine=recipe.serving.engine_name,
    )


def _expert_bytes(model: ModelFacts, linear_bytes: float) -> float:
    """Return the part of the linears' bytes that all experts take together; 0 without experts."""
    if not model.experts or not model.experts_per_token:
        return 0.0
    parts = sizes(model)
    share = (parts.linears - parts.active_linears) / (1 - model.experts_per_token / model.experts) / parts.linears
    return linear_bytes * share


def efficiency(model: ServedModel, device: Device) -> Efficiency:
    """Return the shares to assume for the engine that serves the model."""
    shares = engine_costs.efficiency(device, model.engine)
    assert shares is not None, "a scenario is made only where they are known"
    return shares


def step_seconds(
    model: ServedModel, device: Device, degree: int, load: ExpectedLoad, end: End, tokens: int = 1
) -> float:
    """Return the seconds of one pass over `tokens` tokens of each of `load.concurrency` sequences, mid-answer.

    max(bytes / bandwidth, operations / rate) / degree + all-reduces + the fixed cost of a step. On a processor the
    quantized linears take the time of the same in 16 bit, divided by the gain of its instruction set.
    """
    assert device.bandwidth and device.flops
    # 1. Rates that are reached, and tokens of the pass.
    shares, batch = efficiency(model, device), load.concurrency * tokens
    bandwidth = device.bandwidth * shares.bandwidth[end]
    rate = arithmetic_rate(model, device) * shares.arithmetic[end]
    # 2. Bytes per device: weights, the experts that the tokens meet, the cache.
    context = load.input_tokens + load.output_tokens / 2
    read = (model.traffic + model.expert_traffic * expert_share(model.experts, batch)) / degree
    read += load.concurrency * context * model.kv_bytes
    # 3. The quantized linears apart, where their gain was measured.
    apart = model.products if _has_measured_gain(model, device) else QuantizedLinears(0.0, 0.0, 0.0)
    moving = (read - apart.traffic / degree) / bandwidth
    multiplying = batch * (model.token_flops - apart.flops) / degree / rate
    seconds = max(moving, multiplying)
    if apart.traffic:
        sixteen_bit = max(apart.sixteen / degree / bandwidth, batch * apart.flops / degree / rate)
        seconds += sixteen_bit / instruction_sets.speed_range(device.instructions, model.bits, batch)[end]
    return seconds + _all_reduce_seconds(model, device, degree, batch, end) + shares.step[end]


def expert_share(experts: tuple[int, int] | None, tokens: int) -> float:
    """Return the share of the experts that `tokens` tokens use together if each picks at random.

    1 - (1 - k / n) ^ tokens; 0 without experts.
    """
    return 1.0 - (1.0 - experts[1] / experts[0]) ** tokens if experts else 0.0


def _has_measured_gain(model: ServedModel, device: Device) -> bool:
    """Return whether the gain of the quantized linears was measured, and not only their bytes are known."""
    quantized = (model.bits == 4 and model.scheme in {None, "wNa16"}) or (model.bits == 8 and model.eight_bit)
    return device.hardware == "cpu" and model.engine == "vllm" and model.experts is None and quantized


def arithmetic_rate(model: ServedModel, device: Device) -> float:
    """Return operations per second in the form in which the model is multiplied, of a device whose rate is known."""
    assert device.flops
    rounded = model.eight_bit and rounds_inputs(model.scheme, device.capability)
    return device.int8_ops or device.flops if rounded else device.flops


def _all_reduce_seconds(model: ServedModel, device: Device, degree: int, tokens: int, end: End) -> float:
    """Return the seconds of two all-reduces a layer, each of tokens x hidden size x 2 bytes.

    2 (n - 1) / n of the bytes go over the link; each has its latency.
    """
    if degree == 1:
        return 0.0
    shares = efficiency(model, device)
    size = tokens * model.hidden * 2 * 2 * (degree - 1) / degree
    moving = size / (device.link * shares.bandwidth[end]) if device.link else 0.0
    return 2 * model.layers * (moving + shares.all_reduce[end])


def prefill_seconds(model: ServedModel, device: Device, degree: int, tokens: int, end: End) -> float:
    """Return the seconds of one prompt of `tokens` tokens.

    2 x parameters x tokens operations and 2 x tokens^2 x hidden a layer for causal attention, or one read of the
    weights where that takes longer.
    """
    assert device.bandwidth and device.flops
    shares = efficiency(model, device)
    attention = 2.0 * model.layers * tokens**2 * model.hidden
    whole = model.token_flops * tokens / arithmetic_rate(model, device) + attention / device.flops
    multiplying = whole / degree / shares.arithmetic[end]
    read = (model.traffic + model.expert_traffic * expert_share(model.experts, tokens)) / degree
    moving = read / (device.bandwidth * shares.bandwidth[end])
    reducing = _all_reduce_seconds(model, device, degree, tokens, end)
    return max(moving, multiplying) + reducing + shares.step[end]


def tokens_per_pass(acceptance: float, drafted: int) -> float:
    """Return the expected tokens of one verified pass: (1 - a^(k+1)) / (1 - a) (Leviathan et al. 2023)."""
    return drafted + 1.0 if acceptance >= 1 else (1 - acceptance ** (drafted + 1)) / (1 - acceptance)


def acceptance_from_rate(rate: float, drafted: int) -> float:
    """Return the probability a whose expected accepted / drafted is `rate`, which servers report.

    Solves a + a^2 + ... + a^k = rate x k by bisection.
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if tokens_per_pass(middle, drafted) - 1 < rate * drafted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def acceptance_range(step: Speculate, measured: float | None) -> tuple[float, float]:
    """Return the (best, worst) probability of acceptance."""
    if measured is not None:
        return measured, measured
    return ACCEPTANCE if step.drafts else LOOKUP_ACCEPTANCE


def token_seconds(scenario: Scenario, end: End) -> float:
    """Return the seconds per output token of one stream.

    With speculation: one pass over k + 1 tokens and k steps of the draft (one where it proposes all at once), divided
    by the expected tokens of a pass; k as the recipe has it for so many streams. Where the gain was measured: a step
    without speculation, divided by that gain.
    """
    model, device, degree, load, step = scenario[:5]
    plain = step_seconds(model, device, degree, load, end)
    # 1. Without draft tokens it is a plain step.
    tokens = step.tokens_at(load.concurrency) if step else 0
    if step is None or not tokens:
        return plain
    method = SPECULATE[step.method]
    if method.only_likely and scenario.acceptance is None and end == WORST:
        return plain
    # 2. A measured gain replaces the formula.
    acceptance = acceptance_range(step, scenario.acceptance)[end]
    if scenario.gains is not None:
        return plain / scenario.gains(load.concurrency, tokens, acceptance, end)
    # 3. The formula.
    verifying = step_seconds(model, device, degree, load, end, tokens + 1)
    passes = 1 if method.once else tokens
    drafting = passes * step_seconds(scenario.draft, device, degree, load, end) if scenario.draft else 0.0
    return (verifying + drafting) / tokens_per_pass(acceptance, tokens)


def speed(scenario: Scenario, cached: tuple[int, int] | None = None) -> Speed:
    """Return time to first token, time per output token and output tokens/s of `load.concurrency` closed-loop streams.

    Streams prefill one after the other and decode together, so one cycle takes n x prefill + output tokens x step. At
    worst all other prompts fall into a stream's answer and lengthen its tokens. `cached`: (least, most) sequences that
    the cache holds; those beyond wait for whole cycles.
    """
    least, most = cached or (scenario.load.concurrency, scenario.load.concurrency)
    best, worst = _batch_cycle(scenario, BEST, most), _batch_cycle(scenario, WORST, least)
    return Speed(
        ttft=(best.first, worst.last),
        tpot=(best.token, worst.token + worst.interruption),
        output_tokens_per_s=(worst.rate, best.rate),
    )


def replicated_speed(scenario: Scenario, replicas: int, cached: tuple[int, int] | None = None) -> Speed:
    """Return the speed of `replicas` that share the streams evenly, with the output tokens of all of them.

    Replicas with one stream more are the slowest.
    """
    # 1. Split the streams: some replicas get one more.
    streams, busier = divmod(scenario.load.concurrency, replicas)
    speeds = []
    if busier:
        speeds.append((busier, speed(scenario.with_streams(streams + 1), cached)))
    if streams:
        speeds.append((replicas - busier, speed(scenario.with_streams(streams), cached)))
    # 2. Times from the slowest to the quickest, tokens of all.
    slowest, quickest = speeds[0][1], speeds[-1][1]
    least, most = (sum(count * group_speed.output_tokens_per_s[end] for count, group_speed in speeds) for end in (0, 1))
    return Speed((quickest.ttft[0], slowest.ttft[1]), (quickest.tpot[0], slowest.tpot[1]), (least, most))


def carried_tokens_per_s(scenario: Scenario, cached: int) -> float:
    """Return the least output tokens/s of `speed`, without its other figures. `cached`: the fewest sequences that the
    cache holds."""
    return _batch_cycle(scenario, WORST, cached).rate


class _BatchCycle(NamedTuple):
    """One cycle in which the streams that fit prefill in turn and then decode together. Seconds, and tokens/s."""

    first: float
    """Until the first stream's first token."""
    last: float
    """Until the last stream's first token."""
    token: float
    """Per output token."""
    interruption: float
    """Time that the prompts of all other streams add to each token where they fall into its answer."""
    rate: float
    """Output tokens per second."""


def _batch_cycle(scenario: Scenario, end: End, cached: int) -> _BatchCycle:
    # 1. The streams that the cache holds run together.
    load = scenario.load
    streams = max(1, min(load.concurrency, cached))
    prefill = prefill_seconds(scenario.model, scenario.device, scenario.degree, load.input_tokens, end)
    token = token_seconds(scenario.with_streams(streams), end)
    seconds = streams * prefill + load.output_tokens * token
    # 2. The others wait for whole cycles.
    waiting = (load.concurrency / streams - 1) * seconds
    return _BatchCycle(
        first=prefill,
        last=streams * prefill + waiting,
        token=token,
        interruption=(streams - 1) * prefill / load.output_tokens,
        rate=streams * load.output_tokens / seconds,
    )
