"""Estimates how long an optimize job runs, phase by phase: from operations, values and bytes at `hardware_rates`.

Middles were compared with processor seconds of real workers on three models (benchmarks/job_costs.py). Knows nothing of
serving.
"""

from __future__ import annotations

from backend.domain.model.facts import ModelFacts
from backend.domain.model.shapes import linears, sizes
from backend.domain.needs import gradient_passes, recovery_needs, rotation, structure
from backend.domain.needs.hardware_rates import DISK, HardwareRates, Range
from backend.domain.recipe import methods, quantize_step
from backend.domain.recipe.precision_allocation import MOST_TRIES
from backend.domain.recipe.recipe import Prune, Quantize, Recipe

REPORT_SAMPLES, REPORT_TOKENS = 8, 512
"""Sequences that run, and tokens spread over all that do, where calibration decides nothing but the reported errors."""
FULL_SEARCHES = {name: method.searches for name, method in methods.QUANTIZE.items()} | {"sparsegpt": 2}
"""Times that all rows of a matrix meet its Gram matrix beside the report: awq's sample, finalists and clipping, gptq's
sweep, factor and comparison with rounding, sparsegpt's sweep."""
SEQUENTIAL = frozenset({"magnitude", "wanda", "sparsegpt"})
"""Each layer runs twice: before it is changed and after."""
REPORT = 1
PROBED, PROBED_GROUPS = 3, 4
"""Candidates below 16 bits, and groups of a layer, while groups are measured."""
PROBE_WINDOWS, PROBE_SEQUENCES = 4, 512
"""Most windows of the calibration text that groups are measured on, and how many sequences may be under way at the end,
originals left out."""
WINDOW_TOKENS, WINDOWS, WINDOW_PARAMETERS = 512, (8, 24), 4_000_000_000
"""Tokens of a window scored for the artifact's own quality report, fewest and most windows, and what they may cost."""
SCORED_VALUES = 2.0
"""Values a position and vocabulary entry while two models' distributions are compared: recalibrate here when scoring
changes."""
ROUNDED_VALUES = 3.3
"""Values a weight that is rounded once, besides one for each search."""
ROTATED_VALUES = 5.0
"""Values a weight that is rotated: 3.2 and 8 were measured (SmolLM2-135M on two cores, 4.0 s and 9.9 s at first)."""
TAPPED_VALUES = 0.5
"""Values a token and input of a linear while statistics are collected."""
PHASES = ("load", "structure", "rotate", "sensitivity", "weigh", "optimize", "quality", "compile", "write")
LOSS_WINDOWS = 4
"""Windows of the calibration text on which layers are ranked by the loss without each."""
SOLVED_CUBES = 4
"""Operations of choosing neurons and fitting the matrix that reads them, in cubes of their number: a few inverses."""
FORMULA = (
    "operations in 16 bit (calibration: 2 x parameters x tokens; Gram matrices: tokens x width^2; steps of recovery), "
    "in fp32 (search: 2 x out x in x min(in, tokens) a matrix and time; scoring: 2 x parameters x positions of two "
    "models; the original and validations in recovery), "
    "values (rounding, statistics, and of scoring positions x vocabulary), each at its rate, + bytes / disk and link "
    "+ start"
)
COMPILE: Range = (15.0, 180.0)
"""Seconds for starting vLLM once with a cold compile cache: 43 to 74 s were seen here."""
MANAGED_BYTE: Range = (3600 / 141e9, 14400 / 141e9)
"""Seconds a byte of the original: managed AWQ or FP8 of a 70B model is reported at about 2 hours; halved and
doubled."""
MANAGED_START: Range = (300.0, 1200.0)
"""Seconds until the managed instance works: an assumption."""


