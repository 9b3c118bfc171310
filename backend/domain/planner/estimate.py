"""Estimates what a recipe needs and gives on a target: memory, disk, duration, cost, speed.

Ranges, each with its formula.

Pure arithmetic over the card, the recipe and the device; what is unknown is named in `unknown` and left None.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from backend.domain.evaluation.prices import price_per_million
from backend.domain.frozen import Frozen
from backend.domain.model.facts import NO_TOKENS, ModelCard, ModelFacts
from backend.domain.needs import engine_costs, job_duration, recovery_needs, rotation, serving_memory, structure
from backend.domain.needs import job_memory as job_memory
from backend.domain.needs.hardware_rates import Range
from backend.domain.needs.kv_cache_tokens import POOL_SLOTS
from backend.domain.needs.serving_memory import DeviceMemory
from backend.domain.neuron import cores
from backend.domain.planner import request_rate, roofline
from backend.domain.planner.estimate_context import EstimateContext, as_compiled, with_slots
from backend.domain.planner.estimate_correction import Calibration, scale
from backend.domain.planner.estimate_formulas import estimate_formulas, need_formulas, payoff_formula, rate_formulas
from backend.domain.planner.request_rate import InFlight
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.planner.token_work import TokenWork, find_token_work
from backend.domain.recipe import quantize_step
from backend.domain.recipe.recipe import Quantize, Recipe, Speculate
from backend.domain.recipe.serving_engines import ENGINES, EngineName
from backend.domain.rules import kernel_rules
from backend.domain.rules.target_facts import TargetFacts

COMPILE_CACHE_BYTES = 200_000_000
"""The largest compile cache of vLLM that was seen here for one model, rounded up."""
MARGIN_BYTES = 64_000_000


class JobNeeds(Frozen):
    """Bytes that the optimize job needs.

    `disk_bytes` must be free before it starts; the formulas explain each figure.
    """

    weights_bytes: int
    disk_bytes: int
    memory_bytes: int
    formulas: dict[str, str]


class Estimate(Frozen):
    """The estimate of a recipe on a target. Ranges are (least, most); None where unknown, and `unknown` says why."""

    target: str
    engine: EngineName = "vllm"
    """The engine that serves, by its name in recipes."""
    weight_format: str = ""
    """The form of the weights that it reads: `Q4_1`, `4-bit`, `bfloat16`."""
    basis: str = ""
    """Source of the prediction, in one sentence."""
    ready_seconds: Range | None = None
    """From the command until the server answers; None where no start of the engine was timed on such hardware."""
    weights_bytes: int
    weights_bytes_original: int
    compression_ratio: float = 1.0
    """Bytes of the original's weights over bytes of the recipe's: 4 is a quarter of the size."""
    kv_bytes_per_token: int
    token_work: TokenWork | None = None
    """Operations and bytes of an output token at the load; None for a model that generates none."""
    min_tensor_parallel: int | None
    tensor_parallel: int
    pipeline_parallel: int = 1
    replicas: int
    """Copies of the model, each over `tensor_parallel` x `pipeline_parallel` devices; caches, batch and throughput
    count all."""
    max_tokens_in_cache: int | None
    tokens_in_cache: tuple[int, int] | None
    max_context: int | None
    """Tokens of the longest single sequence that surely fits."""
    max_batch: int | None
    """Sequences of the load's length that surely fit at once."""
    cache_bytes: tuple[int, int] | None
    activation_bytes: int | None
    runtime_bytes: tuple[int, int] | None
    weights_per_device: int | None
    """Bytes of the weights, with those of a draft beside the model."""
    device_bytes: int | None
    """Memory of one device; `usable_bytes` is the share that the server takes."""
    usable_bytes: int | None
    devices: int | None
    ttft_ms: Range | None
    tpot_ms: Range | None
    output_tokens_per_s: Range | None
    price_per_million_output: Range | None
    price_per_hour: float | None
    price_note: str | None
    """The region and date of that price."""
    job_seconds: Range | None
    job_cost: Range | None
    disk_bytes: int
    memory_bytes: int
    load: ExpectedLoad
    """With a rate, its concurrency is that of each instance."""
    instances: int = 1
    """Instances that share the rate; 1 without a rate."""
    carried_requests_per_s: float | None = None
    """The rate that one instance carries at the worst end; None without a rate or where the speed is unknown."""
    unknown: tuple[str, ...]
    unserved: str | None = Field(None, exclude_if=lambda value: value is None)
    """Why nothing serves the result there."""
    formulas: dict[str, str]
    calibration: Calibration | None
    mapped: str | None = None
    """When the payoff map was measured that gives the gain of speculation; None: the formula gives it."""

    @property
    def serving_bytes(self) -> tuple[int, int] | None:
        """(least, most) bytes of one device that the server takes, the cache as reserved; None where unknown."""
        if self.weights_per_device is None or self.activation_bytes is None:
            return None
        caches, runtimes = self.cache_bytes or (0, 0), self.runtime_bytes or (0, 0)
        fixed = self.weights_per_device + self.activation_bytes
        least, most = sorted(fixed + cache + runtime for cache, runtime in zip(caches, reversed(runtimes), strict=True))
        return least, most

    @property
    def idle(self) -> int:
        """Devices that are paid for and not used."""
        return max(0, (self.devices or 0) - self.replicas * self.tensor_parallel * self.pipeline_parallel)

    @property
    def price_of_all_per_hour(self) -> float | None:
        """USD per hour of all instances; None where no price is known."""
        return None if self.price_per_hour is None else self.instances * self.price_per_hour

    @property
    def load_text(self) -> str:
        """`622 tokens in, 250 out, 16 streams`, or with a rate `..., 2 requests/s (16 in flight)`."""
        load = self.load
        flight = ""
        if load.rate is not None and self.carried_requests_per_s is not None:
            flight = f" ({load.concurrency:,} in flight{' on each instance' if self.instances > 1 else ''})"
        return f"{load.text}{flight}"

    def with_job_seconds(self, seconds: Range) -> Estimate:
        """Return the estimate with the time that earlier jobs took in place of the formula's, and the cost of that."""
        if self.job_seconds == (0.0, 0.0):  # no job is needed
            return self
        least, most = seconds
        hour = self.price_per_hour
        cost = None if hour is None else (least / 3600 * hour, most / 3600 * hour)
        unknown = tuple(reason for reason in self.unknown if not reason.startswith("job duration:"))
        return self.model_copy(update={"job_seconds": seconds, "job_cost": cost, "unknown": unknown})


