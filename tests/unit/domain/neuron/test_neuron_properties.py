"""Whatever is planned for Neuron holds to the runtime, the instance and the key, over generated models and recipes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.catalog.bundled import instances, published
from backend.domain.machine import compile_keys
from backend.domain.model import shapes
from backend.domain.model.facts import ModelFacts
from backend.domain.neuron import compile_plan, cores, software_stacks
from backend.domain.planner.estimate import estimate
from backend.domain.planner.estimate_context import EstimateContext
from backend.domain.recipe import recipe
from backend.domain.recipe.recipe import Recipe
from backend.domain.rules import check as compat
from backend.domain.rules.target_facts import TargetFacts
from backend.service.machines import targets
from tests.properties import examples

LLAMA = "meta-textgeneration-llama-3-8b"
MODELS = [*published.published(), *published.reference()]
STEPS: list[dict[str, Any]] = [
    {"compile": {}},
    *({"compile": {"stack": name}} for name in software_stacks.STACKS),
    {"quantize": {"method": "int8"}},
    {"quantize": {"method": "awq"}},
    {"speculate": {"method": "draft", "draft": "auto"}},
    {"prune": {"method": "wanda"}},
]
RECIPES = st.builds(
    lambda steps, serving: recipe.read({"name": "any", "steps": steps, "serving": serving}),
    st.lists(st.sampled_from(STEPS), max_size=3),
    st.fixed_dictionaries(
        {},
        optional={
            "tensor_parallel": st.sampled_from([1, 2, 3, 8, 12, 24, 32, 64]),
            "max_num_seqs": st.sampled_from([1, 8, 300]),
            "max_model_len": st.sampled_from([64, 1000, 2048, 10**6]),
            "dtype": st.sampled_from(["auto", "float16", "float32"]),
            "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
            "enforce_eager": st.booleans(),
        },
    ),
)


def known(name: str) -> ModelFacts:
    match = published.find(name)
    assert match is not None
    return match


def facts(name: str, model: ModelFacts) -> TargetFacts:
    target = instances.load().find(f"neuron:{name}")
    assert target is not None
    return targets.rule_facts(target, model, published.find(model.draft) if model.draft else None)


HEADS = st.builds(
    lambda keys, group: known(LLAMA).model_copy(update={"heads": keys * group, "kv_heads": keys}),
    st.integers(1, 40),
    st.integers(1, 16),
)


@examples(500)
@given(HEADS, st.integers(1, 64))
def test_whatever_is_cut_is_cut_evenly_and_loses_no_head(model: ModelFacts, degree: int) -> None:
    queries, heads = cores.padded_heads(model, degree)
    assert queries % degree == 0 and heads % degree == 0
    assert model.heads <= queries < model.heads + degree and model.kv_heads <= heads <= queries


@examples(500)
@given(HEADS, st.sampled_from([1, 2, 4, 8, 24]))
def test_a_core_holds_the_heads_as_they_are_compiled(model: ModelFacts, degree: int) -> None:
    device, chosen = facts("ml.inf2.48xlarge", model).device, recipe.read({"steps": [{"compile": {}}]})
    assert device is not None
    _, heads = cores.padded_heads(model, degree)
    core_memory = cores.core_memory(model, chosen, device, degree)
    assert core_memory.kv_bytes_per_token == 2 * model.layers * heads // degree * model.head_dim * 2
    compiled, before = (shapes.sizes(each) for each in (cores.pad_model(model, degree), model))
    assert compiled.embedding == before.embedding and compiled.linears >= before.linears


def test_copied_heads_are_counted_where_the_degree_is_no_multiple_of_them() -> None:
    """40 query and 10 KV heads over 4 cores: NxD Inference makes one KV head a query head, ten a core and not three."""
    model = known(LLAMA).model_copy(update={"heads": 40, "kv_heads": 10})
    device = facts("ml.inf2.48xlarge", model).device
    assert device is not None
    room = cores.core_memory(model, recipe.read({"steps": [{"compile": {}}]}), device, 4)
    assert room.kv_bytes_per_token == 2 * model.layers * 10 * model.head_dim * 2


@examples(2000, 60)
@given(RECIPES, st.sampled_from(instances.load().neuron), st.sampled_from(MODELS))
def test_valid_recipes_are_planned_on_cores_that_fit_and_else_the_nearest_works(
    chosen: Recipe, name: str, model: str
) -> None:
    card = known(model)
    there = facts(name, card)
    verdict = compat.check_recipe(card, chosen, there)
    if verdict.plan is None:
        assert all(reason.message.endswith(".") and reason.source for reason in verdict.reasons)
        assert verdict.suggestion is None or compat.check_recipe(card, verdict.suggestion, there).valid
        return
    device, draft = there.device, there.serving_draft(chosen)
    assert device is not None
    plan = compile_plan.make_compile_plan(card, chosen, device, draft)
    assert (
        device.name in software_stacks.STACKS[plan.stack].accelerators
        and card.model_type in software_stacks.STACKS[plan.stack].model_types
    )
    assert plan.tensor_parallel in cores.degrees(device) and plan.tensor_parallel == verdict.plan.tensor_parallel
    assert cores.fits(card, chosen, device, plan.tensor_parallel, draft)
    assert plan.context_buckets[-1] == plan.positions <= card.max_positions and plan.batch >= 1
    assert list(plan.context_buckets) == sorted(set(plan.context_buckets))


SERVINGS = st.fixed_dictionaries(
    {
        "tensor_parallel": st.sampled_from([2, 8]),
        "max_num_seqs": st.sampled_from([1, 4]),
        "max_model_len": st.sampled_from([64, 512]),
        "dtype": st.sampled_from(["auto", "bfloat16", "float16"]),
        "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
    }
)


@examples(300)
@given(SERVINGS, SERVINGS, st.booleans())
def test_two_plans_have_one_key_only_where_no_field_differs(
    one: dict[str, Any], other: dict[str, Any], named: bool
) -> None:
    model, device = known(LLAMA), facts("ml.trn1.32xlarge", known(LLAMA)).device
    assert device is not None
    first, second = (
        compile_plan.make_compile_plan(model, recipe.read({"steps": [{"compile": {}}], "serving": each}), device)
        for each in (one, other)
    )
    second = second.model_copy(update={"model": "another name"}) if named else second
    assert (first.key == second.key) == (not compile_keys.find_differences(first.fields, second.fields))


@pytest.mark.parametrize(("place", "total"), [("ml.inf2.48xlarge", 24), ("ml.trn2.48xlarge", 64)])
def test_an_estimate_promises_no_more_than_what_is_compiled_for(place: str, total: int) -> None:
    """Shapes are fixed: it once said 1,237 requests and 8,192 tokens where 4 sequences of 2,048 are compiled."""
    model, there = known(LLAMA), facts(place, known(LLAMA))
    serving = {"tensor_parallel": 8, "max_num_seqs": 4, "max_model_len": 2048}
    chosen = recipe.read({"steps": [{"compile": {}}], "serving": serving})
    result = estimate(model, chosen, EstimateContext(target=place, facts=there), 8)
    assert (result.max_batch, result.max_context, result.devices) == (4, 2048, total)
    assert there.device is not None and result.device_bytes == cores.logical_device(there.device).memory_bytes


@pytest.mark.parametrize("place", ["ml.g5.12xlarge", "ml.p5.48xlarge"])
def test_no_gpu_instance_is_among_the_neuron_ones(place: str) -> None:
    assert place not in instances.load().neuron
