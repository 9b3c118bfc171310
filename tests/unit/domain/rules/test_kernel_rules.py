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
from backend.domain.needs import serving_memory
from backend.domain.recipe import methods, recipe
from backend.domain.recipe.capability_table import MULTIMODAL_FAMILIES
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
        (G5, {"method": "fp8_block"}, "weight-only FP8 (Humming)"),
        (G6, {"method": "fp8_block"}, "weight-only FP8 (Marlin)"),
        (P5, {"method": "fp8_block"}, "FP8 W8A8 in blocks (FlashInfer and DeepGEMM)"),
        (G4, {"method": "nvfp4"}, "weight-only NVFP4 (Marlin)"),
        (P5, {"method": "nvfp4"}, "weight-only NVFP4 (Humming)"),
        (B200, {"method": "nvfp4"}, "NVFP4 W4A4 (FlashInfer)"),
        (B200, {"method": "nvfp4", "activations": "none"}, "weight-only NVFP4 (FlashInfer)"),
        (B200, {"method": "mxfp4"}, "MXFP4 W4A4 (FlashInfer)"),
        (B200, {"method": "mxfp8"}, "MXFP8 W8A8 (FlashInfer)"),
        (P5, {"method": "w4a8_fp8"}, "INT4 W4A8 with FP8 inputs (CUTLASS W4A8)"),
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


@pytest.mark.parametrize(
    ("where", "method", "source", "nearest"),
    [
        (G6, "w4a8_fp8", "_is_fp8_w4a8_sm90", "gptq"),
        (B200, "w4a8_fp8", "_is_fp8_w4a8_sm90", "gptq"),
        (G4, "mxfp4", "compressed_tensors_w4a4_mxfp4.py", "nvfp4"),
    ],
)
def test_a_format_that_a_gpu_cannot_serve_is_refused_with_the_nearest_that_it_can(
    where: str, method: str, source: str, nearest: str
) -> None:
    result = verdict(where, {"method": method})
    (reason,) = result.reasons
    assert reason.rule == "compute-capability" and source in reason.source
    assert reason.message.endswith(f"use `{nearest}`, which is served there, or another GPU.")
    assert result.suggestion is not None and result.suggestion.steps[0].method == nearest  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("where", "step", "words"),
    [
        (P5, {"method": "nvfp4"}, "NVFP4 weights only: ml.p5.48xlarge has compute capability 9.0"),
        (P5, {"method": "mxfp8"}, "vLLM multiplies it from 10.0 on, so it saves memory and traffic, not operations."),
        (G6, {"method": "fp8_block"}, "FP8 weights only: ml.g6.xlarge has compute capability 8.9"),
        (G5, {"method": "fp8"}, "compute capability 8.6 and no FP8 arithmetic"),
        (B200, {"method": "nvfp4"}, None),
        (P5, {"method": "fp8_block"}, None),
        (P5, {"method": "nvfp4", "activations": "none"}, None),
    ],
)
def test_a_plan_says_where_a_format_saves_memory_and_no_arithmetic(
    where: str, step: dict[str, Any], words: str | None
) -> None:
    plan = verdict(where, step).plan
    assert plan is not None
    weights_only = [note for note in plan.notes if "weights only" in note]
    assert not weights_only if words is None else words in weights_only[0]


@pytest.mark.parametrize(("where", "follower"), [(B200, "nvfp4"), (P5, "fp8"), (G6, "fp8"), (G5, "w8a8"), (G4, "w8a8")])
def test_2_4_is_refused_for_serving_and_names_what_follows_it(where: str, follower: str) -> None:
    card, sparse = known(LLAMA), {"prune": {"method": "sparsegpt", "pattern": "2:4"}}
    alone = recipe.read({"name": "r", "steps": [sparse]})
    result = check.check_recipe(card, alone, facts(where, card))
    (reason,) = result.reasons
    assert reason.rule == "sparse-serving" and "36799" in reason.source and "2720" in reason.source
    assert reason.message.endswith(f"use `quantize: {{method: {follower}}}` in its place.")
    assert result.suggestion is not None and len(result.suggestion.steps) == 1
    assert result.suggestion.steps[0].method == follower  # type: ignore[union-attr]
    # Beside a quantization the pruning alone goes; zeros anywhere are no pattern that kernels had.
    both = recipe.read({"name": "r", "steps": [sparse, {"quantize": {"method": "awq"}}]})
    suggestion = check.check_recipe(card, both, facts(where, card)).suggestion
    assert suggestion is not None and [step.technique for step in suggestion.steps] == ["quantize"]
    anywhere = recipe.read({"name": "r", "steps": [{"prune": {"method": "wanda"}}]})
    assert check.is_valid(card, anywhere, facts(where, card))


@pytest.mark.parametrize("kind", sorted(MULTIMODAL_FAMILIES))
def test_multimodal_types_are_quantized_and_not_recovered(kind: str) -> None:
    model = narrow(model_type=kind, outside_parameters=1000)
    for method in ("awq", "gptq", "fp8"):
        chosen = recipe.read({"name": "r", "steps": [{"quantize": {"method": method, "group_size": 16}}]})
        step = chosen.steps[0] if method != "fp8" else Quantize(method="fp8")
        assert check.is_valid(model, chosen.model_copy(update={"steps": (step,)}), TargetFacts()), method
    recovered = recipe.read({"name": "r", "steps": [{"prune": {"method": "wanda", "recover": True}}]})
    result = check.check_recipe(model, recovered, TargetFacts())
    assert "leave `recover` out" in result.reasons[0].message and result.suggestion is not None