def job_phases(
    model: ModelFacts, recipe: Recipe, rates: HardwareRates, moved: int, end: int, tries: int = 1
) -> dict[str, float]:
    """Return the seconds by phase at the best (0) or the worst (1) end.

    `moved`: bytes read and written; `tries`: at a quality floor.
    """
    # 1. Which phases there are.
    step = recipe.step("quantize")
    probes = isinstance(step, Quantize) and step.target_bits is not None
    if tries > 1:
        probes = recipe.limits.fall_back
    rewrites = any(isinstance(step, Quantize | Prune) for step in recipe.steps)
    # 2. The seconds of each. What follows a structured pruning works on the smaller model.
    seconds = {"load": rates.start[end], "write": moved / DISK[end]}
    smaller, rest = structure.apply(model, recipe)
    if structure.find_step(recipe) is not None:
        seconds["structure"] = _structure_seconds(model, recipe, rates, end)
    if quantize_step.rotates(rest):
        parts = sizes(rotation.untied(smaller, rest))
        seconds["rotate"] = tries * ROTATED_VALUES * (parts.linears + parts.embedding + parts.head) / rates.values[end]
    if any(isinstance(step, Quantize | Prune) for step in rest.steps):
        seconds["optimize"] = tries * _optimize_seconds(smaller, rest, rates, end)
    if gradient_passes.weighs_tokens(rest):
        half, full = gradient_passes.weighing_operations(smaller, rest)
        seconds["weigh"] = tries * (half / rates.half[end] / rates.cards + full / rates.full[end])
    if rewrites:
        seconds["quality"] = tries * _scoring_seconds(model, recipe, rates, end)
    if probes:
        seconds["sensitivity"] = _sensitivity_seconds(smaller, rest, rates, end)
    if recipe.step("compile"):
        seconds["compile"] = COMPILE[end]
    return {name: seconds[name] for name in PHASES if name in seconds}


def _optimize_seconds(model: ModelFacts, recipe: Recipe, rates: HardwareRates, end: int) -> float:
    names = [str(step.method) for step in recipe.steps if isinstance(step, Quantize | Prune)]
    tokens, parts = calibration_tokens(recipe), sizes(model)
    if methods.GGUF in names:  # llama.cpp runs the text once, and tries ranges for every block
        weights = parts.linears + parts.embedding + parts.head
        half = 2.0 * (parts.active_linears + parts.embedding) * tokens
        return half / rates.half[end] + (ROUNDED_VALUES + FULL_SEARCHES[methods.GGUF]) * weights / rates.values[end]
    passes = 2 if SEQUENTIAL & set(names) else 1
    widths = sum(shape.inputs * shape.copies for shape in linears(model) if shape.name != "key and value")
    squares = sum(shape.inputs * min(shape.inputs, error_tokens(recipe)) * shape.copies for shape in linears(model))
    half = 2.0 * parts.active_linears * passes * tokens + min(tokens, error_tokens(recipe)) * model.layers * squares
    values = TAPPED_VALUES * tokens * model.layers * widths + (ROUNDED_VALUES + _search_count(recipe)) * parts.linears
    half += gradient_passes.learning_operations(model, recipe)
    values += gradient_passes.values(model, recipe)
    seconds = half / rates.half[end] / rates.cards + values / rates.values[end]
    seconds += _search_operations(model, recipe) / rates.full[end]
    for recovery in recovery_needs.find_recoveries(recipe):
        seconds += recovery_needs.seconds(model, recipe, rates.half[end], rates.full[end], recovery)
    if rates.link is not None:
        states = 2 * 4 * passes * tokens * model.hidden_size * model.layers
        seconds += (states + 4 * parts.linears) / rates.link[end]
    return seconds


def _structure_seconds(model: ModelFacts, recipe: Recipe, rates: HardwareRates, end: int) -> float:
    """Return the seconds of ranking the parts of a structured pruning, removing some, and the recovery after it."""
    step, parts = structure.find_step(recipe), sizes(model)
    if step is None:
        return 0.0
    # 1. Passes of the calibration text through the layers, or of windows through those behind each layer.
    after = recovery_needs.find_recovery(recipe)
    recovery = recovery_needs.seconds(model, recipe, rates.half[end], rates.full[end], after)
    half, full = 2.0 * parts.active_linears * recovery_needs.SAMPLES * recovery_needs.LENGTH, 0.0
    if step.method == "depth" and step.importance == "loss":
        rounds = model.layers - structure.find_structure(model, recipe).structure.layers
        copies = rounds * model.layers / 2
        tokens = copies * LOSS_WINDOWS * WINDOW_TOKENS
        half = tokens * (parts.active_linears + 2.0 * parts.embedding)
    # 2. For narrower layers a second pass, Gram matrices of what the last matrices read, and their inverses.
    if step.method == "width":
        width = model.intermediate_size
        half = 2 * half + recovery_needs.SAMPLES * recovery_needs.LENGTH * model.layers * width**2
        full = SOLVED_CUBES * model.layers * float(width) ** 3
    if step.importance == "gradients":
        layers, head = gradient_passes.ranking_operations(model, recovery_needs.SAMPLES * recovery_needs.LENGTH)
        half, full = half + layers, full + head
    return half / rates.half[end] / rates.cards + full / rates.full[end] + recovery


