"""Endpoints of this machine: how long a wake takes, what memory an idle one keeps, and whether first requests are lost.

For each engine an endpoint is made of a model, under a real supervisor and worker. Its first load is the cold start: in
a new home, so that vLLM compiles. Then it is left alone until it is unloaded, asked for one token, and so on: a wake is
the time from that request to its whole answer. Memory is the proportional set size (PSS) of the worker and all that it
started. Last, bursts of one to four requests are sent with random pauses to an endpoint that is unloaded after a third
of a second, so that each burst wakes it or races with an unload; every answer must be whole.

Prints a table and writes benchmarks/results/endpoints.md:
`python benchmarks/endpoints.py MODEL [--engines llama.cpp,vllm] [--wakes 20] [--vllm-wakes 3] [--first-requests 1000]`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

from backend import processes, service  # noqa: E402
from backend.domain.jobs.endpoint_states import EndpointState  # noqa: E402
from backend.domain.maths.intervals import percentile  # noqa: E402
from backend.service import Workspace  # noqa: E402
from backend.service.jobs import jobs, supervisors  # noqa: E402
from backend.service.models import variants  # noqa: E402
from backend.service.serving import local_endpoints  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "endpoints.md"
WAIT_S = 900.0
IDLE_MINUTES = 0.02
RACING_IDLE_MINUTES, MOST_AT_ONCE, PAUSES_S = 0.005, 4, (0.2, 0.9)
GOALS = {"llama.cpp": "wake p95 at most 2 s", "vllm": "wake at most a third of the cold start"}


class Figures(NamedTuple):
    """Figures of one engine: seconds and bytes."""

    engine: str
    cold_s: float
    wakes_s: Sequence[float]
    loads_s: Sequence[float]
    """The same loads as the worker timed them, without the answer."""
    loaded_bytes: int
    idle_bytes: int


class Lost(NamedTuple):
    """How first requests ended. `loads`: how often the model was loaded for them."""

    requests: int
    lost: int
    loads: int
    seconds: float
    slowest_s: float


@contextmanager
def endpoint(model: str, engine: str, idle_minutes: float) -> Iterator[tuple[Workspace, int, str]]:
    """Yield a new home with one endpoint that is loaded, its port and its key."""
    with tempfile.TemporaryDirectory(prefix="whetstone-endpoints-") as folder:
        workspace = service.open_home(Path(folder))
        source = variants.with_engine(model, engine)
        added = local_endpoints.add(workspace, source, name="measured", idle_minutes=idle_minutes)
        supervisors.start(workspace)
        try:
            wait_for(workspace, EndpointState.LOADED, EndpointState.IDLE)
            shown = local_endpoints.show(workspace, added.name)
            port = int(shown.url.removesuffix("/v1").rpartition(":")[2])
            yield workspace, port, Path(str(shown.key_file)).read_text()
        finally:
            local_endpoints.stop(workspace, added.name)
            wait_for(workspace, EndpointState.STOPPED)
            supervisors.stop(workspace)


def wait_for(workspace: Workspace, *states: EndpointState) -> None:
    """Wait until the endpoint is in one of these states."""
    deadline = time.monotonic() + WAIT_S
    while (shown := local_endpoints.show(workspace, "measured")).state not in states:
        if shown.state is EndpointState.FAILED or time.monotonic() > deadline:
            raise SystemExit(f"The endpoint is {shown.state}: {shown.reason}")
        time.sleep(0.02)


def ask(port: int, key: str) -> tuple[bool, float]:
    """Send a request for one token. Return whether its answer was whole, and the seconds until then."""
    began = time.monotonic()
    body = json.dumps({"model": "measured", "prompt": "The capital of France is", "max_tokens": 1, "temperature": 0})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", body, headers)
        answer = connection.getresponse()
        text = answer.read()
        is_whole = answer.status == http.client.OK and "choices" in json.loads(text)
        if not is_whole:
            print(f"HTTP {answer.status}: {text[:300].decode(errors='replace')}", file=sys.stderr)
    except (OSError, http.client.HTTPException, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        is_whole = False
    finally:
        connection.close()
    return is_whole, time.monotonic() - began


def is_loaded(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/health")
        return bool(json.loads(connection.getresponse().read())["loaded"])
    finally:
        connection.close()


def worker_bytes(workspace: Workspace) -> int:
    """Return the PSS of the endpoint's worker with all that it started."""
    place = str(jobs.show(workspace, str(local_endpoints.show(workspace, "measured").job)).place)
    return processes.proportional_memory(int(place.rpartition(" ")[2]))


def measure(model: str, engine: str, wakes: int) -> Figures:
    """Return cold start, wakes and memory of one engine."""
    with endpoint(model, engine, IDLE_MINUTES) as (workspace, port, key):
        # 1. The cold start, then a request so that all of its memory is in use.
        seconds = []
        if not ask(port, key)[0]:
            raise SystemExit("The first request failed.")
        loaded = worker_bytes(workspace)
        # 2. Wakes, each after the model has been unloaded.
        for _ in range(wakes):
            wait_for(workspace, EndpointState.IDLE)
            is_whole, taken_s = ask(port, key)
            if not is_whole:
                raise SystemExit("A request was lost.")
            seconds.append(taken_s)
        # 3. Memory once it is idle.
        wait_for(workspace, EndpointState.IDLE)
        idle = worker_bytes(workspace)
        job = str(local_endpoints.show(workspace, "measured").job)
        loads = [
            float(event.data["ready_seconds"])
            for _, event in jobs.events(workspace, job)
            if event.kind == "phase" and "ready_seconds" in event.data
        ]
    return Figures(engine, loads[0], seconds, loads[1:], loaded, idle)