def optimized_weights(model: ModelFacts, recipe: Recipe) -> int:
    """Return the bytes of the weights after the recipe: the files' own size where it does not change them."""
    step = recipe.step("quantize")
    if serving_memory.serves_kept_gguf(model, recipe):
        return serving_memory.weights(model, recipe).total
    if isinstance(model, ModelCard) and (not isinstance(step, Quantize) or step.method == "kv_cache"):
        return model.weights_bytes
    return serving_memory.weights(model, recipe).total


def original_bytes(model: ModelFacts) -> int:
    """Return the bytes of the original's weights."""
    return optimized_weights(model, Recipe())


def estimate_needs(model: ModelFacts, recipe: Recipe, draft: ModelFacts | None = None) -> JobNeeds:
    """Return what the optimize job needs on the machine that runs it."""
    weights = optimized_weights(*structure.apply(model, recipe))
    disk = weights + MARGIN_BYTES + (original_bytes(draft) if draft else 0)
    if recipe.step("compile"):
        disk += COMPILE_CACHE_BYTES
    original = original_bytes(model)
    busy = (
        job_memory.peak_bytes(model, recipe, original) if recipe.step("quantize") or recipe.step("prune") else original
    )
    recovering = recovery_needs.memory_bytes(model, recipe)
    after_pruning = recovery_needs.find_recovery(recipe) is not None
    disk += 2 * original_bytes(model) if after_pruning else 0
    disk += weights if recovery_needs.find_quantized_recovery(recipe) else 0
    if structure.find_step(recipe) is not None and not after_pruning:
        disk += weights  # the smaller model in 16 bit, before what follows
    if quantize_step.rotates(recipe):
        disk += 2 * original_bytes(rotation.untied(model, recipe))  # layer by layer, then joined
    formulas = {name: need_formulas(recipe)[name] for name in ("weights", "disk", "memory")}
    return JobNeeds(weights_bytes=weights, disk_bytes=disk, memory_bytes=max(busy, recovering), formulas=formulas)


