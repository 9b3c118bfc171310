"""How exact the load generator is, against a server whose true send times are known on the same clock.

256 streams at 12k tokens/s, five runs, medians. TTFT error of a request: what the client measured minus (first content
sent - request received) by the server's own stamps; gap error: the same between successive chunks; both absolute, over
the measured requests. Answers have 32 lengths, so that the streams do not march in step. Then the limits
(`load_scale`), and other load generators against the same server (`load_peers`), where they are installed: vLLM's bench
in the engine environment, GuideLLM in one of its own (`python -m venv DIR && DIR/bin/pip install guidellm==0.8.1`, then
`--guidellm DIR/bin/guidellm`). All in all about eight minutes.
Server and clients run with real-time priority where that is allowed, so that other work on the machine blurs little.
Prints a table and writes benchmarks/results/load_generator.md and .json: `python benchmarks/load_generator.py [--note
"..."]`.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

from backend import settings  # noqa: E402
from backend.domain.evaluation.document import LATENCY_METRICS  # noqa: E402
from backend.domain.evaluation.metrics import summarise_level  # noqa: E402
from backend.domain.load.load import Load  # noqa: E402
from backend.domain.load.records import Audit, LoadPlan, RequestRecord  # noqa: E402
from backend.evaluate.load import run_level  # noqa: E402
from benchmarks import load_peers, load_scale  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
BARS = {"ttft_error_ms_p50": 1.5, "ttft_error_ms_p99": 15.0, "gap_error_ms_p99": 4.0, "cpu_s_per_1k_tokens": 0.03}


SCALE_BARS = {
    "share_of_chunks_seen": ">= 1",
    "core_share": "<= 0.7",
    "failed": "0",
    "peak_rss_mb": "<= 500",
    "client_limited": "0",
    **{name: f"<= {bar:g}" for name, bar in BARS.items()},
    **{
        f"{shape}_{metric}_percent": "<= 1"
        for shape in load_scale.SHAPES
        for metric in (*LATENCY_METRICS, *load_scale.RATES)
    },
}
VLLM = load_peers.VLLM
TIMES_CLOSER = 10.0
"""At least so many times closer to the truth on TTFT p50 than a peer."""


def run_once(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    server = subprocess.Popen(_server(options), stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        prompts = folder / "prompts.jsonl"
        lengths = [options.tokens * (n + 17) // 32 for n in range(32)]
        prompts.write_text("".join(json.dumps({"prompt": f"{n} tokens", "max_tokens": n}) + "\n" for n in lengths))
        plan = LoadPlan(
            url=url,
            model="exact",
            endpoint="chat",
            load=Load("closed", options.streams),
            seconds=options.seconds,
            warmup_requests=1,
            prompts=str(prompts),
        )
        records, audit = run_level(plan, folder)
        with urllib.request.urlopen(f"{url}/sent") as answer:
            truth = {row["number"]: row for row in json.load(answer)}
        return figures(plan.load, records, audit, truth)
    finally:
        server.terminate()
        server.wait()


def figures(
    load: Load, records: list[RequestRecord], audit: Audit, truth: dict[int, dict[str, Any]]
) -> dict[str, float]:
    """The errors of all answers, and what the run cost."""
    tokens = sum(record.output_tokens or 0 for record in records)
    level = summarise_level(load, [records], [audit], pricing=None, acceptance=None)
    return {
        **load_scale.errors(records, truth),
        "cpu_s_per_1k_tokens": audit.cpu_s / tokens * 1000,
        "parse_cpu_s_per_1k_tokens": audit.parse_cpu_s / tokens * 1000,
        "steady_output_tokens_per_s": level.steady_output_tokens_per_s or 0.0,
        "requests": float(len(records)),
        "loop_lag_ms_p99": audit.loop_lag_ms_p99,
        "coalesced_share": audit.coalesced_share,
        "client_limited": float(audit.client_limited),
    }


def _server(options: argparse.Namespace) -> list[str]:
    rate = options.tokens_per_s / options.streams
    script = str(ROOT / "tests" / "fakes" / "exact_server.py")
    return [sys.executable, script, "--rate", str(rate), "--ttft-ms", "100", "--role-chunk", "--realtime"]


def report(
    runs: list[dict[str, float]],
    scale: dict[str, dict[str, float]],
    peers: dict[str, dict[str, Any]],
    options: argparse.Namespace,
) -> tuple[str, dict[str, Any]]:
    """The page and the same as a document."""
    medians = {name: median(run[name] for run in runs) for name in runs[0]}
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{psutil.cpu_count()} cores, {_cpu()}, {psutil.virtual_memory().total / 2**30:.0f} GiB",
        "load_average": [round(load, 2) for load in psutil.getloadavg()],
        "versions": {
            "python": platform.python_version(),
            "uvloop": __import__("uvloop").__version__,
            "os": platform.platform(),
        },
        "load": f"{options.streams} streams, {options.tokens_per_s:g} tokens/s asked, {options.seconds:g} s, chat, "
        f"usage on",
        "note": options.note,
    }
    lines = [
        "# Load generator against exact send times",
        "",
        *(f"- {name}: {value}" for name, value in about.items() if value),
    ]
    lines += [
        "",
        f"Medians of {len(runs)} runs; each run beside them.",
        "",
        "| figure | median | bar | runs |",
        "|---|---|---|---|",
    ]
    for name, value in medians.items():
        bar = f"<= {BARS[name]:g}" if name in BARS else ""
        lines.append(f"| {name} | {value:.4g} | {bar} | {', '.join(f'{run[name]:.4g}' for run in runs)} |")
    for title, figures in scale.items():
        lines += ["", f"## {title}", "", "| figure | value | bar |", "|---|---|---|"]
        lines += [f"| {name} | {value:.4g} | {SCALE_BARS.get(name, '')} |" for name, value in figures.items()]
    lines += _peer_lines(peers, medians["ttft_error_ms_p50"])
    document = {**about, "medians": medians, "bars": BARS, "runs": runs, "scale": scale, "peers": peers}
    return "\n".join(lines) + "\n", document


def _peer_lines(peers: dict[str, dict[str, Any]], ours: float) -> list[str]:
    """Peers against our median; what was not run says why."""
    lines = [
        "",
        "## Others against the same server",
        "",
        "Without an empty first chunk, which vLLM's bench would take for the first token.",
        "",
    ]
    lines += [
        f"| load generator | TTFT error p50 ms | p99 ms | times ours (bar >= {TIMES_CLOSER:g}) | CPU-s per 1k tokens "
        f"| version |",
        "|---|---|---|---|---|---|",
    ]
    for name, result in peers.items():
        if "not_run" in result:
            lines.append(f"| {name} | not run: {result['not_run']} | | | | |")
            continue
        p50, p99, cpu = result["ttft_error_ms_p50"], result["ttft_error_ms_p99"], result["cpu_s_per_1k_tokens"]
        lines.append(f"| {name} | {p50:.4g} | {p99:.4g} | {p50 / ours:.3g} | {cpu:.4g} | {result.get('version', '')} |")
    return lines


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _peers(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    lengths = [options.tokens * (n + 17) // 32 for n in range(32)]
    python = settings.load().engines / "serve" / "bin" / "python"
    values: dict[str, dict[str, Any]] = {VLLM: {"not_run": "the engine environment `serve` is not installed"}}
    if python.is_file():
        values[VLLM] = load_peers.vllm(python, options.streams, options.tokens_per_s, lengths, options.seconds)
    values["GuideLLM"] = {"not_run": "no --guidellm given"}
    if options.guidellm is not None:
        values["GuideLLM"] = load_peers.guidellm(
            options.guidellm, options.streams, options.tokens_per_s, options.tokens, options.seconds
        )
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens-per-s", type=float, default=12_000)
    parser.add_argument("--tokens", type=int, default=128, help="output tokens a request, in the mean")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--note", default="")
    parser.add_argument("--no-write", action="store_true", help="print only")
    parser.add_argument("--guidellm", type=Path, help="the guidellm command of an environment of its own")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [run_once(options, Path(folder)) for _ in range(options.runs)]
        scale = {
            "49k tokens/s": load_scale.offered(Path(folder) / "offered", 256, 49_000, 8.0),
            "2,000 connections": load_scale.connections(Path(folder) / "connections", 2000, 8.0),
            "An empty role chunk and four tokens a chunk": load_scale.shapes(Path(folder) / "shapes", 64, 8.0),
            "Short prompts and answers, 16 streams": load_scale.short(Path(folder) / "short"),
            "Prompts of 50k tokens": load_scale.long_prompts(Path(folder) / "prompts"),
            "Answers of 16,000 tokens": load_scale.long_answers(Path(folder) / "answers"),
            "Sessions: three turns of 4,000 tokens after a prompt of 50k": load_scale.long_sessions(
                Path(folder) / "sessions"
            ),
        }
    text, document = report(runs, scale, _peers(options), options)
    print(text)
    if not options.no_write:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "load_generator.md").write_text(text)
        (RESULTS / "load_generator.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
