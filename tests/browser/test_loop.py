"""The main job by clicks alone: from the catalog to a measured verdict, a comparison, a report, and the result as one
file, which llama.cpp runs without the studio."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, expect

from backend.domain.jobs.jobs import JobKind, JobState
from backend.hardware.engine_status import engine_program
from backend.service.evaluations import evaluations
from backend.service.jobs import artifacts, jobs
from tests.browser.form_steps import query_value, read_offline
from tests.browser.running import Studio, answers_at, free_port
from tests.browser.visit import Visit, visiting
from tests.homes import eventually

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
LONG_MS = 600_000
LEVELS, REPEATS = (1, 2), 5
COUNT_CLICKS = "() => { window.clicks = 0; addEventListener('click', () => { window.clicks += 1 }, true) }"


def optimize(visit: Visit) -> str:
    """Catalog -> Model -> Build -> Job, refreshed on the way; the job's id."""
    visit.open("/")
    visit.menu("Catalog")
    visit.first_row()
    visit.heading("starter")
    visit.button("Optimize").click()
    visit.heading("Build")
    visit.button("Add a step").click()
    visit.page.get_by_role("button", name="Quantize to a GGUF file (gguf)").click()
    expect(visit.main.get_by_text("Valid for this model on this machine")).to_be_visible()
    visit.button("Optimize").dblclick()
    visit.heading("Optimize starter with GGUF 4-bit")
    visit.reload()
    visit.heading("Optimize starter with GGUF 4-bit")
    expect(visit.button("Evaluate against the original")).to_be_visible(timeout=LONG_MS)
    return query_value(visit, "id")


def chat(visit: Visit) -> None:
    """Job -> Playground: a message is typed and answered by the original on vLLM and the result on llama.cpp, with two
    clicks; back to the job."""
    job_page = visit.page.url
    visit.page.evaluate(COUNT_CLICKS)
    visit.button("Chat: original beside result").click()
    visit.heading("Playground")
    prompt = visit.page.get_by_test_id("stChatInputTextArea")
    expect(prompt).to_be_enabled(timeout=LONG_MS)
    prompt.click()
    visit.page.keyboard.type("def read_lines(path):")
    visit.page.keyboard.press("Enter")
    expect(visit.main.get_by_text(re.compile("first token after"))).to_have_count(2, timeout=LONG_MS)
    assert visit.page.evaluate("window.clicks") == 2
    # An evaluation waits for servers that run.
    visit.button("Stop the servers").click()
    expect(visit.button("Start both again")).to_be_visible(timeout=LONG_MS)
    visit.open(job_page.removeprefix(visit.url))


def evaluate(visit: Visit, studio: Studio) -> str:
    """Job -> Evaluate -> live points, refreshed in the middle -> verdict; the evaluation's id."""
    visit.button("Evaluate against the original").click()
    visit.heading("Evaluate")
    visit.drawn()
    for words, value in (("Concurrency (streams)", ", ".join(map(str, LEVELS))), ("Longest answer (tokens)", "16")):
        visit.fill(words, value)
    visit.fill("Requests per run", "4")
    visit.fill("Price per hour (USD)", "1.5")
    expect(visit.main.get_by_text("2 variants x 2 levels x 5 repeats = 20 runs")).to_be_visible()
    visit.button("Evaluate").dblclick()
    visit.page.wait_for_url(re.compile(r"[?&]job=j-"))
    job_id = query_value(visit, "job")
    expect(visit.main.get_by_text(re.compile(r"^[1-9]\d* runs? so far\. Approximate"))).to_be_visible(timeout=LONG_MS)
    visit.reload()
    assert jobs.show(studio.workspace, job_id).state is JobState.RUNNING
    expect(visit.main.get_by_text(re.compile(r"^[1-9]\d* runs? so far\. Approximate"))).to_be_visible()
    visit.page.wait_for_url(re.compile(r"[?&]id=e-"), timeout=LONG_MS)
    visit.drawn()
    return query_value(visit, "id")


def run_alone(visit: Visit, program: Path, file: Path) -> None:
    """Download the result, and have llama.cpp's own server answer from that file."""
    with visit.page.expect_download() as saving:
        visit.button("GGUF file").click()
    saving.value.save_as(file)
    port = free_port()
    command = [program, "--model", file, "--port", str(port), "--ctx-size", "128", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            eventually("llama.cpp answers", lambda: answers_at(f"http://127.0.0.1:{port}/health"))
            body = json.dumps({"prompt": "def read_lines(path):", "n_predict": 8}).encode()
            with urlopen(Request(f"http://127.0.0.1:{port}/completion", body), timeout=60) as answer:
                assert json.load(answer)["content"]
        finally:
            process.terminate()


def compare(visit: Visit, evaluation: str) -> None:
    """Evaluate -> Compare; another price, which the address keeps."""
    visit.link("Compare")
    visit.heading("Compare")
    visit.drawn()
    price = "Price per hour (USD)"
    cheapest = visit.main.get_by_text(re.compile(r"the cheapest(?: here)?: "))
    before = cheapest.inner_text()
    visit.fill(price, "3")
    visit.page.wait_for_url(re.compile(r"[?&]prices=3(&|$)"))
    expect(cheapest).not_to_have_text(before)
    after = cheapest.inner_text()
    visit.reload()
    expect(visit.field(price)).to_have_value("3.0000")
    expect(cheapest).to_have_text(after)


def test_from_the_catalog_to_a_report_on_disk(chromium: Browser, studio: Studio, tmp_path: Path) -> None:
    workspace, report = studio.workspace, tmp_path / "report.html"
    before = jobs.count(workspace)
    with visiting(chromium, studio.url) as visit:
        optimize_job = optimize(visit)
        run_alone(visit, engine_program(workspace.settings, "llama-cpp"), tmp_path / "starter.gguf")
        chat(visit)
        evaluation = evaluate(visit, studio)
        sentences = visit.main.get_by_text(re.compile(r"^.*At [12] streams? "))
        expect(sentences).to_have_count(len(LEVELS))
        visit.main.get_by_role("tab", name="Conditions").click()
        expect(visit.main.get_by_text(re.compile(r"^Measured 20\d\d-"))).to_be_visible()
        compare(visit, evaluation)
        with visit.page.expect_download() as saving:
            visit.button("Report (HTML)").click()
        saving.value.save_as(report)
        with visiting(chromium, studio.url) as friend:
            friend.open(visit.page.url.removeprefix(studio.url))
            expect(friend.field("Price per hour (USD)")).to_have_value("3.0000")
    read_offline(chromium, report)
    # One double click, one job: each of the two buttons made exactly one, and the chat one.
    assert jobs.count(workspace) == before + 3
    view = evaluations.show(workspace, evaluation)
    assert [level.concurrency for level in view.document.variants[1].levels] == list(LEVELS)
    assert artifacts.show(workspace, view.document.variants[1].variant.source).job_id == optimize_job
    assert {jobs.show(workspace, job).kind for job in (optimize_job, view.job_id)} == {
        JobKind.OPTIMIZE,
        JobKind.EVALUATE,
    }
