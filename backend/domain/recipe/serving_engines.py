"""The engines that serve, as data: what each reads, on which hardware, with which speculation and cache precision.

A row exists for what this version serves. `find_unsupported` says of any other combination why it is not served and
what is nearest to it. Which kernels an engine has for quantized weights is `domain/kernels`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Literal, NamedTuple

from backend.domain.recipe.speculation import SPECULATE

EngineName = Literal["vllm", "llama.cpp", "openvino"]
AUTO: Literal["auto"] = "auto"
EngineChoice = EngineName | Literal["auto"]
"""The words that a person may write; `auto` leaves the choice to `engine_choice`."""
WeightFormat = Literal["safetensors", "gguf"]
"""Forms in which a model's weights are stored; quantized ones of compressed-tensors and AutoAWQ are safetensors."""
CacheType = Literal["auto", "fp8", "q8_0", "q4_0", "u8", "u4"]
"""Types of the key-value cache; `auto` is the engine's own choice: 16 bits, of OpenVINO u8."""
Hardware = Literal["cpu", "cuda", "neuron"]


class ServingEngine(NamedTuple):
    """`environment` is the name by which `whetstone engines install` knows it, `licence` that of its code."""

    title: str
    environment: str
    licence: str


ENGINES: dict[EngineName, ServingEngine] = {
    "vllm": ServingEngine("vLLM", "serve", "Apache-2.0"),
    "llama.cpp": ServingEngine("llama.cpp", "llama-cpp", "MIT"),
    "openvino": ServingEngine("OpenVINO GenAI", "openvino", "Apache-2.0"),
}


class ServedCombination(NamedTuple):
    """One format that an engine serves on one kind of hardware, with the places where its makers say so."""

    engine: EngineName
    format: WeightFormat
    hardware: Hardware
    speculation: frozenset[str]
    """Methods of `speculate` steps."""
    cache: tuple[CacheType, ...]
    parallel: bool
    """True if one model may be split over several devices."""
    sources: tuple[str, ...]


_VLLM_SOURCES = ("vLLM 0.32.0, SpeculativeConfig", "vLLM 0.32.0, CacheConfig", "docs/decisions/0020")
OPENVINO_READER = "OpenVINO GenAI 2026.4, src/cpp/src/gguf_utils"
SERVED: tuple[ServedCombination, ...] = (
    ServedCombination("vllm", "safetensors", "cpu", frozenset(SPECULATE), ("auto", "fp8"), True, _VLLM_SOURCES),
    ServedCombination("vllm", "safetensors", "cuda", frozenset(SPECULATE), ("auto", "fp8"), True, _VLLM_SOURCES),
    ServedCombination(
        "vllm",
        "safetensors",
        "neuron",
        frozenset({"draft", "eagle", "eagle3"}),
        ("auto", "fp8"),
        True,
        ("docs/neuron.md",),
    ),
    # Its CUDA build is not made by `engines install`. A draft needs a GGUF file of its own; heads have none here.
    ServedCombination(
        "llama.cpp",
        "gguf",
        "cpu",
        frozenset({"draft", "ngram"}),
        ("auto", "q8_0", "q4_0"),
        False,
        (
            "llama.cpp 0c1e57098, tools/server/README.md",
            "llama.cpp 0c1e57098, common/arg.cpp, --spec-type",
            "llama.cpp 0c1e57098, common/arg.cpp, --cache-type-k",
        ),
    ),
    # A beginning of a prompt is looked up, no draft is taken: `ContinuousBatchingPipeline` has one for IR folders only.
    ServedCombination(
        "openvino",
        "gguf",
        "cpu",
        frozenset({"ngram"}),
        ("auto", "u8", "u4"),
        False,
        (
            OPENVINO_READER,
            "OpenVINO GenAI 2026.4, src/cpp/src/prompt_lookup",
            "OpenVINO 2026.4, KV_CACHE_PRECISION of the CPU plugin",
        ),
    ),
)
OPENVINO_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3"})
"""`general.architecture` of the GGUF files that OpenVINO GenAI builds a model from (2026.4, gguf_modeling.cpp)."""
OPENVINO_KEYS = ("general.file_type", "{}.attention.layer_norm_rms_epsilon", "tokenizer.ggml.model")
"""Keys without which its reader ends (2026.4, gguf.cpp), `{}` being the architecture."""
OPENVINO_TENSORS = frozenset({"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"})
"""Types of tensors that it reads (2026.4, gguf.cpp). Of Q4_1 it rounds the minimum of each group to a whole zero point:
the weights are not quite those of the file."""


ENGINE, TOKENS = "@engine=", "@tokens="
"""Begin what may follow a source: the engine that serves it, and another number of draft tokens; settings may follow
too (`source_settings`)."""


def artifact_id(source: str) -> str:
    """Return the id of an artifact's source, without the engine, settings and number of tokens behind it."""
    return source.partition("@")[0]


class Combination(NamedTuple):
    """One combination that a person wants served."""

    engine: EngineName
    format: WeightFormat
    hardware: Hardware
    speculation: str | None = None
    cache: CacheType = "auto"
    parallel: int = 1
    """Devices over which one model is split."""


class Unsupported(NamedTuple):
    """Why a combination is not served, and the nearest that is."""

    reason: str
    nearest: str
    source: str

    @property
    def sentence(self) -> str:
        """One sentence: the reason, then what works."""
        return f"{self.reason}: {self.nearest}."


