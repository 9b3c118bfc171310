"""What is said before anything runs: the outlook of a target, where a result is to be served, and corrections by
measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from backend.domain.errors import ImpossibleStack, InvalidRecipe, NotEnoughDisk, UnknownModel
from backend.domain.model.facts import ModelFacts
from backend.domain.planner import estimate_correction
from backend.domain.planner.roofline import ExpectedLoad, Speed
from backend.domain.planner.target_choice import TargetGoal, choose_job_target
from backend.domain.recipe import recipe
from backend.domain.recipe.recipe import Recipe
from backend.hardware import processor_speed
from backend.service import Workspace
from backend.service.jobs import artifact_storage
from backend.service.machines import targets
from backend.service.models import models
from backend.service.plans import auto_target, cases, estimates, optimize, recipe_files
from tests import homes, measured
from tests.helpers.planner_targets import MODELS, RECIPES, known
from tests.properties import examples

W8A8, AWQ, DRAFT = (recipe_files.read_file(Path(name)) for name in ("w8a8", "awq", "w8a8-draft"))
LLAMA = "meta-textgeneration-llama-3-70b"


@pytest.fixture
def opened(tmp_path: Path) -> Workspace:
    return homes.open_home(tmp_path / "home", probed=False)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return homes.open_home(tmp_path_factory.mktemp("outlook"))


def starter(opened: Workspace) -> ModelFacts:
    return models.resolve_facts(opened, "starter")


def test_nothing_is_measured_for_a_page_and_what_is_unknown_says_so(opened: Workspace) -> None:
    estimate = estimates.estimate_one(opened, cases.resolve(opened, starter(opened), W8A8))
    assert estimate.tpot_ms is None and not (opened.settings.cache / processor_speed.FILE).exists()
    assert any(reason.startswith("speed: the memory bandwidth") for reason in estimate.unknown)


def test_a_measurement_of_the_same_model_recipe_and_machine_corrects_the_estimate(
    opened: Workspace,
) -> None:
    measured.probed(opened)
    before = estimates.estimate_one(opened, cases.resolve(opened, starter(opened), W8A8), ExpectedLoad(concurrency=4))
    created = measured.store(opened)
    after = estimates.estimate_one(opened, cases.resolve(opened, starter(opened), W8A8), ExpectedLoad(concurrency=4))
    assert before.calibration is None
    calibration = after.calibration
    assert (
        calibration is not None
        and calibration.evaluation == "e-measured"
        and calibration.measured_at == created.measured_at
    )
    assert calibration.concurrency == 4 and {point.concurrency for point in calibration.points} == {1, 4}
    for point, left in zip(calibration.points, calibration.after, strict=True):
        assert point.measured == left.measured and (point.concurrency != 4 or abs(left.error) < 1e-9)
    assert before.tpot_ms and after.tpot_ms
    assert (
        after.tpot_ms[0] / before.tpot_ms[0] == pytest.approx(calibration.tpot) == after.tpot_ms[1] / before.tpot_ms[1]
    )


def test_the_measured_acceptance_takes_the_place_of_the_assumed_one(opened: Workspace) -> None:
    measured.probed(opened)
    measured.store(opened)
    estimate = estimates.estimate_one(opened, cases.resolve(opened, starter(opened), DRAFT))
    assert (
        estimate is not None
        and estimate.calibration is not None
        and not any("acceptance" in reason for reason in estimate.unknown)
    )


@pytest.mark.parametrize(
    ("name", "hardware"),
    [("w8a8", {"cpu": "another processor"}), ("w8a8", {"cores": 64}), ("draft", {"cpu": "x"})],
)
def test_other_hardware_corrects_nothing(opened: Workspace, name: str, hardware: dict[str, Any]) -> None:
    measured.probed(opened)
    measured.store(opened, **hardware)
    estimate = estimates.estimate_one(
        opened, cases.resolve(opened, starter(opened), recipe_files.read_file(Path(name)))
    )
    assert estimate is not None and estimate.calibration is None


def test_a_recipe_that_was_not_measured_is_corrected_as_the_original(opened: Workspace) -> None:
    """The time to first token rose by a step that does not change it: only the original's was corrected."""
    measured.probed(opened)
    ngram = recipe_files.read_file(Path("ngram"))
    chosen = (Recipe(), ngram)
    before = [estimates.estimate_one(opened, cases.resolve(opened, starter(opened), each)) for each in chosen]
    measured.store(opened)
    original, proposed = (
        estimates.estimate_one(opened, cases.resolve(opened, starter(opened), each)) for each in chosen
    )
    assert original.calibration and not original.calibration.of_original
    assert proposed.calibration and proposed.calibration.of_original
    assert "of the model without steps" in proposed.basis and "without steps" not in original.basis
    # What the step is predicted to change is unchanged by the correction.
    assert original.ttft_ms and proposed.ttft_ms and before[0].ttft_ms and before[1].ttft_ms
    assert proposed.ttft_ms[1] / original.ttft_ms[1] == pytest.approx(before[1].ttft_ms[1] / before[0].ttft_ms[1])
    assert proposed.calibration.ready_seconds is None


