"""Build for another target: the estimate in view, why not and what instead, the choice of auto, models without
weights."""

from __future__ import annotations

import pytest

from app import formatting
from app.builder import estimate_figures
from app.builder import target_choice as recipe_target
from app.models import memory_bar
from backend.domain.jobs.jobs import JobState, OptimizeSpec
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.models import models
from backend.service.plans import cases, estimates, recipe_files
from tests import measured, studio
from tests.helpers.planner_targets import known

LLAMA = "meta-textgeneration-llama-3-70b"
AWQ = "name: four\nsteps:\n- quantize: {method: awq}\n"


def test_a_model_without_weights_is_planned_and_its_import_is_one_click_away(studio_home: Workspace) -> None:
    at = studio.open_page("build", model=LLAMA, target="ml.g5.12xlarge", recipe=AWQ, build_streams="1")
    text = studio.says(at)
    assert "Not downloaded" in text and "Import meta-llama/Meta-Llama-3-70B" in studio.links(at)
    assert (
        at.button(key="build_optimize").disabled and "whetstone models import" in at.button(key="build_optimize").help
    )
    assert "39.8 GB (original 141 GB)" in text and "320 KiB" in text and "4 (at least 2)" in text
    for row in (
        "Time to first token",
        "Time per output token",
        "Output tokens/s",
        "USD per million output",
        "Longest context",
    ):
        assert f"| {row} |" in text
    assert "19–41 ms" in text and "7.09 USD per hour" in text and "leviathan" in text.lower()
    assert "memory 27.3 GB, duration unknown" in text and "must run elsewhere" in text, (
        "a layer of it is larger than an A10G"
    )


@pytest.mark.parametrize(
    "target",
    ["local", "local:cpu", "accelerator:rtx4090", "ml.g5.xlarge", "sagemaker:ml.g5.xlarge", "ml.p6-b200.48xlarge"],
)
def test_every_kind_of_target_has_its_estimate(studio_home: Workspace, target: str) -> None:
    at = studio.open_page("build", model="starter", target=target, recipe=AWQ)
    assert not [error for error in at.error if "There is no" in error.value]
    assert "| Weights |" in studio.says(at) and studio.param(at, "target") == target


@pytest.mark.parametrize(
    "target", ["ml.g5.13xlarge", "<script>alert(1)</script>", "local:gpu99", "sagemaker:", ":red[x]", "x" * 900]
)
def test_an_unknown_target_of_the_address_is_one_sentence_and_a_way_back(studio_home: Workspace, target: str) -> None:
    at = studio.open_page("build", model="starter", target=target, recipe=AWQ)
    assert len(at.error) == 1 and at.button(key="build_optimize").disabled and len(at.error[0].value) < 400
    assert studio.param(at, "recipe") == AWQ, "nothing that was built is lost"
    at.button(key="build_target-local").click().run()
    studio.check(at)
    assert studio.param(at, "target") == "local" and not at.error and not at.button(key="build_optimize").disabled


def test_auto_says_what_is_chosen_and_why_the_others_lost(studio_home: Workspace) -> None:
    at = studio.open_page("build", model=LLAMA, target="auto", recipe=AWQ)
    cheapest = cases.resolve(studio_home, known(LLAMA), recipe_files.read_text(AWQ), "auto").target.name
    assert f"**{cheapest} is chosen." in studio.says(at) and len(at.dataframe[0].value) == 44
    quick = studio.open_page("build", model=LLAMA, target="auto", build_goal="latency", recipe=AWQ)
    assert "ml.p5.48xlarge is chosen" in studio.says(quick) and cheapest != "ml.p5.48xlarge"
    assert quick.selectbox(key="build_goal").value == "latency"


def test_auto_where_nothing_will_do_says_so_and_shows_the_nearest(studio_home: Workspace) -> None:
    at = studio.open_page("build", model=LLAMA, target="auto", build_max_tpot_ms="1", recipe=AWQ)
    assert (
        "No instance fits the model and meets the goal" in at.error[0].value
        and at.button(key="build_optimize").disabled
    )
    assert "Time per output token is" in at.dataframe[0].value["Why it lost"][0]
    twice = "name: t\nsteps:\n- quantize: {method: awq}\n- quantize: {method: w8a8}\n"
    at = studio.open_page("build", model=LLAMA, target="auto", recipe=twice)
    assert "quantizes the weights 2 times" in at.error[0].value
    at.button(key="build_nearest").click().run()
    studio.check(at)
    assert "is chosen" in studio.says(at) and not at.error


def test_a_wrong_load_in_the_address_is_as_if_it_were_not_there(studio_home: Workspace) -> None:
    at = studio.open_page(
        "build",
        model=LLAMA,
        target="ml.g5.12xlarge",
        recipe=AWQ,
        build_prompt="many",
        build_streams="-3",
        build_answer="9" * 30,
    )
    assert "622 tokens in, 250 out, 16 streams" in studio.says(at)
    at = studio.open_page(
        "build", model=LLAMA, target="ml.g5.12xlarge", recipe=AWQ, build_prompt="100000", build_streams="8"
    )
    assert "8,182 tokens in, 10 out, 8 streams" in studio.says(at)
    assert "A request of your load has 100,128 tokens, more than this model takes" in at.warning[0].value


