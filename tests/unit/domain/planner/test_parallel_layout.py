"""What is paid for is used: all accelerators of an instance, in one piece or in replicas, and what is idle is said.

What does not fit has an outcome of its own, with what would fit, and no negative sizes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.domain.needs import parallel_layout, serving_memory
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.recipe import recipe
from backend.domain.recipe.recipe import Recipe
from backend.hardware import probe
from backend.service import Workspace
from backend.service.models import models
from backend.service.plans import auto_target, cases, estimates, optimize
from tests.helpers.planner_targets import known, target
from tests.homes import open_home

AWQ = recipe.read({"steps": [{"quantize": {"method": "awq"}}]})
SMALL_MEMORY = 1 << 30
"""Of a machine smaller than any that runs the tests: what does not fit into it needs little disk here."""
BYTES_A_LAYER = 1_247_000
"""Of 2.4 M parameters at 4 bits with the scales of AWQ."""
LLAMA_8B, LLAMA_70B = "meta-textgeneration-llama-3-8b", "meta-textgeneration-llama-3-70b"
FOUR = "ml.g5.12xlarge"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_home(tmp_path)


def estimated(workspace: Workspace, name: str, chosen: Recipe, where: str = FOUR, streams: int = 16) -> Estimate:
    case = cases.resolve(workspace, known(name), chosen, where)
    return estimates.estimate_one(workspace, case, ExpectedLoad(concurrency=streams))


def over(degree: int) -> Recipe:
    return AWQ.model_copy(update={"serving": AWQ.serving.model_copy(update={"tensor_parallel": degree})})


def test_a_model_that_needs_two_of_four_is_cut_over_all_four(workspace: Workspace) -> None:
    every, two = (estimated(workspace, LLAMA_70B, chosen) for chosen in (AWQ, over(2)))
    assert (every.tensor_parallel, every.replicas, every.idle) == (4, 1, 0)
    assert every.price_per_million_output and two.price_per_million_output
    assert every.price_per_million_output[1] < 0.65 * two.price_per_million_output[1]


def spread(**settings: object) -> Recipe:
    return AWQ.model_copy(update={"serving": AWQ.serving.model_validate(settings)})


def test_pipeline_stages_hold_a_part_of_the_layers_each(workspace: Workspace) -> None:
    staged, cut = (estimated(workspace, LLAMA_70B, spread(**one)) for one in (STAGES, {"tensor_parallel": 4}))
    assert (staged.tensor_parallel, staged.pipeline_parallel, staged.replicas, staged.idle) == (1, 4, 1, 0)
    assert staged.weights_per_device == pytest.approx(cut.weights_per_device, rel=0.01)
    assert staged.tpot_ms and cut.tpot_ms and staged.tpot_ms[0] > cut.tpot_ms[0], "one stage after the other"
    case = cases.resolve(workspace, known(LLAMA_70B), spread(**STAGES), FOUR)
    assert case.verdict.plan is not None and "4 accelerators: 4 pipeline stages." in case.verdict.plan.notes


def test_copies_share_the_accelerators_that_are_there(workspace: Workspace) -> None:
    copied = estimated(workspace, LLAMA_8B, spread(tensor_parallel=2, data_parallel=2))
    assert (copied.tensor_parallel, copied.replicas, copied.idle) == (2, 2, 0)


STAGES = {"pipeline_parallel": 4}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pipeline_parallel": 8}, "pipeline_parallel 8 needs 8 devices and ml.g5.12xlarge has 4: lower it."),
        (
            {"tensor_parallel": 2, "data_parallel": 4},
            "tensor_parallel 2 x data_parallel 4 needs 8 devices and ml.g5.12xlarge has 4: lower one of them.",
        ),
        ({"pipeline_parallel": 64}, "pipeline_parallel 64 is more than the 32 layers of"),
        ({"expert_parallel": True}, "expert_parallel goes with a mixture of experts, and"),
    ],
)
def test_what_cannot_be_spread_says_why(workspace: Workspace, settings: dict[str, object], message: str) -> None:
    reasons = cases.resolve(workspace, known(LLAMA_8B), spread(**settings), FOUR).verdict.reasons
    assert any(message in reason.message for reason in reasons), reasons


def test_experts_are_spread_over_more_than_one_device(workspace: Workspace) -> None:
    mixtral = known("huggingface-llm-mixtral-8x7b")
    alone, two = (
        cases.resolve(workspace, mixtral, spread(expert_parallel=True, **more), FOUR).verdict
        for more in ({}, {"tensor_parallel": 4})
    )
    assert any("set one above 1" in reason.message for reason in alone.reasons) and two.valid, two.reasons


def test_a_degree_that_leaves_accelerators_idle_says_so(workspace: Workspace) -> None:
    case = cases.resolve(workspace, known(LLAMA_70B), over(2), FOUR)
    assert case.verdict.plan is not None and estimated(workspace, LLAMA_70B, over(2)).idle == 2
    (note,) = [note for note in case.verdict.plan.notes if "accelerators" in note]
    assert (
        note == "4 accelerators: tensor parallel 2, 2 of 4 accelerators idle: `serving.tensor_parallel: 4` would use 4."
    )


def test_a_model_that_fits_on_one_is_copied_to_all(workspace: Workspace) -> None:
    one, four = (estimated(workspace, LLAMA_8B, AWQ, where, 64) for where in ("ml.g5.xlarge", FOUR))
    assert (four.tensor_parallel, four.replicas, four.idle) == (1, 4, 0)
    assert one.output_tokens_per_s and four.output_tokens_per_s and one.max_batch and four.max_batch
    assert four.output_tokens_per_s[0] / one.output_tokens_per_s[0] > 2 and four.max_batch == 4 * one.max_batch
    assert four.max_context == one.max_context, "one sequence lies on one replica"
    alone = [estimated(workspace, LLAMA_8B, AWQ, where, 1).output_tokens_per_s for where in ("ml.g5.xlarge", FOUR)]
    assert alone[0] == alone[1], "one stream keeps one replica busy"


def test_replicas_have_all_streams_between_them(workspace: Workspace) -> None:
    uneven, even = (estimated(workspace, LLAMA_8B, AWQ, FOUR, streams) for streams in (5, 4))
    assert uneven.output_tokens_per_s and even.output_tokens_per_s and uneven.ttft_ms and even.ttft_ms
    assert uneven.ttft_ms[1] > even.ttft_ms[1] and uneven.ttft_ms[0] == even.ttft_ms[0]


@pytest.mark.parametrize("name", [LLAMA_8B, LLAMA_70B, "huggingface-llm-falcon-7b-bf16"])
@pytest.mark.parametrize("where", [FOUR, "ml.p4d.24xlarge", "ml.g5.48xlarge"])
def test_no_default_leaves_anything_idle(name: str, where: str) -> None:
    model, device = known(name), target(where).device
    default_layout = parallel_layout.default_layout(
        model, Recipe(), device, tokens=2048
    ) or parallel_layout.default_layout(model, AWQ, device, tokens=2048)
    assert default_layout is not None and default_layout.idle == 0 and default_layout.memory.holds(2048)


def test_what_does_not_fit_is_an_outcome_of_its_own_with_what_would(workspace: Workspace) -> None:
    case = cases.resolve(workspace, known("meta-llama/Llama-3.1-405B"), Recipe(), "local")
    assert case.verdict.outcome == "does-not-fit" and not case.works
    (reason,) = case.verdict.reasons
    assert reason.rule == "memory" and "811.7 GB of weights" in reason.message and "this machine" in reason.message
    assert reason.source == serving_memory.FORMULA
    fitting_instances = auto_target.fitting_instances(workspace, case.model, case.recipe)
    prices = [each.price_per_hour for each in fitting_instances if each.price_per_hour is not None]
    assert fitting_instances and prices == sorted(prices)
    assert all(cases.resolve(workspace, case.model, case.recipe, each.target).works for each in fitting_instances)


def test_a_smaller_recipe_is_suggested_where_one_fits(workspace: Workspace) -> None:
    verdict = cases.resolve(workspace, known(LLAMA_70B), Recipe(), FOUR).verdict
    assert verdict.outcome == "does-not-fit" and verdict.suggestion is not None and verdict.suggestion.step("quantize")


def test_what_is_wrong_besides_is_refused_and_what_works_is_valid(workspace: Workspace) -> None:
    wrong = recipe.read({"steps": [{"quantize": {"method": "awq", "group_size": 100}}]})
    assert cases.resolve(workspace, known(LLAMA_70B), wrong, "ml.g5.xlarge").verdict.outcome == "refused"
    assert cases.resolve(workspace, models.resolve_facts(workspace, "starter"), Recipe()).verdict.outcome == "valid"


def test_no_estimate_has_a_negative_cache() -> None:
    room = serving_memory.device_memory(known(LLAMA_70B), Recipe(), target("ml.g5.xlarge").device, 1)
    assert room.cache[0] < 0 and room.tokens == (0, 0)


def test_what_is_served_elsewhere_need_not_fit_here(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job reads a layer at a time, so a small machine makes what a large one serves."""
    monkeypatch.setattr(probe, "total_memory", lambda: SMALL_MEMORY)
    card = models.resolve_facts(workspace, "starter")
    layers = 2 * SMALL_MEMORY // BYTES_A_LAYER
    large = card.model_copy(update={"layers": layers, "parameters": layers * 2_400_000})
    here = cases.resolve(workspace, large, AWQ)
    assert here.verdict.outcome == "does-not-fit"
    created = optimize.prepare(workspace, cases.resolve(workspace, large, AWQ, "ml.p4d.24xlarge"))
    assert created.spec.deployment is not None and created.spec.plan.steps
