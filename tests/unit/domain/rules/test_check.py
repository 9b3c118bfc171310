"""Which recipe works on which model: every refusal has a reason and a source."""

from __future__ import annotations

from typing import Any

import pytest

from backend.domain.model.facts import ModelCard
from backend.domain.model.shapes import sizes
from backend.domain.model.stored_weights import StoredWeights
from backend.domain.needs import job_duration
from backend.domain.needs import serving_memory as memory
from backend.domain.needs.hardware_rates import processor_rates
from backend.domain.recipe import recipe
from backend.domain.rules import check
from backend.domain.rules.target_facts import TargetFacts
from tests.helpers.checked_cards import card

W8A8 = {"quantize": {"method": "w8a8"}}
AWQ = {"quantize": {"method": "awq"}}
DRAFT = {"speculate": {"method": "draft", "draft": "auto"}}
PRUNE = {"prune": {"method": "wanda", "pattern": "2:4"}}
ZEROS = {"prune": {"method": "wanda"}}
"""Zeros in no pattern, which a GPU is not refused."""


def refusals(model: ModelCard, steps: list[Any], facts: TargetFacts | None = None, **serving: Any) -> list[str]:
    chosen = recipe.read({"name": "r", "steps": steps, "serving": serving})
    return [reason.rule for reason in check.check_recipe(model, chosen, facts or TargetFacts(draft=card())).reasons]


def test_a_family_is_refused_only_by_the_engine_that_does_not_know_it() -> None:
    gpt = card(model_type="gpt_neox")
    assert refusals(gpt, [{"quantize": {"method": "gptq", "engine": "llm-compressor"}}]) == []
    assert refusals(gpt, [{"quantize": {"method": "awq", "engine": "autoawq"}}]) == ["library"]


def test_tokens_are_weighed_for_dense_models_alone() -> None:
    mixture = card(model_type="mixtral", experts=8, experts_per_token=2)
    weighed = {"quantize": {"method": "gptq", "loss_weights": True}}
    assert refusals(card(), [weighed]) == [] and refusals(mixture, [weighed]) == ["loss-weights"]
    chosen = recipe.read({"name": "r", "steps": [weighed]})
    suggestion = check.check_recipe(mixture, chosen, TargetFacts(draft=card())).suggestion
    assert suggestion is not None and suggestion.step("quantize") == recipe.Quantize(method="gptq")


def test_llama_cpp_serves_only_an_unchanged_model_whose_gguf_file_is_kept() -> None:
    """Even without a step: a model of safetensors alone has nothing that llama.cpp reads."""
    with_gguf = card(gguf_kept=True)
    assert refusals(card(), [], engine="llama.cpp") == ["serving-engine"]
    assert refusals(with_gguf, [], engine="llama.cpp") == []
    assert refusals(with_gguf, [{"quantize": {"method": "w8a8"}}], engine="llama.cpp") == ["serving-engine"]


def test_an_open_engine_is_refused_only_where_none_serves_the_recipe() -> None:
    with_gguf = card(gguf_kept=True)
    assert refusals(card(), [], engine="auto") == refusals(with_gguf, [W8A8], engine="auto") == []
    assert refusals(with_gguf, [], engine="auto", kv_cache_dtype="q8_0") == []
    assert refusals(card(), [], engine="auto", kv_cache_dtype="q8_0") == ["serving-engine"]


def quantize(method: str, **options: Any) -> dict[str, Any]:
    return {"quantize": {"method": method, **options}}


def test_only_a_processor_is_said_to_cut_off_an_fp8_cache() -> None:
    def warns_of_cut_off(step: dict[str, Any], hardware: str) -> bool:
        plan = check.check_recipe(
            card(), recipe.read({"name": "r", "steps": [step]}), TargetFacts(hardware=hardware)
        ).plan  # type: ignore[arg-type]
        assert plan is not None
        return any("cuts off what an FP8 cache cannot hold" in note for note in plan.notes)

    assert warns_of_cut_off(quantize("kv_cache"), "cpu") and warns_of_cut_off(quantize("w8a8", kv_cache="fp8"), "cpu")
    assert not warns_of_cut_off(quantize("kv_cache"), "cuda") and not warns_of_cut_off(AWQ, "cpu")


