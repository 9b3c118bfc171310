"""An evaluation by clicks alone: a workload of one's own, three variants, limits and prices afterwards, and a report to
keep.

The three are addresses of two servers that answer as told and alike, so their verdicts are known beforehand to be about
nothing but chance; test_loop.py evaluates what is served for it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, TimeoutError, expect

from backend.service.evaluations import evaluations, workloads
from tests.browser.form_steps import query_value
from tests.browser.running import Studio
from tests.browser.visit import Visit, visiting
from tests.fakes.running import running

LONG_MS = 120_000
TRIES, SHUT_MS = 5, 4_000
LINES = "".join(f'{{"wording": "def function_{number}(a, b):", "longest": 8}}\n' for number in range(80))
VERDICT = re.compile(r"At 2 streams .*")
FULL_VERDICTS = "Full verdicts, with every latency"
"""What opens them, on the page and in the report."""


def upload(visit: Visit, studio: Studio) -> None:
    """Lines in no known format: their fields are shown and named."""
    visit.main.get_by_text("Upload a workload").click()
    file = {"name": "mine.jsonl", "mimeType": "application/json", "buffer": LINES.encode()}
    visit.main.get_by_test_id("stFileUploaderDropzoneInput").set_input_files(file)  # type: ignore[arg-type]
    for label, column in (("Column of the prompts", "wording"), ("Column of the longest answers", "longest")):
        pick(visit, label, column)
    visit.button("Use these columns").click()
    visit.page.wait_for_url(re.compile(r"[?&]workload=mine-"))
    assert query_value(visit, "workload") in workloads.list_saved(studio.workspace)


def pick(visit: Visit, label: str, choice: str) -> None:
    """Of a list: type it, take it; once more where the page was drawn anew meanwhile, which shuts the list."""
    option = visit.page.get_by_role("option", name=choice, exact=True)
    for _ in range(TRIES):
        visit.drawn()
        visit.field(label).click()
        visit.field(label).fill(choice)
        with suppress(TimeoutError):
            option.click(timeout=SHUT_MS)
            return
    option.click()


def evaluate(visit: Visit, sources: list[str]) -> str:
    """The form -> the verdict; the evaluation's id."""
    for words, value in (("Concurrency (streams)", "2"), ("Requests per run", "8")):
        visit.fill(words, value)
    visit.main.get_by_text("Include quality").click()
    expect(visit.main.get_by_text("3 variants x 1 level x 5 repeats = 15 runs")).to_be_visible()
    visit.main.get_by_text("The same as a command").click()
    expect(visit.main.get_by_text(f"whetstone evaluate {' '.join(sources)}")).to_be_visible()
    visit.button("Evaluate").click()
    visit.page.wait_for_url(re.compile(r"[?&]id=e-"), timeout=LONG_MS)
    visit.drawn()
    return query_value(visit, "id")


def verdicts(place: Locator) -> list[str]:
    """The sentences as they are read, without the sign before them."""
    expect(place.get_by_text(VERDICT).first).to_be_visible()
    matches = [VERDICT.search(" ".join(words.split())) for words in place.get_by_text(VERDICT).all_inner_texts()]
    return [sentence[0] for sentence in matches if sentence]


def move_the_limit(visit: Visit) -> None:
    """The slider all the way to the left: nothing is within, and the address says so."""
    visit.main.get_by_role("slider", name="Whole answer, at most (ms)").press("Home")
    visit.page.wait_for_url(re.compile(r"[?&]evaluate_slo_latency=0"))
    expect(
        visit.main.get_by_role("figure", name=re.compile("^Goodput: .* to 0 at concurrency 2|^Goodput: .*: 0 at"))
    ).to_be_visible()


def choose_an_instance(visit: Visit) -> None:
    pick(visit, "Price of", "ml.g5.xlarge")
    visit.page.wait_for_url(re.compile(r"[?&]evaluate_cost_instance=ml\.g5\.xlarge"))
    expect(visit.main.get_by_text(re.compile("on demand, as of 20"))).to_be_visible()


def tab(visit: Visit, name: str) -> None:
    """Of the evaluation; the address says which is open."""
    visit.main.get_by_role("tab", name=name).click()
    if name != "Speed":
        visit.page.wait_for_url(re.compile(f"[?&]evaluate_view={name}"))
    visit.drawn()


def read_offline(browser: Browser, report: Path) -> list[str]:
    """The verdicts of the report on the disk, with the network off."""
    context = browser.new_context(offline=True)
    context.route(re.compile("^https?:"), lambda route: route.abort())
    page = context.new_page()
    page.goto(report.as_uri())
    page.get_by_text(FULL_VERDICTS).click()
    result = verdicts(page.locator("body"))
    context.close()
    return result


def again(visit: Visit, sources: list[str]) -> None:
    """A person who types as soon as the form is there keeps the variants that the step before chose."""
    visit.action("Measure again").click()
    visit.fill("Concurrency (streams)", "1, 2")
    visit.page.wait_for_url(re.compile(r"[?&]evaluate_concurrency=1"))
    expect(visit.main.get_by_text("3 variants x 2 levels x 5 repeats = 30 runs")).to_be_visible()
    assert query_value(visit, "variants") == ",".join(sources)
    visit.reload()
    expect(visit.main.get_by_text("3 variants x 2 levels x 5 repeats = 30 runs")).to_be_visible()


def by_clicks(chromium: Browser, studio: Studio, sources: list[str], report: Path) -> None:
    with visiting(chromium, studio.url) as visit:
        visit.open(f"/evaluate?variants={','.join(sources)}")
        upload(visit, studio)
        evaluation = evaluate(visit, sources)
        document = evaluations.show(studio.workspace, evaluation).document
        assert document.workload.name.startswith("mine-")
        visit.main.get_by_text(FULL_VERDICTS).click()
        read = verdicts(visit.main)
        assert len(read) == 2
        move_the_limit(visit)
        tab(visit, "Price")
        choose_an_instance(visit)
        tab(visit, "Speed")
        visit.main.get_by_text(FULL_VERDICTS).click()
        assert verdicts(visit.main) == read
        with visit.page.expect_download() as saving:
            visit.action("Report (HTML)").click()
        visit.page.keyboard.press("Escape")
        saving.value.save_as(report)
        again(visit, sources)
    assert read_offline(chromium, report) == read


@pytest.mark.campaign
def test_from_an_uploaded_workload_to_a_report_read_offline(chromium: Browser, studio: Studio, tmp_path: Path) -> None:
    alike = ("exact_server.py", "--rate", 400, "--ttft-ms", 10)
    with running(*alike) as url, running(*alike) as other:
        by_clicks(chromium, studio, [url, url.replace("127.0.0.1", "localhost"), other], tmp_path / "report.html")