def find_unsupported(combination: Combination) -> Unsupported | None:
    """Return why the combination is not served and what is nearest to it; None where it is served."""
    rows = [row for row in SERVED if row.engine == combination.engine]
    title = ENGINES[combination.engine].title
    # 1. The format of the weights.
    reading = [row for row in rows if row.format == combination.format]
    if not reading:
        return _unread_format(combination, rows)
    # 2. The hardware.
    placed = [row for row in reading if row.hardware == combination.hardware]
    if not placed:
        places = ", ".join(row.hardware for row in reading)
        other = _other_engine(combination, combination.format, combination.hardware)
        nearest = f"serve it with `engine: {other}`" if other else f"serve it on {places}"
        return Unsupported(
            f"{title} as installed here does not run on {combination.hardware}", nearest, _source(reading)
        )
    # 3. Speculation, the cache and the number of devices.
    row = placed[0]
    return next(_unsupported_settings(combination, row, title), None)


def list_readers(weight_format: WeightFormat) -> list[EngineName]:
    """Return the engines that read a format on some hardware, in the table's order."""
    return list(dict.fromkeys(row.engine for row in SERVED if row.format == weight_format))


def find_unread_gguf(
    architecture: str, tensor_types: Iterable[str], keys: Container[str], parts: int = 1
) -> Unsupported | None:
    """Return why OpenVINO does not read a GGUF file of that architecture, types, keys and parts; None where it does."""
    nearest = "serve it with `engine: llama.cpp`"
    unread = find_unread_types(tensor_types)
    missing = [key for key in OPENVINO_KEYS if key.format(architecture) not in keys]
    reason = None
    if architecture not in OPENVINO_ARCHITECTURES:
        known = ", ".join(sorted(OPENVINO_ARCHITECTURES))
        reason = f"OpenVINO GenAI reads GGUF files of {known}, and this is one of {architecture}"
    elif unread:
        reason = f"OpenVINO GenAI does not read GGUF tensors of type {', '.join(unread)}"
        nearest += ", or import a Q8_0 or Q4_0 file of the model"
    elif missing:
        reason = f"OpenVINO GenAI needs the key {missing[0].format(architecture)}, which this GGUF file lacks"
    elif parts > 1:
        reason = f"OpenVINO GenAI reads a GGUF file as a whole, and this one is in {parts} parts"
    return Unsupported(reason, nearest, OPENVINO_READER) if reason else None


def find_unread_types(tensor_types: Iterable[str]) -> list[str]:
    """Return the types of tensors that OpenVINO's reader does not take."""
    return sorted(set(tensor_types) - OPENVINO_TENSORS)


def choose_engine(weight_format: WeightFormat) -> EngineName:
    """Return the engine that reads a format, where nobody chose one: the first of the table."""
    return next(row.engine for row in SERVED if row.format == weight_format)


def _unread_format(combination: Combination, rows: list[ServedCombination]) -> Unsupported:
    title, reads = ENGINES[combination.engine].title, rows[0].format
    other = choose_engine(combination.format)
    if combination.format == "gguf":
        nearest = f"serve it with `engine: {other}`, or serve the model that was imported from it, which is safetensors"
        return Unsupported(f"{title} reads {reads} here, and this is a GGUF file", nearest, _source(rows))
    nearest = (
        f"import a GGUF file of the model (`whetstone models import FILE.gguf`), or serve it with `engine: {other}`"
    )
    return Unsupported(f"{title} reads GGUF files, and these weights are safetensors", nearest, _source(rows))


def _unsupported_settings(combination: Combination, row: ServedCombination, title: str) -> Iterator[Unsupported]:
    if combination.speculation is not None and combination.speculation not in row.speculation:
        others = sorted(row.speculation)
        nearest = f"use {' or '.join(f'`{each}`' for each in others)}" if others else "leave the `speculate` step out"
        other = _other_engine(combination, None, combination.hardware)
        if other is not None:
            nearest += f", or serve the model with `engine: {other}`"
        yield Unsupported(
            f"{title} serves {row.format} without `speculate: {{method: {combination.speculation}}}` in this version",
            nearest,
            row.sources[0],
        )
    if combination.cache not in row.cache:
        listed = " or ".join(f"`{each}`" for each in row.cache)
        yield Unsupported(
            f"{title} has no key-value cache of type {combination.cache}",
            f"set `serving.kv_cache_dtype` to {listed}",
            row.sources[-1],
        )
    if combination.parallel > 1 and not row.parallel:
        yield Unsupported(
            f"{title} on {row.hardware} serves a model as a whole", "set `serving.tensor_parallel: 1`", row.sources[0]
        )


def _other_engine(combination: Combination, weight_format: WeightFormat | None, hardware: str) -> EngineName | None:
    """Return another engine that serves this speculation and cache there, of that format or of any; None if none
    does."""
    for row in SERVED:
        fits = row.hardware == hardware and weight_format in {None, row.format}
        speculates = combination.speculation is None or combination.speculation in row.speculation
        if row.engine != combination.engine and fits and speculates and combination.cache in row.cache:
            return row.engine
    return None


def _source(rows: list[ServedCombination]) -> str:
    return rows[0].sources[0]
