"""One live vLLM server, loaded by our generator and by GuideLLM in turns: do the two report the same?

    .venv/bin/python -m benchmarks.load_agreement --guidellm DIR/bin/guidellm [--rounds 5] [--times 8] [--note "..."]

GuideLLM lives in an environment of its own (`python -m venv DIR && DIR/bin/pip install guidellm==0.8.1`). Same prompts,
same number of tokens (`ignore_eos`), same streams, ABBA over the rounds, after a pass of each that is thrown away;
prefix caching is off. After each pair both run at once: on a machine whose speed drifts by more than the bar, only that
compares the figures as reported. Three things keep apart what a difference comes from: GuideLLM's formulas applied to
our own records of the same run (what the definition does), the server's own account of each run from /metrics (what the
tool's clock does), and how many requests were under way (what the tool's pauses between requests do). The server has
one core and the generators the others, so that none takes from the server it measures (`--shared` lets them). Writes
benchmarks/results/load_agreement.md and .json; about a quarter of an hour. With `--exact` the server is
tests/fakes/exact_server.py, at a pace that nothing else on the machine changes, and the results are
load_agreement_exact.md and .json: there the reported figures can be compared as they stand.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from backend.cli.output import table
from backend.domain.maths import student_t
from backend.hardware import engine_status, probe
from backend.serving.vllm import VllmServer
from backend.settings import ASSETS, load
from benchmarks import starter_server
from benchmarks.load_agreement_runs import OURS, THEIRS, Bench, Fixed, Run, run, together
from tests.fakes.running import running

RESULTS = Path(__file__).parent / "results"
WORKLOAD = ASSETS / "workloads" / "starter-code.jsonl"
STREAMS = (1, 4)
EXACT = ("--rate", 120, "--ttft-ms", 40)
"""About the pace of the vLLM server here when nothing else runs."""
CHARACTERS = 160
"""Of each prompt: with little to prefill, the streams do not wait for each other's first token."""
BAR = 0.03
ALIKE = {
    "output_tokens_per_s": "yes: all tokens over the time from the first request sent to the last answer ended "
    "(GuideLLM's "
    "window without its warm-up and cool-down, which are off by default)",
    "tpot_ms_mean": "yes where the first chunk holds one token: its inter-token latency is (last - first) / (tokens - "
    "1), ours "
    "takes off all tokens of the first chunk; it weighs requests by their tokens, which are as many in each here",
    "tpot_ms_p50": "yes, as above",
    "ttft_ms_p50": "yes: from the headers written to the first chunk with text; ours is stamped at the socket's read, "
    "its own "
    "when its loop has come to the line",
    "client_latency_ms_p50": "nearly: both to the end of the answer; its own also until the connection is given back",
}
"""Metric -> whether the definitions coincide, after guidellm 0.8.1: schemas/base/request_stats.py,
backends/openai/http.py."""
COMPARED = (
    "streams",
    "figure",
    "ours",
    "GuideLLM",
    "ours / GuideLLM (95 %)",
    f"within {BAR:.0%}",
    "its formula on our records / ours",
)
REFEREED = ("streams", "figure", "ours / server", "GuideLLM / server", "ours / GuideLLM (95 %)", f"within {BAR:.0%}")
SERVERS = (
    "streams",
    "under",
    "server's TPOT ms",
    "server's TTFT ms",
    "tool's TTFT - server's ms",
    "core taken by the tool",
)
BARRED = ("output_tokens_per_s", "tpot_ms_mean", "tpot_ms_p50")


@contextmanager
def served(arguments: argparse.Namespace, folder: Path) -> Iterator[VllmServer | Fixed]:
    if arguments.exact:
        with running("exact_server.py", *EXACT) as url:
            yield Fixed(url)
    else:
        cores = None if arguments.shared else starter_server.apart()
        with starter_server.serving(folder, arguments.times, cores) as server:
            yield server


