"""One level of `load_agreement`: by our generator or by GuideLLM, in turns with the server's own account, or at the
same time."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import psutil

from backend.domain.evaluation.metrics import summarise_level
from backend.domain.imported import guidellm as imported_guidellm
from backend.domain.load.load import Load
from backend.domain.load.records import Audit, LoadPlan, RequestRecord
from backend.evaluate.load import run_level
from backend.serving.vllm import VllmServer
from benchmarks import load_peers, wide
from tests.fakes.running import ask

OURS, THEIRS = "ours", "GuideLLM"
HISTOGRAMS = {"tpot_ms": "vllm:request_time_per_output_token_seconds", "ttft_ms": "vllm:time_to_first_token_seconds"}
"""The server's own, a request: from its arrival to its first token, and each token after it."""


class Run(NamedTuple):
    """One tool's account of one level, and the server's own of the same requests."""

    tool: str
    streams: int
    round: int
    figures: dict[str, float]
    server: dict[str, float]
    by_their_formulas: dict[str, float]
    """Of our records: what GuideLLM would have made of them; empty for GuideLLM's own."""


class Fixed(NamedTuple):
    """tests/fakes/exact_server.py, whose speed no other work on the machine can change."""

    url: str
    served_name: str = "exact"


class Bench(NamedTuple):
    """What every run needs. `prompts` is read by both tools."""

    server: VllmServer | Fixed
    guidellm: Path
    folder: Path
    prompts: Path
    requests: int
    tokens: int


def run(bench: Bench, tool: str, streams: int, number: int) -> Run:
    before = totals(bench.server)
    figures, formulas = ours(bench, streams) if tool == OURS else (theirs(bench, streams), {})
    after = totals(bench.server)
    return Run(tool, streams, number, figures, _between(before, after), formulas)


def together(bench: Bench, streams: int, number: int, seconds: float) -> list[Run]:
    """Both at the same time on the same server, `streams` each: ours for `seconds`, of which what GuideLLM measured
    counts.

    So nothing that the machine does in between stands in their ratio. Raises SystemExit where ours ended first.
    """
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(_loaded, bench, streams, seconds)
        figures = theirs(bench, streams)
        records, audit = waited.result()
    epoch = time.time() - time.perf_counter()
    began, ended = (figures[name] - epoch for name in ("began", "ended"))
    if max(record.end for record in records) < ended:
        raise SystemExit(f"Our {seconds:.0f} s of load were over before GuideLLM was done: give a larger --together.")
    inside = [record for record in records if record.sent is not None and record.sent >= began and record.end <= ended]
    mine = Run(OURS, streams, number, _figures(streams, inside, audit), {}, by_their_formulas(inside))
    return [mine, Run(THEIRS, streams, number, figures, {}, {})]


def ours(bench: Bench, streams: int) -> tuple[dict[str, float], dict[str, float]]:
    records, audit = _loaded(bench, streams)
    return _figures(streams, records, audit), by_their_formulas(records)


def _loaded(bench: Bench, streams: int, seconds: float | None = None) -> tuple[list[RequestRecord], Audit]:
    """By our generator, over every prompt once or for so many seconds."""
    plan = LoadPlan(
        url=bench.server.url,
        model=bench.server.served_name,
        load=Load("closed", streams),
        warmup_requests=0,
        seconds=seconds,
        requests=bench.requests if seconds is None else None,
        max_tokens=bench.tokens,
        ignore_eos=True,
        prompts=str(bench.prompts),
    )
    records, audit = run_level(plan, bench.folder / "level")
    bad = sorted({record.status for record in records if not record.ok})
    if bad:
        raise SystemExit(f"our requests failed: {', '.join(bad)}")
    return records, audit


def _figures(streams: int, records: list[RequestRecord], audit: Audit) -> dict[str, float]:
    level = summarise_level(Load("closed", streams), [records], [audit], pricing=None, acceptance=None)
    ttft, tpot, latency = level.ttft_ms, level.tpot_ms, level.client_latency_ms
    assert ttft and tpot and latency
    return {
        "output_tokens_per_s": level.output_tokens_per_s,
        "tpot_ms_mean": tpot.mean,
        "tpot_ms_p50": tpot.p50,
        "ttft_ms_p50": ttft.p50,
        "client_latency_ms_p50": latency.p50,
        "ttft_ms_mean": ttft.mean,
        "tokens": sum(record.output_tokens or 0 for record in records),
        "under_way": latency.mean * len(records) / 1000 / level.duration_s,
        "core_share": audit.cpu_s / audit.wall_s,
    }


def by_their_formulas(records: Sequence[RequestRecord]) -> dict[str, float]:
    """GuideLLM's inter-token latency and throughput, of our records (inter_token_latency_ms,
    output_tokens_per_second)."""
    answers = [(r.first_content or 0.0, r.last_content or 0.0, r.output_tokens or 0) for r in records]
    tpot = [(last - first) / (tokens - 1) * 1000 for first, last, tokens in answers]
    window = max(r.end for r in records) - min(r.sent for r in records if r.sent is not None)
    total = sum(tokens for _, _, tokens in answers)
    return {"tpot_ms_mean": fmean(tpot), "tpot_ms_p50": median(tpot), "output_tokens_per_s": total / window}


