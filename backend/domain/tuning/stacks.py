"""The stacks that a search tries: weights with their speculation, an engine that serves them, and serving settings.

Which engine serves what is the capability table's (`recipe.serving_engines`); which recipe a model allows on a machine
is for the rules to say (`domain.rules`), so callers leave out what is not valid.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

from pydantic import Field

from backend.domain.frozen import Frozen
from backend.domain.recipe.recipe import ENGINE_OPTIONS, Recipe, read
from backend.domain.recipe.serving.source_settings import SourceSettings, name_settings, write_source
from backend.domain.recipe.serving_engines import ENGINES, SERVED, CacheType, EngineName, Hardware, WeightFormat

ORIGINAL = "original"
CACHE = "kv_cache_dtype"
NGRAM = {"speculate": {"method": "ngram"}}
ADAPTIVE = {"speculate": {"method": "ngram_adaptive"}}


class Weights(NamedTuple):
    """One form of the model's weights, with speculation where it has any. `steps` make it; none: the model itself."""

    title: str
    steps: tuple[dict[str, Any], ...]
    format: WeightFormat
    speculation: str | None = None

    @property
    def recipe(self) -> Recipe:
        return read({"name": self.title, "steps": list(self.steps)})


def _gguf(file_type: str) -> dict[str, Any]:
    return {"quantize": {"method": "gguf", "type": file_type, "imatrix": False}}


SMOOTH: dict[str, Any] = {"quantize": {"method": "smoothquant", "samples": 16}}
WEIGHTS: dict[str, Weights] = {
    "smoothquant+ngram_adaptive": Weights(
        "smoothquant + adaptive n-gram", (SMOOTH, ADAPTIVE), "safetensors", "ngram_adaptive"
    ),
    "q8_0": Weights("q8_0", (_gguf("q8_0"),), "gguf"),
    ORIGINAL: Weights(ORIGINAL, (), "safetensors"),
    "ngram_adaptive": Weights("adaptive n-gram", (ADAPTIVE,), "safetensors", "ngram_adaptive"),
    "q4_k_m": Weights("q4_k_m", (_gguf("q4_k_m"),), "gguf"),
    "q8_0+ngram": Weights("q8_0 + n-gram", (_gguf("q8_0"), NGRAM), "gguf", "ngram"),
    "awq+ngram_adaptive": Weights(
        "awq + adaptive n-gram",
        ({"quantize": {"method": "awq", "group_size": 64}}, ADAPTIVE),
        "safetensors",
        "ngram_adaptive",
    ),
    "smoothquant": Weights("smoothquant", (SMOOTH,), "safetensors"),
    "q6_k": Weights("q6_k", (_gguf("q6_k"),), "gguf"),
    "q4_0": Weights("q4_0", (_gguf("q4_0"),), "gguf"),
    "q4_k_m+ngram": Weights("q4_k_m + n-gram", (_gguf("q4_k_m"), NGRAM), "gguf", "ngram"),
    "q4_0+ngram": Weights("q4_0 + n-gram", (_gguf("q4_0"), NGRAM), "gguf", "ngram"),
    "awq": Weights("awq", ({"quantize": {"method": "awq", "group_size": 64}},), "safetensors"),
}
"""Forms of weights by key, the likeliest to win first: precision and speculation change speed by factors, other
settings by 1 to 15 % (benchmarks/results)."""


class Stack(Frozen):
    """One way to serve the model. `settings` are serving settings as they are written behind a source."""

    weights: str
    engine: EngineName
    settings: dict[str, str] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """`q8_0 on llama.cpp, KV cache q8_0`."""
        return f"{self.plain_name}{name_settings(self.settings)}"

    @property
    def plain_name(self) -> str:
        """The name without settings."""
        return f"{WEIGHTS[self.weights].title} on {ENGINES[self.engine].title}"

    @property
    def key(self) -> str:
        """Return what no two stacks share."""
        return write_source(SourceSettings(self.weights, self.engine, self.settings))

    def source(self, model: str, artifacts: Mapping[str, str]) -> str:
        """Return the source that is evaluated. `artifacts`: weights -> the artifact that was made of them."""
        plain = model if self.weights == ORIGINAL else artifacts[self.weights]
        return write_source(SourceSettings(plain, self.engine, self.settings))


class SpaceChoice(Frozen):
    """The part of the space that a person chose. Empty: everything of that kind; `settings`: more values of
    serving settings, each tried with every stack whose engine takes it."""

    engines: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    settings: dict[str, tuple[str, ...]] = Field(default_factory=dict)


def list_stacks(
    choice: SpaceChoice, *, hardware: Hardware, engines: Collection[str], weights: Collection[str], keeps_gguf: bool
) -> list[Stack]:
    """Return the stacks, the likeliest first: every form of weights on every engine with the engine's own cache and
    settings, then each of these with other types of cache and with the settings that were added.

    `engines` that are installed, `weights` that the rules allow; `keeps_gguf`: the model has a GGUF file of its own.
    """
    plain = list(_plain_stacks(choice, hardware, engines, weights, keeps_gguf=keeps_gguf))
    further = [stack for one in plain for stack in _with_settings(one, choice, hardware)]
    return plain + further


def _plain_stacks(
    choice: SpaceChoice, hardware: Hardware, engines: Collection[str], weights: Collection[str], *, keeps_gguf: bool
) -> Iterator[Stack]:
    for key, form in WEIGHTS.items():
        if key not in weights or (choice.weights and key not in choice.weights):
            continue
        for row in SERVED:
            own_file = key == ORIGINAL and row.format == "gguf" and keeps_gguf
            speculates = form.speculation is None or form.speculation in row.speculation
            reads = row.format == form.format or own_file
            asked_for = row.engine in engines and (not choice.engines or row.engine in choice.engines)
            if row.hardware == hardware and reads and speculates and asked_for:
                yield Stack(weights=key, engine=row.engine)


def _with_settings(stack: Stack, choice: SpaceChoice, hardware: Hardware) -> Iterator[Stack]:
    """Yield the stack with each combination of cache type and added settings but the first, which is its own."""
    values: dict[str, tuple[str, ...]] = {CACHE: ("", *_caches(stack, hardware))}
    for name, added in choice.settings.items():
        if name == CACHE:
            values[CACHE] = ("", *(cache for cache in added if cache in _caches(stack, hardware)))
        elif name not in ENGINE_OPTIONS or stack.engine in ENGINE_OPTIONS[name]:
            values[name] = ("", *added)
    for combination in list(product(*values.values()))[1:]:
        settings = {name: value for name, value in zip(values, combination, strict=True) if value}
        yield stack.model_copy(update={"settings": settings})


def _caches(stack: Stack, hardware: Hardware) -> tuple[CacheType, ...]:
    """Return the types of cache that differ from the engine's own choice, which OpenVINO has at 8 bits."""
    row = next(row for row in SERVED if row.engine == stack.engine and row.hardware == hardware)
    own = {"auto", "u8"} if stack.engine == "openvino" else {"auto"}
    if hardware == "cpu" and stack.engine == "vllm":
        own = own | {"fp8"}  # a processor cuts it down to 16 bits
    return tuple(cache for cache in row.cache if cache not in own)