@pytest.mark.parametrize(
    "steps",
    [
        [quantize("rtn", bits=8)],
        [quantize("rtn", clip=True)],
        [quantize("awq", clip=False, format="autoawq")],
        [quantize("gptq", act_order=False)],
        [quantize("gptq", bits=8)],
        [quantize("gptq", awq_scales=True, clip=True)],
        [quantize("smoothquant", strength=0.8, activations="static")],
        [quantize("w8a8", activations="static")],
        [quantize("int8")],
        [quantize("fp8")],
        [quantize("fp8", activations="static", kv_cache="fp8")],
        [quantize("kv_cache")],
        [ZEROS],
        [{"prune": {"method": "sparsegpt", "sparsity": 0.7}}],
        [{"prune": {"method": "magnitude", "pattern": "4:8"}}],
        [ZEROS, quantize("gptq")],
        [ZEROS, AWQ, DRAFT],
        [quantize("fp8_block")],
        [quantize("mxfp8")],
        [quantize("nvfp4", activations="none", kv_cache="fp8")],
        [quantize("mxfp4"), DRAFT],
        [quantize("w4a8_fp8", awq_scales=True)],
    ],
)
def test_every_technique_of_the_native_engine_is_valid_alone_and_stacked(steps: list[Any]) -> None:
    assert refusals(card(), steps) == []
    assert refusals(card(), steps, TargetFacts(draft=card(), hardware="cuda")) == []


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        ("awq-options", [quantize("awq", bits=8)]),
        ("awq-options", [quantize("awq", act_order=True)]),
        ("awq-options", [quantize("awq", strength=0.5)]),
        ("w8a8-options", [quantize("w8a8", clip=True)]),
        ("int8-options", [quantize("int8", symmetric=False)]),
        ("gptq-options", [quantize("gptq", bits=8, symmetric=False)]),
        ("gptq-options", [quantize("gptq", activations="static")]),
        ("kv_cache-options", [quantize("kv_cache", kv_cache="fp8")]),
        ("autoawq-format", [quantize("w8a8", format="autoawq")]),
        ("autoawq-format", [quantize("rtn", bits=8, format="autoawq")]),
        ("autoawq-format", [quantize("awq", kv_cache="fp8", format="autoawq")]),
        ("awq-options", [quantize("awq", target_bits=4)]),
        ("gptq-options", [quantize("gptq", target_bits=16.5)]),
        ("w8a8-options", [quantize("w8a8", target_bits=5)]),
        ("rtn-options", [quantize("rtn", bits=8, target_bits=10, eight_bits="w8a8")]),
        ("mixed-precision", [quantize("awq", eight_bits="w8a8")]),
        ("mixed-precision", [quantize("awq", target_bits=5, format="autoawq")]),
        ("mixed-precision", [quantize("awq", target_bits=5, engine="llm-compressor")]),
        ("pattern", [{"prune": {"method": "wanda", "pattern": "2:4", "sparsity": 0.6}}]),
        ("once", [PRUNE, PRUNE]),
    ],
)
def test_options_that_a_method_does_not_take_are_refused(rule: str, steps: list[Any]) -> None:
    assert refusals(card(), steps) == [rule]
    verdict = check.check_recipe(card(), recipe.read({"steps": steps}), TargetFacts())
    assert verdict.suggestion is not None and check.check_recipe(card(), verdict.suggestion, TargetFacts()).valid


def test_average_bits_out_of_reach_name_the_nearest() -> None:
    def answer_for(**options: Any) -> str:
        verdict = check.check_recipe(card(), recipe.read({"steps": [quantize("awq", **options)]}), TargetFacts())
        assert verdict.suggestion is not None
        return f"{verdict.reasons[0].message} {verdict.suggestion.steps[0].model_dump()['quantize']['target_bits']}"

    assert answer_for(target_bits=4) == (
        "`target_bits: 4` is below 4.16, what 4 bits in groups of 128 take with their scales: use 4.16 or more. 4.16"
    )
    assert answer_for(target_bits=4.2, group_size=32).endswith("use 4.63 or more. 4.63")
    assert answer_for(target_bits=4.1, symmetric=True).endswith("use 4.13 or more. 4.13")
    assert answer_for(target_bits=20) == "`target_bits: 20` is above 16, what the original has: use 16 or less. 16.0"


