"""A GGUF file by clicks alone: made, downloaded, run by llama.cpp without the studio, and chatted with beside the
original. llama.cpp's wheel has no quantizer, so that a machine without a build of it skips this."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser

from backend.domain.errors import EngineMissing
from backend.hardware.engine_status import quantizer_folder
from tests.browser.form_steps import chat_beside, optimize_starter
from tests.browser.running import Studio, answers_at, free_port
from tests.browser.visit import Visit, visiting
from tests.homes import eventually

pytestmark = [pytest.mark.campaign, pytest.mark.vllm, pytest.mark.timeout(900)]


def add_gguf_step(visit: Visit) -> None:
    visit.button("Add a step").click()
    visit.page.get_by_role("button", name="Quantize to a GGUF file (gguf)").click()


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


def test_from_a_gguf_step_to_a_chat_with_the_file(chromium: Browser, studio: Studio, tmp_path: Path) -> None:
    try:
        program = quantizer_folder(studio.workspace.settings) / "llama-server"
    except EngineMissing as missing:
        pytest.skip(str(missing))
    with visiting(chromium, studio.url) as visit:
        optimize_starter(visit, lambda: add_gguf_step(visit), "GGUF 4-bit")
        run_alone(visit, program, tmp_path / "starter.gguf")
        chat_beside(visit)
