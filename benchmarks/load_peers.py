"""What other load generators measure of the same exact server: vLLM's bench and GuideLLM, each in an environment of its own.

TTFT only, the figure that all three define alike where the server sends no empty first chunk, as here. A peer that is not
installed is left out, and the report says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psutil

from backend.domain.order_statistics import percentile
from backend.settings import CHECKOUT
from tests.fakes.running import ask, running

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 240
PROMPT = ["chrt", "--rr", "1"] if os.geteuid() == 0 and shutil.which("chrt") else []
"""Peers get what our generator takes for itself where it may: the processor as soon as bytes come."""


def vllm(python: Path, streams: int, tokens_per_s: float, lengths: list[int], seconds: float) -> dict[str, Any]:
    """vLLM bench's request function, for about as many requests as the others come to."""
    requests = int(streams * max(2, seconds / (0.1 + max(lengths) * streams / tokens_per_s)))
    command = [*PROMPT, str(python), str(HERE / "peers" / "vllm_client.py")]
    with running("exact_server.py", "--realtime", "--rate", tokens_per_s / streams, "--ttft-ms", 100) as url:
        arguments = [url, str(streams), str(requests), json.dumps(lengths)]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode:
            return {"not_run": done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else "no output"}
        found = json.loads(done.stdout)
        return {**errors(found.pop("ttft_ms"), ask(f"{url}/sent")), **_cost(found), "version": found["version"]}


def guidellm(command: Path, streams: int, tokens_per_s: float, tokens: int, seconds: float) -> dict[str, Any]:
    """`guidellm benchmark` at a fixed concurrency; its own report, request by request."""
    with (
        running("exact_server.py", "--realtime", "--rate", tokens_per_s / streams, "--ttft-ms", 100) as url,
        tempfile.TemporaryDirectory() as out,
    ):
        report = Path(out) / "report.json"
        arguments = [
            *PROMPT, str(command), "benchmark", "--target", url, "--rate-type", "concurrent", "--rate", str(streams),
            "--max-seconds", str(seconds), "--data", f"prompt_tokens=32,output_tokens={tokens}", "--model", "exact",
            "--processor", str(CHECKOUT / "assets" / "starter" / "target"), "--output-path", str(report),
        ]  # fmt: skip
        with (Path(out) / "log").open("w+") as log:
            process = psutil.Popen(arguments, stdout=log, stderr=log, env={**os.environ, "HF_HUB_OFFLINE": "1"})
            cpu = _until_end(process)
            log.seek(0)
            if not report.is_file():
                return {"not_run": (log.read().strip().splitlines() or ["no output"])[-1][:200]}
        requests = json.loads(report.read_text())["benchmarks"][0]["requests"]["successful"]
        ttfts = {row["output"].split(" ")[0][1:]: row["time_to_first_token_ms"] for row in requests if row["output"]}
        made = sum(row["output_tokens"] or 0 for row in requests)
        return {**errors(ttfts, ask(f"{url}/sent")), "cpu_s_per_1k_tokens": cpu / max(1, made) * 1000}


def errors(ttfts_ms: dict[str, float], sent: list[dict[str, Any]]) -> dict[str, float]:
    """Percentiles of |measured - true| TTFT in ms, by the server's own stamps."""
    truth = {str(row["number"]): (row["sends"][0] - row["received"]) * 1000 for row in sent if row["sends"]}
    found = sorted(abs(ttft - truth[number]) for number, ttft in ttfts_ms.items() if number in truth)
    return {"requests": len(found), "ttft_error_ms_p50": percentile(found, 50), "ttft_error_ms_p99": percentile(found, 99)}


def _cost(found: dict[str, Any]) -> dict[str, float]:
    return {"cpu_s_per_1k_tokens": found["cpu_s"] / max(1, found["tokens"]) * 1000, "failed": found["failed"]}


def _until_end(process: psutil.Popen) -> float:
    """CPU seconds of it and its children, as last seen."""
    used = 0.0
    try:
        for _ in range(TIMEOUT_S * 2):
            tree = [process, *process.children(recursive=True)]
            used = max(used, sum(sum(each.cpu_times()[:2]) for each in tree))
            process.wait(0.5) if not process.is_running() else _sleep(process)
            if process.poll() is not None:
                break
        else:
            process.kill()
    except psutil.NoSuchProcess:
        pass
    return used


def _sleep(process: psutil.Popen) -> None:
    try:
        process.wait(0.5)
    except psutil.TimeoutExpired:
        return
