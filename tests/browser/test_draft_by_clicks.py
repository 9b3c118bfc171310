"""A draft by clicks alone: trained for a model, built into a recipe, measured, and shown with what a server accepted of
it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, expect

from backend.service.evaluations import evaluations
from backend.service.jobs import artifacts, jobs
from tests.browser.accessibility import violations
from tests.browser.form_steps import query_value
from tests.browser.running import Studio
from tests.browser.visit import Visit, visiting
from tests.homes import eventually, until_ended

pytestmark = [pytest.mark.campaign, pytest.mark.vllm, pytest.mark.timeout(1200)]
LONG_MS = 600_000
PROMPTS = 32


def looked_at(visit: Visit, name: str, screenshots: Path | None) -> None:
    """In each theme and width, with nothing wider than the window."""
    for check in visit.appearances(every=screenshots is not None):
        visit.photograph(screenshots, f"{name}-{check}.png")
        assert visit.overflow() == 0, check
        assert violations(visit.page) == [], check


def train(visit: Visit, studio: Studio, prompts: Path, screenshots: Path | None) -> str:
    """The page -> the live job -> its end; the job's id. A few prompts of one's own, so that looks at acceptance are
    short."""
    lines = [json.dumps({"prompt": f"def number_{number}(first, second):"}) for number in range(PROMPTS)]
    prompts.write_text("\n".join(lines))
    visit.open(f"/train?model=starter&train_minutes=3&train_prompts={quote(str(prompts))}")
    visit.heading("Train a draft")
    visit.button("Train").dblclick()
    visit.page.wait_for_url(re.compile(r"/job\?.*id=j-"))
    job_id = query_value(visit, "id")
    acceptance = visit.main.get_by_role("figure", name=re.compile("^Tokens per step"))
    eventually("acceptance", lambda: acceptance.is_visible() or jobs.show(studio.workspace, job_id).ended)
    shown = f"{visit.page.url}\n{visit.main.inner_text()}"
    assert not jobs.show(studio.workspace, job_id).ended, f"acceptance is drawn while the draft learns, not\n{shown}"
    assert until_ended(studio.workspace, job_id).error is None
    expect(visit.button("Build with this draft")).to_be_visible()
    visit.drawn()
    looked_at(visit, "train-job", screenshots)
    return job_id


def build(visit: Visit) -> str:
    """Job -> Build -> the artifact's job; its id."""
    visit.button("Build with this draft").click()
    visit.heading("Build")
    expect(visit.main.get_by_text("Valid for this model on this machine")).to_be_visible()
    visit.button("Optimize").dblclick()
    visit.page.wait_for_url(re.compile(r"/job\?.*id=j-"))
    expect(visit.button("Evaluate against the original")).to_be_visible(timeout=LONG_MS)
    return query_value(visit, "id")


def measure(visit: Visit) -> str:
    """Job -> Evaluate -> the verdict; the evaluation's id."""
    visit.button("Evaluate against the original").click()
    visit.heading("Evaluate")
    visit.drawn()
    for words, value in (("Concurrency (streams)", "1"), ("Longest answer (tokens)", "32"), ("Requests per run", "4")):
        visit.fill(words, value)
    visit.main.get_by_text("Include quality").click()
    visit.button("Evaluate").dblclick()
    visit.page.wait_for_url(re.compile(r"[?&]id=e-"), timeout=LONG_MS)
    visit.drawn()
    return query_value(visit, "id")


def test_a_draft_is_trained_built_in_and_judged(
    chromium: Browser, studio: Studio, screenshots: Path | None, tmp_path: Path
) -> None:
    before = jobs.count(studio.workspace)
    with visiting(chromium, studio.url) as visit:
        trained, built = train(visit, studio, tmp_path / "own.jsonl", screenshots), build(visit)
        evaluation = measure(visit)
        expect(visit.main.get_by_role("table", name=re.compile("^Verdicts"))).to_be_visible()  # whichever it is
        visit.main.get_by_role("tab", name="Speculation").click()
        visit.drawn()
        looked_at(visit, "speculation", screenshots)
    assert jobs.count(studio.workspace) == before + 3
    variant = evaluations.show(studio.workspace, evaluation).document.variants[1]
    drafting = variant.levels[0].drafting
    assert drafting is not None and drafting.drafted_tokens > 0
    assert artifacts.show(studio.workspace, variant.variant.source).job_id == built
    assert artifacts.show(
        studio.workspace, str(jobs.show(studio.workspace, trained).result["artifact"])
    ).manifest.training