def count_lost(model: str, engine: str, requests: int) -> Lost:
    """Return how many of so many requests were lost that came while the model was unloaded, or about to be."""
    generator, answers = random.Random(0), list[tuple[bool, float]]()
    with (
        endpoint(model, engine, RACING_IDLE_MINUTES) as (workspace, port, key),
        ThreadPoolExecutor(MOST_AT_ONCE) as pool,
    ):
        began = time.monotonic()
        while len(answers) < requests:
            time.sleep(generator.uniform(*PAUSES_S))
            size = min(generator.randint(1, MOST_AT_ONCE), requests - len(answers))
            answers += [future.result() for future in [pool.submit(ask, port, key) for _ in range(size)]]
        seconds = time.monotonic() - began
        wait_for(workspace, EndpointState.IDLE)
        loads = local_endpoints.show(workspace, "measured").loads
    return Lost(
        requests, sum(not is_whole for is_whole, _ in answers), loads, seconds, max(taken_s for _, taken_s in answers)
    )


def write_page(figures: Sequence[Figures], lost: Lost | None, command: str) -> str:
    """Return the page of the result."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    lines = [
        "# Wakes, memory and first requests of endpoints",
        "",
        f"- date: {datetime.now(UTC):%Y-%m-%dT%H:%M+00:00}",
        f"- command: {command}",
        f"- hardware: {psutil.cpu_count()} cores of {_processor()}, {psutil.virtual_memory().total / 2**30:.0f} GiB",
        f"- load average at the end: {load}",
        f"- versions: Python {platform.python_version()}",
        "",
        "A wake is the time from a request to an unloaded model until its answer of one token is whole. Memory is the "
        "proportional set size of the endpoint's worker and all that it started.",
        "",
        "| engine | cold start | wakes | wake p50 | wake p95 | longest | load alone p50 | loaded | idle | idle share |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(each) for each in figures]
    lines += ["", *(_wake_line(each) for each in figures), *(_memory_line(each) for each in figures)]
    if lost is not None:
        lines.append(_lost_line(lost))
    return "\n".join([*lines, ""])


def _row(figures: Figures) -> str:
    wakes, loads = sorted(figures.wakes_s), sorted(figures.loads_s)
    times = [figures.cold_s, percentile(wakes, 50), percentile(wakes, 95), wakes[-1], percentile(loads, 50)]
    cold, *others = (f"{value:.2f} s" for value in times)
    memory = [f"{size / 1e6:.0f} MB" for size in (figures.loaded_bytes, figures.idle_bytes)]
    cells = [figures.engine, cold, str(len(wakes)), *others, *memory, f"{_idle_share(figures):.1%}"]
    return f"| {' | '.join(cells)} |"


def _idle_share(figures: Figures) -> float:
    return figures.idle_bytes / figures.loaded_bytes


def _wake_line(figures: Figures) -> str:
    wake, goal = percentile(sorted(figures.wakes_s), 95), GOALS[figures.engine]
    limit_s = 2.0 if figures.engine == "llama.cpp" else figures.cold_s / 3
    return f"- Goal: {goal}, {figures.engine}: {wake:.2f} s: {_outcome(wake <= limit_s)}."


def _memory_line(figures: Figures) -> str:
    share = _idle_share(figures)
    return f"- Goal: idle memory at most 10% of loaded, {figures.engine}: {share:.1%}: {_outcome(share <= 0.1)}."


def _lost_line(lost: Lost) -> str:
    return (
        f"- Goal: 0 of {lost.requests:,} first requests lost (bursts of up to {MOST_AT_ONCE}, the model unloaded after "
        f"{RACING_IDLE_MINUTES * 60:.1f} s): {lost.lost} lost in {lost.seconds:.0f} s with {lost.loads:,} loads, the "
        f"slowest answer after {lost.slowest_s:.1f} s: {_outcome(not lost.lost)}."
    )


def _outcome(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a model id or folder")
    parser.add_argument("--engines", default="llama.cpp,vllm")
    parser.add_argument("--wakes", type=int, default=20)
    parser.add_argument("--vllm-wakes", type=int, default=3)
    parser.add_argument("--first-requests", type=int, default=1000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    # 1. Measure each engine, then count lost requests on the first.
    engines = [name for name in options.engines.split(",") if name]
    figures = [
        measure(options.model, engine, options.vllm_wakes if engine == "vllm" else options.wakes) for engine in engines
    ]
    lost = None
    if options.first_requests:
        lost = count_lost(options.model, engines[0] if engines else "llama.cpp", options.first_requests)
    # 2. Write the page.
    page = write_page(figures, lost, f"python benchmarks/endpoints.py MODEL --engines {options.engines}")
    options.output.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
