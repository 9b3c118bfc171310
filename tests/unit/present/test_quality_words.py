"""What a figure of quality is called: the share of the held-out file is "same top token", a greedy match is of served
answers only (two figures, 97.7% and 75.4%, had one name)."""

from __future__ import annotations

import pytest

from app import summaries
from backend.cli.verbs import evaluate as evaluate_verb
from backend.cli.verbs import optimize as optimize_verb
from backend.domain.evaluation.document import Evaluation, Quality
from backend.evaluate.report.tables import rows_by_table
from backend.present.tables import evaluation as tables
from backend.present.words import quality_loss
from backend.present.words.measurements import agreed_shares, quality_cost
from tests.simulated import evaluation

OF_FILE = Quality(kl_mean=0.026, perplexity=7.8, perplexity_original=7.6, same_top=0.754)
OF_ANSWERS = Quality(greedy_match=0.977, answers=12, answers_asked=12)


def measured(quality: Quality) -> Evaluation:
    result = evaluation(names=("original", "w8a8"), speeds=(1.0, 1.3), levels=(1,), with_quality=False)
    first, second = result.variants
    return result.model_copy(update={"variants": [first, second.model_copy(update={"quality": quality})]})


def called(document: Evaluation, digits: str) -> set[str]:
    """What a figure that begins with these digits stands under, in every table of the page and of the report."""
    rows = [*tables.table(document), *(row for part in rows_by_table(document).values() for row in part)]
    whole = {
        name for row in rows for name, value in row.items() if str(value).startswith((f"0.{digits}", f"{digits[:2]}."))
    }
    return {name.lower() for name in whole if "top token" in name.lower() or "match" in name.lower()}


def test_the_files_share_is_the_same_top_token_in_every_table_and_text() -> None:
    document = measured(OF_FILE)
    assert called(document, "754") == {"same top token"}
    assert not agreed_shares(OF_FILE) and "greedy" not in quality_cost(OF_FILE)
    lines = evaluate_verb.summary_text(document).splitlines()
    (head,), (row,) = [line for line in lines if "mean KL" in line], [line for line in lines if "75.4%" in line]
    assert row.index("75.4%") == head.index("same top")


def test_a_greedy_match_is_of_served_answers() -> None:
    document = measured(OF_ANSWERS)
    assert called(document, "977") == {"greedy match"}
    assert "greedy match 97.7%" in quality_cost(OF_ANSWERS) and "over 12 answers" in quality_cost(OF_ANSWERS)
    assert "top token" not in quality_cost(OF_ANSWERS)


def test_a_small_loss_is_said_of_the_text_where_the_answers_change() -> None:
    quality = Quality(kl_mean=0.0004, same_top=0.98, greedy_match=0.44, exact_match=0.219, greedy_self=1.0, answers=32)
    hardly = "same top token at 98% of positions; loss hardly measurable, 0.00040 of at most 0.03 nats per token"
    assert quality_loss.words(quality) == f"{hardly} on the text; greedy answers change: 44% of tokens agree"
    # Answers that agree as well as the original's own, or nearly all, need no word.
    assert quality_loss.words(quality.model_copy(update={"greedy_self": 0.43})) == hardly
    assert quality_loss.words(quality.model_copy(update={"greedy_match": 0.96})) == hardly
    assert quality_loss.words(quality.model_copy(update={"greedy_ci95": (0.1, 1.0)})) == hardly
    # A grade that is bad already contradicts nothing.
    assert "on the text" not in str(quality_loss.words(quality.model_copy(update={"kl_mean": 0.2})))


@pytest.mark.parametrize("place", ["command", "page"])
def test_an_optimized_artifact_has_a_share_of_the_file_and_no_greedy_match(place: str) -> None:
    quality = {"perplexity_before": 7.6, "perplexity_after": 7.8, "kl_mean": 0.026, "same_top": 0.754, "text": "chat"}
    result = {
        "artifact": "a-1",
        "path": "a",
        "seconds": 9.0,
        "quality": quality,
        "bytes_before": 2e6,
        "bytes_after": 1e6,
    }
    if place == "command":
        text = optimize_verb._text("starter", result | {"average_bits": None, "recovery": None}, None)
        assert text.count("top token") == 1 and "same top token at 75% of positions" in text
    else:
        text = str(summaries.result_figures(result))
        assert "('Same top token', '75.4%'" in text
    assert "greedy" not in text.lower()
