"""Engines that are not started here, as data: container, options, and what each reads, with versions and sources.

None of them was ever run by this project: the rows are read from their documentation and source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from backend.domain.kernels.conditions import Scheme

LaunchName = Literal["sglang", "tgi", "tensorrt-llm"]
CHECKED = "2026-11-26"
"""The day on which versions and options were looked up."""


class LaunchEngine(NamedTuple):
    """One engine. `options` maps settings of a recipe to its flags; a setting that is missing there has none."""

    title: str
    version: str
    image: str
    licence: str
    program: tuple[str, ...]
    """Words that the container runs before the options; empty where its entry point is the server."""
    address_options: tuple[str, ...]
    """Options by which it listens to other machines, on `port`."""
    port: int
    options: Mapping[str, str]
    schemes: frozenset[Scheme]
    """Schemes of compressed-tensors that it reads (`recipe/methods`)."""
    reads_autoawq: bool
    reads_gguf: bool
    cache_types: Mapping[str, str]
    """Types of the key-value cache in a recipe, and in its words."""
    dtypes: frozenset[str]
    speculation: Mapping[str, str]
    """Methods of `speculate` steps, and in its words."""
    note: str
    sources: tuple[str, ...]


ENGINES: dict[LaunchName, LaunchEngine] = {
    "sglang": LaunchEngine(
        title="SGLang",
        version="0.5.23",
        image="lmsysorg/sglang:v0.5.23",
        licence="Apache-2.0",
        program=("python3", "-m", "sglang.launch_server"),
        address_options=("--host", "0.0.0.0", "--port", "30000"),
        port=30000,
        options={
            "model": "--model-path",
            "name": "--served-model-name",
            "dtype": "--dtype",
            "cache": "--kv-cache-dtype",
            "parallel": "--tp-size",
            "stages": "--pp-size",
            "copies": "--dp-size",
            "experts": "--ep-size",
            "length": "--context-length",
            "sequences": "--max-running-requests",
        },
        schemes=frozenset({"wNa16", "int8", "fp8", "nvfp4"}),
        reads_autoawq=True,
        reads_gguf=True,
        cache_types={"fp8": "fp8_e4m3"},
        dtypes=frozenset({"auto", "bfloat16", "float16", "float32"}),
        speculation={"draft": "STANDALONE", "ngram": "NGRAM", "eagle": "EAGLE", "eagle3": "EAGLE3"},
        note="Its images need a driver for CUDA 13. NVFP4 with quantized activations needs compute capability 10.0.",
        sources=(
            "sglang 001067fff, python/sglang/srt/server_args.py, ServerArgs",
            "sglang 2af94e441, srt/layers/quantization/compressed_tensors/schemes",
            "sglang 366c7dcb9, compressed_tensors_w4a4_nvfp4.py, CompressedTensorsW4A4Fp4",
            "docs.sglang.io: Installation, Quantization, Speculative Decoding",
        ),
    ),
    "tgi": LaunchEngine(
        title="TGI",
        version="3.3.7",
        image="ghcr.io/huggingface/text-generation-inference:3.3.7",
        licence="Apache-2.0",
        program=(),
        address_options=("--port", "80"),
        port=80,
        options={
            "model": "--model-id",
            "dtype": "--dtype",
            "cache": "--kv-cache-dtype",
            "parallel": "--num-shard",
            "length": "--max-total-tokens",
            "sequences": "--max-batch-size",
        },
        schemes=frozenset({"wNa16", "int8", "fp8"}),
        reads_autoawq=True,
        reads_gguf=False,
        cache_types={"fp8": "fp8_e4m3fn"},
        dtypes=frozenset({"auto", "bfloat16", "float16"}),
        speculation={"ngram": "n-grams"},
        note="TGI is in maintenance mode; its makers recommend vLLM and SGLang.",
        sources=(
            "text-generation-inference v3.3.7, launcher/src/main.rs",
            "text-generation-inference db931fcf, layers/compressed_tensors/loader.py, CompressedTensorsLoader",
            "text-generation-inference db931fcf, README.md and its page on speculation",
        ),
    ),
    "tensorrt-llm": LaunchEngine(
        title="TensorRT-LLM",
        version="1.2.1",
        image="nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
        licence="Apache-2.0",
        program=("trtllm-serve",),
        address_options=("--host", "0.0.0.0", "--port", "8000"),
        port=8000,
        options={
            "parallel": "--tp_size",
            "stages": "--pp_size",
            "experts": "--ep_size",
            "length": "--max_seq_len",
            "sequences": "--max_batch_size",
        },
        schemes=frozenset({"fp8"}),
        reads_autoawq=False,
        reads_gguf=False,
        cache_types={"fp8": "fp8"},
        dtypes=frozenset({"auto", "bfloat16", "float16"}),
        speculation={"draft": "DraftTarget", "ngram": "NGram", "eagle3": "Eagle"},
        note="It reads 8-bit compressed-tensors weights as FP8 whatever their type, so INT8 ones are refused here.",
        sources=(
            "TensorRT-LLM 00209af14, tensorrt_llm/commands/serve.py, serve",
            "TensorRT-LLM 008e0af89, _torch/model_config.py, ModelConfig",
            "nvidia.github.io/TensorRT-LLM/1.2.0: trtllm-serve, Speculative Decoding, Quantization",
        ),
    ),
}
