"""The report file: whole or not there, self-contained, and saying everything that the figures need."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

from backend.domain.errors import WorkError
from backend.domain.evaluation.comparison import compare
from backend.domain.evaluation.document import Evaluation, Price
from backend.domain.figures import counted
from backend.domain.what_if.slice_means import with_slice_means
from backend.evaluate.report.report import render, write_report
from backend.present import evaluation_top, variant_tiles
from tests.helpers.report_page import _Page
from tests.simulated import evaluation, level, result


@pytest.fixture(scope="module")
def page() -> _Page:
    return _Page(render(evaluation()))


def test_the_report_shows_verdict_tiles_charts_and_caveats_in_this_order(page: _Page) -> None:
    text, shown = page.text, evaluation_top.read_top(evaluation())
    assert "w8a8, draft and w8a8-draft against original" in text
    places = [
        text.index(words)
        for words in (
            shown.verdict[0].replace("`", ""),
            shown.tiles[-1].word,
            "Speed per user against total throughput",
            "1 caveat",
            "At 1 stream w8a8 gives 1.",
            "Inter-token latency (ms)",
        )
    ]
    assert places == sorted(places)
    assert "; KL 0.0004" in text[places[4] : places[4] + 400]


def tiles_of(page: str) -> list[tuple[str, str]]:
    """Return the colour of each tile and its words, as a reader of the page sees them."""
    marks = re.findall(r'<li class="tile (\w+)"[^>]*>(.*?)</li>', page, re.DOTALL)
    return [(colour, " ".join(_Page(inside).text.split())) for colour, inside in marks]


@pytest.mark.parametrize(
    "document",
    [
        evaluation(),
        evaluation(repeats=3),
        evaluation(names=["original", "slow", "even"], speeds=[1, 0.7, 1.0]),
        evaluation(names=["original", *(f"v{number}" for number in range(5))], speeds=[1, 1.1, 1.2, 1.3, 1.4, 1.5]),
        evaluation(with_quality=False).model_copy(update={"warnings": ["First.", "Second `thing`."]}),
    ],
)
def test_tiles_verdict_and_caveats_of_the_report_are_those_of_the_page(document: Evaluation) -> None:
    page, shown = render(document), evaluation_top.read_top(with_slice_means(document))
    signs = {"up": "▲ ", "down": "▼ ", "off": ""}
    expected = []
    for tile in shown.tiles:
        colour, arrow = variant_tiles.tile_look(tile)
        word = f"{signs[arrow]}{tile.word}" if tile.word else ""
        expected.append((colour, " ".join(f"{tile.label}{tile.value}{word}{tile.detail}".split())))
    assert tiles_of(page) == expected
    text = _Page(page).text
    for sentence in (*shown.verdict, *shown.caveats, shown.without_tile):
        assert sentence.replace("`", "") in text
    assert (f">{counted(len(shown.caveats), 'caveat')}</summary>" in page) == bool(shown.caveats)
    assert f'class="verdict {shown.tone}"' in page


@pytest.mark.parametrize(
    "message",
    [
        "Time to first token (ms)",
        "Client invocation errors (count)",
        "Tokenizer failed (count)",
        "Empty inference response (count)",
        "Price per million output tokens (USD)",
        "it ignores prefill and prices input at 0",
        "total throughput = concurrency / p50 inter-token latency",
        "Achieved concurrency",
        "Looping outputs",
        "Client headroom",
        "What would it cost?",
        "Limits: no limit.",
        "Single requests were not kept with this report",
        "The saved artifact's weights, dequantized",
        "resident: all servers up, one loaded at a time",
        "Simulated CPU",
        "0.0-simulated",
        "2 January 2026, 03:04 UTC",
        "These figures are simulated",
        "Holm 1979",
        "Whiskers on every chart are 95% intervals",
        "Tests: none.",
    ],
)
def test_the_report_says_what_its_figures_rest_on(page: _Page, message: str) -> None:
    assert message in page.text
    assert "lowest to the highest repeat" not in page.text and "over all metrics" not in page.text


def test_the_report_loads_nothing_from_anywhere(page: _Page) -> None:
    addresses = [
        value for _, attributes in page.tags for name, value in attributes.items() if name in {"src", "href", "srcset"}
    ]
    assert addresses
    assert all(value and value.startswith(("#", "data:")) for value in addresses)
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy and policy.startswith("default-src 'none'")


def test_every_chart_has_words_for_who_cannot_see_it(page: _Page) -> None:
    plots = [attributes for _, attributes in page.tags if "data-chart" in attributes]
    assert len(plots) == 11
    for plot in plots:
        assert plot["role"] == "figure"
        assert "w8a8: " in (plot["aria-label"] or "")


def test_the_embedded_json_is_the_evaluation_and_the_csv_its_table(page: _Page) -> None:
    links = {a["download"]: (a["href"] or "").partition("base64,")[2] for _, a in page.tags if "download" in a}
    document = base64.b64decode(links["evaluation.json"])
    assert Evaluation.model_validate_json(document) == evaluation()
    assert base64.b64decode(links["evaluation.csv"]).startswith(b"Variant,Concurrency,Time to first token (ms)")


def test_hostile_words_are_text_wherever_they_come_from() -> None:
    hostile = "<script>window.owned = 1</script><img src=x onerror=alert(1)>\"'`{{ 7 * 7 }}`</title>"
    document = evaluation(names=["original", hostile], speeds=[1, 2]).model_copy(
        update={
            "warnings": [hostile],
            "workload": evaluation().workload.model_copy(update={"name": hostile}),
            "hardware": {"cpu": hostile},
            "versions": {hostile: hostile},
        }
    )
    page = _Page(render(document))
    assert [tag for tag, _ in page.tags].count("script") == 4
    assert not any(tag == "img" or "onerror" in attributes for tag, attributes in page.tags)
    assert "<script>window.owned = 1</script>" in page.text
    assert "{{ 7 * 7 }}" in page.text


def test_without_prices_or_quality_the_report_says_so() -> None:
    text = _Page(render(evaluation(per_hour=None, with_quality=False))).text
    assert "quality not measured" in text
    assert "Not scored." in text
    assert "Blended price, SageMaker-compatible (USD)" not in text


def test_few_repeats_limited_clients_and_errors_are_shown_without_a_verdict() -> None:
    few = _Page(render(evaluation(repeats=3))).text
    assert "too few repeats for a verdict (3 of 5)" in few
    assert not [words for _, words in tiles_of(render(evaluation(repeats=3))) if "▲" in words]
    results = [
        result("original", [level(4)]),
        result("w8a8", [level(4, client_limited=True, errors={"timeout": 3}, invocation_errors=3)]),
    ]
    limited = _Page(render(evaluation().model_copy(update={"variants": results, "comparison": compare(results)}))).text
    assert "not comparable: the load generator, not the server, limited the figures of w8a8" in limited
    assert "timeout 3" in limited
    assert "the loop lagged 41 ms" in limited


@pytest.mark.parametrize("count", [0, 1])
def test_an_evaluation_with_nothing_to_compare_is_still_a_report(count: int) -> None:
    document = evaluation().model_copy(update={"variants": evaluation().variants[:count], "comparison": []})
    assert "there is nothing to compare" in _Page(render(document)).text


def test_the_editable_ratio_is_the_one_shown() -> None:
    document = evaluation()
    options = document.options.model_copy(update={"input_output_ratio": 5.0})
    text = _Page(render(document.model_copy(update={"options": options}))).text
    assert "Blended price (USD), 5:1" in text
    assert "(throughput × 3600 / 106) / 6." in text


def test_a_blended_price_is_shown_where_there_is_one() -> None:
    paid = Price(per_million_input=1, per_million_output=2, per_million_total=3, blended=4.125, blended_sagemaker=0.5)
    document = evaluation().model_copy(update={"variants": [result("one", [level(1, price=paid)])], "comparison": []})
    (shown,) = with_slice_means(document).variants[0].levels
    assert shown.price and shown.price.blended
    assert f"{shown.price.blended:.4g}" in _Page(render(document)).text


def test_the_file_replaces_an_older_one_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    path = write_report(evaluation(names=["original"], speeds=[1]), folder)
    before = path.read_bytes()
    assert write_report(evaluation(), folder) == path
    assert path.read_bytes() != before
    assert list(folder.iterdir()) == [path]


def test_a_report_that_cannot_be_put_in_place_leaves_no_half_of_itself(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(WorkError, match="cannot be written"):
        write_report(evaluation(names=["original"], speeds=[1]), tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_the_chart_data_is_strict_json() -> None:
    page = render(evaluation())
    embedded = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    assert embedded
    parsed = json.loads(embedded[1], parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert set(parsed["ttft_ms"]["choices"]) == {"p50", "p90", "p99"}
