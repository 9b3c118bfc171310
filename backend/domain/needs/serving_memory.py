"""Memory while serving.

Weights by precision, key-value cache, activations, runtime, and the tensor parallel degree that fits.

Pure arithmetic over the facts; bytes throughout. Each constant says where it comes from. Knows nothing of time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from backend.domain.machine.device import GIB, Device
from backend.domain.model.facts import ModelCard, ModelFacts
from backend.domain.model.gguf import file_types
from backend.domain.model.shapes import Sizes, linears, sizes
from backend.domain.needs import engine_costs, rotation
from backend.domain.needs.kv_cache_tokens import POOL_SLOTS, pooled_tokens, reserved_bytes
from backend.domain.recipe import quantize_step
from backend.domain.recipe.methods import GGUF, ORIGINAL_BITS
from backend.domain.recipe.precision import packed_bits
from backend.domain.recipe.recipe import Quantize, Recipe, Serving
from backend.domain.recipe.serving_engines import CacheType

BYTES = {"float32": 4, "float64": 8}
"""Bytes of an element; every other dtype of a card has 16 bits."""
BLOCK_ELEMENTS = 32
BLOCK_BYTES = {"fp8": 32, "q8_0": 34, "q4_0": 18, "u8": 38, "u4": 22}
"""Bytes of so many elements by type of the key-value cache with their scales: FP8 of vLLM, llama.cpp's (ggml,
block_q8_0 and block_q4_0), and OpenVINO's at a head size of 64, above which they are fewer
(`openvino_program/cache_layout.py`). Every other type has the width of the model's."""
GPU_SHARE = 0.92
"""Part of a GPU's memory that vLLM 0.32 takes: config/cache.py, gpu_memory_utilization."""
MAX_SEQUENCES = 256
"""vLLM 0.32, engine/arg_utils.py: max_num_seqs of an API server on GPUs under 70 GiB."""
BATCHED_TOKENS = ((160 * GIB, 16384), (70 * GIB, 8192), (0, 2048))
"""max_num_batched_tokens of an API server by the GPU's memory, from the same file (an A100 takes the lowest)."""
RAM_SHARE = 0.9
SERVER_SHARE = {"cuda": GPU_SHARE, "neuron": 1.0, "cpu": RAM_SHARE}
"""Part of the memory that a server may take."""
FORMULA = (
    "device memory x 0.92 (vLLM's share of a GPU; 0.9 of a processor's) - weights / tensor parallel - activations of "
    "one step - 0.1 to 0.8 GB of runtime"
)
"""The memory of a device that is left for the key-value cache, in words."""
POOL_FORMULA = (
    "slots (max_num_seqs, else 4 or the streams) x context x bytes per token, at most 4 GiB and what 0.9 of the "
    "memory leaves beside the file, the buffers of a step and 0.02 to 0.12 GB of runtime"
)
"""The same for llama.cpp, whose slots share one pool."""
MICRO_BATCH = 512
"""Tokens of a prompt in one step of llama.cpp (its n_ubatch)."""


class StoredFormat(NamedTuple):
    """The storage of quantized linears: `scale_bytes` per scale; a zero point of `bits` where `zero_point`."""

    bits: int
    group: int | None
    zero_point: bool
    scale_bytes: int
    activations: bool
    """Activations are integers too, so the matrix product runs at the 8-bit rate."""
    average: float | None = None
    """Bits per weight over all linears where groups differ, scales and zero points counted."""
    cut: int | None = None
    """Inputs that stay together where a matrix is cut for several devices; vLLM's kernels check those of formats with
    groups of their own."""
    tables: tuple[float, float] | None = None
    """Bits per weight of embedding and output head where they are quantized too."""


class Weights(NamedTuple):
    """Bytes. `total` is the sum of the others."""

    embedding: int
    head: int
    linears: int
    scales: int
    other: int

    @property
    def total(self) -> int:
        return self.embedding + self.head + self.linears + self.scales + self.other


def stored_format(model: ModelFacts, recipe: Recipe) -> StoredFormat | None:
    """Return the format that the linears get, or already have; None for 16-bit ones."""
    step = recipe.step("quantize")
    if isinstance(step, Quantize):
        return _gguf_format(model, step) if step.method == GGUF else _format_after(model, step)
    if model.quantization and not recipe.step("prune"):  # what is pruned is written with 16 bits
        bits = model.quantization_bits or (4 if model.quantization in {"awq", "gptq"} else 8)
        group = 128 if bits < 8 else None
        return StoredFormat(bits, group, bits < 8, 2, activations=bits == 8, cut=group)
    return None