def test_average_bits_are_planned_for_the_target_and_sized() -> None:
    chosen = recipe.read({"steps": [quantize("awq", target_bits=5)]})
    for hardware, served in (("cpu", "w8a8"), ("cuda", "int8")):
        plan = check.check_recipe(card(), chosen, TargetFacts(hardware=hardware)).plan  # type: ignore[arg-type]
        assert plan is not None and plan.steps[0].options["eight_bits"] == served
        assert plan.steps[0].title == "Quantize to INT4 (AWQ), 5 bits on average"
    stored, plain = (memory.weights(card(), each) for each in (chosen, recipe.read({"steps": [AWQ]})))
    quick = processor_rates(1e12)
    work = [job_duration.job_seconds(card(), each, quick, 0) for each in (recipe.read({"steps": [AWQ]}), chosen)]
    assert work[1][0] > work[0][0] and work[1][1] > work[0][1]
    floored = recipe.read({"steps": [AWQ], "limits": {"max_kl": 0.01, "fall_back": True}})
    tried = job_duration.job_seconds(card(), floored, quick, 0)
    assert tried[0] == work[0][0] and tried[1] > 4 * work[0][1]
    assert stored.linears + stored.scales == sizes(card()).linears * 5 // 8 > plain.linears + plain.scales


@pytest.mark.parametrize(
    ("rule", "steps", "floor"),
    [
        (None, [AWQ], {"max_kl": 0.01}),
        (None, [W8A8], {"max_perplexity_increase": 0.01}),
        ("no-floor", [AWQ], {}),
        ("mixed-precision", [], {"max_kl": 0.01}),
        ("mixed-precision", [quantize("kv_cache")], {"max_kl": 0.01}),
        ("mixed-precision", [quantize("awq", engine="llm-compressor")], {"max_kl": 0.01}),
    ],
)
def test_falling_back_needs_a_floor_and_something_to_raise(
    rule: str | None, steps: list[Any], floor: dict[str, Any]
) -> None:
    chosen = recipe.read({"steps": steps, "limits": {**floor, "fall_back": True}})
    verdict = check.check_recipe(card(), chosen, TargetFacts())
    assert [reason.rule for reason in verdict.reasons] == ([rule] if rule else [])
    if verdict.plan is not None:
        assert verdict.plan.steps[0].options["eight_bits"] == "w8a8"
    else:
        assert verdict.suggestion is not None and check.check_recipe(card(), verdict.suggestion, TargetFacts()).valid


def test_recipes_without_a_fall_back_keep_the_hash_they_had() -> None:
    assert recipe.read({"steps": [AWQ]}).hash == "b441d1920cf30d5160ac72e78731664fc5acbd7da561cd9913bcc49a1366e162"


@pytest.mark.parametrize(
    ("step", "note"),
    [
        (quantize("int8"), "4 bits alone"),
        (quantize("awq", target_bits=5, eight_bits="int8"), "4 bits alone"),
        (quantize("gptq", bits=8), "4 bits alone"),
        (quantize("fp8", activations="static"), "static FP8"),
        (ZEROS, "neither size nor speed gains"),
        (quantize("nvfp4"), "no kernel for NVFP4: the artifact is for a GPU, and `w8a8` is served here"),
        (quantize("fp8_block"), "FP8 in blocks only on processors with AMX"),
    ],
)
def test_what_this_machine_cannot_serve_or_gain_from_is_said_in_the_plan(step: dict[str, Any], note: str) -> None:
    plan = check.check_recipe(card(), recipe.read({"steps": [step]}), TargetFacts(hardware="cpu")).plan
    assert plan is not None and note in " ".join(plan.notes)
    there = check.check_recipe(card(), recipe.read({"steps": [step]}), TargetFacts(hardware="cuda")).plan
    assert there is not None and (note in " ".join(there.notes)) == (step is ZEROS)