def test_what_does_not_fit_is_told_once(studio_home: Workspace) -> None:
    at = studio.open_page("build", model=LLAMA, recipe=AWQ)
    assert studio.says(at).count("does not fit on") == 1 and "Rule memory. Source: " in studio.says(at)
    assert "more, below" not in at.error[0].value


def test_what_cannot_be_had_there_can_be_had_elsewhere_by_one_click(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", target="ml.inf2.48xlarge", recipe=AWQ)
    assert "do not run on Inferentia" in at.error[0].value and "Rule no-engine" in studio.says(at)
    at.button(key="build_nearest").click().run()
    studio.check(at)
    assert studio.param(at, "target") == "sagemaker:ml.inf2.48xlarge" and not at.error
    assert recipe_files.read_text(studio.param(at, "recipe")).steps[0].technique == "compile"
    assert at.button(key="build_optimize").disabled and "needs the role" in at.button(key="build_optimize").help


def test_an_order_that_was_put_right_is_a_note(studio_home: Workspace) -> None:
    turned = "name: t\nsteps:\n- compile: {}\n- quantize: {method: awq}\n"
    at = studio.open_page("build", model=LLAMA, target="ml.g5.12xlarge", recipe=turned)
    assert "quantize, compile" in studio.says(at) and not at.error


def test_the_job_runs_here_and_keeps_where_its_result_is_to_be_served(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", target="auto", recipe=AWQ)
    assert "The job runs on this machine" in studio.says(at)
    at.button(key="build_optimize").click().run()
    studio.check(at)
    (created,) = jobs.listing(studio_home)
    spec = OptimizeSpec.model_validate(jobs.specification(studio_home, created.id))
    assert spec.target == "local" and spec.deployment is not None
    assert spec.deployment.target == cases.resolve(studio_home, spec.model, spec.recipe, "auto").target.name


def test_this_machine_is_not_measured_while_a_job_runs_and_speed_is_known_after(studio_home: Workspace) -> None:
    running = studio.optimize_job(studio_home, JobState.RUNNING)
    at = studio.open_page("build", model="starter", recipe="w8a8")
    assert "Speed is unknown until" in studio.says(at)
    at.button(key="build_measure-here").click().run()
    studio.check(at)
    assert running.title in at.error[0].value and "is running" in at.error[0].value
    measured.probed(studio_home)
    text = studio.says(studio.open_page("build", model="starter", recipe="w8a8"))
    assert "| Time per output token |" in text and "Not measured." in text


def test_an_evaluation_of_the_same_recipe_here_corrects_it_with_its_error(studio_home: Workspace) -> None:
    measured.probed(studio_home)
    measured.store(studio_home)
    at = studio.open_page("build", model="starter", recipe="w8a8", build_streams="4")
    text = studio.says(at)
    assert "Calibrated by a measurement of 2026-11-21 04:02:" in text and "at 4 streams" in text
    assert "Evaluation e-measured" in studio.links(at)
    assert "then 0 %" in text and "1 stream: first token" in text and "nearest measured level" not in text
    text = studio.says(studio.open_page("build", model="starter", recipe="w8a8"))
    assert "Your load is 16 users, 622/250 tokens: the correction is that of the nearest measured level." in text


def test_the_bar_shows_all_of_a_device_and_says_it_in_words(studio_home: Workspace) -> None:
    estimate = estimates.estimate_one(
        studio_home, cases.resolve(studio_home, known(LLAMA), recipe_files.read_text(AWQ), "ml.g5.12xlarge")
    )
    assert sum(part.bytes for part in memory_bar.parts(estimate)) == estimate.device_bytes
    html = memory_bar.html(estimate, "dark")
    assert html is not None and "Estimated memory of one of 4 devices" in html and "weights 9.94 GB" in html
    small = estimates.estimate_one(
        studio_home,
        cases.resolve(studio_home, models.resolve_facts(studio_home, "starter"), recipe_files.read_text(AWQ)),
    )
    assert memory_bar.html(small, "light") is None, "an empty bar says nothing"


def test_ranges_are_written_with_their_unit_and_unknown_is_a_word() -> None:
    assert (
        formatting.range_text((36.2, 73.4), "ms") == "36–73 ms" and formatting.range_text((5.0, 5.01), "ms") == "5.0 ms"
    )
    assert formatting.range_text(None, "ms") == estimate_figures.size_range(None) == "unknown"
    assert (
        estimate_figures.size_range((1.14e9, 1.84e9)) == "1.14–1.84 GB"
        and estimate_figures.size_range((9e8, 1e9)) == "900 MB–1 GB"
    )


def test_every_target_that_is_offered_is_one(studio_home: Workspace) -> None:
    offered = recipe_target.target_labels(studio_home)
    assert len(offered) > 100
    chosen = recipe_files.read_text("name: o\nsteps: []\n")
    for name in ("local", "auto", "ml.trn2.48xlarge", "accelerator:h200", "sagemaker:ml.g4dn.xlarge"):
        assert name in offered and cases.resolve(studio_home, known(LLAMA), chosen, name).target_name == name