def measure(arguments: argparse.Namespace, folder: Path) -> tuple[list[Run], list[Run]]:
    """Every level of every round, in turns and then together. In turns ours is first in even rounds, GuideLLM in odd
    ones; the pass before them is not kept."""
    lines = WORKLOAD.read_text().splitlines()[: arguments.requests]
    prompts = [json.loads(line)["prompt"][:CHARACTERS] for line in lines]
    file = folder / "prompts.jsonl"
    rows = [{"prompt": prompt, "output_tokens_count": arguments.tokens} for prompt in prompts]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    turns, at_once = [], []
    with served(arguments, folder) as server:
        bench = Bench(server, arguments.guidellm.resolve(), folder, file, len(prompts), arguments.tokens)
        for number in range(-1, arguments.rounds):
            for streams in STREAMS if number >= 0 else STREAMS[-1:]:
                began, of_round = time.monotonic(), []
                for tool in (OURS, THEIRS) if number % 2 == 0 else (THEIRS, OURS):
                    of_round.append(print_run(run(bench, tool, streams, number)))
                turns += of_round if number >= 0 else []
                if number >= 0 and arguments.together:
                    seconds = arguments.together * (time.monotonic() - began)
                    at_once += [print_run(created) for created in together(bench, streams, number, seconds)]
    return turns, at_once


def print_run(created: Run) -> Run:
    print(
        created.round,
        created.streams,
        created.tool,
        {name: round(value, 3) for name, value in created.figures.items()},
        flush=True,
    )
    return created


