"""What can be compiled for which Neuron instance: architectures, degrees, memory a core, and the plan with its key."""

from __future__ import annotations

from typing import Any

import pytest

from backend.catalog.bundled import instances, published
from backend.domain.machine import compile_keys
from backend.domain.model.facts import ModelFacts
from backend.domain.neuron import compile_plan, cores, software_stacks
from backend.domain.recipe import recipe
from backend.domain.rules import check as compat
from backend.domain.rules.plan import Verdict
from backend.service.machines import targets

COMPILE: dict[str, Any] = {"compile": {}}
INT8 = {"quantize": {"method": "int8"}}
INF2, TRN1, TRN2 = "neuron:ml.inf2.48xlarge", "neuron:ml.trn1.32xlarge", "neuron:ml.trn2.48xlarge"
LLAMA = "meta-textgeneration-llama-3-8b"


def known(name: str) -> ModelFacts:
    match = published.find(name)
    assert match is not None
    return match


def check(
    where: str,
    steps: list[Any],
    model: str | ModelFacts = LLAMA,
    draft: ModelFacts | None = None,
    attached: bool = False,
    **serving: Any,
) -> Verdict:
    card = known(model) if isinstance(model, str) else model
    target = instances.load().find(where)
    assert target is not None
    chosen = recipe.read({"name": "r", "steps": steps, "serving": serving})
    facts = targets.rule_facts(target, card, draft).model_copy(update={"attached": attached})
    verdict = compat.check_recipe(card, chosen, facts)
    if verdict.suggestion is not None:
        assert compat.check_recipe(card, verdict.suggestion, facts).valid
    return verdict


def rules(verdict: Verdict) -> set[str]:
    return {reason.rule for reason in verdict.reasons}