def _scoring_seconds(model: ModelFacts, recipe: Recipe, rates: HardwareRates, end: int) -> float:
    parts, positions = sizes(model), scored_windows(model) * WINDOW_TOKENS
    scorings = 2 + len(recovery_needs.find_recoveries(recipe))
    full = 2.0 * (parts.active_linears + parts.embedding) * scorings * positions
    return full / rates.full[end] + SCORED_VALUES * positions * model.vocabulary * (scorings - 1) / rates.values[end]


def scored_windows(model: ModelFacts) -> int:
    """Return the windows of text that are scored: fewer for a large model, whose report has wider intervals."""
    return max(WINDOWS[0], min(WINDOWS[1], WINDOW_PARAMETERS // max(model.parameters, 1)))


def sensitivity_copies(model: ModelFacts) -> tuple[int, int]:
    """Return (copies of the model's states that are carried while groups are measured, windows of each)."""
    copies = model.layers * PROBED_GROUPS * PROBED
    return copies, probe_windows(copies)


def probe_windows(copies: int) -> int:
    """Return the windows that each of the copies is measured on."""
    return max(1, min(PROBE_WINDOWS, PROBE_SEQUENCES // max(1, copies)))


def _sensitivity_seconds(model: ModelFacts, recipe: Recipe, rates: HardwareRates, end: int) -> float:
    """Return the seconds of measuring groups.

    Copies through half of the layers on average, the head and a comparison for each, and the candidates' searches.
    """
    copies, windows = sensitivity_copies(model)
    tokens, parts = copies * windows * WINDOW_TOKENS, sizes(model)
    full = 2.0 * tokens * (parts.active_linears / 2 + parts.embedding) + PROBED * _search_operations(model, recipe)
    return full / rates.full[end] + SCORED_VALUES * tokens * model.vocabulary / rates.values[end]


def _search_count(recipe: Recipe) -> int:
    names = [str(step.method) for step in recipe.steps if isinstance(step, Quantize | Prune)]
    return sum(FULL_SEARCHES.get(name, 0) for name in names) + REPORT


def _search_operations(model: ModelFacts, recipe: Recipe) -> float:
    tokens = error_tokens(recipe)
    matrices = sum(shape.parameters * min(shape.inputs, tokens) for shape in linears(model))
    return 2.0 * _search_count(recipe) * model.layers * matrices


def error_tokens(recipe: Recipe) -> int:
    """Return the tokens that errors are computed over: all that calibrate, or a few where they decide nothing."""
    return REPORT_TOKENS if _only_reports_errors(recipe) else calibration_tokens(recipe)


def _only_reports_errors(recipe: Recipe) -> bool:
    """Return whether calibration decides nothing but the errors that are reported."""
    step = recipe.step("quantize")
    if not isinstance(step, Quantize) or recipe.step("prune"):
        return False
    known, static = quantize_step.method_row(step), quantize_step.option_value(step, "activations") == "static"
    return known.group_size is None and not known.calibrated and not static and not step.kv_cache


def calibration_tokens(recipe: Recipe) -> int:
    """Return the tokens that go through every layer while it is optimized."""
    step = recipe.step("quantize")
    if not isinstance(step, Quantize):
        return recovery_needs.SAMPLES * recovery_needs.LENGTH
    if step.method == methods.GGUF and not quantize_step.uses_imatrix(step):
        return 0
    return (min(step.samples, REPORT_SAMPLES) if _only_reports_errors(recipe) else step.samples) * step.length


def job_seconds(model: ModelFacts, recipe: Recipe, rates: HardwareRates, moved: int) -> Range:
    """Return (least, most): one try at the best end, every try that a quality floor may take at the worst."""
    tries = MOST_TRIES if recipe.limits.fall_back else 1
    least = sum(job_phases(model, recipe, rates, moved, 0).values())
    return least, sum(job_phases(model, recipe, rates, moved, 1, tries).values())


def managed_seconds(recipe: Recipe, moved: int) -> Range:
    """Return the (least, most) seconds of a managed job; 0 for a recipe that needs none."""
    if not any(step.technique in {"quantize", "compile", "shard"} for step in recipe.steps):
        return 0.0, 0.0
    return MANAGED_START[0] + moved * MANAGED_BYTE[0], MANAGED_START[1] + moved * MANAGED_BYTE[1]
