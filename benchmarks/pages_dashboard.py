"""The dashboard of one large evaluation: what a run of its page's script takes with 600,000 requests behind it.

A home with one made-up evaluation of 50 variants at 20 levels in 3 repeats, 200 requests a run, its requests in the
studio's own format. Each view of it is opened again and again in a session that is open: the server is warm, the first
opening is told apart. Prints a table and writes it into benchmarks/results/pages.md and .json: `python
benchmarks/pages_dashboard.py [--note "..."]`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, overload

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sqlalchemy import insert  # noqa: E402

from backend import service  # noqa: E402
from backend.domain.evaluation.comparison import compare  # noqa: E402
from backend.domain.evaluation.document import EvaluateOptions, Evaluation  # noqa: E402
from backend.domain.evaluation.metrics import summarise_level  # noqa: E402
from backend.domain.evaluation.prices import Pricing  # noqa: E402
from backend.domain.load.load import Load  # noqa: E402
from backend.domain.load.records import RequestRecord  # noqa: E402
from backend.domain.maths.intervals import percentile  # noqa: E402
from backend.settings import Settings  # noqa: E402
from backend.store.tables import EvaluationRow, SupervisorRow  # noqa: E402
from backend.worker.measuring.records import MeasuredLevel, write_records  # noqa: E402
from benchmarks import pages_seed  # noqa: E402
from benchmarks.pages import DASHBOARD, about  # noqa: E402
from benchmarks.pages_server import Server, Visitor  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
BAR_MS = 500.0
WARM_ROUNDS = 2
IDENTITY = "e-dashboard"
TOKENS, WARM = 16, 0.1
"""Of an answer; and the share of a run's requests that is warm-up."""


class Size(NamedTuple):
    variants: int = 50
    levels: int = 20
    repeats: int = 3
    requests: int = 200
    """A run, warm-up included."""


VIEWS = {
    "evaluation": ("evaluate", f"id={IDENTITY}"),
    "evaluation, limits moved": ("evaluate", f"id={IDENTITY}&slo_ttft={{}}&slo_latency={{}}"),
    "evaluation, another instance": ("evaluate", f"id={IDENTITY}&cost_instance=ml.g5.{{}}xlarge&cost_requests=1000000"),
    "evaluation, single requests": ("evaluate", f"id={IDENTITY}&requests=true"),
    "compare": ("compare", f"ids={IDENTITY}"),
    "compare, limits moved": ("compare", f"ids={IDENTITY}&slo_ttft={{}}"),
}
"""What is between braces is another value in every round, so that no round repeats the one before it."""
CHOICES = ([200, 300, 400, 600], [500, 700, 900, 1200], [2, 4, 8, 12])


class Runs(Sequence[list[RequestRecord]]):
    """The repeats of one variant at one level, made when they are asked for: all of them at once take gigabytes."""

    def __init__(self, size: Size, speed: float, concurrency: int, seed: str) -> None:
        self.size, self.speed, self.concurrency, self.seed = size, speed, concurrency, seed

    def __len__(self) -> int:
        return self.size.repeats

    @overload
    def __getitem__(self, block: int) -> list[RequestRecord]: ...
    @overload
    def __getitem__(self, block: slice) -> list[list[RequestRecord]]: ...
    def __getitem__(self, block: int | slice) -> list[RequestRecord] | list[list[RequestRecord]]:
        if isinstance(block, slice):
            return [self[number] for number in range(*block.indices(len(self)))]
        if block >= len(self):
            raise IndexError(block)
        return list(self._run(random.Random(f"{self.seed}-{block}")))

    def _run(self, rng: random.Random) -> Iterator[RequestRecord]:
        """Streams one request after another, latencies lognormal around a server that saturates slowly."""
        tpot = 0.02 * (1 + 0.06 * (self.concurrency - 1)) / self.speed
        free = [rng.random() * 0.01 for _ in range(self.concurrency)]
        for index in range(self.size.requests):
            stream = index % self.concurrency
            sent = free[stream]
            first = sent + 0.06 * self.concurrency**0.5 * math.exp(rng.gauss(0, 0.3))
            each = tpot * math.exp(rng.gauss(0, 0.1))
            times = tuple(first + each * number for number in range(TOKENS))
            free[stream] = end = times[-1] + 0.0005
            yield RequestRecord(
                index=index,
                stream=stream,
                prompt=index,
                warm=index < WARM * self.size.requests,
                intended=sent,
                sent=sent,
                first_content=first,
                last_content=times[-1],
                end=end,
                chunk_times=times,
                chunk_tokens=_COUNTS,
                status="ok",
                token_times="continuous",
                prompt_tokens=96,
                output_tokens=TOKENS,
                text=f"answer {index} " * 8,
                finish_reason="length",
                reads=TOKENS,
            )


_COUNTS = tuple(float(number + 1) for number in range(TOKENS))