def estimate(model: ModelFacts, recipe: Recipe, context: EstimateContext, degree: int, replicas: int = 1) -> Estimate:
    """Return the estimate for a recipe that is valid there, in that many replicas, each cut over `degree` devices."""
    # 1. What is served is the smaller model of a structured pruning. On Neuron everything goes by what is compiled.
    original_model, whole = model, recipe
    model, recipe = structure.apply(model, recipe)
    compiled = context.facts.place == "neuron"
    if compiled:
        recipe, context = as_compiled(recipe, context)
    in_flight = request_rate.predict_in_flight(model, recipe, context, degree, replicas)
    if in_flight is not None:
        context = context.at_concurrency(in_flight.concurrency)
    if not compiled and engine_costs.shares_pool(recipe.serving):
        recipe = with_slots(recipe, context.load)
    facts, load = context.facts, context.load
    unknown: list[str] = []
    # 2. Memory: of the job, and of one device while serving.
    needs = estimate_needs(original_model, whole, facts.draft)
    serving = _serving_memory(model, recipe, context, degree, replicas, compiled=compiled)
    # 3. Time.
    unserved = kernel_rules.find_unserved_format(model, recipe, facts)
    unknown += [f"speed: {unserved}"] if unserved else []
    speed = None if unserved else _speed(model, recipe, context, serving.memory, replicas, unknown)
    job_seconds = _job_seconds(original_model, whole, context, needs, unknown)
    ttft = scale(speed.ttft, 1000) if speed else None
    tpot = scale(speed.tpot, 1000) if speed else None
    rate = speed.output_tokens_per_s if speed else None
    ready = _ready_seconds(recipe, context, needs, unknown)
    original = original_bytes(original_model)
    # 4. Money.
    if context.price_per_hour is None:
        unknown.append(f"price: {context.price_missing} for {facts.where}")
    # 5. How each figure came about.
    formulas = estimate_formulas(facts, whole, context.runs)
    if load.rate is not None:
        formulas = formulas | rate_formulas()
    mapped = context.payoff.measured_at if context.payoff and context.gains(recipe) else None
    if mapped is not None:
        formulas = formulas | payoff_formula(mapped)
    memory = serving.memory
    return Estimate(
        target=context.target,
        engine=recipe.serving.engine_name,
        weight_format=serving_memory.weight_format(model, recipe),
        basis="Nothing serves the result there." if unserved else _basis(recipe, context),
        ready_seconds=ready,
        weights_bytes=needs.weights_bytes,
        weights_bytes_original=original,
        compression_ratio=original / needs.weights_bytes,
        kv_bytes_per_token=serving_memory.kv_bytes(model, serving_memory.effective_serving(recipe)),
        token_work=find_token_work(model, recipe, load, facts.device, degree),
        min_tensor_parallel=serving.least_degree,
        tensor_parallel=degree,
        pipeline_parallel=recipe.serving.pipeline_parallel or 1,
        replicas=replicas,
        max_tokens_in_cache=serving.tokens[1] if serving.tokens else None,
        tokens_in_cache=serving.tokens,
        max_context=serving.max_context,
        max_batch=serving.max_batch,
        cache_bytes=(max(0, memory.cache[0]), max(0, memory.cache[1])) if memory else None,
        activation_bytes=memory.activations if memory else None,
        runtime_bytes=memory.runtime if memory else None,
        weights_per_device=memory.weights_per_device if memory else None,
        device_bytes=facts.device.memory_bytes if facts.device else None,
        usable_bytes=serving_memory.usable_bytes(facts.device) if facts.device else None,
        devices=facts.device.units if facts.device else None,
        ttft_ms=ttft,
        tpot_ms=tpot,
        output_tokens_per_s=rate,
        price_per_million_output=_token_price(context.price_per_hour, rate, load, in_flight),
        price_per_hour=context.price_per_hour,
        price_note=context.price_note,
        job_seconds=job_seconds,
        job_cost=_job_cost(context, job_seconds),
        disk_bytes=needs.disk_bytes,
        memory_bytes=needs.memory_bytes,
        load=load,
        instances=in_flight.instances if in_flight else 1,
        carried_requests_per_s=in_flight.carried_tokens_per_s / load.output_tokens if in_flight else None,
        unknown=tuple(unknown),
        unserved=unserved,
        calibration=context.calibration,
        formulas=formulas,
        mapped=mapped,
    )


