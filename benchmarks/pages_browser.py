"""What a person at a browser waits for: an event of a running job on its page, the first paint of a cold browser, and
what an open live page costs the server. Real Chromium on this machine; the clock of page and script is the same.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from playwright.sync_api import Browser, Page, sync_playwright

from backend.domain.jobs.jobs import Event
from backend.service import Workspace
from backend.store import history
from benchmarks.pages_seed import RUNNING
from benchmarks.pages_server import PageFailed, Server

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
]
WAIT_MS = 30_000
EVERY_S = 0.5
"""How often the running job says something, as a quantizing or measuring job does."""
WAIT_FOR_WORD = """word => new Promise(done => {
    const look = () => document.body.innerText.includes(word) ? done(Date.now() / 1000) : requestAnimationFrame(look)
    look()
})"""
PAINT = """() => new Promise(done => new PerformanceObserver(list => {
    const entry = list.getEntriesByName("first-contentful-paint")[0]
    if (entry) done(entry.startTime)
}).observe({type: "paint", buffered: true}))"""


def chromium() -> str:
    """The path of the browser. Raises PageFailed."""
    result = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if result is None:
        raise PageFailed("Chromium is missing: apt-get install chromium")
    return result


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        try:
            yield launched
        finally:
            launched.close()


def say(opened: Workspace, number: int) -> str:
    """One event of the running job; answers with the word that stands in it and nowhere else."""
    word = f"layer-{number:06d}"
    event = Event(
        kind="progress",
        phase="quantize",
        message=f"Quantizing {word}",
        done=float(number),
        total=1e6,
        unit="layers",
        progress=min(0.99, 0.4 + number / 1e6),
        rate=2.0,
        eta_s=60.0,
    )
    with opened.store.session() as session:
        history.append(session, RUNNING, [event])
    return word


def job_page(launched: Browser, server: Server) -> Page:
    page = launched.new_page()
    page.goto(f"{server.url}/job?id={RUNNING}")
    page.get_by_text("Log", exact=True).first.wait_for(timeout=WAIT_MS)
    return page


def event_to_screen(opened: Workspace, server: Server, times: int) -> list[float]:
    """Seconds from the event's commit to the frame in which its words are in the page.

    Events come at any moment of the two seconds between looks of the page.
    """
    rng, result = random.Random(3), []
    with browser() as launched:
        page = job_page(launched, server)
        for number in range(times):
            page.wait_for_timeout(rng.uniform(0, 2000))
            word = say(opened, number)
            committed = time.time()
            result.append(page.evaluate(WAIT_FOR_WORD, word) - committed)
    return result


class Paint(NamedTuple):
    """Seconds from the navigation: `first` to the first contentful paint, `content` until the page's own words are
    there."""

    first: float
    content: float


def first_paint(server: Server, times: int) -> list[Paint]:
    """Each in a browser process of its own with an empty profile."""
    results = []
    with sync_playwright() as playwright:
        for _ in range(times):
            with tempfile.TemporaryDirectory() as profile:
                context = playwright.chromium.launch_persistent_context(profile, executable_path=chromium(), args=FLAGS)
                page = context.new_page()
                begun = time.time()
                page.goto(server.url, wait_until="commit")
                content = page.evaluate(WAIT_FOR_WORD, "All evaluations") - begun
                painted = page.evaluate(PAINT)
                context.close()
            results.append(Paint(painted / 1000, content))
    return results


class Cost(NamedTuple):
    """Processor seconds of the server a second: with the page open, and without anybody."""

    open: float
    idle: float

    @property
    def added(self) -> float:
        return self.open - self.idle


def live_cost(opened: Workspace, server: Server, seconds: float) -> Cost:
    """The job says something twice a second all the while, so that both halves differ only in who looks on."""
    with talking(opened):
        idle = _rate(server, lambda: time.sleep(seconds))
        with browser() as launched:
            page = job_page(launched, server)
            page.wait_for_timeout(3000)  # the opening itself is a page run, which is measured elsewhere
            return Cost(_rate(server, lambda: page.wait_for_timeout(seconds * 1000)), idle)


def _rate(server: Server, wait: Callable[[], None]) -> float:
    used, begun = server.cpu_s(), time.monotonic()
    wait()
    return (server.cpu_s() - used) / (time.monotonic() - begun)


@contextmanager
def talking(opened: Workspace) -> Iterator[None]:
    """The running job says something every half second, and writes a line of its log."""
    stop = threading.Event()
    log = opened.settings.jobs / RUNNING / "1" / "log.txt"

    def talk() -> None:
        number = 500_000
        while not stop.wait(EVERY_S):
            word = say(opened, number)
            with log.open("a") as file:
                file.write(f"quantized {word}\n")
            number += 1

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