@pytest.mark.parametrize(
    ("where", "cores_there", "gib", "degrees"),
    [
        ("ml.inf2.xlarge", 2, 16, (1, 2)),
        ("ml.inf2.24xlarge", 12, 16, (1, 2, 4, 8)),
        ("ml.inf2.48xlarge", 24, 16, (1, 2, 4, 8, 24)),
        ("ml.trn1.2xlarge", 2, 16, (1, 2)),
        ("ml.trn1.32xlarge", 32, 16, (1, 2, 8, 32)),
        ("ml.trn1n.32xlarge", 32, 16, (1, 2, 8, 32)),
        ("ml.trn2.48xlarge", 64, 24, (1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_cores_memory_a_core_and_degrees_of_each_instance(where: str, cores_there: int, gib: int, degrees: Any) -> None:
    target = instances.load().find(f"neuron:{where}")
    assert target is not None
    device = cores.logical_device(target.device)
    assert (device.units, device.memory_bytes) == (cores_there, gib << 30) and cores.degrees(target.device) == degrees


def test_a_gpu_instance_is_no_neuron_target() -> None:
    with pytest.raises(Exception, match=r"There is no target `neuron:ml.g5.xlarge`"):
        instances.load().find("neuron:ml.g5.xlarge")


@pytest.mark.parametrize(
    ("where", "model_type", "stack"),
    [
        (INF2, "llama", "nxd-inference"),
        (INF2, "qwen3_moe", "nxd-inference"),
        (INF2, "bloom", "transformers-neuronx"),
        (TRN1, "opt", "transformers-neuronx"),
        (TRN2, "llama", "vllm-neuron"),
        (TRN2, "mixtral", "nxd-inference"),
        (INF2, "falcon", None),
        (INF2, "gpt_neox", None),
        (TRN2, "bloom", None),
        (TRN1, "cohere", None),
    ],
)
def test_the_planner_checks_architectures_for_neuron(where: str, model_type: str, stack: str | None) -> None:
    model = known(LLAMA).model_copy(update={"model_type": model_type})
    verdict = check(where, [COMPILE], model, tensor_parallel=8)
    assert ("neuron-family" not in rules(verdict)) == (stack is not None) == verdict.valid
    target = instances.load().find(where)
    assert target is not None and software_stacks.choose_stack(target.device.name, model_type) == stack
    if stack is None:
        reason = verdict.reasons[0]
        assert "MODEL_TYPES" in reason.source and "GPU instance" in reason.message


def test_a_stack_that_does_not_name_the_model_names_the_one_that_does() -> None:
    model = known(LLAMA).model_copy(update={"model_type": "qwen3"})
    verdict = check(INF2, [{"compile": {"stack": "transformers-neuronx"}}], model, tensor_parallel=8)
    assert "use `stack: nxd-inference`" in verdict.reasons[0].message
    assert verdict.suggestion is not None and verdict.suggestion.step("compile").stack is None  # type: ignore[union-attr]
    elsewhere = check(TRN2, [{"compile": {"stack": "transformers-neuronx"}}], tensor_parallel=8)
    assert "does not compile for Trainium2" in elsewhere.reasons[0].message


@pytest.mark.parametrize(("number", "nearest"), [(3, 4), (6, 8), (12, 8), (16, 24), (48, 24)])
def test_a_degree_that_the_runtime_has_not_is_refused_with_the_nearest(number: int, nearest: int) -> None:
    verdict = check(INF2, [COMPILE], tensor_parallel=number)
    assert rules(verdict) == {"tensor-parallel"} and f"the nearest is {nearest}." in verdict.reasons[0].message
    assert verdict.suggestion is not None and verdict.suggestion.serving.tensor_parallel in {1, 2, 4, 8, 24}


def test_memory_is_checked_on_each_core_with_the_nearest_degree() -> None:
    verdict = check(INF2, [COMPILE], tensor_parallel=1)
    assert rules(verdict) == {"memory"} and "set `serving.tensor_parallel: 2`" in verdict.reasons[0].message
    assert verdict.suggestion is not None and verdict.suggestion.serving.tensor_parallel == 2
    large = check("neuron:ml.inf2.xlarge", [COMPILE], "meta-textgeneration-llama-3-70b")
    assert rules(large) == {"memory"} and large.suggestion is None and large.outcome == "does-not-fit"
    assert check(TRN1, [COMPILE], "meta-textgeneration-llama-3-70b", tensor_parallel=32).valid


@pytest.mark.parametrize(
    ("steps", "serving", "rule"),
    [
        ([], {}, "neuron-compile"),
        ([{"quantize": {"method": "awq"}}, COMPILE], {}, "neuron-stack"),
        ([{"speculate": {"method": "ngram"}}, COMPILE], {}, "neuron-stack"),
        ([{"prune": {"method": "wanda"}}, COMPILE], {}, "neuron-stack"),
        ([{"compile": {"optimize_level": 2}}], {}, "neuron-stack"),
        ([{"compile": {"buckets": [128, 512]}}], {"max_model_len": 1024}, "neuron-buckets"),
        ([COMPILE], {"max_model_len": 10**6}, "context"),
    ],
)
def test_what_no_stack_can_is_refused_and_the_nearest_recipe_works(steps: Any, serving: Any, rule: str) -> None:
    verdict = check(INF2, steps, tensor_parallel=8, **serving)
    assert rule in rules(verdict) and verdict.suggestion is not None
    assert verdict.suggestion.step("compile") is not None


def test_options_of_a_neuron_stack_are_refused_elsewhere() -> None:
    for where in ("ml.g5.12xlarge", "sagemaker:ml.inf2.48xlarge"):
        verdict = check(where, [{"compile": {"stack": "nxd-inference", "buckets": [128, 2048]}}])
        assert (
            "neuron-options" in rules(verdict)
            and "`stack`, `buckets`" in verdict.reasons[-1].message + verdict.reasons[0].message
        )
        assert verdict.suggestion is not None


def test_the_plan_of_the_legacy_stack_names_its_successor_and_how_heads_are_padded() -> None:
    verdict = check(INF2, [INT8, {"compile": {"stack": "transformers-neuronx"}}], tensor_parallel=24)
    assert verdict.plan is not None
    text = " ".join(verdict.plan.notes)
    assert "prefer NxD Inference" in text and "32 heads to 48, 8 KV heads to 24" in text and "24 cores" in text


HEAD = known(LLAMA).model_copy(update={"id": "head", "layers": 1, "parameters": 500_000_000})
EAGLE: dict[str, Any] = {"speculate": {"method": "eagle3", "draft": "head", "tokens": 5}}
DRAFT: dict[str, Any] = {"speculate": {"method": "draft", "draft": "head", "tokens": 5}}


@pytest.mark.parametrize(
    ("where", "step", "changes", "message"),
    [
        (INF2, EAGLE, {"max_num_seqs": 4}, None),
        (INF2, DRAFT, {}, None),
        (INF2, DRAFT, {"max_num_seqs": 4}, "for one sequence: set `max_num_seqs: 1`, or use an EAGLE head"),
        (INF2, EAGLE, {"draft": None}, "needs a head that was trained for"),
        (INF2, EAGLE, {"hidden": 64}, "was trained for another model (hidden size 64"),
        (INF2, EAGLE, {"model_type": "qwen2"}, "EAGLE heads for llama, not for qwen2"),
        (TRN2, EAGLE, {}, "only where its device is: use `local:neuron`"),
        (TRN2, EAGLE, {"attached": True}, None),
        (TRN2, DRAFT, {}, "vLLM Neuron compiles no `draft` ahead of time"),
    ],
)
def test_speculation_is_compiled_as_the_vendor_has_it(
    where: str, step: Any, changes: dict[str, Any], message: str | None
) -> None:
    head = HEAD.model_copy(update={"hidden_size": changes.pop("hidden", HEAD.hidden_size)})
    head = changes.pop("draft", head)
    model = known(LLAMA).model_copy(update={"model_type": changes.pop("model_type", "llama")})
    verdict = check(where, [step, COMPILE], model, head, tensor_parallel=8, **changes)
    assert (verdict.plan is None) == (message is not None), verdict
    assert message is None or message in " ".join(reason.message for reason in verdict.reasons)


def test_the_memory_of_a_core_counts_the_draft() -> None:
    large = HEAD.model_copy(update={"layers": 32, "parameters": 8_000_000_000})
    assert check(INF2, [DRAFT, COMPILE], draft=HEAD, tensor_parallel=2, max_model_len=512).valid
    assert rules(check(INF2, [DRAFT, COMPILE], draft=large, tensor_parallel=2, max_model_len=512)) == {"memory"}


def test_a_head_of_ones_own_is_not_for_sagemaker_which_trains_one() -> None:
    own = check("sagemaker:ml.g5.12xlarge", [EAGLE], draft=HEAD)
    assert "speculation-options" in rules(own) and "leave `draft` out" in " ".join(
        reason.message for reason in own.reasons
    )
    assert check("sagemaker:ml.g5.12xlarge", [{"speculate": {"method": "eagle3"}}]).valid


def test_trainium3_is_planned_by_one_accelerator_without_published_instances() -> None:
    target = instances.load().find("neuron:trainium3")
    assert target is not None
    device = cores.logical_device(target.device)
    assert (device.units, device.memory_bytes, cores.degrees(target.device)) == (4, 36 << 30, (1, 2, 4))
    assert check("neuron:trainium3", [COMPILE], tensor_parallel=4).valid
    assert (
        software_stacks.choose_stack("Trainium3", "qwen3") is None
        and software_stacks.choose_stack("Trainium3", "llama") == "vllm-neuron"
    )
    with pytest.raises(Exception, match=r"No source names a SageMaker instance with Trainium3.*`neuron:trainium3`"):
        instances.load().find("neuron:ml.trn3.48xlarge")


def test_one_table_names_the_families_of_stacks_and_of_the_managed_toolkit() -> None:
    assert software_stacks.families("sagemaker") == {
        "bloom",
        "dbrx",
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "gptj",
        "llama",
        "mistral",
        "mixtral",
        "opt",
        "qwen2",
        "qwen3",
        "qwen3_moe",
    }
    assert all(
        stack.model_types == software_stacks.families(name) and stack.model_types
        for name, stack in software_stacks.STACKS.items()
    )


def plan(**serving: Any) -> compile_plan.CompilePlan:
    target = instances.load().find(INF2)
    assert target is not None
    chosen = recipe.read(
        {"steps": [INT8, COMPILE], "serving": {"tensor_parallel": 8, "max_model_len": 1024, **serving}}
    )
    return compile_plan.make_compile_plan(known(LLAMA), chosen, target.device, compiler="2.21")


def test_the_key_changes_with_each_field_and_not_with_the_name() -> None:
    first = plan()
    assert (first.context_buckets, first.dtype, first.weights, first.target) == (
        (128, 256, 512, 1024),
        "bf16",
        "int8",
        "trn1",
    )
    assert first.key == plan().key == first.model_copy(update={"model": "another name"}).key
    changed = [
        ("compiler", "2.22"),
        ("tensor_parallel", 24),
        ("batch", 4),
        ("dtype", "f16"),
        ("weights", None),
        ("cache", "fp8"),
        ("context_buckets", (1024,)),
        ("model_hash", "x"),
        ("optimize_level", 3),
        ("draft_method", "eagle"),
        ("stack", "transformers-neuronx"),
    ]
    for field, value in changed:
        other = first.model_copy(update={field: value})
        assert other.key != first.key
        assert [each.field for each in compile_keys.find_differences(first.fields, other.fields)] == [field]


def test_buckets_double_and_end_at_the_positions() -> None:
    assert compile_plan.doubling_sizes(128, 1000) == [128, 256, 512, 1000] and compile_plan.doubling_sizes(1, 1) == [1]
    assert plan(max_model_len=64).context_buckets == (64,)
