"""The cost of the way through the gateway: TTFT and the delay of each chunk, beside asking the server directly.

A server whose true send times are known (tests/fakes/exact_server.py) is asked directly, through `whetstone gateway`
and, with `--litellm FOLDER`, through LiteLLM's proxy, which that environment has (`python -m venv FOLDER`, then
`FOLDER/bin/pip install 'litellm[proxy]'`). Our load generator sends, at 1, 16 and 64 streams; the ways take turns,
slice by slice, in one process of it, so that other work of the machine slows all of them alike. The gateway asks for a
key and writes its log.

TTFT is what the client measured. The delay of a chunk is from the server's write to the client's read, by one clock.
Server, generator and what is between them have real-time priority where that is allowed, so that other work of the
machine blurs little; they still share its cores.

Prints a table and writes benchmarks/results/gateway.md: `python benchmarks/gateway.py [--litellm FOLDER]`, two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

from backend import processes  # noqa: E402
from backend.domain.load.load import Load  # noqa: E402
from backend.domain.load.records import LoadPlan, RequestRecord  # noqa: E402
from backend.domain.maths.intervals import percentile  # noqa: E402
from backend.evaluate.load import run_alternating  # noqa: E402
from backend.service.serving import gateway  # noqa: E402
from benchmarks.load_peers import PROMPT  # noqa: E402
from benchmarks.load_scale import Truth, sent_by_server  # noqa: E402
from tests import live_processes  # noqa: E402
from tests.fakes.running import ask, running, write_prompts  # noqa: E402
from tests.helpers.serve_jobs import put_serve_job  # noqa: E402
from tests.homes import open_home  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "gateway.md"
STREAMS = (1, 16, 64)
SERVER = ("--realtime", "--rate", 50, "--ttft-ms", 20)
TOKENS = 32
MODEL = "exact"
TOKEN_VARIABLE, PEERS_TOKEN_VARIABLE = "WHETSTONE_TOKEN_BENCHMARK", "WHETSTONE_TOKEN_PEER"
START_S = 120.0
COLUMNS = (
    *("streams", "way", "requests", "failed", "TTFT p50", "+", "TTFT p99", "+"),
    *("chunk delay p50", "+", "p99", "+", "CPU a request"),
)
GOAL_STREAMS, GOAL_P50_MS, GOAL_P99_MS = 64, 1.0, 3.0
"""The gateway is to add at most this to TTFT at that many streams."""


class Way(NamedTuple):
    """A way to the server. `pid` is of the process between, None where there is none."""

    name: str
    url: str
    bearer_env: str | None = None
    pid: int | None = None


class Figures(NamedTuple):
    """Figures of one way at one level, in milliseconds; `cpu_ms` is of the process between, for a request."""

    requests: int
    failed: int
    ttft_p50: float
    ttft_p99: float
    chunks: int
    chunk_p50: float
    chunk_p99: float
    cpu_ms: float | None


@contextmanager
def our_gateway(upstream: str, folder: Path) -> Iterator[Way]:
    """`whetstone gateway` before that server, with a key."""
    workspace = open_home(folder / "home")
    put_serve_job(workspace, "j-benchmark", {MODEL: upstream})
    os.environ[TOKEN_VARIABLE] = gateway.add_key(workspace, "benchmark").token
    command = [*PROMPT, sys.executable, "-m", "backend.cli.main", "gateway", "--port", "0"]
    environment = {**os.environ, "WHETSTONE_HOME": str(workspace.settings.home)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            address = re.search(r"http://\S+/v1", process.stderr.readline())
            assert address is not None, "the gateway did not start"
            yield Way("gateway", address.group(), TOKEN_VARIABLE, process.pid)
        finally:
            process.terminate()


@contextmanager
def litellm_proxy(environment: Path, upstream: str, folder: Path) -> Iterator[Way]:
    """LiteLLM's proxy before that server, with a key, one worker and no database. Raises SystemExit where it does not
    start."""
    # 1. Its configuration.
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    parameters = {"model": f"openai/{MODEL}", "api_base": f"{upstream}/v1", "api_key": "none"}
    configuration = folder / "litellm.json"
    configuration.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": parameters}]}))
    # 2. Start it, and wait until it answers.
    command = [
        *PROMPT,
        environment / "bin" / "litellm",
        "--config",
        configuration,
        "--host",
        "127.0.0.1",
        "--port",
        port,
    ]
    key = os.environ[PEERS_TOKEN_VARIABLE] = f"sk-{secrets.token_hex(32)}"
    own = {**os.environ, "LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    log = folder / "litellm.log"
    with (
        log.open("wb") as opened,
        subprocess.Popen(map(str, command), stdout=opened, stderr=opened, env=own) as process,
    ):
        try:
            deadline = time.monotonic() + START_S
            while not _answers(f"http://127.0.0.1:{port}/health/liveliness"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"LiteLLM did not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.5)
            yield Way("LiteLLM", f"http://127.0.0.1:{port}/v1", PEERS_TOKEN_VARIABLE, process.pid)
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def measure(ways: Sequence[Way], streams: int, options: argparse.Namespace, folder: Path, sent: str) -> list[Figures]:
    """Return the figures of each way at that many streams; `sent` is the address of the server's true send times."""
    folder.mkdir()
    lengths = [TOKENS * (number + 17) // 32 for number in range(32)]  # else all streams march in step
    prompts = write_prompts(folder, *({"prompt": f"{length} tokens", "max_tokens": length} for length in lengths))
    runs = [
        [
            LoadPlan(
                url=way.url,
                model=MODEL,
                endpoint="chat",
                load=Load("closed", streams),
                seconds=options.seconds,
                prompts=prompts,
                bearer_env=way.bearer_env,
            )
        ]
        * options.slices
        for way in ways
    ]
    before = [_cpu_s(way) for way in ways]
    results = run_alternating(runs, folder)
    after = [_cpu_s(way) for way in ways]
    truth = {row["number"]: row for row in ask(sent)}
    return [
        figures(records, truth, cpu_s=None if first is None or last is None else last - first)
        for (records, _), first, last in zip(results, before, after, strict=True)
    ]


def _cpu_s(way: Way) -> float | None:
    """Return the processor seconds of the process between and of its children."""
    if way.pid is None:
        return None
    times = [live_processes.answer(each.cpu_times, None) for each in processes.list_tree(way.pid)]
    return sum(each.user + each.system for each in times if each is not None)


def figures(records: Sequence[RequestRecord], truth: Truth, *, cpu_s: float | None) -> Figures:
    """Return the figures of measured requests. A chunk counts where the way passes chunks one by one."""
    measured = [record for record in records if record.ok and not record.warm]
    ttfts = sorted(
        1000 * (record.first_content - record.sent) for record in measured if record.first_content and record.sent
    )
    delays = list[float]()
    for record in measured:
        sends = sent_by_server(record, truth)["sends"]
        if len(sends) == len(record.chunk_times):
            delays += [1000 * (arrival - send) for arrival, send in zip(record.chunk_times, sends, strict=True)]
    delays.sort()
    return Figures(
        requests=len(measured),
        failed=sum(not record.ok for record in records),
        ttft_p50=percentile(ttfts, 50),
        ttft_p99=percentile(ttfts, 99),
        chunks=len(delays),
        chunk_p50=percentile(delays, 50) if delays else float("nan"),
        chunk_p99=percentile(delays, 99) if delays else float("nan"),
        cpu_ms=None if cpu_s is None else 1000 * cpu_s / len(records),
    )


def page(ways: Sequence[Way], levels: dict[int, list[Figures]], options: argparse.Namespace) -> str:
    """Return the page of the results."""
    lines = [
        "# What the way through the gateway costs",
        "",
        *(f"- {name}: {value}" for name, value in _conditions(ways, options).items() if value),
        "",
        f"The server sends its first token after {SERVER[-1]} ms and {SERVER[-3]} tokens/s to each stream, one a "
        f"chunk, {TOKENS} an answer in the mean, of 32 lengths. Each way had {options.slices} slices of "
        f"{options.seconds:g} s at each level. Milliseconds; `+` is the difference to asking the server directly. A "
        "chunk's delay is from the server's write to the client's read.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    for streams, rows in levels.items():
        direct = rows[0]
        for way, row in zip(ways, rows, strict=True):
            cells = [streams, way.name, row.requests, row.failed]
            for name in ("ttft_p50", "ttft_p99", "chunk_p50", "chunk_p99"):
                value, base = getattr(row, name), getattr(direct, name)
                cells += [f"{value:.2f}", "" if row is direct else f"{value - base:+.2f}"]
            cells.append("" if row.cpu_ms is None else f"{row.cpu_ms:.2f}")
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", *_goal_lines(levels), ""])


def _goal_lines(levels: dict[int, list[Figures]]) -> list[str]:
    """Say whether the goal was met, in whatever direction."""
    if GOAL_STREAMS not in levels:
        return []
    direct, through = levels[GOAL_STREAMS][:2]
    lines = []
    for name, goal in (("p50", GOAL_P50_MS), ("p99", GOAL_P99_MS)):
        added = getattr(through, f"ttft_{name}") - getattr(direct, f"ttft_{name}")
        outcome = "met" if added <= goal else "MISSED"
        lines.append(
            f"- Goal at {GOAL_STREAMS} streams: at most {goal:g} ms more TTFT {name}. {added:+.2f} ms: {outcome}."
        )
    return lines


def _conditions(ways: Sequence[Way], options: argparse.Namespace) -> dict[str, str]:
    """Return date, hardware, and versions."""
    packages = ("aiohttp", "httptools", "starlette", "uvicorn", "uvloop")
    versions = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)]
    if any(way.name == "LiteLLM" for way in ways):
        versions.append(f"LiteLLM {_litellm_version(options.litellm)} (one worker)")
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    memory = psutil.virtual_memory().total / 2**30
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "command": f"python benchmarks/gateway.py{' --litellm FOLDER' if options.litellm else ''}",
        "hardware": f"{psutil.cpu_count()} cores of {model}, {memory:.0f} GiB, shared by server, gateway and generator",
        "priority": "real time for server, generator and the process between" if PROMPT else "as other programs",
        "load average at the end": ", ".join(f"{load:.2f}" for load in psutil.getloadavg()),
        "versions": ", ".join(versions),
        "note": options.note,
    }


def _litellm_version(environment: Path) -> str:
    code = "from importlib.metadata import version; print(version('litellm'))"
    command = [str(environment / "bin" / "python"), "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--litellm", type=Path, metavar="FOLDER", help="a virtual environment that has litellm[proxy]")
    parser.add_argument("--slices", type=int, default=4, help="of each way at each level")
    parser.add_argument("--seconds", type=float, default=2.5, help="of a slice")
    parser.add_argument("--streams", type=int, nargs="+", default=list(STREAMS))
    parser.add_argument("--note", default="")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as written, ExitStack() as stack:
        folder = Path(written)
        server = stack.enter_context(running("exact_server.py", *SERVER))
        ways = [Way("direct", f"{server}/v1"), stack.enter_context(our_gateway(server, folder))]
        if options.litellm is not None:
            ways.append(stack.enter_context(litellm_proxy(options.litellm, server, folder)))
        levels: dict[int, list[Figures]] = {}
        for streams in options.streams:
            levels[streams] = measure(ways, streams, options, folder / str(streams), f"{server}/sent")
            text = page(ways, dict(sorted(levels.items())), options)
            if not options.no_write:  # after each level, so that a run that is cut off leaves what it measured
                RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
