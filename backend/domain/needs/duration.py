"""How long an optimize job runs and what it needs meanwhile: from operations and bytes, as ranges. Knows nothing of serving.

The native engine is counted on the processor in fp32, whatever accelerator the machine has.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.domain.model.facts import ModelFacts
from backend.domain.model.shapes import linears, sizes
from backend.domain.needs import recovery
from backend.domain.recipe import methods
from backend.domain.recipe.fallback import MOST_TRIES
from backend.domain.recipe.recipe import Prune, Quantize, Recipe

Range = tuple[float, float]

REPORT_SAMPLES = 8
"""engines/native/methods/nearest.py: the most sequences where calibration decides nothing."""
DEFAULT_TOKENS = 64 * 512
"""engines/base.py, for pruning alone."""
FULL_SEARCHES = {name: method.searches for name, method in methods.QUANTIZE.items()} | {"sparsegpt": 2}
"""Times that all rows of a matrix meet its Gram matrix beside the report: awq's sample, finalists and clipping, gptq's sweep,
factor and comparison with rounding, sparsegpt's sweep."""
SEQUENTIAL = frozenset({"magnitude", "wanda", "sparsegpt"})
"""Each layer runs twice: before it is changed and after."""
REPORT = 1
PROBED, PROBED_GROUPS, PROBE_WINDOWS, PROBE_SEQUENCES = 3, 4, 4, 512
"""engines/native/mixed/sensitivity.py: candidates below 16 bits, groups of a layer, windows and sequences."""
WINDOW_TOKENS, WINDOWS, WINDOW_PARAMETERS = 512, (8, 24), 4_000_000_000
"""worker/optimize.py: what is scored of the original and of the result."""
FP32_SHARE: Range = (1.0, 0.05)
"""(best, worst) of the processor's 16-bit rate that fp32 arithmetic in torch reaches."""
VCPU_FLOPS: Range = (50e9, 10e9)
"""fp32 operations/s of a virtual processor of an instance, (best, worst): an assumption, no source gives them."""
DISK: Range = (2e9, 0.1e9)
"""Bytes/s of reading and writing weights: an assumption."""
START: Range = (2.0, 20.0)
"""Seconds for starting the worker and importing the libraries: 3 to 8 s were seen here, on a busy machine more."""
COMPILE: Range = (15.0, 180.0)
"""Seconds for starting vLLM once with a cold compile cache: 43 to 74 s were seen here."""
MANAGED_BYTE: Range = (3600 / 141e9, 14400 / 141e9)
"""Seconds a byte of the original: managed AWQ or FP8 of a 70B model is reported at about 2 hours; halved and doubled."""
MANAGED_START: Range = (300.0, 1200.0)
"""Seconds until the managed instance works: an assumption."""


class Processor(NamedTuple):
    """What quantizes: fp32 operations/s, (best, worst)."""

    flops: Range


def of_measured(flops: float) -> Processor:
    """The processor of this machine, from its measured 16-bit rate."""
    return Processor((flops * FP32_SHARE[0], flops * FP32_SHARE[1]))


def of_instance(vcpu: int) -> Processor:
    return Processor((vcpu * VCPU_FLOPS[0], vcpu * VCPU_FLOPS[1]))


def operations(model: ModelFacts, recipe: Recipe) -> float:
    """Of one attempt: calibration (2 x parameters x tokens), Gram matrices (2 x tokens x width^2), the search (2 x out x in^2 a
    matrix and time) and two models scored; before it, where an average of bits is asked for, what measuring the groups takes."""
    step = recipe.step("quantize")
    measured = isinstance(step, Quantize) and step.target_bits is not None
    return _attempt(model, recipe) + (_sensitivity(model, recipe) if measured else 0.0)


def most_operations(model: ModelFacts, recipe: Recipe) -> float:
    """Where a quality floor may be fallen back from: of every attempt that is made at most."""
    if not recipe.limits.fall_back:
        return operations(model, recipe)
    return MOST_TRIES * _attempt(model, recipe) + _sensitivity(model, recipe)


def _sensitivity(model: ModelFacts, recipe: Recipe) -> float:
    """Copies under way through half of the layers on average, the head for each, and the candidates' searches."""
    copies = model.layers * PROBED_GROUPS * PROBED
    tokens = copies * max(1, min(PROBE_WINDOWS, PROBE_SEQUENCES // max(1, copies))) * WINDOW_TOKENS
    parts = sizes(model)
    return 2.0 * tokens * (parts.active_linears / 2 + parts.embedding) + PROBED * _searching(model, recipe)


def _searching(model: ModelFacts, recipe: Recipe) -> float:
    names = [str(step.method) for step in recipe.steps if isinstance(step, Quantize | Prune)]
    searches = sum(FULL_SEARCHES.get(name, 0) for name in names) + REPORT
    return 2.0 * searches * model.layers * sum(shape.parameters * shape.inputs for shape in linears(model))


def _attempt(model: ModelFacts, recipe: Recipe) -> float:
    names = [str(step.method) for step in recipe.steps if isinstance(step, Quantize | Prune)]
    if not names:
        return 0.0
    tokens, parts = calibration_tokens(recipe), sizes(model)
    forward = 2.0 * (parts.active_linears + parts.embedding)
    grams = 2.0 * tokens * model.layers * sum(shape.inputs**2 for shape in linears(model))
    passes = 2 if SEQUENTIAL & set(names) else 1
    scored = max(WINDOWS[0], min(WINDOWS[1], WINDOW_PARAMETERS // max(model.parameters, 1))) * WINDOW_TOKENS
    scorings = 3 if recovery.asked(recipe) else 2
    return (
        forward * (passes * tokens + scorings * scored) + grams + _searching(model, recipe) + recovery.operations(model, recipe)
    )


def calibration_tokens(recipe: Recipe) -> int:
    """Tokens that go through every layer while it is optimized."""
    step = recipe.step("quantize")
    if not isinstance(step, Quantize):
        return DEFAULT_TOKENS
    known, static = methods.of(step), methods.tuned(step, "activations") == "static"
    plain = known.group_size is None and not known.calibrated and not static and not step.kv_cache
    samples = min(step.samples, REPORT_SAMPLES) if plain and not recipe.step("prune") else step.samples
    return samples * step.length


def job_seconds(model: ModelFacts, recipe: Recipe, processor: Processor, moved: int) -> Range:
    """(least, most). `moved` are the bytes read and written."""
    work = (operations(model, recipe), most_operations(model, recipe))
    compiling = 1 if recipe.step("compile") else 0
    ends = (work[end] / processor.flops[end] + moved / DISK[end] + START[end] + compiling * COMPILE[end] for end in (0, 1))
    least, most = ends
    return least, most


def managed_seconds(recipe: Recipe, moved: int) -> Range:
    """(least, most) of a managed job; nothing for a recipe that needs none."""
    if not any(step.technique in {"quantize", "compile", "shard"} for step in recipe.steps):
        return 0.0, 0.0
    return MANAGED_START[0] + moved * MANAGED_BYTE[0], MANAGED_START[1] + moved * MANAGED_BYTE[1]
