"""The evaluation's page: the verdict and what to mind first, one step to what would tell more, then tabs; past ones in
a list."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from markdown_it import MarkdownIt

from app.compare import side_by_side
from app.results import evaluation_page, figure_tables, past_evaluations
from backend.domain.evaluation.comparison import compare
from backend.domain.evaluation.evidence.schema import Finding
from backend.domain.evaluation.startup import Startup
from backend.domain.figures import figure
from backend.present.tables.evaluation import table
from backend.present.words.verdicts import grid_rows
from backend.service import Workspace, unreadable_rows
from backend.service.evaluations import continuation, evaluations
from backend.store.tables import EvaluationRow
from tests import simulated, studio
from tests.helpers.noisy_evaluation import BUSY, noisy
from tests.helpers.speculating_evaluation import document as speculating_document


def test_what_is_too_noisy_says_so_beside_its_warning_and_one_step_measures_more(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", id=studio.evaluation(studio_home, noisy()))
    (verdict,) = (warning.value.replace("\\", "") for warning in at.warning)
    assert verdict == "No clear winner over **original** yet: **a** is too noisy to tell at 1 stream."
    folded = [text.value.replace("\\", "") for text in at.markdown]
    assert f"- {BUSY}" in folded, "folded, without what holds of every evaluation on one machine"
    (more,) = [button for button in at.button if "more block" in button.label]
    assert f"Run {more.label.split()[1]} more blocks on an idle machine." in studio.says(at)
    baseline, tile = at.metric
    assert (baseline.label, baseline.delta) == ("original", "baseline")
    assert (tile.label, tile.delta) == ("a", "inconclusive")
    more.click().run()
    studio.check(at)
    assert "e-1 cannot be continued: its evaluation.json is no longer in none; measure again." in at.error[
        0
    ].value.replace("\\", "")
    next(button for button in at.button if button.label == "Start a new evaluation").click().run()
    studio.check(at)
    assert at.number_input(key="evaluate_repeats").value == 5 + int(more.label.split()[1])
    assert at.multiselect(key="evaluate_variants").value == ["original", "a"]


def test_the_baseline_has_one_throughput_on_the_page_and_ratios_are_of_it(studio_home: Workspace) -> None:
    document = evaluations.show(studio_home, studio.evaluation(studio_home, noisy())).document
    first, second = (result.levels[0] for result in document.variants)
    table_rows = table(document)
    assert grid_rows(document)[0].cells[first.load].words == (
        f"{figure(table_rows[0]['Output tokens/sec (count)'])} tokens/s"
    )
    (row,) = [each for each in document.comparison if each.metric == "output_tokens_per_s" and each.load == first.load]
    assert second.output_tokens_per_s and first.output_tokens_per_s
    assert row.ratio == pytest.approx(second.output_tokens_per_s / first.output_tokens_per_s)


def test_what_was_continued_leads_to_what_came_of_it(studio_home: Workspace) -> None:
    """The job while it waits or runs, then its evaluation."""
    view = evaluations.show(studio_home, studio.evaluation(studio_home, noisy()))
    job = continuation.submit(studio_home, continuation.continued_spec(view, 6))
    at = studio.open_page("evaluate", id=view.id)
    next(button for button in at.button if button.label == "Result with more rounds").click().run()
    studio.check(at)
    assert job.id in at.query_params["job"] and "6 more blocks" in studio.says(at)


def test_a_list_reads_the_documents_of_its_page_and_names_those_that_cannot_be_read(
    studio_home: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 12, ten stand on the first page; a whole page is not looked through again."""
    read: list[Sequence[str] | None] = []
    listing = unreadable_rows.find_all
    monkeypatch.setattr(
        unreadable_rows,
        "find_all",
        lambda opened, kinds, among=None: read.append(among) or listing(opened, kinds, among),
    )
    for number in range(12):
        studio.evaluation(studio_home, noisy(), f"e-{number}", f"Number {number}")
    at = studio.open_page("evaluate")
    assert "Remove" not in [button.label for button in at.button] and read == []
    shown = evaluations.list_titles(studio_home, limit=past_evaluations.PER_PAGE)
    with studio_home.store.session() as session:
        row = session.get(EvaluationRow, shown[3].id)
        assert row is not None
        row.document = "[]"
    at = studio.open_page("evaluate")
    assert read == [[each.id for each in shown]]
    assert f"{shown[3].id}: " in studio.says(at).replace("\\", "")
    next(button for button in at.button if button.label == "Remove").click().run()
    assert (
        shown[3].id not in [each.id for each in evaluations.list_titles(studio_home)]
        and evaluations.count(studio_home) == 11
    )