def test_2_4_is_still_made_for_scoring_on_a_processor() -> None:
    pruned = recipe.read({"name": "r", "steps": [{"prune": {"method": "wanda", "pattern": "2:4"}}]})
    plan = check.check_recipe(narrow(), pruned, TargetFacts()).plan
    assert plan is not None and any("vLLM removed its kernels for 2:4" in note for note in plan.notes)


def test_formats_in_blocks_leave_other_sizes_alone_and_refuse_where_nothing_is_left() -> None:
    # 1. Keys and values of 64 outputs stay 16-bit.
    partly = narrow(hidden_size=256, intermediate_size=512, heads=4, kv_heads=1, head_dim=64)
    plan = verdict(P5, {"method": "fp8_block"}, partly).plan
    assert plan is not None
    assert any("query, key and value matrices stay 16-bit" in note and "128" in note for note in plan.notes)
    # 2. Where every matrix has another size, the methods that take it are named.
    (reason,) = verdict(P5, {"method": "fp8_block"}, narrow(intermediate_size=96)).reasons
    assert "no multiple of 128" in reason.message and reason.message.endswith("use `fp8` or `w8a8`.")


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"method": "nvfp4", "activations": "static"}, "use `activations: dynamic`, or `none`."),
        ({"method": "fp8", "activations": "none"}, "or use int8 for weights alone."),
        ({"method": "nvfp4", "group_size": 32}, "leave out group_size and symmetric."),
        ({"method": "mxfp4", "bits": 8}, "mxfp4 takes 4 bits, not 8: leave `bits` out."),
        ({"method": "mxfp4", "activations": "none"}, "mxfp4 takes no `activations`"),
    ],
)
def test_options_that_a_format_does_not_leave_open_are_refused(step: dict[str, Any], words: str) -> None:
    result = verdict(B200, step)
    assert any(words in reason.message for reason in result.reasons), result.reasons
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


@pytest.mark.parametrize(
    ("where", "step", "kernel"),
    [
        ("ml.p4d.24xlarge", {"method": "awq", "outside_experts": "16-bit"}, "experts: weight-only INT4 (Marlin)"),
        (
            P5,
            {"method": "nvfp4", "outside_experts": "fp8"},
            "experts: weight-only NVFP4 (Marlin); others: FP8 W8A8 (CUTLASS)",
        ),
        (
            B200,
            {"method": "nvfp4", "outside_experts": "fp8_block"},
            "experts: NVFP4 W4A4 (vLLM's NVFP4 experts); others: FP8 W8A8 in blocks (DeepGEMM)",
        ),
    ],
)
def test_experts_and_other_linears_have_kernels_of_their_own(where: str, step: dict[str, Any], kernel: str) -> None:
    result = verdict(where, step, MIXTRAL)
    assert result.plan is not None, result.reasons
    assert result.plan.steps[0].kernel == kernel


def test_a_form_outside_of_experts_is_checked_and_counted_apart() -> None:
    # 1. What the GPU does not serve outside of the experts is refused by that part's name.
    (reason,) = verdict(B200, {"method": "nvfp4", "outside_experts": "w8a8"}, MIXTRAL).reasons
    assert "no kernel for w8a8 outside of experts on ml.p6-b200.48xlarge" in reason.message
    # 2. A dense model has no experts, and a form is not named twice.
    dense = verdict(G5, {"method": "awq", "outside_experts": "16-bit"})
    assert "has none: leave it out." in dense.reasons[0].message
    assert dense.suggestion is not None and dense.suggestion.steps[0].outside_experts is None  # type: ignore[union-attr]
    twice = verdict("ml.p4d.24xlarge", {"method": "w8a8", "outside_experts": "w8a8"}, MIXTRAL)
    assert "gives every linear: leave it out." in twice.reasons[0].message
    # 3. Memory: experts at 4.5 bits beside attention at 16 take more than all at 4.5, and far less than 16 bits.
    mixtral = known(MIXTRAL)
    sizes = [
        serving_memory.weights(mixtral, recipe.read({"name": "r", "steps": [{"quantize": step}]})).total
        for step in ({"method": "nvfp4"}, {"method": "nvfp4", "outside_experts": "16-bit"})
    ]
    attention = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024)
    assert sizes[1] - sizes[0] == pytest.approx(attention * (16 - 4.5) / 8, rel=0.01)


def test_layers_are_fused_and_cut_as_vllm_holds_them() -> None:
    model, step = known(LLAMA), Quantize(method="awq")
    assert kernel_rules.served_layers(model, step, 1) == (
        Layer("query, key and value", 4096, 6144, 4096, parts=(4096, 1024, 1024)),
        Layer("output", 4096, 4096, 4096, parts=(4096,)),
        Layer("up", 4096, 28672, 4096, parts=(14336, 14336)),
        Layer("down", 14336, 4096, 14336, parts=(4096,)),
    )
    assert kernel_rules.served_layers(model, step, 16) == (
        Layer("query, key and value", 4096, 256 + 2 * 128, 4096, parts=(256, 128, 128)),
        Layer("output", 256, 4096, 4096, parts=(4096,)),
        Layer("up", 4096, 1792, 4096, parts=(896, 896)),
        Layer("down", 896, 4096, 14336, parts=(4096,)),
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
    for _, layout, _ in kernel_rules.stored_parts(quantize, chosen, place):
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