def test_the_newest_measurement_counts_and_the_original_has_its_own(opened: Workspace) -> None:
    measured.store(opened, "e-old")
    measured.store(opened, "e-new")
    card = models.resolve(opened, "starter")
    for chosen in (Recipe(), W8A8):
        evaluation = estimates.find_evaluation(opened, card, chosen)
        assert evaluation is not None and evaluation.evaluation == "e-new"
    capped = recipe.read({"steps": [], "serving": {"max_num_seqs": 1}})
    assert estimates.find_evaluation(opened, card, capped) is None, "served otherwise than it was measured"


def test_elsewhere_nothing_is_corrected(opened: Workspace) -> None:
    measured.probed(opened)
    measured.store(opened)
    estimate = estimates.estimate_one(opened, cases.resolve(opened, starter(opened), W8A8, "ml.g5.xlarge"))
    assert estimate is not None and estimate.calibration is None


def test_a_perfect_prediction_is_left_alone() -> None:
    level = next(level for level in measured.document().variants[0].levels)
    assert level.tpot_ms and level.ttft_ms
    speeds = Speed((level.ttft_ms.p50 / 1000,) * 2, (level.tpot_ms.p50 / 1000,) * 2, (level.output_tokens_per_s,) * 2)
    calibration = estimate_correction.calibrate([(speeds, level)], level.concurrency)
    assert (
        calibration is not None
        and calibration.ttft == pytest.approx(1) == calibration.tpot
        and calibration.rate == pytest.approx(1)
    )
    assert all(abs(point.error) < 1e-9 for point in (*calibration.points, *calibration.after))


def test_auto_is_the_target_of_the_result_and_the_job_runs_here(opened: Workspace) -> None:
    spec = homes.prepare(opened, "starter", W8A8, "auto", TargetGoal(wanted="latency")).spec
    assert (
        spec.target == "local" and spec.deployment is not None and spec.deployment.goal == TargetGoal(wanted="latency")
    )
    assert (
        spec.deployment.target
        == cases.resolve(opened, spec.model, W8A8, "auto", TargetGoal(wanted="latency")).target.name
    )
    assert spec.deployment.losers and type(spec).model_validate_json(spec.model_dump_json()) == spec
    stated = homes.prepare(opened, "starter", W8A8, "ml.g5.xlarge").spec
    assert stated.target == "local" and stated.deployment is not None and stated.deployment.target == "ml.g5.xlarge"
    assert homes.prepare(opened, "starter", W8A8).spec.deployment is None


def test_a_preview_of_published_facts_has_a_plan_and_no_job(opened: Workspace) -> None:
    preview = optimize.preview(opened, cases.resolve(opened, known(LLAMA), AWQ, "auto", TargetGoal(wanted="latency")))
    assert preview.spec is None and preview.deployment is not None and preview.deployment.tensor_parallel > 1
    assert "whetstone models import meta-llama/Meta-Llama-3-70B" in preview.where and preview.plan.steps
    with pytest.raises(UnknownModel, match="whetstone models import"):
        homes.prepare(opened, LLAMA, AWQ, "auto")


