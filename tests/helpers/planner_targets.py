"""Models, recipes and targets that the planner's tests share."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from backend.catalog.bundled import instances, published
from backend.domain.machine.targets import Target
from backend.domain.model.facts import ModelFacts
from backend.domain.recipe import recipe

COMPILE: dict[str, Any] = {"compile": {}}
SHARD: dict[str, Any] = {"shard": {}}


def known(name: str) -> ModelFacts:
    match = published.find(name)
    assert match is not None
    return match


def target(name: str) -> Target:
    match = instances.load().find(name)
    assert match is not None
    return match


STEPS: list[dict[str, Any]] = [
    *({"quantize": {"method": method}} for method in ("awq", "gptq", "smoothquant", "w8a8", "int8", "fp8", "rtn")),
    *({"quantize": {"method": "awq", "group_size": size}} for size in (32, 96)),
    {"quantize": {"method": "awq", "engine": "autoawq"}},
    *({"speculate": {"method": method}} for method in ("draft", "ngram", "suffix", "eagle3", "medusa")),
    *({"prune": {"method": method}} for method in ("magnitude", "wanda", "sparsegpt")),
    COMPILE,
    SHARD,
]
SERVING = st.fixed_dictionaries(
    {},
    optional={
        "tensor_parallel": st.sampled_from([1, 2, 3, 4, 8, 64]),
        "max_model_len": st.sampled_from([256, 4096, 10**6]),
        "dtype": st.sampled_from(["auto", "bfloat16", "float16", "float32"]),
        "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
        "enforce_eager": st.booleans(),
    },
)
RECIPES = st.builds(
    lambda steps, serving: recipe.read({"name": "any", "steps": steps, "serving": serving}),
    st.lists(st.sampled_from(STEPS), max_size=4),
    SERVING,
)
MODELS = [*published.published(), *published.reference()]