class _ServingMemory(NamedTuple):
    """The memory of one device while serving, and the contexts and batches it allows; None where not known."""

    memory: DeviceMemory | None
    least_degree: int | None
    """The lowest tensor parallel degree at which the model fits."""
    tokens: tuple[int, int] | None
    """(least, most) tokens in the caches of all replicas."""
    max_context: int | None
    max_batch: int | None


def _serving_memory(
    model: ModelFacts, recipe: Recipe, context: EstimateContext, degree: int, replicas: int, *, compiled: bool
) -> _ServingMemory:
    # 1. Memory of one device, at this degree and at the lowest that fits.
    device, draft = context.facts.device, context.facts.serving_draft(recipe)
    memory = least = None
    if device is not None:
        cut = cores.pad_model(model, degree) if compiled else model
        memory = serving_memory.device_memory(cut, recipe, device, degree, draft)
        least = serving_memory.find_smallest_fit(model, recipe, device, draft)
    # 2. Tokens of the caches.
    one = memory.tokens if memory and model.generates else None
    tokens = (one[0] * replicas, one[1] * replicas) if one else None
    # 3. The longest context and the largest batch: fixed where compiled, else what surely fits.
    max_context = max_batch = None
    if compiled:
        max_context = cores.positions(model, recipe)
        max_batch = replicas * cores.batch_size(recipe)
    elif one:
        max_context = min(one[0], model.max_positions)
        fitting = one[0] // (context.load.input_tokens + context.load.output_tokens)
        if engine_costs.shares_pool(recipe.serving):
            fitting = min(fitting, recipe.serving.max_num_seqs or POOL_SLOTS)
        max_batch = replicas * fitting
    return _ServingMemory(memory, least.tensor_parallel if least else None, tokens, max_context, max_batch)


def _ready_seconds(recipe: Recipe, context: EstimateContext, needs: JobNeeds, unknown: list[str]) -> Range | None:
    """Return the seconds to ready: measured, else predicted; None where neither is known, with the reason added."""
    measured = context.calibration.ready_seconds if context.calibration else None
    if measured is not None:
        return measured, measured
    engine = recipe.serving.engine_name
    predicted = engine_costs.ready_seconds(engine, context.facts.hardware, needs.weights_bytes)
    if predicted is None:
        unknown.append(f"time to ready: no start of {ENGINES[engine].title} was timed on {context.facts.hardware}")
    return predicted


def _basis(recipe: Recipe, context: EstimateContext) -> str:
    """Return where the speed, memory and time to ready come from."""
    engine = recipe.serving.engine_name
    costs, title = engine_costs.find_costs(engine, context.facts.hardware), ENGINES[engine].title
    if costs is None:
        return f"Nothing is known of {title} on {context.facts.hardware}."
    corrected = ""
    if context.calibration is not None:
        calibration = context.calibration
        measured = f"evaluation {calibration.evaluation}{calibration.subject}"
        corrected = f", corrected by {measured} at {calibration.concurrency}"
    return f"Predicted for {title} from {costs.source}{corrected}."


