"""The ranking of a search: sentences for losers, limits at every load, the nearest where nothing is allowed."""

from __future__ import annotations

from typing import Any

from backend.domain.limits.slo import Slo
from backend.domain.tuning.ranking import Ranked, rank
from backend.domain.tuning.request import TuneRequest
from backend.domain.tuning.trials import Trial, TrialLevel
from tests.helpers.tuning_trials import trial

REQUEST = TuneRequest(model="m", streams=(1, 8), limits=Slo(ttft_ms=300), max_kl=0.05)


def ranked(*trials: Trial, **changes: Any) -> dict[str, Ranked]:
    request = REQUEST.model_copy(update=changes)
    return {one.trial.key: one for one in rank(trials, request, baseline="original")}


def test_each_loser_has_its_sentence() -> None:
    rows = ranked(
        trial("original", 30.0, kl=None),
        trial("best", 60.0),
        trial("lossy", 90.0, kl=0.09),
        trial("late", 80.0, ttft_ms=410.0),
        trial("near", 59.0),
        trial("dead", levels=(), failure="its server ended: out of memory"),
        trial("unscored", 70.0, kl=None),
    )
    assert next(iter(rows)) == "best" and rows["best"].words == "the best within your limits"
    assert (rows["lossy"].standing, rows["lossy"].words) == ("over limit", "KL 0.0900 over your 0.05")
    assert rows["late"].words == "TTFT p95 410 ms at 8 streams, 300 allowed"
    assert (rows["near"].standing, rows["near"].words) == (
        "same",
        "the same as the winner within 3%: 0.98x its tokens/s",
    )
    assert (rows["dead"].standing, rows["dead"].words) == ("failed", "its server ended: out of memory")
    assert rows["unscored"].words == "its quality was not measured"
    assert (rows["original"].standing, rows["original"].words) == ("slower", "0.50x the winner's tokens/s")


def test_what_a_race_left_open_is_not_called_the_same() -> None:
    rows = ranked(
        trial("a", 60.0, round="race", blocks=8, race_words="1.00x at 1 stream"),
        trial("b", 59.0, round="race", blocks=8, is_open=True, race_words="0.98x at 1 stream, too close to tell"),
        trial("c", 59.5, round="race", blocks=8, race_words="0.99x at 1 stream, the same"),
    )
    assert rows["b"].standing == "too close"
    assert rows["b"].words.startswith("too close to tell from the winner: 0.98x its tokens/s (in the race ")
    assert rows["c"].words.startswith("the same as the winner within 3%: 0.99x")


def test_a_stack_loses_by_the_length_of_its_answers_and_by_its_tasks() -> None:
    limits = {"max_length_change": 0.2, "tasks": ("arc",), "max_task_loss": 0.02}
    rows = ranked(
        trial("original", 30.0, kl=None),
        trial("best", 50.0, length_ratio=1.1, task_loss=0.01, worst_task="arc"),
        trial("wordy", 60.0, length_ratio=1.5, task_loss=0.0, worst_task="arc"),
        trial("curt", 60.0, length_ratio=0.5, task_loss=0.0, worst_task="arc"),
        trial("dull", 60.0, length_ratio=1.0, task_loss=0.05, worst_task="arc"),
        trial("unscored", 60.0, length_ratio=1.0),
        trial("best", 51.0, round="race", kl=None, length_ratio=1.0),
        **limits,
    )
    assert next(iter(rows)) == "best"
    assert rows["wordy"].words == "answers 1.50x as long as the original's, 20% allowed"
    assert rows["curt"].words == "answers 0.50x as long as the original's, 20% allowed"
    assert rows["dull"].words == "arc 0.0500 below the original, 0.02 allowed"
    assert rows["unscored"].words == "its tasks were not scored"


def test_where_none_is_allowed_the_nearest_says_what_it_misses() -> None:
    rows = ranked(
        trial("far", 90.0, ttft_ms=900.0),
        trial("close", 30.0, ttft_ms=330.0),
        trial("original", kl=None, ttft_ms=700.0),
    )
    assert rows["close"].standing == "nearest"
    assert rows["close"].words == "nearest to your limits: TTFT p95 330 ms at 8 streams, 300 allowed"
    assert {one.standing for one in rows.values()} == {"nearest", "over limit"}


def test_a_race_counts_more_than_a_round_before_it_and_keeps_its_quality() -> None:
    rows = ranked(
        trial("a", 90.0),
        trial("b", 70.0),
        trial("c", 80.0),
        trial("a", 60.0, round="race", blocks=8, kl=None, race_words="0.90x (0.85 to 0.95) at 1 stream"),
        trial("b", 66.0, round="race", blocks=8, kl=None),
    )
    assert next(iter(rows)) == "b" and rows["b"].trial.kl == 0.01
    assert rows["a"].words == "0.91x the winner's tokens/s (in the race 0.90x (0.85 to 0.95) at 1 stream)"
    assert rows["c"].words == "1.21x the winner's tokens/s, in an earlier round of 1 block"


def test_a_goal_of_latency_and_a_front_look_at_both_ends() -> None:
    quick = trial(
        "quick",
        levels=(
            TrialLevel(streams=1, tokens_per_s=90, latency_ms=300),
            TrialLevel(streams=8, tokens_per_s=100, latency_ms=2500),
        ),
    )
    wide = trial(
        "wide",
        levels=(
            TrialLevel(streams=1, tokens_per_s=40, latency_ms=800),
            TrialLevel(streams=8, tokens_per_s=300, latency_ms=900),
        ),
    )
    worse = trial(
        "worse",
        levels=(
            TrialLevel(streams=1, tokens_per_s=35, latency_ms=900),
            TrialLevel(streams=8, tokens_per_s=90, latency_ms=2700),
        ),
    )
    free = {"limits": Slo(), "max_kl": None}
    assert next(iter(ranked(quick, wide, worse, goal="throughput", **free))) == "wide"
    assert next(iter(ranked(quick, wide, worse, goal="latency", streams=(1,), **free))) == "quick"
    front = ranked(quick, wide, worse, goal="front", **free)
    assert {one.standing for one in front.values()} == {"winner", "front", "slower"} and front[
        "worse"
    ].standing == "slower"