def test_what_was_not_served_as_asked_stands_first_in_red_and_has_no_verdict(studio_home: Workspace) -> None:
    evaluation = simulated.evaluation(names=("original", "a"), speeds=(1.0, 1.5), levels=(1,))
    missing = Finding(
        what="speculation", proven=False, words="It does not speculate.", cause="The flag did not reach it."
    )
    done = Finding(what="dtype", proven=True, words="The engine's log says dtype=bfloat16.")
    variants = [
        each.model_copy(update={"findings": [done, missing][: 1 + number]})
        for number, each in enumerate(evaluation.variants)
    ]
    document = evaluation.model_copy(update={"variants": variants, "comparison": compare(variants)})
    at = studio.open_page("evaluate", id=studio.evaluation(studio_home, document), evaluate_view="Conditions")
    first = at.error[0].value.replace("\\", "")
    assert first == "**Not served as configured.** `a`: It does not speculate. Most likely: The flag did not reach it."
    assert "not as configured" in at.info[0].value and not at.success[1:]
    assert [(tile.value.replace("\\", ""), tile.delta) for tile in at.metric][1] == ("–", "not as configured")
    text = studio.says(at)
    assert "Verified while it was measured: computed in; not as configured: 1." in text
    assert "Configuration check" in text


def test_what_was_guessed_ahead_has_a_tab_with_its_gain_and_whether_answers_stayed(studio_home: Workspace) -> None:
    at = studio.open_page(
        "evaluate", id=studio.evaluation(studio_home, speculating_document()), evaluate_view="Speculation"
    )
    text = studio.says(at)
    assert "Are the answers the same?" in text and "By the server's own counters" in text
    assert list(at.radio(key="evaluate_speculation_load").options) == ["1 stream", "4 streams"]


