"""Notes of a plan on what a processor's instruction sets make of a quantized model.

vLLM 0.32: vllm/model_executor/kernels/linear/mixed_precision/cpu.py and zentorch.py (4 bits), and
vllm/model_executor/kernels/linear/scaled_mm/cpu.py (W8A8).
"""

from __future__ import annotations

from collections.abc import Collection

from backend.domain.kernels import table
from backend.domain.machine import instruction_sets
from backend.domain.model.facts import ModelFacts
from backend.domain.model.shapes import linears
from backend.domain.recipe import quantize_step
from backend.domain.recipe.recipe import Quantize, Recipe

FOUR_AMX = (
    "This processor has AMX, so vLLM runs 4-bit weights as W4A8: fastest at few streams, least at many; products are "
    f"{instruction_sets.describe_speeds('amx', 4)}. Inputs are rounded to 8 bits, which the saved file's quality "
    "does not count."
)
FOUR_SLOW = (
    "This processor has no AMX, so vLLM unpacks 4-bit weights to 16 bit at every step (W4A16): expect less memory, "
    f"and slower answers than the original here, {instruction_sets.describe_speeds('vnni', 4)}. AMD's own kernels "
    "need zentorch."
)
EIGHT_AMX = f"8-bit products run on this processor's AMX: {instruction_sets.describe_speeds('amx', 8)}."
EIGHT_ODD = (
    "8-bit products run by oneDNN: AMX takes inputs of a multiple of 32 and outputs of a multiple of 16, and not all "
    "are."
)
EIGHT_VNNI = (
    "8-bit products run by oneDNN on this processor's 8-bit instructions: "
    f"{instruction_sets.describe_speeds('vnni', 8)}."
)
EIGHT_NONE = (
    "This processor has no 8-bit instructions: W8A8 saves memory here, and is slower than 16 bits at few streams; "
    "products are "
    f"{instruction_sets.describe_speeds('none', 8)}. oneDNN adds them in pairs in 16 bits there, which large values "
    "overflow: answers are further from the original than the file's quality says, so measure the quality as served."
)
"""oneDNN's developer guide, "Nuances of int8 Computations". vLLM's product of random integers had an error of 19 %
(RMS) on an AMD EPYC without AVX-512, and none with weights of at most 63; SmolLM2-135M-Instruct in W8A8 lost 0.083 nats
a token of chat as served, and 0.026 by its file (2026-11-28)."""
EIGHT_STATIC = (
    "vLLM's server of W8A8 with static activation scales did not become ready in 16 bits on a processor without 8-bit "
    "instructions, and did with `dtype: float32` in `serving`."
)
"""vLLM 0.32, SmolLM2-135M-Instruct, one core of an AMD EPYC without AVX-512: 6.5 tokens/s at 1 stream, 25 at 4
(2026-11-28)."""

HALF_EMULATED = (
    "vLLM emulates 16-bit products on this processor. `dtype: float32` in `serving` had 2.1 to 2.6 times the tokens/s "
    "at 4 streams, and as many at one, with weights of twice the size (SmolLM2-135M-Instruct, one core of an AMD EPYC "
    "without AVX-512)."
)
"""vLLM 0.32 offline, 48 tokens an answer, four answers each, two runs (2026-11-28): bfloat16 22.4 and 21.6 tokens/s at
1 stream, float32 24.0 and 21.4; at 4 streams 25.5 and 25.2, 65.4 and 54.1."""


def dtype_note(model: ModelFacts, recipe: Recipe, features: Collection[str]) -> str | None:
    """Return the note on 16-bit arithmetic; None where the processor has it, or where weights are quantized."""
    dtype = model.dtype if recipe.serving.dtype == "auto" else recipe.serving.dtype
    if recipe.serving.engine_name != "vllm" or recipe.step("quantize") is not None or dtype not in table.HALF:
        return None
    return HALF_EMULATED if instruction_sets.is_avx2_alone(features) else None


def processor_note(model: ModelFacts, recipe: Recipe, features: Collection[str]) -> str | None:
    """Return the note; None where the recipe quantizes nothing that depends on the instruction sets."""
    step = recipe.step("quantize")
    if not isinstance(step, Quantize) or step.method == "kv_cache":
        return None
    if quantize_step.method_row(step).scheme == "wNa16" and quantize_step.bits(step) == 4:
        if instruction_sets.is_avx2_alone(features):
            return None  # it is not served there
        return FOUR_AMX if {instruction_sets.AMX, "amx_bf16"} <= set(features) else FOUR_SLOW
    if step.method not in {"w8a8", "smoothquant"}:
        return None
    kind = instruction_sets.instruction_set(features)
    if kind == "amx":
        fits = all(shape.inputs % 32 == 0 and shape.outputs % 16 == 0 for shape in linears(model))
        return EIGHT_AMX if fits else EIGHT_ODD
    if kind == "vnni":
        return EIGHT_VNNI
    is_unready = step.activations == "static" and recipe.serving.dtype != "float32"
    return f"{EIGHT_NONE} {EIGHT_STATIC}" if is_unready else EIGHT_NONE