@pytest.mark.parametrize(
    ("target", "goal", "error", "message"),
    [
        ("sagemaker:ml.g5.12xlarge", None, InvalidRecipe, "runs the job itself"),
        ("auto", TargetGoal(max_tpot_ms=0.0001), ImpossibleStack, "No instance fits"),
        ("ml.inf2.48xlarge", None, ImpossibleStack, "do not run on Inferentia"),
        ("ml.g5.13xlarge", None, InvalidRecipe, "There is no target"),
    ],
)
def test_what_no_job_can_be_for_is_refused_with_the_way_on(
    opened: Workspace, target: str, goal: TargetGoal | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        homes.prepare(opened, "starter", W8A8, target, goal)


def test_the_job_goes_where_it_costs_least_of_those_with_the_memory_for_it(opened: Workspace) -> None:
    """A library engine holds the whole model; the native one a layer at a time, so that the cheapest will do for the
    job too."""
    (step,) = AWQ.steps
    library = AWQ.model_copy(update={"steps": (step.model_copy(update={"engine": "llm-compressor"}),)})
    result, native = (auto_target.choose_target(opened, known(LLAMA), chosen) for chosen in (library, AWQ))
    assert result.job is not None and result.winner is not None
    assert result.winner.job_seconds is None, "the cheapest to serve on has too little memory for the job"
    assert native.winner is not None and native.winner.target == result.winner.target
    assert native.winner.job_seconds is not None
    row = targets.hardwares(opened).instances[result.job.target]
    assert row.ram_gib * 2**30 >= result.winner.memory_bytes
    assert choose_job_target([]) is None and auto_target.choose_target(opened, known(LLAMA), Recipe()).job is None


def test_nothing_is_priced_where_nothing_serves_the_result(opened: Workspace) -> None:
    scored = recipe_files.read_file(Path("w4a4-rotated"))
    result = auto_target.choose_target(opened, known(LLAMA), scored)
    assert result.winner is None and any("for scoring" in loser.why for loser in result.losers)
    assert auto_target.rank_instances(opened, known(LLAMA), scored, ExpectedLoad(), TargetGoal()) == []
    assert auto_target.fitting_instances(opened, known(LLAMA), scored) == []
    # Here it can be made, and the estimate names no speed.
    for name in ("w4a4-rotated", "gptq-3bit"):
        case = cases.resolve(opened, starter(opened), recipe_files.read_file(Path(name)))
        estimate = estimates.estimate_one(opened, case)
        assert case.works and estimate.tpot_ms is None and estimate.price_per_million_output is None
        assert any(reason.startswith("speed: ") and "for scoring" in reason for reason in estimate.unknown)


def test_a_choice_is_made_once_for_the_same_question_and_anew_for_other_prices(opened: Workspace) -> None:
    first = auto_target.choose_target(opened, known(LLAMA), AWQ)
    assert auto_target.choose_target(opened, known(LLAMA), AWQ.model_copy(update={"name": "another"})) is first
    assert auto_target.choose_target(opened, known(LLAMA), W8A8) is not first
    assert first.winner is not None
    dear = targets.hardwares(opened)
    row = dear.instances[first.winner.target].model_copy(update={"sagemaker_usd_per_hour": 1000.0})
    other = dear._replace(instances={**dear.instances, row.name: row})
    request = auto_target._ChoiceInputs(known(LLAMA), AWQ, None, other, ExpectedLoad(), TargetGoal())
    assert auto_target._choose(request).winner != first.winner


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RECIPES, st.sampled_from(MODELS))
def test_auto_has_a_winner_or_says_what_would_work_and_it_does(shared: Workspace, chosen: Recipe, name: str) -> None:
    model = known(name)
    resolved = cases.resolve(shared, model, chosen, "auto")
    assert resolved.choice is not None and len(resolved.choice.losers) == 45 - (resolved.choice.winner is not None)
    if resolved.choice.winner is not None:
        assert (
            resolved.works
            and resolved.verdict.plan is not None
            and resolved.choice.winner.target == resolved.target.name
        )
        assert resolved.choice.winner.tensor_parallel == resolved.verdict.plan.tensor_parallel
    elif not resolved.verdict.valid and resolved.verdict.suggestion is not None:
        where = resolved.verdict.suggestion_target or resolved.target.name
        assert cases.resolve(shared, model, resolved.verdict.suggestion, where).works


def test_old_specifications_without_a_deployment_are_read(opened: Workspace) -> None:
    spec = homes.prepare(opened, "starter", W8A8).spec
    document = json.loads(spec.model_dump_json())
    del document["deployment"]
    assert type(spec).model_validate(document) == spec


def test_a_recipe_without_steps_is_no_job(opened: Workspace) -> None:
    with pytest.raises(InvalidRecipe, match="no steps"):
        optimize.prepare(opened, cases.resolve(opened, starter(opened), Recipe()))


def test_too_little_disk_is_refused_with_what_is_needed_and_free(opened: Workspace) -> None:
    with pytest.raises(NotEnoughDisk, match="GB of disk"):
        artifact_storage.check_disk(opened, 1 << 62)