def test_a_verdict_that_is_decided_offers_no_more_blocks(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", id=studio.evaluation(studio_home, simulated.evaluation()))
    assert not [button for button in at.button if "more block" in button.label]


@pytest.mark.parametrize(
    ("tab", "there", "elsewhere"),
    [
        ("Speed", "Which variants meet your SLO?", "Configuration SHA-256"),
        ("Price", "Only measured levels are used", "Which variants meet your SLO?"),
        ("Quality", "Answers: greedy answers", "Only measured levels are used"),
        ("Speculation", "No variant here uses speculative decoding", "Which variants meet your SLO?"),
        ("Requests", "are no longer at", "Answers: greedy answers"),
        ("Conditions", "kept up at every level", "are no longer at"),
    ],
)
def test_each_tab_is_drawn_alone_and_stands_in_the_address(
    studio_home: Workspace, tab: str, there: str, elsewhere: str
) -> None:
    identity = studio.evaluation(studio_home, simulated.evaluation())
    at = studio.open_page("evaluate", id=identity, evaluate_view=tab)
    text = studio.says(at)
    assert there in text and elsewhere not in text
    assert at.success[0].value.startswith("**w8a8-draft** is"), "the verdict stands over every tab"
    assert tuple(each.label for each in at.tabs) == evaluation_page.TABS


def test_a_limit_that_was_set_in_one_tab_is_in_the_report_of_another(studio_home: Workspace) -> None:
    identity = studio.evaluation(studio_home, simulated.evaluation())
    at = studio.open_page("evaluate", id=identity, evaluate_view="Speed", evaluate_cost_hour="3.5")
    assert at.number_input(key="evaluate_cost_hour").value == 3.5


def test_tables_have_digits_that_a_person_reads_and_still_sort() -> None:
    (row,) = figure_tables.rounded_rows(
        [{"Variant": "a", "TTFT": 10.3872, "TPOT": 0.012345, "Rate": 1234.5, "Repeats": 5, "None": None}]
    )
    assert row == {"Variant": "a", "TTFT": 10.4, "TPOT": 0.0123, "Rate": 1234.0, "Repeats": 5, "None": None}


def test_past_evaluations_are_listed_with_their_line(studio_home: Workspace) -> None:
    assert "No evaluations yet." in studio.says(studio.open_page("evaluate"))
    studio.evaluation(studio_home, simulated.evaluation(), "e-1")
    studio.evaluation(studio_home, noisy(), "e-2")
    at = studio.open_page("evaluate")
    (listed,) = [frame.value for frame in at.dataframe if "Verdict" in frame.value.columns]
    assert len(listed) == 2 and set(listed["Evaluation"]) == {"starter vs w8a8"}
    assert {outcome.partition(", ")[0] for outcome in listed["Outcome"]} == {"faster", "inconclusive"}
    assert all(" to " in outcome for outcome in listed["Outcome"]) and all(listed["Speed-up"] > 0.5)
    assert any(words.startswith("w8a8-draft is ") for words in listed["Verdict"])
    assert past_evaluations.row(evaluations.show(studio_home, "e-2"))["Verdict"].startswith(
        "No clear winner over original yet"
    )


def test_the_cheapest_is_named_only_where_a_test_named_it_faster() -> None:
    named = side_by_side.cheapest_sentence(simulated.evaluation(names=("original", "a"), speeds=(1.0, 2.0)))
    assert named is not None and named.startswith("`a` at 16 streams is the cheapest here: ")
    chance = side_by_side.cheapest_sentence(noisy())
    assert chance is not None and chance.startswith("No variant is clearly the cheapest: the lowest figure is ")


def test_evaluations_of_other_conditions_have_charts_of_their_own_and_it_is_said(studio_home: Workspace) -> None:
    first = simulated.evaluation(names=("original", "w8a8"), speeds=(1.0, 2.0))
    other = first.model_copy(update={"hardware": {**first.hardware, "cpu": "Another CPU"}})
    for name, document in (("e-1", first), ("e-2", other), ("e-3", first)):
        studio.evaluation(studio_home, document, name)
    alike = studio.open_page("compare", ids="e-1,e-3")
    assert not [box for box in alike.warning if "different test conditions" in box.value]
    at = studio.open_page("compare", ids="e-1,e-2,e-3")
    assert [box for box in at.warning if "different test conditions" in box.value]
    specs = [json.loads(chart.proto.spec) for chart in at.get("plotly_chart")]
    fronts = [spec for spec in specs if "Speed per user" in spec["layout"]["title"]["text"]]
    assert [sum("marker" in trace for trace in spec["data"]) for spec in fronts] == [4, 2]
    for words in ("Price per million output tokens (USD)", "Time to first token"):
        drawn = [spec for spec in specs if words in spec["layout"]["title"]["text"].replace("<br>", " ")]
        lines = [sum("marker" in trace for trace in spec["data"]) for spec in drawn]
        assert lines == [4, 2], f"{words}: what cannot be compared is not on one chart"
    best = [len(frame.value) for frame in at.dataframe if "Best at" in frame.value.columns]
    assert best == [4, 2], "the best levels within the limits are ranked among those that can be compared"
    assert "Another CPU" in studio.says(at)
    drawn = {trace["customdata"][0]: trace["marker"]["color"] for trace in fronts[0]["data"] if "marker" in trace}
    same = [colours[0] for name, colours in drawn.items() if name.startswith("w8a8")]
    assert len(set(same)) == 1, "one variant, one colour, whichever evaluation it is of"


@pytest.mark.parametrize(
    ("changed", "apart"),
    [
        ({"ignore_eos": True}, "Length of answers: fixed"),
        ({"prefix_cache": "off"}, "Prefix cache: off"),
        ({"endpoint": "chat"}, "Endpoint: chat"),
        ({"temperature": 0.7}, "Temperature: 0.7"),
        ({"max_tokens": 8}, "Longest answer (tokens): 8"),
        ({"vllm": "0.33.0"}, "Engine: vllm 0.33.0"),
        ({"ignore_eos": False}, None),
        ({"torch": "2.14"}, None),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_what_differs_in_one_condition_alone_is_a_group_that_names_it(
    studio_home: Workspace, changed: dict[str, str | int | bool], apart: str | None
) -> None:
    first = simulated.evaluation(names=("original", "w8a8"), speeds=(1.0, 2.0))
    other = (
        first.model_copy(update={"versions": first.versions | changed})
        if changed.keys() <= first.versions.keys()
        else first.model_copy(update={"options": first.options.model_copy(update=changed)})
    )
    views = [
        evaluations.show(studio_home, studio.evaluation(studio_home, each, f"e-{number}"))
        for number, each in enumerate((first, other, first))
    ]
    comparable_groups = side_by_side.comparable_groups(views)
    assert sorted(comparable_groups.values()) == ([[0, 2], [1]] if apart else [[0, 1, 2]])
    assert apart is None or comparable_groups[apart] == [1]


def test_what_to_do_next_stands_under_the_evaluation_with_the_winner_chosen(studio_home: Workspace) -> None:
    document = simulated.evaluation(names=("original", "a", "b"), speeds=(1.0, 2.0, 1.2))
    copies = [
        result.model_copy(update={"variant": result.variant.model_copy(update={"source": source})})
        for result, source in zip(document.variants, ("starter", "starter-draft", "gone"), strict=True)
    ]
    at = studio.open_page(
        "evaluate", id=studio.evaluation(studio_home, document.model_copy(update={"variants": copies}))
    )
    assert "What next?" in [head.value for head in at.subheader]
    assert at.selectbox(key="evaluate_next_with").value == "starter-draft"
    assert [button for button in at.button if button.label == "Serve"]


def test_time_to_ready_is_a_chart_of_its_own_where_servers_were_started(studio_home: Workspace) -> None:
    """Weights, compilation and warm-up; cold, cached and eager apart."""
    document = simulated.evaluation()
    cold = Startup(kind="cold", weights_s=1.0, compile_s=30.0, warm_up_s=2.0)
    starts = [cold, cold.model_copy(update={"kind": "cached", "compile_s": 3.0}), Startup(kind="eager", weights_s=1.0)]
    first, *others = document.variants
    started = document.model_copy(update={"variants": [first.model_copy(update={"starts": starts}), *others]})
    at = studio.open_page("evaluate", id=studio.evaluation(studio_home, started, "e-1"))
    assert "Time to ready" in [head.value for head in at.subheader]
    (words,) = [chart.proto.alt for chart in at.get("plotly_chart") if chart.proto.alt.startswith("Time to ready")]
    kinds = ("compiled at start 33.0 s", "compile cache loaded 6.00 s", "not compiled 1.00 s")
    assert all(f"original, {kind}" in words for kind in kinds)
    without = studio.open_page("evaluate", id=studio.evaluation(studio_home, document, "e-2"))
    assert "Time to ready" not in [head.value for head in without.subheader]


HOSTILE = "http://127.0.0.1:1/`![seen](http://evil.example/p.png) [go](http://evil.example) <b>x</b> **y**"


@pytest.mark.parametrize("view", evaluation_page.TABS)
def test_a_name_of_others_draws_nothing_of_its_own(studio_home: Workspace, view: str) -> None:
    """A backtick in an address would end the code span that it stands in."""
    evaluation = simulated.evaluation(names=("original", HOSTILE), speeds=(1.0, 1.5), levels=(1, 4))
    at = studio.open_page("evaluate", id=studio.evaluation(studio_home, evaluation), evaluate_view=view)
    drawn = [
        each.value for kind in (at.markdown, at.caption, at.success, at.info, at.warning, at.error) for each in kind
    ]
    tokens = [
        token for text in drawn for block in MarkdownIt().parse(text) for token in [block, *(block.children or ())]
    ]
    assert not [token for token in tokens if token.type == "image" or "evil.example" in str(token.attrs.get("href"))]
