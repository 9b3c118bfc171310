"""How fast the studio's pages are with much history in the store, and what a live page costs.

A home with 10,000 jobs, 1,000 artifacts and 2,000 evaluations of 10 levels, and one with a tenth of all that, each
behind a studio of its own; both have 40 models of one's own, since no list shows more than 100 of those. Every round
opens every page in both, one after the other, so that what else the machine does meets both. The ratio is the geometric
mean over rounds of full / tenth with its 95 % t-interval. Then, on the full home and with real Chromium: a live job
page's cost, event to screen, first paint.
Prints a table and writes benchmarks/results/pages.md and .json: `python benchmarks/pages.py [--note "..."]`.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

from backend.domain.maths import student_t  # noqa: E402
from backend.domain.maths.intervals import percentile  # noqa: E402
from backend.service import Workspace  # noqa: E402
from benchmarks import pages_browser  # noqa: E402
from benchmarks.pages_browser import Cost, Paint, chromium  # noqa: E402
from benchmarks.pages_seed import EVALUATED, FULL, OPTIMIZED, RUNNING, seed  # noqa: E402
from benchmarks.pages_server import Server, Visitor  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
DASHBOARD = "## The dashboard of one large evaluation"
WARM_ROUNDS = 3
BARS = {"p95_ms": 300.0, "ratio": 1.3, "live_ms_per_s": 50.0, "event_to_screen_s": 3.0, "first_paint_s": 3.0}
FOUR = "%2C".join(f"e-{number:010x}" for number in range(3, 7))
PAGES = {
    "home": ("", ""),
    "catalog": ("catalog", ""),
    "catalog, a filter": ("catalog", "catalog_words=model&catalog_technique=INT8+(W8A8)"),
    "model": ("model", "id=starter"),
    "import": ("import", ""),
    "build": ("build", "model=starter"),
    "jobs": ("jobs", ""),
    "jobs, words and page 2": ("jobs", "jobs_words=model-01+w8a8&jobs_page=2"),
    "jobs, failed": ("jobs", "jobs_state=failed"),
    "job, optimized": ("job", f"id={OPTIMIZED}"),
    "job, evaluated": ("job", f"id={EVALUATED}"),
    "job, running": ("job", f"id={RUNNING}"),
    "evaluate, the form": ("evaluate", "variants=starter%2Ca-000000000004"),
    "evaluate, one evaluation": ("evaluate", "id=e-0000000003"),
    "compare, one": ("compare", "ids=e-0000000003"),
    "compare, four": ("compare", f"ids={FOUR}"),
    "playground": ("playground", ""),
    "hardware": ("hardware", ""),
}


class Measured(NamedTuple):
    """One page. Milliseconds of server time, one entry a round."""

    full: list[float]
    tenth: list[float]

    @property
    def ratio(self) -> tuple[float, float, float]:
        """Full / tenth: geometric mean, and its 95 % interval."""
        logs = [math.log(full / tenth) for full, tenth in zip(self.full, self.tenth, strict=True)]
        half = student_t.quantile(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
        return math.exp(fmean(logs)), math.exp(fmean(logs) - half), math.exp(fmean(logs) + half)


def visits(full: Server, tenth: Server, rounds: int) -> dict[str, Measured]:
    """Every page in both, round after round; the first rounds warm up and are left out. Which comes first takes
    turns."""
    by_name = {name: Measured([], []) for name in PAGES}
    with ExitStack() as stack:
        pair = [stack.enter_context(Visitor(server)) for server in (full, tenth)]
        for number in range(WARM_ROUNDS + rounds):
            for name, (page, query) in PAGES.items():
                times = [0.0, 0.0]
                for index in (0, 1) if number % 2 else (1, 0):
                    times[index] = pair[index].visit(page, query) * 1000
                if number >= WARM_ROUNDS:
                    by_name[name].full.append(times[0])
                    by_name[name].tenth.append(times[1])
    return by_name


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    size = FULL.times(options.scale)
    opened = seed(folder / "full", size)
    seed(folder / "tenth", size.times(0.1))
    with Server(folder / "full", folder / "full.log") as full:
        with Server(folder / "tenth", folder / "tenth.log") as tenth:
            pages = visits(full, tenth, options.rounds)
        return {"size": size._asdict(), "pages": pages, **in_the_browser(opened, full, options)}


def in_the_browser(opened: Workspace, server: Server, options: argparse.Namespace) -> dict[str, Any]:
    costs = [pages_browser.live_cost(opened, server, options.live_seconds) for _ in range(options.live_runs)]
    events = pages_browser.event_to_screen(opened, server, options.events)
    return {"live": costs, "events": events, "paints": pages_browser.first_paint(server, options.paints)}


def about(note: str, size: dict[str, int]) -> dict[str, Any]:
    by_name = {name: version(name) for name in ("streamlit", "sqlmodel", "sqlalchemy", "pydantic")}
    browser = subprocess.run(
        [chromium(), "--version", "--no-sandbox"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{psutil.cpu_count()} cores, {_cpu()}, {psutil.virtual_memory().total / 2**30:.0f} GiB",
        "load_average_before": [round(value, 2) for value in psutil.getloadavg()],
        "versions": {
            "python": platform.python_version(),
            **by_name,
            "sqlite": sqlite3.sqlite_version,
            "browser": browser,
        },
        "store": ", ".join(f"{count:,} {name}" for name, count in size.items()),
        "note": note,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def report(values: dict[str, Any], options: dict[str, Any]) -> str:
    lines = [
        "# Pages with much history in the store",
        "",
        *(f"- {name}: {value}" for name, value in options.items() if value),
        "",
    ]
    return "\n".join([*lines, *_server_lines(values["pages"]), "", *_browser_lines(values)]) + "\n"


def _server_lines(pages: dict[str, Measured]) -> list[str]:
    rounds = len(next(iter(pages.values())).full)
    lines = [
        f"Server time of a page, ms, over {rounds} rounds in an open session: from the request on the websocket to "
        f"the message",
        "that the script has finished. Drawing in the browser is not in it. Bars: p95 under 300 ms, ratio at most 1.3",
        "",
        "| page | p50 | p95 | p95 with a tenth | ratio (95 %) | holds |",
        "|---|---|---|---|---|---|",
    ]
    for name, measured in pages.items():
        full, tenth = sorted(measured.full), sorted(measured.tenth)
        mean, low, high = measured.ratio
        holds = "yes" if percentile(full, 95) < BARS["p95_ms"] and mean <= BARS["ratio"] else "NO"
        lines.append(
            f"| {name} | {median(full):.0f} | {percentile(full, 95):.0f} | {percentile(tenth, 95):.0f} "
            f"| {mean:.2f} ({low:.2f} to {high:.2f}) | {holds} |"
        )
    return lines


def _browser_lines(options: dict[str, Any]) -> list[str]:
    costs: list[Cost] = options["live"]
    paints: list[Paint] = options["paints"]
    rows = [
        (
            "live job page adds, ms of the server's processor time a second",
            [cost.added * 1000 for cost in costs],
            BARS["live_ms_per_s"],
        ),
        ("event committed to words on the screen, s", options["events"], BARS["event_to_screen_s"]),
        ("first contentful paint of a cold browser, s", [paint.first for paint in paints], BARS["first_paint_s"]),
        ("Home's own words in a cold browser, s", [paint.content for paint in paints], None),
    ]
    lines = [
        "With real Chromium, on the full store.",
        "",
        "| figure | median | highest | bar | runs | holds |",
        "|---|---|---|---|---|---|",
    ]
    for name, values, bar in rows:
        holds = "" if bar is None else "yes" if max(values) < bar else "NO"
        shown = f"< {bar:g}" if bar is not None else ""
        lines.append(f"| {name} | {median(values):.3g} | {max(values):.3g} | {shown} | {len(values)} | {holds} |")
    idle = median(cost.idle for cost in costs) * 1000
    return [*lines, "", f"With nobody looking on, the server used {idle:.1f} ms of processor time a second (median)."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--scale", type=float, default=1.0, help="of the full size, for a quick try")
    parser.add_argument("--live-seconds", type=float, default=15.0)
    parser.add_argument("--live-runs", type=int, default=3)
    parser.add_argument("--events", type=int, default=20)
    parser.add_argument("--paints", type=int, default=5)
    parser.add_argument("--note", default="")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    facts = about(options.note, FULL._asdict())
    with tempfile.TemporaryDirectory() as folder:
        result = run(options, Path(folder))
    facts["store"] = ", ".join(f"{count:,} {name}" for name, count in result["size"].items())
    text = report(result, facts)
    print(text)
    if not options.no_write:
        RESULTS.mkdir(parents=True, exist_ok=True)
        _write(text, {**facts, "bars": BARS, **_plain(result)})


def _write(text: str, document: dict[str, Any]) -> None:
    """Above what benchmarks/pages_dashboard.py wrote, which stays."""
    page, data = RESULTS / "pages.md", RESULTS / "pages.json"
    _, heading, below = page.read_text().partition(DASHBOARD) if page.is_file() else ("", "", "")
    page.write_text(f"{text}\n{heading}{below}" if heading else text)
    parsed = json.loads(data.read_text()) if data.is_file() else {}
    values = {"dashboard": parsed["dashboard"]} if "dashboard" in parsed else {}
    data.write_text(json.dumps({**document, **values}, indent=1) + "\n")


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    pages = {name: measured._asdict() for name, measured in values["pages"].items()}
    named = {name: [value._asdict() for value in values[name]] for name in ("live", "paints")}
    return {**values, "pages": pages, **named}


if __name__ == "__main__":
    main()
