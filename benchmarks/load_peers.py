"""What other load generators measure of the same exact server: vLLM's bench and GuideLLM, each in an environment of its
own.

TTFT only, the figure that all three define alike where the server sends no empty first chunk, as here. A peer that is
not installed is left out, and the report says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Any

import psutil

from backend.domain.maths.intervals import percentile
from backend.settings import CHECKOUT
from tests import live_processes
from tests.fakes.running import ask, running

HERE = Path(__file__).resolve().parent
VLLM = "vLLM bench's request function, driven by ours"
"""What the row is: its code sends, reads and stamps, `peers/vllm_client.py` keeps the streams busy as its serve.py
does."""
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
        parsed = json.loads(done.stdout)
        return {**errors(parsed.pop("ttft_ms"), ask(f"{url}/sent")), **_cost(parsed), "version": parsed["version"]}


def guidellm(command: Path, streams: int, tokens_per_s: float, tokens: int, seconds: float) -> dict[str, Any]:
    """`guidellm benchmark` at a fixed concurrency; its own report, request by request."""
    with (
        running("exact_server.py", "--realtime", "--rate", tokens_per_s / streams, "--ttft-ms", 100) as url,
        tempfile.TemporaryDirectory() as out,
    ):
        report = Path(out) / "report.json"
        lengths = (
            f"output_tokens={tokens},output_tokens_stdev={tokens * 0.29:.0f},output_tokens_min={tokens * 17 // 32}"
        )
        arguments = [
            *PROMPT,
            str(command),
            "run",
            "--backend",
            f"kind=openai_http,target={url},model=exact",
            "--profile",
            f"kind=concurrent,streams={streams}",
            "--constraint",
            f"kind=max_duration,seconds={seconds:g}",
            "--tokenizer",
            f"kind=hf_auto,model={CHECKOUT / 'assets' / 'starter' / 'target'}",
            "--data",
            f"kind=synthetic_text,prompt_tokens=32,{lengths},output_tokens_max={tokens * 48 // 32}",
            "--output",
            f"kind=json,path={report}",
            "--disable-console",
        ]
        with (Path(out) / "log").open("w+") as log:
            environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
            used = cpu_of(psutil.Popen(arguments, stdout=log, stderr=log, env=environment, cwd=out))
            log.seek(0)
            if not report.is_file():
                return {"not_run": (log.read().strip().splitlines() or ["no output"])[-1][:200]}
        document = json.loads(report.read_text())
        return {**_guidellm(document["benchmarks"][0], used, url), "version": document["metadata"]["guidellm_version"]}


def _guidellm(benchmark: dict[str, Any], used: list[tuple[float, float]], url: str) -> dict[str, Any]:
    """CPU is what its processes used between its first request and its last answer, not in starting up."""
    requests = benchmark["requests"]["successful"]
    ttfts = {row["output"].split(" ")[0][1:]: row["time_to_first_token_ms"] for row in requests if row["output"]}
    start = min(row["request_start_time"] for row in requests)
    end = max(row["request_end_time"] for row in requests)
    before = max((cpu for moment, cpu in used if moment <= start), default=0.0)
    during = max((cpu for moment, cpu in used if moment <= end), default=before) - before
    total = sum(row["output_tokens"] or 0 for row in requests)
    failed = len(benchmark["requests"]["errored"])
    return {**errors(ttfts, ask(f"{url}/sent")), "cpu_s_per_1k_tokens": during / max(1, total) * 1000, "failed": failed}


def errors(ttfts_ms: dict[str, float], sent: list[dict[str, Any]]) -> dict[str, float]:
    """Percentiles of |measured - true| TTFT in ms, by the server's own stamps."""
    truth = {str(row["number"]): (row["sends"][0] - row["received"]) * 1000 for row in sent if row["sends"]}
    ordered = sorted(abs(ttft - truth[number]) for number, ttft in ttfts_ms.items() if number in truth)
    return {
        "requests": len(ordered),
        "ttft_error_ms_p50": percentile(ordered, 50),
        "ttft_error_ms_p99": percentile(ordered, 99),
    }


def _cost(values: dict[str, Any]) -> dict[str, float]:
    return {"cpu_s_per_1k_tokens": values["cpu_s"] / max(1, values["tokens"]) * 1000, "failed": values["failed"]}


def cpu_of(process: psutil.Popen) -> list[tuple[float, float]]:
    """(moment, CPU seconds so far) of it and its children, until it ends; killed where it does not."""
    observed: list[tuple[float, float]] = []
    deadline = time() + TIMEOUT_S
    while time() < deadline:
        with suppress(psutil.TimeoutExpired):
            process.wait(0.25)
            return observed
        with suppress(psutil.NoSuchProcess):
            tree = [process, *process.children(recursive=True)]
            observed.append((time(), sum(sum(member.cpu_times()[:2]) for member in tree)))
    live_processes.kill([*live_processes.children(process.pid), process])
    return observed