def _speed(
    model: ModelFacts,
    recipe: Recipe,
    context: EstimateContext,
    memory: DeviceMemory | None,
    replicas: int,
    unknown: list[str],
) -> roofline.Speed | None:
    """Return the speed, corrected by the calibration; None where it is not known. Adds to `unknown` what is assumed."""
    facts, load, step = context.facts, context.load, recipe.step("speculate")
    # 1. Acceptance: of an evaluation, else of the draft's training, else assumed.
    acceptance = context.trained if context.acceptance is None else context.acceptance
    if isinstance(step, Speculate) and context.acceptance is None:
        best, worst = roofline.acceptance_range(step, None)
        basis = f"assumed {worst:g} to {best:g}"
        if acceptance is not None:
            basis = f"{acceptance:.0%} by the draft's own training"
        unknown.append(f"acceptance: {basis}, only an evaluation can tell")
    # 2. The scenario, where everything it needs is known.
    scenario = None
    if facts.device is not None and memory is not None:
        scenario = roofline.make_scenario(
            model,
            recipe,
            facts.device,
            memory.tensor_parallel,
            load,
            draft=facts.serving_draft(recipe),
            acceptance=acceptance,
            gains=context.gains(recipe),
        )
    if scenario is None or memory is None:
        unknown.append(f"speed: {_unknown_speed_reason(model, facts)}")
        return None
    # 3. The speed of all replicas.
    cached = serving_memory.concurrent_sequences(memory, recipe, load.input_tokens + load.output_tokens)
    speed = roofline.replicated_speed(scenario, replicas, cached)
    return context.calibration.correct(speed) if context.calibration else speed


def _unknown_speed_reason(model: ModelFacts, facts: TargetFacts) -> str:
    """Return why the speed is not known."""
    if not model.generates:
        return NO_TOKENS
    if facts.device is None or not facts.device.bandwidth or not facts.device.flops:
        return f"the memory bandwidth or arithmetic rate of {facts.where} is not known"
    return "the size of the draft is not known"


def _job_seconds(
    model: ModelFacts, recipe: Recipe, context: EstimateContext, needs: JobNeeds, unknown: list[str]
) -> Range | None:
    """Return the job's (least, most) seconds; None where not known, with the reason added to `unknown`."""
    facts, original = context.facts, original_bytes(model)
    # 1. The managed toolkit chooses its own instance.
    if facts.place == "managed":
        seconds = job_duration.managed_seconds(recipe, original)
        if seconds[1]:
            unknown.append("job cost: the toolkit chooses the instance that optimizes")
        return seconds
    # 2. Without steps there is no job.
    if not recipe.steps:
        return 0.0, 0.0
    # 3. The machine must hold the job.
    if facts.ram_bytes is not None and needs.memory_bytes > facts.ram_bytes:
        needed = f"it takes about {needs.memory_bytes / 1e9:.0f} GB of memory"
        available = f"{facts.where} has {facts.ram_bytes / 1e9:.0f}"
        unknown.append(f"job duration: {needed} and {available}, so it must run elsewhere")
        return None
    # 4. The accelerator must hold one layer.
    runs = context.runs
    if runs is None:
        unknown.append("job duration: the speed of the machine that would run it is not known")
        return None
    layer = job_memory.device_bytes(model, recipe)
    if runs.memory_bytes is not None and layer > runs.memory_bytes:
        needed = f"a layer takes about {layer / 1e9:.0f} GB of an accelerator"
        available = f"one of {facts.where} has {runs.memory_bytes / 1e9:.0f}"
        unknown.append(f"job duration: {needed} and {available}, so it must run elsewhere")
        return None
    return job_duration.job_seconds(model, recipe, runs, original + needs.weights_bytes)


def _job_cost(context: EstimateContext, job: Range | None) -> Range | None:
    """Return USD: the target's own price for the job's hours; 0 for no job."""
    if job == (0.0, 0.0):
        return job
    if job is None or context.price_per_hour is None or context.facts.place == "managed":
        return None
    return job[0] / 3600 * context.price_per_hour, job[1] / 3600 * context.price_per_hour


def _token_price(
    per_hour: float | None, rate: Range | None, load: ExpectedLoad, in_flight: InFlight | None
) -> Range | None:
    """Return USD per million output tokens: of those that the load's rate asks for, else of all that can be served."""
    if load.rate is not None:
        hour = None if in_flight is None or per_hour is None else in_flight.instances * per_hour
        price = price_per_million(hour, load.rate * load.output_tokens)
        return None if price is None else (price, price)
    least, most = (price_per_million(per_hour, tokens) for tokens in (rate[1], rate[0])) if rate else (None, None)
    return None if least is None or most is None else (least, most)
