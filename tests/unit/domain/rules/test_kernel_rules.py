"""A recipe is valid only where a kernel of vLLM takes every matrix that it quantizes, and the plan names it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.catalog.bundled import instances, published
from backend.domain.kernels.conditions import Layer, StoredLayout
from backend.domain.kernels.kernel_choice import choose_kernel
from backend.domain.model import shapes
from backend.domain.model.facts import ModelFacts
from backend.domain.recipe import methods, recipe
from backend.domain.recipe.recipe import Quantize
from backend.domain.rules import check, kernel_rules
from backend.domain.rules.plan import Verdict
from backend.domain.rules.target_facts import TargetFacts
from backend.service.machines import targets

LLAMA, MIXTRAL = "meta-textgeneration-llama-3-8b", "huggingface-llm-mixtral-8x7b"
G4, G5, G6, P5, B200 = "ml.g4dn.12xlarge", "ml.g5.2xlarge", "ml.g6.xlarge", "ml.p5.48xlarge", "ml.p6-b200.48xlarge"


def known(name: str) -> ModelFacts:
    match = published.find(name)
    assert match is not None
    return match


def facts(where: str, model: ModelFacts) -> TargetFacts:
    match = instances.load().find(where)
    assert match is not None
    return targets.rule_facts(match, model, None)


def verdict(where: str, step: dict[str, Any], model: str | ModelFacts = LLAMA, **serving: Any) -> Verdict:
    card = known(model) if isinstance(model, str) else model
    chosen = recipe.read({"name": "r", "steps": [{"quantize": step}], "serving": serving})
    return check.check_recipe(card, chosen, facts(where, card))


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("method", ["awq", "gptq", "rtn"])
def test_groups_that_no_gpu_kernel_takes_are_refused_with_the_nearest_that_one_does(
    method: str, symmetric: bool, size: int
) -> None:
    result = verdict(G5, {"method": method, "group_size": size, "symmetric": symmetric})
    (reason,) = result.reasons
    assert reason.rule == "group-size" and "marlin" in reason.source
    assert reason.message == (
        f"vLLM has no kernel for {method} in groups of {size} on ml.g5.2xlarge, since Marlin takes groups of 32, 64 or "
        f"128, not of {size}: use `group_size: 32`."
    )
    assert result.suggestion is not None and result.suggestion.steps[0].group_size == 32  # type: ignore[union-attr]
    assert check.is_valid(known(LLAMA), result.suggestion, facts(G5, known(LLAMA)))


@pytest.mark.parametrize(
    ("where", "step", "kernel"),
    [
        (G5, {"method": "awq"}, "weight-only INT4 (Marlin)"),
        (G5, {"method": "gptq", "bits": 8}, "weight-only INT8 (Marlin)"),
        (G5, {"method": "int8"}, "weight-only INT8 (Marlin)"),
        (G5, {"method": "awq", "group_size": 256, "symmetric": True}, "weight-only INT4 (Triton)"),
        (G4, {"method": "w8a8"}, "INT8 W8A8 (CUTLASS)"),
        (G6, {"method": "fp8"}, "FP8 W8A8 (CUTLASS)"),
        (P5, {"method": "awq"}, "weight-only INT4 (Machete)"),
        (P5, {"method": "awq", "group_size": 32}, "weight-only INT4 (Humming)"),
        (B200, {"method": "fp8", "activations": "static"}, "FP8 W8A8 (FlashInfer)"),
    ],
)
def test_the_plan_names_the_kernel_that_was_checked(where: str, step: dict[str, Any], kernel: str) -> None:
    plan = verdict(where, step).plan
    assert plan is not None and plan.steps[0].kernel == kernel


@pytest.mark.parametrize(
    ("where", "step", "serving", "rule", "words"),
    [
        (B200, {"method": "w8a8"}, {}, "compute-capability", "CUTLASS is not built for compute capability 10.0"),
        (G5, {"method": "awq"}, {"dtype": "float32"}, "kernel", "inputs of bfloat16 or float16, not float32"),
        (G4, {"method": "rtn", "group_size": 256, "format": "autoawq"}, {}, "group-size", "not of 256"),
        (
            G4,
            {"method": "awq", "group_size": 16, "symmetric": True},
            {},
            "group-size",
            "Exllama takes groups of a multiple of 32",
        ),
    ],
)
def test_the_condition_that_fails_is_named(
    where: str, step: dict[str, Any], serving: dict[str, Any], rule: str, words: str
) -> None:
    result = verdict(where, step, **serving)
    assert [reason.rule for reason in result.reasons] == [rule] and words in result.reasons[0].message
    assert result.suggestion is not None


def test_experts_have_kernels_of_their_own() -> None:
    model = known(MIXTRAL)
    assert model.experts
    plan = verdict("ml.p4d.24xlarge", {"method": "awq"}, model).plan
    assert plan is not None and plan.steps[0].kernel == "weight-only INT4 (Marlin; experts: Marlin)"
    static = verdict("ml.p4d.24xlarge", {"method": "w8a8", "activations": "static"}, model)
    assert [reason.rule for reason in static.reasons] == ["kernel"]
    assert "dynamic activation scales, not static ones: leave `activations` out" in static.reasons[0].message
    # The same experts with one scale an output channel: Marlin's take them, Humming's, which an H100 prefers, do not.
    assert verdict("ml.p4d.24xlarge", {"method": "int8"}, model).valid
    assert "Humming takes no scale an output channel" in verdict(P5, {"method": "int8"}, model).reasons[0].message


def test_layers_are_fused_and_cut_as_vllm_holds_them() -> None:
    model, step = known(LLAMA), Quantize(method="awq")
    assert kernel_rules.served_layers(model, step, 1) == (
        Layer("query, key and value", 4096, 6144, 4096),
        Layer("output", 4096, 4096, 4096),
        Layer("up", 4096, 28672, 4096),
        Layer("down", 14336, 4096, 14336),
    )
    assert kernel_rules.served_layers(model, step, 16) == (
        Layer("query, key and value", 4096, 256 + 2 * 128, 4096),
        Layer("output", 256, 4096, 4096),
        Layer("up", 4096, 1792, 4096),
        Layer("down", 896, 4096, 14336),
    )


def narrow(**changes: Any) -> ModelFacts:
    """A small Llama; sizes in elements."""
    fields: dict[str, Any] = {
        "id": "narrow",
        "origin": "folder",
        "architecture": "LlamaForCausalLM",
        "model_type": "llama",
        "layers": 2,
        "hidden_size": 64,
        "intermediate_size": 144,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "vocabulary": 512,
        "max_positions": 512,
        "dtype": "bfloat16",
        "tied_embeddings": True,
        "parameters": 200_000,
    }
    return ModelFacts(**{**fields, **changes})


def test_matrices_left_at_16_bit_are_named_and_a_step_without_any_is_refused() -> None:
    step = recipe.read({"steps": [{"quantize": {"method": "w8a8"}}]})
    plan = check.check_recipe(narrow(), step, TargetFacts()).plan
    assert plan is not None and plan.steps[0].kernel == "INT8 W8A8 (vLLM's CPU kernel)"
    message = "The up and down matrices stay 16-bit: their sizes are no multiples of 32"
    assert any(note.startswith(message) for note in plan.notes)
    odd = narrow(hidden_size=60, head_dim=15)
    (reason,) = check.check_recipe(odd, step, TargetFacts()).reasons
    assert reason.rule == "kernel" and "w8a8 would quantize nothing: leave the step out" in reason.message


def test_groups_that_only_a_processor_serves_are_valid_there_and_said_to_be() -> None:
    model = narrow(intermediate_size=128)
    chosen = recipe.read({"steps": [{"quantize": {"method": "awq", "group_size": 16}}]})
    plan = check.check_recipe(model, chosen, TargetFacts()).plan
    assert plan is not None and plan.steps[0].kernel == "weight-only INT4 (vLLM's CPU kernel)"
    assert "No GPU kernel of vLLM takes groups of 16: the artifact is for a processor alone." in plan.notes
    odd = narrow(hidden_size=96, head_dim=24, intermediate_size=192)
    third = recipe.read({"steps": [{"quantize": {"method": "rtn", "group_size": 3}}]})
    result = check.check_recipe(odd, third, TargetFacts())
    assert [reason.rule for reason in result.reasons] == ["group-size"] and "a multiple of 2" in result.reasons[
        0
    ].message


MODELS = [model for model in published.published().values() if model.generates and not model.quantization]
STEPS = st.fixed_dictionaries(
    {"method": st.sampled_from(sorted(methods.QUANTIZE))},
    optional={
        "group_size": st.sampled_from([8, 16, 32, 64, 128, 256]),
        "symmetric": st.booleans(),
        "bits": st.sampled_from([4, 8]),
        "activations": st.sampled_from(["dynamic", "static"]),
        "format": st.just("autoawq"),
        "target_bits": st.just(6.0),
        "eight_bits": st.sampled_from(["int8", "w8a8"]),
    },
)


@given(
    st.sampled_from(MODELS),
    STEPS,
    st.sampled_from(sorted(instances.load().instances)),
    st.sampled_from(["auto", "float32"]),
    st.sampled_from([1, 2, 8]),
)
def test_valid_means_that_each_matrix_has_a_kernel_whose_conditions_hold(
    model: ModelFacts, step: dict[str, Any], where: str, dtype: str, degree: int
) -> None:
    serving = {"dtype": dtype, "tensor_parallel": degree}
    chosen = recipe.read({"name": "r", "steps": [{"quantize": step}], "serving": serving})
    place, quantize = facts(where, model), chosen.steps[0]
    if place.hardware != "cuda" or not check.is_valid(model, chosen, place):
        return
    assert isinstance(quantize, Quantize)
    chip = kernel_rules.chip(model, chosen, place)
    for _, layout in kernel_rules.stored_layouts(quantize, chosen, place):
        assert all(
            choose_kernel(layout, layer, chip).kernel for layer in kernel_rules.served_layers(model, quantize, degree)
        )
        assert not shapes.undivided(max(layout.group, 1), model)


def test_an_artifact_that_this_machine_cannot_read_is_told_why() -> None:
    """The sentence that Evaluate shows beside an artifact."""
    model = narrow(intermediate_size=128)
    chosen = recipe.read({"steps": [{"quantize": {"method": "awq", "group_size": 16}}]})
    assert kernel_rules.find_unserved(model, chosen, TargetFacts()) is None
    assert kernel_rules.find_unserved(model, chosen, facts(G5, model)) == (
        "vLLM has no kernel for awq in groups of 16 there, since Marlin takes groups of 32, 64 or 128, not of 16"
    )
    assert isinstance(kernel_rules.stored_layout(Quantize(method="fp8")), StoredLayout)