@pytest.mark.parametrize(
    ("changes", "step", "note"),
    [
        ({"model_type": "mixtral", "experts": 8}, W8A8, "quantized experts"),
        ({"model_type": "bloom"}, AWQ, "packed weights"),
    ],
)
def test_a_model_that_this_machine_cannot_serve_quantized_is_told_in_the_plan(
    changes: dict[str, Any], step: dict[str, Any], note: str
) -> None:
    for hardware in ("cpu", "cuda"):
        plan = check.check_recipe(card(**changes), recipe.read({"steps": [step]}), TargetFacts(hardware=hardware)).plan
        assert plan is not None and (note in " ".join(plan.notes)) == (hardware == "cpu")


@pytest.mark.parametrize(
    ("step", "served"),
    [
        (W8A8, True),
        (quantize("smoothquant"), True),
        (quantize("w8a8", activations="static"), False),
        (quantize("awq", format="autoawq", group_size=64), True),
        (AWQ, False),
        (quantize("gptq"), False),
    ],
)
def test_experts_are_served_with_amx_where_vllms_kernels_are(step: dict[str, Any], served: bool) -> None:
    facts = TargetFacts(hardware="cpu", features=("amx_int8", "amx_bf16", "avx512_vnni"))
    plan = check.check_recipe(card(model_type="mixtral", experts=8), recipe.read({"steps": [step]}), facts).plan
    assert plan is not None and ("for experts quantized so on this processor" in " ".join(plan.notes)) != served


def test_the_plan_fills_in_what_the_engine_is_asked() -> None:
    def options(step: dict[str, Any]) -> dict[str, Any]:
        plan = check.check_recipe(card(), recipe.read({"steps": [step]}), TargetFacts()).plan
        assert plan is not None
        return plan.steps[0].options

    assert options(quantize("gptq")) == {
        "method": "gptq",
        "bits": 4,
        "symmetric": False,
        "group_size": 128,
        "act_order": True,
        "awq_scales": False,
        "clip": True,
        "loss_weights": False,
        "rotate": False,
    }
    assert options(quantize("rtn", bits=8)) == {
        "method": "rtn",
        "bits": 8,
        "symmetric": True,
        "group_size": 128,
        "clip": False,
        "rotate": False,
    }
    assert options(quantize("int8")) == {"method": "int8", "bits": 8, "symmetric": True}
    assert options(quantize("w8a8", kv_cache="fp8")) == {
        "method": "w8a8",
        "bits": 8,
        "symmetric": True,
        "activations": "dynamic",
        "rotate": False,
        "kv_cache": "fp8",
    }
    assert options(PRUNE) == {"method": "wanda", "sparsity": 0.5, "pattern": "2:4"}


def test_a_family_whose_cache_scales_no_server_reads_is_refused() -> None:
    assert refusals(card(model_type="gpt_neox"), [quantize("w8a8", kv_cache="fp8")]) == ["cache-scales"]
    assert refusals(card(model_type="gpt_neox"), [quantize("kv_cache")]) == ["cache-scales"]
    assert refusals(card(model_type="gpt_neox"), [quantize("w8a8")]) == []


@pytest.mark.parametrize("method", ["llm-int8", "kvquant"])
def test_techniques_that_no_server_runs_are_refused_with_the_reason_and_what_to_use(method: str) -> None:
    verdict = check.check_recipe(card(), recipe.read({"steps": [quantize(method)]}), TargetFacts())
    assert [reason.rule for reason in verdict.reasons] == ["capability"]
    assert "arXiv" in verdict.reasons[0].source and "vLLM 0.32.0" in verdict.reasons[0].message
    assert verdict.suggestion is not None and verdict.suggestion.steps[0].method in {"smoothquant", "kv_cache"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [W8A8],
        [AWQ],
        [DRAFT],
        [W8A8, DRAFT],
        [AWQ, {"speculate": {"method": "ngram"}}],
        [W8A8, {"compile": {}}],
        [W8A8, DRAFT, {"compile": {}}],
        [{"quantize": {"method": "gptq", "engine": "llm-compressor"}}],
        [{"quantize": {"method": "awq", "engine": "autoawq"}}, DRAFT],
    ],
)
def test_every_stack_of_this_version_is_valid(steps: list[Any]) -> None:
    assert refusals(card(), steps) == []


