"""A home full of made-up history for benchmarks/pages.py: jobs, events, artifacts and evaluations, the same for every
run.

Documents have the fields and the size of real ones; their figures are drawn, not measured. Rows are inserted in bulk.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from sqlalchemy import insert

from backend import processes, service
from backend.domain.evaluation.comparison import compare
from backend.domain.evaluation.document import (
    LATENCY_METRICS,
    Comparison,
    EvaluateOptions,
    Evaluation,
    Level,
    Quality,
    Summary,
    Variant,
    VariantResult,
)
from backend.domain.evaluation.prices import Pricing, level_prices
from backend.domain.jobs.artifact import ArtifactFile, Manifest
from backend.domain.jobs.claims import Claim
from backend.domain.jobs.jobs import EvaluateSpec, Event, InstallSpec, JobState, OptimizeSpec
from backend.domain.load.load import Load
from backend.domain.load.records import LevelAudit
from backend.domain.model.facts import ModelCard
from backend.domain.recipe.recipe import Recipe
from backend.domain.workload.workload import WorkloadSummary
from backend.service import Workspace
from backend.service.models import models
from backend.service.plans import cases
from backend.settings import Settings
from backend.store.tables import ArtifactRow, EvaluationRow, EventRow, JobRow, SupervisorRow, now

LEVELS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SPEEDS = {"w8a8": 1.3, "draft": 2.1, "w8a8 with draft": 2.6}
REPEATS = 5
TEMPLATES = 8
"""Different documents; each is stored many times under its own id, title and time."""
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
RECIPES = {
    "w8a8": [{"quantize": {"method": "w8a8"}}],
    "draft": [{"speculate": {"method": "draft", "draft": "auto", "tokens": 4}}],
    "w8a8 with draft": [
        {"quantize": {"method": "w8a8"}},
        {"speculate": {"method": "draft", "draft": "auto", "tokens": 4}},
    ],
}
RUNNING, OPTIMIZED, EVALUATED = "j-running", "j-0000000000", "j-0000000001"
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CHUNK = 500


class Size(NamedTuple):
    """How much stands in the store. `long` of the jobs have `LONG_EVENTS` events, the others `FEW_EVENTS`."""

    jobs: int
    artifacts: int
    evaluations: int
    folders: int
    """Models of one's own, as folders that artifacts were made from."""
    long: int

    def times(self, factor: float) -> Size:
        """As many models; of all else `factor` as much."""
        return Size(*(max(10, round(count * factor)) for count in self))._replace(folders=self.folders)


FULL = Size(jobs=10_000, artifacts=1_000, evaluations=2_000, folders=40, long=300)
LONG_EVENTS, FEW_EVENTS = 60, 5
RUNNING_FOR, RESOURCES = timedelta(hours=1), 720
"""The job that runs has run for an hour, with a reading of its memory and processor every five seconds."""


def seed(home: Path, size: Size) -> Workspace:
    """Fill a new home: `size`, and besides one running job and three in the queue."""
    opened = service.open_workspace(Settings(home=home))
    rng = random.Random(7)
    cards = [models.resolve(opened, "starter"), *_folders(opened, home, size.folders)]
    specs = _specs(opened, cards[0])
    documents = [_document(number).model_dump_json() for number in range(TEMPLATES)]
    with opened.store.session() as session:
        for rows, table in (
            (_jobs(size, specs, rng), JobRow),
            (_events(size), EventRow),
            (_artifacts(home, size, cards), ArtifactRow),
            (_evaluations(home, size, documents, cards), EvaluationRow),
            ([supervisor()], SupervisorRow),
        ):
            for chunk in _chunks(rows):
                session.execute(insert(table), chunk)
    _log(opened, RUNNING)
    _log(opened, OPTIMIZED)
    return opened