def _format_after(model: ModelFacts, step: Quantize) -> StoredFormat | None:
    """Return the format that a step writes: weight-only scales in 16 bit, with 8-bit activations scales in 32."""
    own = _own_format(step)
    if own is None or step.outside_experts is None or not model.experts:
        return own
    # Experts and the other linears weigh by their parameters.
    other = quantize_step.outside_step(step)
    stored = _own_format(other) if other is not None else None
    total = sizes(model).linears
    experts = min(model.expert_parameters or _expert_parameters(model), total)
    outside = _stored_bits(stored) if stored is not None else float(ORIGINAL_BITS)
    average = (experts * _stored_bits(own) + (total - experts) * outside) / max(total, 1)
    return own._replace(average=average)


def _expert_parameters(model: ModelFacts) -> int:
    return model.layers * sum(shape.parameters for shape in linears(model) if shape.name in {"up", "down"})


def _stored_bits(stored: StoredFormat) -> float:
    """Return the bits a weight with the scales of its groups; those of output channels are too few to count."""
    packed = packed_bits(stored.bits)
    zero = packed if stored.zero_point else 0.0
    return packed + ((8 * stored.scale_bytes + zero) / stored.group if stored.group else 0.0)


def _own_format(step: Quantize) -> StoredFormat | None:
    """Return the format that a step gives to a linear by itself."""
    if step.method == "kv_cache":
        return None
    row, group = quantize_step.method_row(step), quantize_step.group_size(step)
    active = row.activations and quantize_step.option_value(step, "activations") != "none"
    width = row.scale_bytes or (4 if active else 2)
    return StoredFormat(
        quantize_step.stored_bits(step),
        group or row.fixed_group,
        not quantize_step.symmetric(step),
        width,
        activations=active,
        average=step.target_bits,
        cut=group,
    )


def _gguf_format(model: ModelFacts, step: Quantize) -> StoredFormat:
    """Return the format of a GGUF file, in which embedding and output head are quantized too."""
    name = quantize_step.option_value(step, "type")
    average, tables = file_types.linear_bits(model, name), file_types.table_bits(model, name)
    return StoredFormat(quantize_step.bits(step), None, False, 2, activations=False, average=average, tables=tables)


def weights(model: ModelFacts, recipe: Recipe) -> Weights:
    """Return the bytes of the weights.

    Linears at the recipe's precision, with scales and zero points, the rest at the model's.

    A scale per group (2 bytes) and a zero point of the same bits, or a 4-byte scale per output channel: the
    compressed-tensors formats `pack-quantized` and `int-quantized`. With `target_bits` the linears take that on
    average, scales included. The GGUF file of an import counts with its own size, shared out by parameters.
    """
    if serves_kept_gguf(model, recipe):
        return _kept_weights(model)
    parts = sizes(rotation.untied(model, recipe))
    return _stored_weights(parts, stored_format(model, recipe), BYTES.get(model.dtype, 2))


def serves_kept_gguf(model: ModelFacts, recipe: Recipe) -> bool:
    """Return whether the GGUF file that the model was imported from is served as it came."""
    changed = recipe.step("quantize") or recipe.step("prune")
    return model.gguf_kept and not changed and engine_costs.reads_gguf(recipe.serving)


def weight_format(model: ModelFacts, recipe: Recipe) -> str:
    """Return the form of the served weights for a sentence: `Q4_1`, `4-bit`, `bfloat16`."""
    if serves_kept_gguf(model, recipe):
        before = model.quantized_before if isinstance(model, ModelCard) else None
        return before.format if before else "GGUF"
    stored = stored_format(model, recipe)
    return f"{stored.bits}-bit" if stored else model.dtype