def paired(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Ours / GuideLLM's and its 95 % interval, a paired t-interval on the rounds' log ratios; no spread for one
    round."""
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    half = student_t.quantile(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return math.exp(fmean(logs)), math.exp(fmean(logs) - half), math.exp(fmean(logs) + half)


def _interval(middle: float, low: float, high: float) -> str:
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def _values(runs: Sequence[Run], tool: str, streams: int, metric: str) -> list[float]:
    return [run.figures[metric] for run in runs if (run.tool, run.streams) == (tool, streams)]


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def _compared(runs: Sequence[Run]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for streams in STREAMS:
        for metric in (*ALIKE, "under_way"):
            middle, low, high = paired(*(_values(runs, tool, streams, metric) for tool in (OURS, THEIRS)))
            own = [run for run in runs if run.streams == streams and metric in run.by_their_formulas]
            formula = [run.by_their_formulas[metric] / run.figures[metric] for run in own]
            within = ("yes" if abs(middle - 1) <= BAR else "no") if metric in BARRED else ""
            spreads = [_spread(_values(runs, tool, streams, metric)) for tool in (OURS, THEIRS)]
            rows.append(
                (
                    streams,
                    metric,
                    *spreads,
                    _interval(middle, low, high),
                    within,
                    f"{median(formula):.4f}" if formula else "",
                )
            )
    return rows


def against_server(run: Run) -> dict[str, float]:
    """What the tool says over what the server says of the very same requests; 1 is agreement.

    TPOT: both means. Throughput: over that of streams which are never idle, by the server's times: streams x tokens of
    a request / (its time to first token + its time per token x the tokens after the first).
    """
    tokens = run.server["tokens"] / run.server["requests"]
    each_s = (run.server["ttft_ms_mean"] + run.server["tpot_ms_mean"] * (tokens - 1)) / 1000
    return {
        "tpot_ms_mean": run.figures["tpot_ms_mean"] / run.server["tpot_ms_mean"],
        "output_tokens_per_s": run.figures["output_tokens_per_s"] / (run.streams * tokens / each_s),
        "tokens": run.figures["tokens"] / run.server["tokens"],
    }


def _refereed(runs: Sequence[Run]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for streams in STREAMS:
        for metric in ("tpot_ms_mean", "output_tokens_per_s", "tokens"):
            by_name = {
                tool: [against_server(run)[metric] for run in runs if (run.streams, run.tool) == (streams, tool)]
                for tool in (OURS, THEIRS)
            }
            middle, low, high = paired(by_name[OURS], by_name[THEIRS])
            within = "yes" if abs(middle - 1) <= BAR else "no"
            rows.append(
                (
                    streams,
                    metric,
                    _spread(by_name[OURS]),
                    _spread(by_name[THEIRS]),
                    _interval(middle, low, high),
                    within,
                )
            )
    return rows


def _servers(runs: Sequence[Run]) -> list[tuple[object, ...]]:
    """What the server itself did under each tool: where this differs, the tools measured different things."""
    rows: list[tuple[object, ...]] = []
    for streams in STREAMS:
        for tool in (OURS, THEIRS):
            own = [run for run in runs if (run.streams, run.tool) == (streams, tool)]
            later = [run.figures["ttft_ms_mean"] - run.server["ttft_ms_mean"] for run in own]
            rows.append(
                (
                    streams,
                    tool,
                    *(_spread([run.server[f"{name}_ms_mean"] for run in own]) for name in ("tpot", "ttft")),
                    _spread(later),
                    _spread([run.figures["core_share"] for run in own]),
                )
            )
    return rows


def markdown(runs: Sequence[Run], at_once: Sequence[Run], about: dict[str, Any]) -> str:
    lines = [
        "# Agreement with GuideLLM on one live server",
        "",
        *(f"- {name}: {value}" for name, value in about.items() if value),
    ]
    if at_once:
        lines += [
            "",
            "As reported, both at the same time on the one server, so many streams each: what the machine did stands "
            "in both. "
            "Medians over the rounds, least and most in brackets.",
            "",
            "```",
            table(COMPARED, _compared(at_once)),
            "```",
        ]
    lines += [
        "",
        "As reported, one after the other. Medians over the rounds, least and most in brackets. The tools ask at "
        "different "
        "moments, so these ratios also hold what the machine did in between; an interval that holds 1 shows no "
        "difference.",
        "",
        "```",
        table(COMPARED, _compared(runs)),
        "```",
        "",
    ]
    lines += [
        "The same, each over the server's own account (/metrics) of the very requests it measured: this compares the "
        "tools.",
        "",
        "Throughput is over what never idle streams would have given at the server's own times, so a pause of the tool "
        "between two requests shows here: where throughput "
        "is apart, `under_way` above says how many requests each kept under way.",
        "",
    ]
    lines += ["```", table(REFEREED, _refereed(runs)), "```", "", "What the server itself did meanwhile:", ""]
    lines += ["```", table(SERVERS, _servers(runs)), "```", "", "Do the definitions coincide?", ""]
    lines += [f"- {metric}: {message}." for metric, message in ALIKE.items()]
    lines += [
        "- GuideLLM's `time_per_output_token_ms` is another figure: it has the time to first token in it, (last token "
        "- "
        "request sent) / tokens. It is not compared."
    ]
    return "\n".join([*lines, ""])


def _about(arguments: argparse.Namespace) -> dict[str, Any]:
    vllm = (engine_status.read_marker(load().engines, "serve") or {}).get("version")
    server, what = f"vLLM {vllm}, ", f"the starter model made {arguments.times} times as wide"
    if arguments.exact:
        server, what = (
            "",
            f"a server of fixed pace ({' '.join(map(str, EXACT))}), whose own account is its log of sends",
        )
    machine = probe.probe()
    result = subprocess.run([str(arguments.guidellm), "--version"], capture_output=True, text=True, check=False)
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "hardware": f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB",
        "versions": f"{server}GuideLLM {result.stdout.split()[-1]}, python {sys.version.split()[0]}",
        "load": f"the first {CHARACTERS} characters of {arguments.requests} prompts of {WORKLOAD.stem}, "
        f"{arguments.tokens} "
        f"tokens each, /v1/completions, temperature 0, {arguments.rounds} rounds, {what}",
        "cores": "" if arguments.exact else _cores(arguments.shared),
        "note": arguments.note,
    }


def _cores(shared: bool) -> str:
    if shared:
        return "the server and whichever generator is at work share all"
    server, others = starter_server.apart()
    return (
        f"core {server} for every process of the server, {', '.join(map(str, others))} for whichever generator is at "
        f"work"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--guidellm", type=Path, required=True, help="the guidellm command of an environment of its own"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--times", type=int, default=8, help="how many times as wide as the starter; a power of two")
    parser.add_argument(
        "--together",
        type=float,
        default=1.5,
        help="our load while both run at once, as a share of the time "
        "that the two took one after the other; 0 for one after the other only",
    )
    parser.add_argument("--shared", action="store_true", help="let the server and the generators share all cores")
    parser.add_argument("--exact", action="store_true", help="ask tests/fakes/exact_server.py instead of vLLM")
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    if not arguments.guidellm.is_file():
        raise SystemExit(
            f"{arguments.guidellm} is not there: make an environment with guidellm==0.8.1 and give its command."
        )
    about = _about(arguments)
    with tempfile.TemporaryDirectory(prefix="whetstone-agreement-") as folder:
        turns, at_once = measure(arguments, Path(folder))
    text = markdown(turns, at_once, about)
    name = "load_agreement_exact" if arguments.exact else "load_agreement"
    (RESULTS / f"{name}.md").write_text(text)
    values = {"runs": [run._asdict() for run in turns], "together": [run._asdict() for run in at_once]}
    (RESULTS / f"{name}.json").write_text(json.dumps({**about, **values}, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()