def seed(home: Path, size: Size) -> None:
    """A new home with that evaluation."""
    opened = service.open_workspace(Settings(home=home))
    folder = home / "evaluations" / IDENTITY
    folder.mkdir(parents=True)
    names = [f"recipe {number:02d}" for number in range(size.variants)]
    levels = [1 + 5 * number for number in range(size.levels)]
    runs = {
        (variant, level): Runs(size, 1 + variant / 20, level, f"{variant}-{level}")
        for variant in range(size.variants)
        for level in levels
    }
    measured = (MeasuredLevel(variant, Load("closed", level), each) for (variant, level), each in runs.items())
    write_records(folder / "records.parquet", names, measured)
    document = _document(names, levels, runs, size)
    with opened.store.session() as session:
        row = {
            "id": IDENTITY,
            "job_id": "j-dashboard",
            "title": "Evaluate fifty recipes",
            "baseline": names[0],
            "path": str(folder),
            "created_at": pages_seed.EPOCH,
            "document": document.model_dump_json(),
        }
        session.execute(insert(EvaluationRow), [row])
        session.execute(insert(SupervisorRow), [pages_seed.supervisor()])


def _document(names: list[str], levels: list[int], runs: dict[tuple[int, int], Runs], size: Size) -> Evaluation:
    results = []
    for number, name in enumerate(names):
        created = [
            summarise_level(
                Load("closed", level), list(runs[number, level]), [], pricing=Pricing(per_hour=1.2), acceptance=None
            )
            for level in levels
        ]
        results.append(pages_seed.measured(name, 1.0, random.Random(number)).model_copy(update={"levels": created}))
    return pages_seed.document(
        results, compare(results), EvaluateOptions(concurrency=tuple(levels), repeats=size.repeats, price_per_hour=1.2)
    )


def opened_again(server: Server, rounds: int) -> dict[str, tuple[float, list[float]]]:
    """View -> (its first opening, the later ones), ms. Another page in between: fields of an open one would keep their
    values."""
    values: dict[str, tuple[float, list[float]]] = {}
    with Visitor(server) as visitor:
        for name, (page, query) in VIEWS.items():
            times = []
            for number in range(WARM_ROUNDS + rounds):
                visitor.visit("import", "")
                times.append(visitor.visit(page, _chosen(query, number)) * 1000)
            values[name] = (times[0], times[WARM_ROUNDS:])
    return values


def _chosen(query: str, number: int) -> str:
    values = [choices[number % len(choices)] for choices in (CHOICES if "instance" not in query else CHOICES[2:])]
    return query.format(*values)


def lines(size: Size, values: dict[str, tuple[float, list[float]]]) -> list[str]:
    rounds = len(next(iter(values.values()))[1])
    count = math.prod(size)
    created = [
        DASHBOARD,
        "",
        f"One evaluation of {size.variants} variants x {size.levels} levels x {size.repeats} repeats, {count:,} "
        f"requests.",
        f"Server time of a page's script, ms, warm, over {rounds} rounds; its first opening in this server stands "
        f"beside it.",
        f"Bar: p95 under {BAR_MS:g} ms.",
        "",
        "| view | p50 | p95 | first | holds |",
        "|---|---|---|---|---|",
    ]
    for name, (first, times) in values.items():
        late = percentile(sorted(times), 95)
        created.append(
            f"| {name} | {median(times):.0f} | {late:.0f} | {first:.0f} | {'yes' if late < BAR_MS else 'NO'} |"
        )
    return created


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--requests", type=int, default=Size().requests, help="a run, for a quick try")
    parser.add_argument("--home", type=Path, help="keep the home there, or use the one that is there")
    parser.add_argument("--note", default="")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    size = Size(requests=options.requests)
    facts = about(options.note, size._asdict())
    with tempfile.TemporaryDirectory() as folder:
        home = options.home or Path(folder) / "home"
        if not home.exists():
            seed(home, size)
        with Server(home, Path(folder) / "log") as server:
            result = opened_again(server, options.rounds)
    messages = [f"- {name}: {value}" for name, value in facts.items() if value and name != "store"]
    text = "\n".join([*lines(size, result), "", *messages]) + "\n"
    print(text)
    if not options.no_write:
        _write(
            text, {**facts, "views": {name: {"first": first, "ms": times} for name, (first, times) in result.items()}}
        )


def _write(text: str, document: dict[str, Any]) -> None:
    """Below what benchmarks/pages.py wrote, in the place of an earlier run."""
    page, data = RESULTS / "pages.md", RESULTS / "pages.json"
    before = page.read_text().partition(DASHBOARD)[0].rstrip("\n") if page.is_file() else ""
    page.write_text(f"{before}\n\n{text}")
    parsed = json.loads(data.read_text()) if data.is_file() else {}
    data.write_text(json.dumps({**parsed, "dashboard": document}, indent=1) + "\n")


if __name__ == "__main__":
    main()
