"""The roofline's laws, the calibration by measurements, the choice of an instance, and the estimate as tools read
it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.catalog.bundled import instances, published
from backend.catalog.bundled import models as bundled
from backend.domain.errors import ImpossibleStack, UnknownModel
from backend.domain.evaluation.document import Level
from backend.domain.machine.device import Device
from backend.domain.model.facts import ModelFacts
from backend.domain.needs import hardware_rates, job_duration
from backend.domain.planner import estimate_correction, roofline
from backend.domain.planner.roofline import ExpectedLoad, Speed
from backend.domain.planner.target_choice import TargetChoice, TargetGoal
from backend.domain.recipe import recipe
from backend.domain.recipe.recipe import Recipe
from backend.hardware import probe, processor_speed
from backend.service import Workspace
from backend.service.models import models
from backend.service.plans import auto_target, cases, estimates
from benchmarks import planner
from tests.homes import open_home

W8A8 = recipe.read({"steps": [{"quantize": {"method": "w8a8"}}]})
AWQ = recipe.read({"steps": [{"quantize": {"method": "awq"}}]})
DRAFT = recipe.read({"steps": [{"speculate": {"method": "draft", "draft": "auto"}}]})
NGRAM = recipe.read({"steps": [{"speculate": {"method": "ngram"}}]})


def known(name: str) -> ModelFacts:
    match = published.find(name)
    assert match is not None
    return match


def predicted(
    name: str, chosen: Recipe, target: str, degree: int, load: ExpectedLoad | None = None, **more: Any
) -> Speed:
    where = instances.load().find(target)
    assert where is not None
    model = known(name)
    draft = published.find(model.draft) if model.draft and chosen.step("speculate") else None
    cached = more.pop("held", None)
    scenario = roofline.make_scenario(model, chosen, where.device, degree, load or ExpectedLoad(), draft=draft, **more)
    assert scenario is not None
    return roofline.speed(scenario, cached)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_home(tmp_path)


@given(st.floats(0, 0.999), st.integers(1, 16))
def test_tokens_of_a_pass_are_the_geometric_series(acceptance: float, drafted: int) -> None:
    assert roofline.tokens_per_pass(acceptance, drafted) == pytest.approx(
        sum(acceptance**i for i in range(drafted + 1))
    )


@given(st.floats(0.01, 0.99), st.integers(1, 16))
def test_acceptance_is_found_again_from_what_servers_report(acceptance: float, drafted: int) -> None:
    rate = (roofline.tokens_per_pass(acceptance, drafted) - 1) / drafted
    assert roofline.acceptance_from_rate(rate, drafted) == pytest.approx(acceptance, abs=1e-6)


def test_everything_accepted_gives_one_token_more_than_was_drafted() -> None:
    assert roofline.tokens_per_pass(1.0, 4) == 5 and roofline.tokens_per_pass(0.0, 4) == 1


def test_decoding_a_large_model_is_its_weights_over_the_bandwidth() -> None:
    """Llama 2 7B in 16 bit on one A10G: 13.2 GB without the embedding table at 600 GB/s is 22 ms, before any
    efficiency."""
    prediction = predicted("meta-textgeneration-llama-2-7b", Recipe(), "ml.g5.xlarge", 1)
    ideal = (13.477e9 - 32000 * 4096 * 2 + 576 * 524288) / 600e9
    assert prediction.tpot[0] == pytest.approx(ideal / 0.9, rel=0.02) and prediction.tpot[1] == pytest.approx(
        ideal / 0.5, rel=0.08
    )


def test_fewer_bits_decode_faster_and_prefill_no_slower() -> None:
    original, awq = (
        predicted("meta-textgeneration-llama-3-8b", chosen, "ml.g5.12xlarge", 1) for chosen in (Recipe(), AWQ)
    )
    assert awq.tpot[1] < original.tpot[0] and awq.ttft[0] <= original.ttft[0]


def test_int4_is_no_gain_where_the_processor_unpacks_it() -> None:
    device = Device("cpu", "cpu", 1, 64 << 30, 40e9, 1e12, measured=True, instructions="vnni")
    llama = known("meta-textgeneration-llama-3-8b")
    scenarios = [roofline.make_scenario(llama, chosen, device, 1, ExpectedLoad()) for chosen in (Recipe(), AWQ, W8A8)]
    original, awq, w8a8 = (roofline.speed(scenario).tpot for scenario in scenarios if scenario)
    assert awq[0] > original[0] and w8a8[1] < original[1]


def test_more_devices_decode_faster_but_never_by_their_number() -> None:
    one, eight = (predicted("meta-textgeneration-llama-3-8b", Recipe(), "ml.p4d.24xlarge", degree) for degree in (1, 8))
    assert all(1 < a / b < 8 for a, b in zip(one.tpot, eight.tpot, strict=True))


def test_a_good_draft_gains_and_one_that_is_never_accepted_costs() -> None:
    original = predicted("meta-textgeneration-llama-3-70b", Recipe(), "ml.p4de.24xlarge", 8)
    good = predicted("meta-textgeneration-llama-3-70b", DRAFT, "ml.p4de.24xlarge", 8, acceptance=0.8)
    useless = predicted("meta-textgeneration-llama-3-70b", DRAFT, "ml.p4de.24xlarge", 8, acceptance=0.0)
    assert good.tpot[0] < original.tpot[0] and useless.tpot[0] > original.tpot[0]


def test_a_schedule_proposes_by_streams_and_heads_proposing_at_once_cost_one_pass() -> None:
    def decoded(streams: int, **step: Any) -> float:
        chosen = recipe.read({"steps": [{"speculate": step}] if step else []})
        load = ExpectedLoad(concurrency=streams)
        return predicted("meta-textgeneration-llama-3-70b", chosen, "ml.p4de.24xlarge", 8, load, acceptance=0.8).tpot[0]

    scheduled: dict[str, Any] = {"method": "draft", "draft": "auto", "tokens_by_batch": {1: 4, 8: 0}}
    assert decoded(1, **scheduled) == decoded(1, method="draft", draft="auto")
    assert decoded(8, **scheduled) == decoded(8)
    assert decoded(1, method="medusa", draft="d") < decoded(1, method="eagle", draft="d")


def test_adaptive_n_grams_cost_nothing_at_worst_and_plain_ones_their_rows() -> None:
    plain, fixed, adaptive = (
        predicted("meta-textgeneration-llama-3-70b", recipe.read({"steps": steps}), "ml.p4de.24xlarge", 8).tpot
        for steps in ([], *([{"speculate": {"method": method, "tokens": 4}}] for method in ("ngram", "ngram_adaptive")))
    )
    assert adaptive == (fixed[0], plain[1])
    assert fixed[1] > plain[1]


def test_only_the_experts_that_a_batch_touches_are_read() -> None:
    assert roofline.expert_share((8, 2), 1) == 0.25 and roofline.expert_share((8, 2), 100) == pytest.approx(1, abs=1e-9)
    mixtral = predicted("huggingface-llm-mixtral-8x7b", Recipe(), "ml.p4de.24xlarge", 8)
    dense = predicted("meta-textgeneration-llama-codellama-34b", Recipe(), "ml.p4de.24xlarge", 8)
    assert mixtral.tpot[0] < dense.tpot[0], "46.7B parameters of which a token uses 12.9B, against 33.7B"


@given(st.integers(1, 64), st.integers(16, 4096), st.integers(1, 512))
def test_ranges_are_ranges_and_streams_never_slow_the_whole(streams: int, tokens_in: int, tokens_out: int) -> None:
    load = ExpectedLoad(input_tokens=tokens_in, output_tokens=tokens_out, concurrency=streams)
    prediction = predicted("meta-textgeneration-llama-3-8b", Recipe(), "ml.g6.12xlarge", 2, load)
    assert all(0 < low <= high for low, high in prediction)
    more = predicted(
        "meta-textgeneration-llama-3-8b",
        Recipe(),
        "ml.g6.12xlarge",
        2,
        load.model_copy(update={"concurrency": streams + 1}),
    )
    assert more.output_tokens_per_s[1] >= 0.999 * prediction.output_tokens_per_s[1]


def test_what_the_cache_cannot_hold_waits() -> None:
    load = ExpectedLoad(concurrency=16)
    free, reserved = (
        predicted("meta-textgeneration-llama-3-8b", Recipe(), "ml.g5.xlarge", 1, load, held=n) for n in (None, (4, 4))
    )
    assert reserved.ttft[1] > free.ttft[1] and reserved.output_tokens_per_s[1] < free.output_tokens_per_s[1]


def test_without_rates_or_without_a_draft_the_speed_is_unknown() -> None:
    bare = Device("gpu", "cuda", 1, 24 << 30)
    assert roofline.make_scenario(known("meta-textgeneration-llama-3-8b"), Recipe(), bare, 1, ExpectedLoad()) is None
    rates = bare._replace(bandwidth=1e12, flops=1e14)
    assert roofline.make_scenario(known("meta-textgeneration-llama-3-8b"), DRAFT, rates, 1, ExpectedLoad()) is None
    assert roofline.make_scenario(known("meta-textgeneration-llama-3-8b"), NGRAM, rates, 1, ExpectedLoad()) is not None


def measured_levels(variant: str) -> list[Level]:
    document = json.loads((planner.RESULTS / "headline.json").read_text())
    return [
        Level.model_validate(level) for row in document["variants"] if row["name"] == variant for level in row["levels"]
    ]


def test_a_calibrated_prediction_meets_the_measurement_it_was_calibrated_by() -> None:
    device = Device("cpu", "cpu", 1, 24 << 30, 30e9, 0.5e12, measured=True)
    card = planner.wide_card(457_000_000)
    pairs = [(planner.prediction(card, Recipe(), device, level, None), level) for level in measured_levels("wide")]
    calibration = estimate_correction.calibrate(pairs, concurrency=5)
    assert calibration is not None and calibration.concurrency == 4, "the level nearest to what is asked"
    again = estimate_correction.compare_prediction(calibration.correct(pairs[1][0]), pairs[1][1])
    assert {point.metric for point in again} == {
        estimate_correction.TTFT,
        estimate_correction.TPOT,
        estimate_correction.RATE,
    }
    assert all(abs(point.error) < 1e-9 for point in again)
    assert {point.concurrency for point in calibration.points} == {1, 4, 8}, "the error is told at every level"
    assert estimate_correction.calibrate([], 1) is None


def test_the_wide_fixture_is_predicted_within_30_percent_from_probed_bandwidth() -> None:
    """27.4 GB/s through weights and 0.45 TFLOP/s: benchmarks/results/planner.md, an hour after the headline."""
    device = Device("cpu", "cpu", 1, 24 << 30, 27.4e9, 0.45e12, measured=True)
    level = next(level for level in measured_levels("wide") if level.concurrency == 1)
    points = estimate_correction.compare_prediction(
        planner.prediction(planner.wide_card(457_000_000), Recipe(), device, level, None), level
    )
    decode = next(point for point in points if point.metric == estimate_correction.TPOT)
    assert abs(decode.error) < 0.3


def write_attempts(cache: Path, *attempts: tuple[float, bool]) -> None:
    """What (GB/s through weights, busy) measurements left behind."""
    rows = [
        {"bandwidth": 60e9, "weights": rate * 1e9, "flops": 1e12, "at": "2026-11-21", "busy": busy}
        for rate, busy in attempts
    ]
    (cache / processor_speed.FILE).write_text(json.dumps({"processor": processor_speed._key(), "attempts": rows}))


@pytest.mark.parametrize("attempts", [[(30, False), (40, False), (35, False)], [(40, True), *[(30, True)] * 8]])
def test_the_probe_keeps_the_best_of_three_quiet_attempts_or_of_nine(
    attempts: list[tuple[float, bool]], tmp_path: Path
) -> None:
    write_attempts(tmp_path, *attempts)
    assert processor_speed.processor_speed(tmp_path).weights == 40e9
    result = processor_speed.find_measured(tmp_path)
    assert result is not None and result.attempts == len(attempts), "not measured again"


@pytest.mark.process
def test_a_busy_attempt_is_made_up_for_and_a_damaged_file_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor_speed, "MOST_BYTES", 32 << 20)  # what it comes to is not what is tested
    write_attempts(tmp_path, (30, False), (1, True), (35, False))
    assert processor_speed.processor_speed(tmp_path).weights >= 35e9
    result = processor_speed.find_measured(tmp_path)
    assert result is not None and result.attempts == 4
    (tmp_path / processor_speed.FILE).write_text("{")
    assert processor_speed.find_measured(tmp_path) is None
    assert all(rate > 1e8 for rate in processor_speed.processor_speed(tmp_path))


def test_the_arrays_of_the_probe_are_four_times_the_last_level_caches(tmp_path: Path) -> None:
    for cpu, shared in enumerate(("0-1", "0-1", "2-3", "2-3")):
        index = tmp_path / f"cpu{cpu}" / "cache" / "index3"
        index.mkdir(parents=True)
        (index / "size").write_text("65536K\n")
        (index / "shared_cpu_list").write_text(f"{shared}\n")
    most = min(processor_speed.MOST_BYTES, probe.total_memory() // processor_speed.MEMORY_SHARE)
    assert processor_speed.array_bytes(tmp_path) == min(4 * 2 * (64 << 20), most), "two caches, each of two processors"
    assert processor_speed.array_bytes(tmp_path / "none") == min(processor_speed.LEAST_BYTES, most)


def test_the_kernels_of_the_probe_take_turns() -> None:
    observed: list[str] = []
    seconds = processor_speed.time_fastest([lambda: observed.append("a"), lambda: observed.append("b")])
    assert all(time > 0 for time in seconds)
    assert (
        "".join(observed) == "ab" + ("a" * processor_speed.RUNS + "b" * processor_speed.RUNS) * processor_speed.ROUNDS
    )


def test_a_job_of_the_starter_takes_about_as_long_as_it_was_seen_to() -> None:
    """w8a8 of the starter took 9.6 and 10.8 s on this kind of machine."""
    card = bundled.card("starter")
    assert card is not None
    least, most = job_duration.job_seconds(card, W8A8, hardware_rates.processor_rates(0.9e12), 2 * card.weights_bytes)
    assert least < 9.6 < 10.8 < most < 120


def test_a_managed_70b_job_takes_hours_and_speculation_takes_none(workspace: Workspace) -> None:
    estimate = estimates.estimate_one(
        workspace, cases.resolve(workspace, known("meta-textgeneration-llama-3-70b"), AWQ, "sagemaker:ml.g5.12xlarge")
    )
    assert (
        estimate.job_seconds is not None
        and estimate.job_seconds[0] < 2 * 3600 < estimate.job_seconds[1]
        and estimate.job_cost is None
    )
    none = estimates.estimate_one(
        workspace, cases.resolve(workspace, known("meta-textgeneration-llama-3-8b"), DRAFT, "sagemaker:ml.g5.12xlarge")
    )
    assert none.job_seconds == none.job_cost == (0.0, 0.0)


def choice(workspace: Workspace, name: str, chosen: Recipe, **goal: Any) -> TargetChoice:
    return auto_target.choose_target(workspace, known(name), chosen, TargetGoal(**goal))


def test_auto_takes_the_cheapest_that_fits_and_says_why_the_others_lost(workspace: Workspace) -> None:
    result = choice(workspace, "meta-textgeneration-llama-3-8b", Recipe())
    assert result.winner is not None and result.winner.target == "ml.g6.xlarge"
    assert len(result.losers) == 44 and all(loser.why.endswith(".") for loser in result.losers)
    cheaper = [
        loser
        for loser in result.losers
        if loser.price_per_hour and loser.price_per_hour < (result.winner.price_per_hour or 0)
    ]
    assert all("against" not in loser.why for loser in cheaper), "a cheaper one lost because it cannot, not on price"
    assert any("do not run on Inferentia" in loser.why for loser in result.losers) and any(
        "No price" in loser.why for loser in result.losers
    )


def test_a_goal_is_met_at_the_worst_end_or_not_at_all(workspace: Workspace) -> None:
    easy = choice(workspace, "meta-textgeneration-llama-3-8b", Recipe()).winner
    fast = choice(workspace, "meta-textgeneration-llama-3-8b", Recipe(), max_tpot_ms=20).winner
    assert easy is not None and fast is not None and fast.tpot_ms is not None and fast.tpot_ms[1] <= 20
    assert (fast.price_per_hour or 0) > (easy.price_per_hour or 0)
    long = choice(workspace, "meta-llama/Llama-3.1-70B", AWQ, min_context=131072).winner
    assert long is not None and long.max_context == 131072
    none = choice(workspace, "meta-textgeneration-llama-3-8b", Recipe(), max_tpot_ms=0.001)
    assert none.winner is None and len(none.losers) == 45


def test_the_goal_decides_what_wins(workspace: Workspace) -> None:
    wins = {
        required: choice(workspace, "meta-textgeneration-llama-3-70b", AWQ, wanted=required).winner
        for required in ("cost", "latency", "throughput")
    }
    assert all(wins.values())
    least = {required: result.price_per_hour for required, result in wins.items() if result}
    assert least["cost"] == min(value for value in least.values() if value) and least["latency"] > least["cost"]  # type: ignore[operator]


def test_quantizing_lets_a_cheaper_instance_win(workspace: Workspace) -> None:
    original, awq = (choice(workspace, "meta-textgeneration-llama-3-70b", chosen).winner for chosen in (Recipe(), AWQ))
    assert original is not None and awq is not None and (awq.price_per_hour or 0) < (original.price_per_hour or 0)


def test_an_invalid_recipe_is_not_estimated(workspace: Workspace) -> None:
    with pytest.raises(ImpossibleStack, match="does not fit"):
        estimates.estimate_one(
            workspace, cases.resolve(workspace, known("meta-textgeneration-llama-3-70b"), Recipe(), "ml.g5.xlarge")
        )


def test_a_refusal_names_the_cheapest_instance_where_the_recipe_works(workspace: Workspace) -> None:
    verdict = cases.resolve(workspace, known("meta-llama/Llama-3.1-405B"), AWQ, "ml.g4dn.xlarge").verdict
    assert not verdict.valid and verdict.suggestion == AWQ and verdict.suggestion_target is not None
    assert cases.resolve(workspace, known("meta-llama/Llama-3.1-405B"), AWQ, verdict.suggestion_target).works


def test_an_unknown_model_is_refused_with_the_nearest_names(workspace: Workspace) -> None:
    with pytest.raises(UnknownModel, match="meta-textgeneration-llama-3-70b"):
        models.resolve_facts(workspace, "meta-textgeneration-llama-3-70")
    assert models.resolve_facts(workspace, "starter").origin == "starter"
