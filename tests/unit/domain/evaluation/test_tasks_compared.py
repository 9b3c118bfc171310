"""Scores of tasks against the first variant's, in tables and in conditions of a pipeline."""

from __future__ import annotations

import csv
import io

import pytest

from backend.cli.verbs import evaluate
from backend.domain.evaluation.document import EvaluateOptions, Evaluation
from backend.domain.evaluation.tasks.task_scores import SAMPLES_FOR_VERDICT, TaskScore, compare_scores, with_samples
from backend.domain.limits import fail_conditions
from backend.evaluate.report import tables
from backend.evaluate.report.content import content
from backend.present.report_content import Extras
from backend.present.tables import evaluation, tasks
from backend.present.words.verdicts import describe_task_score as said
from tests import measured


def score(value: float, metric: str = "acc", **more: object) -> TaskScore:
    values = {
        "stderr": 0.05,
        "samples": 100,
        "higher_is_better": True,
        "harness": "lm-eval 0.4.13",
        "sha256": "ab" * 32,
        **more,
    }
    return TaskScore(task="sums", metric=metric, value=value, **values)  # type: ignore[arg-type]


def right(numbers: range, samples: int = 100) -> dict[int, float]:
    return {number: float(number in numbers) for number in range(samples)}


def test_a_score_is_compared_by_sample_and_said_in_words() -> None:
    scores = compare_scores(
        {
            0: [with_samples(score(0.6), right(range(60)))],
            1: [with_samples(score(0.3), right(range(30)))],
            2: [with_samples(score(0.6), right(range(60)))],
            3: [with_samples(score(0.62), right(range(62)))],
        }
    )
    assert scores[0][0].outcome is None and scores[0][0].difference is None
    worse, same, close = scores[1][0], scores[2][0], scores[3][0]
    assert worse.outcome == "worse" and said(worse).startswith("worse (-0.300, 95% -0.") and worse.compared == 100
    assert worse.ci95 is not None and worse.ci95[1] < 0 and worse.p_value is not None and worse.p_value < 0.001
    for each in (same, close):
        assert each.outcome == "same" and said(each).startswith("no significant difference")
        assert each.ci95 is not None and each.ci95[0] <= 0 <= each.ci95[1]


def test_all_tests_of_the_tasks_are_corrected_together() -> None:
    baseline, variant = right(range(50)), right(range(39))
    alone = compare_scores({0: [with_samples(score(0.5), baseline)], 1: [with_samples(score(0.39), variant)]})[1][0]
    others = {k: [with_samples(score(0.5), baseline)] for k in range(2, 9)}
    among = compare_scores(
        {0: [with_samples(score(0.5), baseline)], 1: [with_samples(score(0.39), variant)], **others}
    )[1][0]
    assert alone.p_value is not None and among.p_value is not None
    assert among.p_value == pytest.approx(8 * alone.p_value)
    assert among.ci95 is not None and alone.ci95 is not None and among.ci95[0] < alone.ci95[0]


def test_lower_may_be_better_and_a_figure_that_is_no_mean_goes_by_its_errors() -> None:
    each = dict.fromkeys(range(100), 1.0)
    first = with_samples(score(40.0, "ter", higher_is_better=False, stderr=1.0), each)
    second = with_samples(score(30.0, "ter", higher_is_better=False, stderr=1.0), each)
    assert first.each is None
    result = compare_scores({0: [first], 1: [second]})[1][0]
    assert result.outcome == "better" and said(result).startswith("better (-10.0, 95% -12.8 to -7.23)")


def test_few_samples_give_figures_without_a_verdict() -> None:
    few = SAMPLES_FOR_VERDICT - 1
    pair = [with_samples(score(k / few, samples=few), right(range(k), few)) for k in (few, 0)]
    result = compare_scores({0: [pair[0]], 1: [pair[1]]})[1][0]
    assert said(result) == "too few samples for a verdict (19 of 20)" and result.p_value is None
    assert result.difference == -1


def test_what_the_baseline_was_not_scored_on_is_not_compared() -> None:
    scores = compare_scores({1: [with_samples(score(0.3), right(range(30)))]})
    assert said(scores[1][0]) is None and scores[1][0].difference is None
    assert compare_scores({}) == {}


@pytest.mark.parametrize(
    ("value", "samples", "floor", "is_guessing"),
    [
        (0.33, 100, 0.25, True),
        (0.35, 100, 0.25, False),
        (0.35, 20, 0.25, True),
        (0.1, 100, 0.25, True),
        (0.0, 1319, 0.0, True),
        (1 / 1319, 1319, 0.0, False),
        (0.1, 100, None, False),
    ],
)
def test_a_score_is_guessing_where_its_interval_reaches_the_floor(
    value: float, samples: int, floor: float | None, is_guessing: bool
) -> None:
    """Wilson's interval of 33 and 35 of 100 begins at 0.246 and 0.264."""
    assert score(value, samples=samples, floor=floor).is_guessing is is_guessing


