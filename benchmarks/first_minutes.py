"""How long a new user waits: from an empty clone and home to the first page, the recorded win and a live hero line.

Clones this checkout's HEAD into a temporary folder, sets it up as `make run` does, starts it with an empty home and
without engines, and watches Home in Chromium. Screenshots are taken 0, 10, 30, 60, 120 and 300 seconds after the first
page. `--busy` runs beside it a program that takes half a core. Prints the clock and where the seconds of each job went,
and writes both to `--out`: `python benchmarks/first_minutes.py --out build/first_minutes [--busy] [--home FOLDER]`.
`--home` keeps the home that it makes, from which assets/demo/export.py writes a demonstration.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from playwright.sync_api import Error, Page  # noqa: E402

from backend.hardware import probe  # noqa: E402
from backend.service import Workspace, open_workspace  # noqa: E402
from backend.service.jobs import jobs  # noqa: E402
from backend.settings import Settings  # noqa: E402
from backend.store import history  # noqa: E402
from benchmarks.pages_browser import browser  # noqa: E402

MOMENTS_S = (0, 10, 30, 60, 120, 300)
LONGEST_S = 900.0
HALF_A_CORE = "import time\nwhile True:\n    end = time.monotonic() + 0.05\n    while time.monotonic() < end: pass\n"
HALF_A_CORE += "    time.sleep(0.05)\n"


@contextmanager
def half_a_core() -> Iterator[None]:
    """Run a program that computes half of the time."""
    busy = subprocess.Popen([sys.executable, "-c", HALF_A_CORE])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def studio(clone: Path, home: Path, port: int) -> Iterator[None]:
    """Set the clone up and start it like `make run`; stop it at the end."""
    environment = {**os.environ, "WHETSTONE_HOME": str(home)}
    environment.pop("WHETSTONE_ENGINES", None)
    subprocess.run(["make", "setup"], cwd=clone, env=environment, check=True)
    command = [".venv/bin/whetstone", "up", "--install-engines", "--no-browser", "--port", str(port)]
    process = subprocess.Popen(command, cwd=clone, env=environment)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def await_page(page: Page, port: int, began: float) -> None:
    """Open Home as soon as it answers."""
    while time.monotonic() - began < LONGEST_S:
        try:
            page.goto(f"http://127.0.0.1:{port}/")
            break
        except Error:  # nothing listens yet
            page.wait_for_timeout(200)
    page.get_by_role("heading", name="Whetstone").wait_for(timeout=60_000)


def watch(page: Page, port: int, began: float, out: Path) -> dict[str, float]:
    """Return the seconds since `began` of the first page, the recorded win and the live hero line."""
    # 1. The first page and the recorded win.
    await_page(page, port, began)
    clock = {"first page": time.monotonic() - began}
    page.get_by_text("Recorded").first.wait_for(timeout=60_000)
    clock["recorded win"] = time.monotonic() - began
    # 2. Photographs, until the link below a live result is there.
    opened, moments = time.monotonic(), list(MOMENTS_S)
    live = page.get_by_role("link", name="Open the evaluation")
    while time.monotonic() - began < LONGEST_S and live.count() == 0:
        if moments and time.monotonic() - opened >= moments[0]:
            page.screenshot(path=out / f"at-{moments.pop(0):03d}-s.png", full_page=True)
        page.wait_for_timeout(200)
    # 3. The live one, if it came.
    if live.count():
        clock["live hero line"] = time.monotonic() - began
    page.screenshot(path=out / "at-the-end.png", full_page=True)
    print(page.get_by_test_id("stMain").inner_text().split("Running")[0])
    return clock


def phase_rows(workspace: Workspace) -> list[str]:
    """Return a table row for each phase of each job: seconds until the next one, or the job's end."""
    rows = []
    for job in reversed(jobs.listing(workspace)):
        with workspace.store.read() as session:
            events = [event for _, event in history.list_events(session, job.id)]
        steps: list[tuple[datetime, str]] = [
            (event.at, event.message or "") for event in events if event.kind == "phase"
        ]
        if not steps:
            continue
        ends = [at for at, _ in steps[1:]] + [job.finished_at or events[-1].at]
        for (at, words), end in zip(steps, ends, strict=True):
            rows.append(f"| {job.title} | {words} | {(end - at).total_seconds():.1f} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--home", type=Path, help="an empty folder, kept; one that is removed where none is named")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        # 1. An empty clone and an empty home.
        clone, home, port = Path(folder) / "clone", options.home or Path(folder) / "home", free_port()
        began = time.monotonic()
        subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", str(clone)], check=True)
        # 2. The studio, watched by a browser.
        other_work = half_a_core() if options.busy else nullcontext()
        with other_work, studio(clone, home, port), browser() as chromium:
            page = chromium.new_page(viewport={"width": 1280, "height": 1100})
            clock = watch(page, port, began, options.out)
            rows = phase_rows(open_workspace(Settings(home=home)))
    # 3. What came of it.
    facts = probe.probe()
    lines = [f"{facts['cpu']}, {facts['cores']} cores{', half a core taken by another program' * options.busy}", ""]
    lines += ["| | seconds |", "|---|---|", *(f"| {name} | {seconds:.0f} |" for name, seconds in clock.items()), ""]
    lines += ["| job | phase | seconds |", "|---|---|---|", *rows, ""]
    (options.out / "clock.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