@pytest.mark.parametrize(
    ("rule", "steps", "serving"),
    [
        ("one-weight-quantization", [W8A8, AWQ], {}),
        ("capability", [{"quantize": {"method": "llm-int8"}}], {}),
        ("capability", [{"quantize": {"method": "kvquant"}}], {}),
        ("capability", [{"quantize": {"method": "w8a8", "engine": "autoawq"}}], {}),
        ("library", [{"quantize": {"method": "awq", "engine": "autoawq", "symmetric": True}}], {}),
        ("library", [{"quantize": {"method": "gptq", "engine": "llm-compressor", "bits": 8}}], {}),
        ("library", [{"quantize": {"method": "awq", "engine": "llm-compressor", "format": "autoawq"}}], {}),
        ("library", [PRUNE, {"quantize": {"method": "gptq", "engine": "llm-compressor"}}], {}),
        ("group-size", [{"quantize": {"method": "awq", "group_size": 96}}], {}),
        ("w8a8-options", [{"quantize": {"method": "w8a8", "group_size": 128}}], {}),
        ("once", [DRAFT, DRAFT], {}),
        ("eager-compile", [{"compile": {}}], {"enforce_eager": True}),
        ("context", [], {"max_model_len": 4096}),
    ],
)
def test_a_stack_that_cannot_work_is_refused_by_its_rule(rule: str, steps: list[Any], serving: dict[str, Any]) -> None:
    assert rule in refusals(card(), steps, **serving)


def test_a_draft_with_another_vocabulary_is_refused() -> None:
    assert refusals(card(), [DRAFT], TargetFacts(draft=card(tokenizer_hash="other"))) == ["draft-vocabulary"]
    assert refusals(card(), [DRAFT], TargetFacts(draft=None)) == ["no-draft"]


def test_compile_without_a_compiler_and_a_quantized_model_are_refused() -> None:
    assert refusals(card(), [{"compile": {}}], TargetFacts(compiler=False)) == ["no-compiler"]
    assert refusals(card(quantization="awq"), [W8A8]) == ["already-quantized"]


def test_quantized_weights_are_a_source_where_they_are_read_exactly() -> None:
    fp8 = StoredWeights(layout="FP8 with one scale a matrix", method="fp8", bits=8)
    nf4 = StoredWeights(
        layout="bitsandbytes 4-bit", method="bitsandbytes", bits=4, refusal="there is no reader here for it"
    )
    readable, other = (card(quantization=each.method, stored=each) for each in (fp8, nf4))
    verdict = check.check_recipe(readable, recipe.read({"steps": [W8A8]}), TargetFacts())
    assert verdict.plan is not None and fp8.sentence in verdict.plan.notes
    assert check.check_recipe(readable, recipe.read({"steps": [{"compile": {}}]}), TargetFacts()).plan.notes == ()
    assert refusals(other, [W8A8]) == ["already-quantized"]
    library = {"quantize": {"method": "w8a8", "engine": "llm-compressor"}}
    recovered = {"prune": {"method": "wanda", "recover": {"steps": 10}}}
    for step, words in ((library, "use `engine: native`"), (recovered, "leave `recover` out")):
        reasons = check.check_recipe(readable, recipe.read({"steps": [step]}), TargetFacts()).reasons
        assert any(reason.rule == "already-quantized" and words in reason.message for reason in reasons)
    managed = check.check_recipe(
        readable, recipe.read({"steps": [W8A8]}), TargetFacts(place="managed", hardware="cuda")
    ).reasons
    assert any(reason.rule == "already-quantized" for reason in managed), "the toolkit does not read by our reader"
    compiled = check.check_recipe(
        readable, recipe.read({"steps": [{"compile": {}}]}), TargetFacts(place="neuron", hardware="neuron")
    ).reasons
    assert any("Neuron's libraries do not read" in reason.message for reason in compiled)


def test_steps_out_of_order_are_put_in_order_with_a_note() -> None:
    verdict = check.check_recipe(card(), recipe.read({"steps": [{"compile": {}}, W8A8]}), TargetFacts())
    assert verdict.plan is not None
    assert [step.technique for step in verdict.plan.steps] == ["quantize", "compile"] and verdict.plan.notes