def test_floor_baseline_variant_and_difference_stand_in_every_table() -> None:
    document = measured.document()
    described = {"floor": 0.25, "items": 2376, "licence": "CC BY-SA 4.0", "source": "allenai/ai2_arc@210d026f, test"}
    scores = compare_scores(
        {
            0: [with_samples(score(0.6, **described), right(range(60)))],
            1: [with_samples(score(0.3, **described), right(range(30)))],
        }
    )
    results = [result.model_copy(update={"tasks": scores.get(k, [])}) for k, result in enumerate(document.variants)]
    document = document.model_copy(update={"variants": results})
    first, second = tasks.rows(document)
    assert (first["Guessing"], first["Score"], first["Samples"], first["Of"]) == (0.25, 0.6, 100, 2376)
    assert first["Score, 95% from"] == pytest.approx(0.502, abs=0.001)
    assert (second["Score"], second["Difference to the baseline"]) == (0.3, pytest.approx(-0.3))
    assert second["95% from"] < -0.3 < second["95% to"] < 0
    short = tasks.short_rows(document)[1]
    assert (short["Task"], short["Guessing"]) == ("sums, acc (100 of 2,376)", "0.250")
    assert tasks.origins(document) == [
        "sums: allenai/ai2_arc@210d026f, test; licence CC BY-SA 4.0; 2,376 items.",
    ]
    (sentence,) = tasks.guessing_sentences(document)
    assert (
        sentence
        == f"{results[1].name} is not above guessing in sums, acc (95% interval 0.219 to 0.396, guessing 0.250)."
    )
    whole = content(document, Extras())
    assert whole["guessing"] == [sentence] and "licence CC BY-SA 4.0" in str(whole["tasks"])
    lines = evaluate.summary_text(document).partition("Tasks:")[2].splitlines()
    (row,) = [line for line in lines if line.startswith(results[1].name) and line != sentence]
    assert "0.25" in row and "worse (-0.300, 95%" in row and sentence in lines


def test_the_baseline_stands_above_the_others_in_each_task() -> None:
    document = measured.document()
    own = [score(0.5, "acc"), score(0.4, "acc_norm")]
    results = [result.model_copy(update={"tasks": own}) for result in document.variants]
    rows = tasks.rows(document.model_copy(update={"variants": results}))
    names = [result.name for result in results]
    assert [row["Metric"] for row in rows] == ["acc"] * len(names) + ["acc_norm"] * len(names)
    assert [row["Variant"] for row in rows] == names * 2


def test_a_baseline_that_guesses_is_said_to_tell_nothing() -> None:
    document = measured.document()
    scored = compare_scores({0: [with_samples(score(0.26, floor=0.25), right(range(26)))]})
    results = [result.model_copy(update={"tasks": scored.get(k, [])}) for k, result in enumerate(document.variants)]
    (sentence,) = tasks.guessing_sentences(document.model_copy(update={"variants": results}))
    assert sentence.endswith("so this score tells nothing of what the variants lost.")


@pytest.fixture
def scored() -> Evaluation:
    document = measured.document()
    scores = compare_scores(
        {0: [with_samples(score(0.6), right(range(60)))], 1: [with_samples(score(0.3), right(range(30)))]}
    )
    results = [result.model_copy(update={"tasks": scores.get(k, [])}) for k, result in enumerate(document.variants)]
    return document.model_copy(update={"variants": results})


def test_the_document_reads_back_and_an_old_one_has_no_tasks(scored: Evaluation) -> None:
    assert Evaluation.model_validate_json(scored.model_dump_json()) == scored
    assert tasks.basis(measured.document()) is None and tasks.rows(measured.document()) == []


def test_tables_report_and_csv_have_the_scores(scored: Evaluation) -> None:
    rows = tasks.rows(scored)
    assert [(row["Variant"], row["Score"]) for row in rows] == [
        (scored.variants[0].name, 0.6),
        (scored.variants[1].name, 0.3),
    ]
    assert tables.rows_by_table(scored)["tasks"] == rows
    assert "lm-eval 0.4.13" in str(content(scored, Extras())["tasks"])
    lines = list(csv.DictReader(io.StringIO(evaluation.csv(scored))))
    by_variant = {line["Variant"]: line["Task sums acc"] for line in lines}
    assert list(by_variant.values()) == ["0.6", "0.3", "", ""]


def test_a_pipeline_may_fail_by_a_task(scored: Evaluation) -> None:
    gate = fail_conditions.parse_condition("task.sums.acc < 50%")
    assert gate.limit == 0.5
    fail_conditions.check_conditions([gate], EvaluateOptions(concurrency=(1,), quality=False), ["task.sums.acc"])
    breaches = fail_conditions.find_breaches(scored, [gate])
    assert [breach.value for breach in breaches] == [0.3, None, None], "what was not scored cannot pass"
    with pytest.raises(fail_conditions.InvalidGate, match="needs tasks"):
        fail_conditions.check_conditions([gate], EvaluateOptions())
    with pytest.raises(fail_conditions.InvalidGate, match=r"the tasks give task\.sums\.acc"):
        fail_conditions.check_conditions(
            [fail_conditions.parse_condition("task.sums.f1 < 1")], EvaluateOptions(), ["task.sums.acc"]
        )
    with pytest.raises(fail_conditions.InvalidGate, match="one figure a variant"):
        fail_conditions.parse_condition("task.sums.acc < 0.5 at 4")