def _kept_weights(model: ModelFacts) -> Weights:
    parts, before = sizes(model), model.quantized_before if isinstance(model, ModelCard) else None
    size = model.gguf_bytes or int(model.parameters * (before.bits if before else 16) / 8)
    matrices = parts.embedding + parts.head + parts.linears
    embedding, head = (size * count // matrices for count in (parts.embedding, parts.head))
    return Weights(embedding, head, size - embedding - head, 0, 0)


@lru_cache(maxsize=1024)
def _stored_weights(parts: Sizes, chosen: StoredFormat | None, width: int) -> Weights:
    if chosen is None:
        stored, scales = parts.linears * width, 0
    elif chosen.average is not None:
        stored, scales = int(parts.linears * chosen.average / 8), 0
    elif chosen.group:
        groups = parts.linears // chosen.group
        packed = packed_bits(chosen.bits)
        stored, scales = int(parts.linears * packed / 8), groups * chosen.scale_bytes
        if chosen.zero_point:
            scales += int(groups * packed / 8)
    else:
        stored, scales = parts.linears * chosen.bits // 8, parts.channels * chosen.scale_bytes
    if chosen is not None and chosen.tables is not None:
        embedding, head = (
            int(parameters * bits / 8)
            for parameters, bits in zip((parts.embedding, parts.head), chosen.tables, strict=True)
        )
        return Weights(embedding, head, stored, scales, parts.other * 4)
    rest = min(width, 2) if chosen else width
    return Weights(parts.embedding * rest, parts.head * rest, stored, scales, parts.other * rest)


def effective_serving(recipe: Recipe) -> Serving:
    """Return the serving settings, with the FP8 cache that the artifact requests: vLLM reads it from the checkpoint."""
    if recipe.serving.kv_cache_dtype == "auto" and quantize_step.caches_fp8(recipe.step("quantize")):
        return recipe.serving.model_copy(update={"kv_cache_dtype": "fp8"})
    return recipe.serving


def stored_cache(serving: Serving) -> CacheType:
    """Return the type of the cache; what OpenVINO chooses by itself is u8."""
    return "u8" if serving.engine == "openvino" and serving.kv_cache_dtype == "auto" else serving.kv_cache_dtype


def kv_bytes(model: ModelFacts, serving: Serving, tensor_parallel: int = 1) -> int:
    """Return the bytes of keys and values of one token on one device: 2 x layers x KV heads x head size x width.

    KV heads are copied, not cut, where there are fewer of them than devices (GQA, MQA); a latent vector (MLA) is copied
    to every device.
    """
    if not model.generates:
        return 0
    width = 4 if serving.dtype == "float32" else 2
    if model.kv_latent:
        elements = model.cached_layers * model.kv_latent
    else:
        elements = 2 * model.cached_layers * -(-model.kv_heads // tensor_parallel) * model.head_dim
    return elements * BLOCK_BYTES.get(stored_cache(serving), width * BLOCK_ELEMENTS) // BLOCK_ELEMENTS


def activations(model: ModelFacts, device: Device, tensor_parallel: int) -> int:
    """Return the peak bytes of one step of `max_num_batched_tokens`.

    Two residuals, the widest layer, and logits in fp32.
    """
    tokens = batched_tokens(device)
    wide = max(2 * model.intermediate_size, (model.heads + 2 * model.kv_heads) * model.head_dim) // tensor_parallel
    return tokens * 2 * (2 * model.hidden_size + wide) + MAX_SEQUENCES * model.vocabulary * 4 // tensor_parallel


def batched_tokens(device: Device) -> int:
    """Return the tokens that vLLM puts into one step."""
    if device.hardware != "cuda" or device.name.startswith("A100"):
        return BATCHED_TOKENS[-1][1]
    return next(tokens for least, tokens in BATCHED_TOKENS if device.memory_bytes >= least)


class DeviceMemory(NamedTuple):
    """The memory of one device. `cache`: what is left for it, least and most; negative where the model does not fit."""

    tensor_parallel: int
    weights_per_device: int
    activations: int
    runtime: tuple[int, int]
    cache: tuple[int, int]
    kv_bytes_per_token: int

    @property
    def tokens(self) -> tuple[int, int]:
        """(least, most) tokens that the cache has room for, over all sequences."""
        least, most = (max(0, size) // self.kv_bytes_per_token if self.kv_bytes_per_token else 0 for size in self.cache)
        return least, most

    def needed_bytes(self, tokens: int) -> tuple[int, int]:
        """Return the (least, most) bytes that are taken with so many tokens in the cache."""
        fixed = self.weights_per_device + self.activations + tokens * self.kv_bytes_per_token
        return fixed + self.runtime[0], fixed + self.runtime[1]

    def holds(self, tokens: int) -> bool:
        """Return whether that many tokens of cache surely fit."""
        return self.cache[0] >= max(0, tokens * self.kv_bytes_per_token)


def concurrent_sequences(memory: DeviceMemory, recipe: Recipe, length: int) -> tuple[int, int]:
    """Return the (least, most) sequences of `length` tokens that the server has room for at once."""
    limit = recipe.serving.max_num_seqs or MAX_SEQUENCES
    least, most = (min(limit, tokens // length) for tokens in memory.tokens)
    return least, most


def device_memory(
    model: ModelFacts, recipe: Recipe, device: Device, tensor_parallel: int, draft: ModelFacts | None = None
) -> DeviceMemory:
    """Return the memory of one device when the model, and its draft, are cut over `tensor_parallel` of them, and the
    model's layers over the recipe's pipeline stages."""
    # 1. Weights and cache per token of the model and its draft. A stage holds its own layers and their cache.
    stages = recipe.serving.pipeline_parallel or 1
    weight_bytes = weights(model, recipe).total // tensor_parallel // stages
    per_token = -(-kv_bytes(model, effective_serving(recipe), tensor_parallel) // stages)
    if draft is not None:
        weight_bytes += weights(draft, Recipe()).total // tensor_parallel
        per_token += kv_bytes(draft, recipe.serving, tensor_parallel)
    # 2. The memory that is left for the cache; on a processor no more than the server reserves.
    pooled, length = engine_costs.shares_pool(recipe.serving), recipe.serving.max_model_len or model.max_positions
    active = step_buffers(model, length) if pooled else activations(model, device, tensor_parallel)
    runtime = runtime_bytes(device, recipe)
    left = usable_bytes(device) - weight_bytes - active
    cache = (left - runtime[1], left - runtime[0])
    if pooled:
        reserved = per_token * pooled_tokens(per_token, length, recipe.serving.max_num_seqs or POOL_SLOTS)
    else:
        reserved = reserved_bytes(per_token, length, recipe.serving.max_num_seqs)
    if device.hardware == "cpu":
        cache = (min(cache[0], reserved), min(cache[1], reserved))
    return DeviceMemory(tensor_parallel, weight_bytes, active, runtime, cache, per_token)


def usable_bytes(device: Device) -> int:
    """Return the part of one device's memory that the server takes."""
    return int(device.memory_bytes * SERVER_SHARE[device.hardware])


def runtime_bytes(device: Device, recipe: Recipe) -> tuple[int, int]:
    """Return the (least, most) memory of the engine's processes beside weights, cache and buffers; nothing where no
    figure is known, since such a combination is refused."""
    costs = engine_costs.find_costs(recipe.serving.engine_name, device.hardware)
    return costs.runtime_bytes if costs else (0, 0)


def step_buffers(model: ModelFacts, context: int) -> int:
    """Return the bytes of llama.cpp's buffers for MICRO_BATCH tokens.

    In fp32 four residuals and two of the widest layer, and the mask over the context in 16 bit. Measured: 22.6 MB where
    this gives 19.4 (SmolLM2-135M, 8,192 tokens of context).
    """
    wide = max(model.intermediate_size, (model.heads + 2 * model.kv_heads) * model.head_dim)
    return MICRO_BATCH * (4 * (4 * model.hidden_size + 2 * wide) + 2 * context)


def degrees(model: ModelFacts, recipe: Recipe, device: Device) -> list[int]:
    """Return the tensor parallel degrees that the hardware has and the model can be cut into, lowest first.

    vLLM needs the attention heads divisible by the degree (config/model.py), and whole quantization groups on every
    device (auto_awq.py: "too large tensor parallel size"). KV heads are cut or copied. Neuron pads heads instead.
    """
    possible = [n for n in range(1, device.units + 1) if device.units % n == 0]
    if device.hardware == "neuron":
        return possible
    chosen = stored_format(model, recipe)
    return [degree for degree in possible if divides(model, degree, chosen.cut if chosen else None)]


def divides(model: ModelFacts, degree: int, group: int | None) -> bool:
    """Return whether heads, KV heads and the matrices cut along their input can be cut into `degree` equal parts."""
    if model.heads % degree or (model.kv_heads % degree and degree % model.kv_heads):
        return False
    cut = [shape.inputs for shape in linears(model) if shape.name in {"output", "down"}]
    return all(width % (degree * (group or 1)) == 0 for width in cut)


def find_smallest_fit(
    model: ModelFacts, recipe: Recipe, device: Device, draft: ModelFacts | None = None, *, tokens: int = 1
) -> DeviceMemory | None:
    """Return the memory at the lowest degree at which the model and `tokens` of cache fit; None where none does."""
    rooms = (device_memory(model, recipe, device, degree, draft) for degree in degrees(model, recipe, device))
    return next((memory for memory in rooms if memory.holds(tokens)), None)


USUAL_CONTEXT = 2048
"""Tokens of the longest sequence that a server must serve where the recipe states none."""


def usual_context(model: ModelFacts) -> int:
    """Return the usual context, or the model's own where that is shorter."""
    return min(model.max_positions, USUAL_CONTEXT)


def required_cache_tokens(model: ModelFacts, recipe: Recipe) -> int:
    """Return the tokens that the cache must have room for: the stated context, else one sequence of the usual one."""
    return recipe.serving.max_model_len or usual_context(model)