def theirs(bench: Bench, streams: int) -> dict[str, float]:
    """`guidellm run` of the same prompts; its own summaries, read as the studio imports them."""
    report = bench.folder / "report.json"
    report.unlink(missing_ok=True)
    target = bench.server.url.removesuffix("/v1")
    backend = {
        "kind": "openai_http",
        "target": target,
        "model": bench.server.served_name,
        "request_format": "/v1/completions",
        "extras": {"body": {"temperature": 0.0}},
        **({} if isinstance(bench.server, Fixed) else {"api_key": bench.server.key}),
    }
    command = [
        str(bench.guidellm),
        "run",
        "--backend",
        json.dumps(backend),
        "--profile",
        f"kind=concurrent,streams={streams}",
        "--constraint",
        f"kind=max_requests,count={bench.requests}",
        "--data",
        f"kind=json_file,path={bench.prompts}",
        "--tokenizer",
        f"kind=hf_auto,model={wide.STARTER}",
        "--output",
        f"kind=json,path={report}",
        "--disable-console",
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(bench.folder / "hf"), "PYTHONPATH": ""}
    with (bench.folder / "guidellm.log").open("w") as log:
        used = load_peers.cpu_of(psutil.Popen(command, stdout=log, stderr=log, env=environment, cwd=bench.folder))
    if not report.is_file():
        raise SystemExit(f"GuideLLM wrote no report: {(bench.folder / 'guidellm.log').read_text().strip()[-2000:]}")
    return _theirs(json.loads(report.read_text()), used)


def _theirs(document: dict[str, Any], used: list[tuple[float, float]]) -> dict[str, float]:
    """`used` is (moment, CPU seconds so far) of its processes; what counts is between the first request and the last
    answer."""
    level = imported_guidellm.parse_report("report.json", document).levels[0]
    rows = document["benchmarks"][0]["requests"]["successful"]
    ttft, tpot, latency = level.ttft_ms, level.tpot_ms, level.client_latency_ms
    if level.failed or not (ttft and tpot and latency):
        raise SystemExit("GuideLLM had failed requests, or no times")
    start, end = min(row["request_start_time"] for row in rows), max(row["request_end_time"] for row in rows)
    before, after = (max((cpu for moment, cpu in used if moment <= until), default=0.0) for until in (start, end))
    values = {
        "output_tokens_per_s": level.output_tokens_per_s,
        "tpot_ms_mean": tpot.mean,
        "tpot_ms_p50": tpot.p50,
        "ttft_ms_p50": ttft.p50,
        "client_latency_ms_p50": latency.p50,
        "ttft_ms_mean": ttft.mean,
        "tokens": sum(row["output_tokens"] for row in rows),
        "under_way": sum(row["request_latency"] for row in rows) / (end - start),
        "core_share": (after - before) / (end - start),
        "began": start,
        "ended": end,
    }
    return {name: float(value) for name, value in values.items() if value is not None}


def totals(server: VllmServer | Fixed) -> dict[str, float]:
    """Sums and counts of the server's histograms, and tokens generated, since its start; of the fixed one, made from
    its log."""
    if isinstance(server, Fixed):
        return _logged(ask(f"{server.url}/sent"))
    counters = urllib.request.Request(
        f"{server.url.removesuffix('/v1')}/metrics", headers={"Authorization": f"Bearer {server.key}"}
    )
    with urllib.request.urlopen(counters, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    required = {f"{name}_{part}" for name in HISTOGRAMS.values() for part in ("sum", "count")} | {
        "vllm:generation_tokens_total"
    }
    unique = dict.fromkeys(required, 0.0)
    for line in lines:
        name = line.partition("{")[0].partition(" ")[0]
        if name in required:
            unique[name] += float(line.rpartition(" ")[2])
    return unique


def _logged(sent: list[dict[str, Any]]) -> dict[str, float]:
    """One token a chunk."""
    firsts = [row["sends"][0] - row["received"] for row in sent]
    each = [(row["sends"][-1] - row["sends"][0]) / (len(row["sends"]) - 1) for row in sent]
    options = {"vllm:generation_tokens_total": float(sum(len(row["sends"]) for row in sent))}
    for name, values in ((HISTOGRAMS["ttft_ms"], firsts), (HISTOGRAMS["tpot_ms"], each)):
        options |= {f"{name}_sum": sum(values), f"{name}_count": float(len(values))}
    return options


def _between(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    grown = {name: after[name] - before[name] for name in after}
    means = {f"{ours}_mean": grown[f"{name}_sum"] / grown[f"{name}_count"] * 1000 for ours, name in HISTOGRAMS.items()}
    requests = grown[f"{HISTOGRAMS['ttft_ms']}_count"]
    return {**means, "tokens": grown["vllm:generation_tokens_total"], "requests": requests}