def _chunks(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    reserved: list[dict[str, Any]] = []
    for row in rows:
        reserved.append(row)
        if len(reserved) == CHUNK:
            yield reserved
            reserved = []
    if reserved:
        yield reserved


def _folders(opened: Workspace, home: Path, count: int) -> list[ModelCard]:
    """Models of one's own: the starter's files under other names."""
    starter = Path(models.resolve(opened, "starter").path)
    cards = []
    for number in range(count):
        folder = home / "models" / f"model-{number:03d}"
        folder.mkdir(parents=True)
        for file in starter.iterdir():
            (folder / file.name).symlink_to(file)
        cards.append(models.resolve(opened, str(folder)))
    return cards


def _specs(opened: Workspace, card: ModelCard) -> dict[str, str]:
    """Kind -> the specification as JSON."""
    required = Recipe.model_validate({"name": "w8a8", "steps": RECIPES["w8a8"]})
    case = cases.resolve(opened, card, required)
    assert case.verdict.plan is not None
    names = ["starter", *SPEEDS]
    return {
        "optimize": OptimizeSpec(model=card, recipe=required, plan=case.verdict.plan).model_dump_json(),
        "evaluate": EvaluateSpec(variants=tuple(map(_variant, names)), options=EvaluateOptions()).model_dump_json(),
        "install": InstallSpec(engine="serve").model_dump_json(),
    }


def _variant(name: str) -> Variant:
    return Variant(name=name, source=name, kind="model", model_path=f"/models/{name}", bytes_on_disk=22_292_584)


def _at(number: int) -> datetime:
    return EPOCH + timedelta(minutes=20 * number)


def _jobs(size: Size, specs: dict[str, str], rng: random.Random) -> Iterator[dict[str, Any]]:
    endings = [JobState.SUCCEEDED] * 8 + [JobState.FAILED, JobState.CANCELLED]
    for number in range(size.jobs):
        kind = ("optimize", "evaluate", "optimize", "optimize", "install")[number % 5]
        state = JobState.SUCCEEDED if number < 2 else rng.choice(endings)
        yield _job(f"j-{number:010x}", kind, state, number, specs[kind], size)
    begun = now() - RUNNING_FOR
    yield _job(RUNNING, "optimize", JobState.RUNNING, size.jobs, specs["optimize"], size) | {
        "created_at": begun,
        "started_at": begun,
    }
    for number in range(3):
        yield _job(f"j-queued-{number}", "optimize", JobState.QUEUED, size.jobs + 1 + number, specs["optimize"], size)


def _job(identity: str, kind: str, state: JobState, number: int, spec: str, size: Size) -> dict[str, Any]:
    ended = state in {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}
    begun = state is not JobState.QUEUED
    error = "The worker ended with code 1; its log says why." if state is JobState.FAILED else None
    return {
        "id": identity,
        "kind": kind,
        "state": state,
        "title": f"{kind.capitalize()} model-{number % 97:03d} with w8a8",
        "owner": "someone",
        "spec": spec,
        "rank": float(number),
        "claim": Claim(whole=kind == "evaluate").text,
        "attempt": 1,
        "created_at": _at(number),
        "started_at": _at(number) if begun else None,
        "finished_at": _at(number) + timedelta(minutes=9) if ended else None,
        "event_at": now(),
        "progress": 1.0 if ended else 0.4,
        "phase": "quantize",
        "message": "Quantizing",
        "error": error,
        "result": _result(kind, number, size) if state is JobState.SUCCEEDED else None,
    }


def _result(kind: str, number: int, size: Size) -> str:
    if kind == "evaluate":
        return json.dumps({"evaluation": f"e-{number % size.evaluations:010x}"})
    quality = {"perplexity_before": 44.87, "perplexity_after": 44.9, "kl_mean": 0.0004, "kl_ci95": [0.0003, 0.0005]}
    values = {"artifact": f"a-{number % size.artifacts:012x}", "bytes_before": 22_292_584, "bytes_after": 13_100_000}
    return json.dumps({**values, "quality": quality, "seconds": 31.0, "peak_rss_bytes": 2**30})


def _events(size: Size) -> Iterator[dict[str, Any]]:
    long, few = _course(LONG_EVENTS), _course(FEW_EVENTS)
    for number in range(size.jobs):
        yield from _of_job(f"j-{number:010x}", _at(number), long if number < size.long else few, timedelta(seconds=1))
    readings = [
        Event(kind="resource", data={"rss_bytes": 2**30 + step, "cpu_percent": 180.0}) for step in range(RESOURCES)
    ]
    yield from _of_job(RUNNING, now() - RUNNING_FOR, [*readings, *long], RUNNING_FOR / (RESOURCES + len(long) + 1))


def _course(length: int) -> list[Event]:
    """Start, phases and the progress between them, as an optimize job tells it."""
    events = [
        Event(kind="state", message="The worker has started."),
        Event(kind="phase", phase="load", message="Loading the model"),
    ]
    for done in range(length - len(events)):
        data: dict[str, Any] = {
            "done": float(done),
            "total": float(length),
            "unit": "layers",
            "rate": 3.2,
            "eta_s": 12.0,
        }
        kind, message = ("phase", "Quantizing") if done % 12 == 1 else ("progress", None)
        events.append(Event(kind=kind, phase="quantize", message=message, progress=done / length, **data))
    return events


def _of_job(job_id: str, begun: datetime, course: list[Event], apart: timedelta) -> Iterator[dict[str, Any]]:
    for seq, event in enumerate(course, 1):
        at = begun + seq * apart
        document = event.model_copy(update={"at": at}).model_dump_json(exclude_none=True)
        yield {"job_id": job_id, "seq": seq, "kind": event.kind, "at": at, "document": document}


def _artifacts(home: Path, size: Size, cards: list[ModelCard]) -> Iterator[dict[str, Any]]:
    """Every second one of the starter, the others of the folders in turn."""
    for number in range(size.artifacts):
        card = cards[0] if number % 2 == 0 else cards[1 + number // 2 % (len(cards) - 1)]
        name = list(RECIPES)[number % len(RECIPES)]
        manifest = _manifest(card, Recipe.model_validate({"name": name, "steps": RECIPES[name]}), number)
        identity = f"a-{number:012x}"
        yield {
            "id": identity,
            "job_id": f"j-{number:010x}",
            "model": card.id,
            "recipe": name,
            "recipe_hash": manifest.recipe_hash,
            "path": str(home / "artifacts" / identity),
            "bytes": manifest.bytes_after,
            "created_at": _at(number),
            "manifest": manifest.model_dump_json(),
        }


def _manifest(card: ModelCard, recipe: Recipe, number: int) -> Manifest:
    files = [
        ArtifactFile(path=f"model/part-{part}.safetensors", size=5_000_000, sha256=f"{number:064x}")
        for part in range(8)
    ]
    layers = [
        {"name": f"model.layers.{layer}.{linear}", "relative_error": 0.01 + layer / 1000}
        for layer in range(card.layers)
        for linear in LINEARS
    ]
    return Manifest(
        job=f"j-{number:010x}",
        parent=card,
        recipe=recipe,
        recipe_hash=recipe.hash,
        files=files,
        bytes_before=22_292_584,
        bytes_after=13_100_000,
        quality={"kl_mean": 0.0004, "perplexity_after": 44.9},
        layers=layers,
        versions={"torch": "2.13.0", "transformers": "5.19.0"},
        hardware={"cpu": "Simulated", "cores": 2},
        seconds=31.0,
    )


def _evaluations(home: Path, size: Size, documents: list[str], cards: list[ModelCard]) -> Iterator[dict[str, Any]]:
    """Half of them against the starter, the others against the folders in turn."""
    for number in range(size.evaluations):
        baseline = "starter" if number % 2 == 0 else cards[1 + number // 2 % (len(cards) - 1)].id
        document = documents[number % TEMPLATES].replace('"starter"', f'"{baseline}"')
        document = document.replace(EPOCH.isoformat(), _at(number).isoformat())
        identity = f"e-{number:010x}"
        yield {
            "id": identity,
            "job_id": f"j-{number:010x}",
            "title": f"Evaluate {baseline}, {', '.join(SPEEDS)} (run {number})",
            "baseline": baseline,
            "path": str(home / "evaluations" / identity),
            "created_at": _at(number),
            "document": document,
        }


def _document(number: int) -> Evaluation:
    rng = random.Random(number)
    results = [measured("starter", 1.0, rng), *(measured(name, speed, rng) for name, speed in SPEEDS.items())]
    return document(results, compare(results), EvaluateOptions(concurrency=LEVELS, repeats=REPEATS, price_per_hour=1.2))


def document(results: list[VariantResult], comparison: list[Comparison], options: EvaluateOptions) -> Evaluation:
    """As if measured on one made-up machine."""
    return Evaluation(
        schema=1,
        variants=results,
        comparison=comparison,
        interleave="resident",
        measured_at=EPOCH.isoformat(),
        workload=WorkloadSummary(
            name="starter-code", sha256="0" * 64, prompts=160, prompt_characters_p50=520, prompt_characters_max=757
        ),
        hardware={"cpu": "Simulated", "cores": 2, "memory_bytes": 2**34, "accelerators": []},
        versions={"python": "3.11.7", "vllm": "0.32.0", "torch": "2.13.0", "transformers": "5.19.0"},
        options=options,
    )


def measured(name: str, speed: float, rng: random.Random) -> VariantResult:
    kl = 0.0004 if "w8a8" in name else 0.0
    quality = Quality(
        perplexity=44.9 + kl, perplexity_original=44.9, kl_mean=kl, kl_ci95=(kl, kl * 1.1), greedy_match=0.98
    )
    levels = [_level(concurrency, speed, rng) for concurrency in LEVELS]
    return VariantResult(name=name, variant=_variant(name), levels=levels, quality=quality, ready_seconds=24.0)


def _level(concurrency: int, speed: float, rng: random.Random) -> Level:
    """Lognormal around a server that saturates slowly, with every figure of a real level and block."""
    tpot = 20.0 * (1 + 0.06 * (concurrency - 1)) / speed
    latencies = dict(
        zip(LATENCY_METRICS, (60 * concurrency**0.5, tpot, tpot, 60 + tpot * 63, 59 + tpot * 63), strict=True)
    )
    throughput = concurrency * 64_000 / latencies["client_latency_ms"]
    requests = 8 * concurrency * REPEATS
    return Level(
        load=Load("closed", concurrency),
        concurrency=concurrency,
        repeats=REPEATS,
        requests=requests,
        duration_s=requests * 64 / throughput,
        tokens_per_chunk=1.0,
        input_tokens_per_s=throughput * 1.5,
        output_tokens_per_s=throughput,
        steady_output_tokens_per_s=throughput * 1.04,
        input_tokens_per_s_per_request=throughput * 1.5 / concurrency,
        output_tokens_per_s_per_request=throughput / concurrency,
        input_tokens=96.0,
        output_tokens=64.0,
        invocations=requests,
        invocation_errors=0,
        tokenizer_failed=0,
        empty_responses=0,
        price=level_prices(
            Pricing(per_hour=1.2),
            concurrency=concurrency,
            input_tokens_per_s=throughput * 1.5,
            output_tokens_per_s=throughput,
            tpot_p50_ms=tpot,
            prefill_share=0.1,
        ),
        audit=LevelAudit(warmup_requests=10, prefill_share=0.1, token_times=("continuous",), wall_s=20.0),
        blocks=[_block(latencies, throughput, rng) for _ in range(REPEATS)],
        **{name: _summary(value) for name, value in latencies.items()},
    )


def _summary(value: float) -> Summary:
    return Summary(
        mean=value * 1.03, p50=value, p90=value * 1.25, p95=value * 1.4, p99=value * 1.8, ci95=(value, value * 1.06)
    )


def _block(latencies: dict[str, float], throughput: float, rng: random.Random) -> dict[str, float]:
    drift = math.exp(rng.gauss(0, 0.03))
    block = {"requests": 8.0, "output_tokens_per_s": throughput / drift, "input_tokens_per_s": throughput * 1.5 / drift}
    for name, value in latencies.items():
        block |= {
            name + ending: value * drift * factor
            for ending, factor in (("", 1.03), ("_p50", 1.0), ("_p90", 1.25), ("_p95", 1.4), ("_p99", 1.8))
        }
    for name in ("input", "output", "total"):
        block[f"price_per_million_{name}"] = 1.2e6 / 3600 / throughput * drift
    return block


def supervisor() -> dict[str, Any]:
    """This process, with a heartbeat that stays fresh, so that pages look as they do in use."""
    own = psutil.Process()
    return {
        "id": "s-benchmark",
        "host": "here",
        "home": "",
        "pid": own.pid,
        "process_started": processes.start_stamp(own.pid),
        "heartbeat_at": now() + timedelta(days=1),
        "stopped": False,
    }


def _log(opened: Workspace, job_id: str) -> None:
    folder = opened.settings.jobs / job_id / "1"
    folder.mkdir(parents=True)
    lines = (
        f"2026-01-01 00:00:{number % 60:02d} quantize: layer {number} of 5000, error {number / 1e5:.5f}"
        for number in range(5000)
    )
    (folder / "log.txt").write_text("\n".join(lines) + "\n")
