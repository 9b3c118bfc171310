"""An evaluation job: servers up, slots in ABBA order, records kept, quality beside the speed, one document and a
report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from backend import settings as configuration
from backend.artifacts import artifact_folder
from backend.catalog.cards import import_record
from backend.catalog.cards.card import read_card
from backend.channel import JobChannel
from backend.domain.errors import InvalidModel, UnknownModel
from backend.domain.evaluation.blocks import session_drift as between_starts
from backend.domain.evaluation.blocks.sequential_tests import SequentialTest, next_continuation, significance_level
from backend.domain.evaluation.comparison import compare
from backend.domain.evaluation.document import SCHEMA, Evaluation, Quality, Remote, Variant, VariantResult
from backend.domain.evaluation.evidence.lossless import lossless_warning
from backend.domain.evaluation.evidence.schema import Lossless
from backend.domain.evaluation.memory_limit import BANDWIDTH
from backend.domain.evaluation.resource_use import StepBytes
from backend.domain.evaluation.soundness import SHARED_PROCESSORS, idle_streams_warning, validity_warnings
from backend.domain.jobs.jobs import EvaluateSpec
from backend.domain.limits.quality_loss import floor_problem
from backend.domain.load.options import BLOCKS_FOR_VERDICT
from backend.domain.load.prompt_lines import GREEDY_STREAMS
from backend.domain.model.shapes import sizes
from backend.domain.model.stored_weights import StoredWeights
from backend.domain.needs.kv_cache_tokens import peak_tokens as cache_tokens
from backend.domain.needs.serving_memory import BYTES, kv_bytes
from backend.domain.workload.workload import parse_workload
from backend.hardware import engine_status, probe, processor_speed
from backend.serving.installed_packages import is_cpu_build
from backend.worker.measuring import evidence, lossless, served_logprobs
from backend.worker.measuring.artifact_copies import local_artifacts
from backend.worker.measuring.continuation import read_earlier, write_runs
from backend.worker.measuring.measurement import Measurement
from backend.worker.measuring.quality import compare_answers, measure_quality
from backend.worker.measuring.records import RECORDS, write_records
from backend.worker.measuring.server_pool import ServerPool
from backend.worker.measuring.tasks import SAMPLES, TaskScoring
from backend.worker.progress import ChannelProgress
from backend.worker.resources import PeakMemory


def run(spec: EvaluateSpec, channel: JobChannel, memory: PeakMemory) -> dict[str, Any]:
    """Fill the channel's output: evaluation.json, records.parquet, runs.json, report.html, and task_samples.jsonl for
    tasks."""
    scored, asked = spec.options.quality and not spec.continues, spec.options.tasks and not spec.continues
    progress = ChannelProgress(
        channel, 2.0 + 0.5 + 6.0 + (1.5 if scored else 0.0) + (2.2 if asked else 0.0) + 0.5 + spec.options.lossless
    )
    settings = configuration.load()
    with local_artifacts(spec.variants, settings, progress) as variants:
        return _run(spec.model_copy(update={"variants": variants}), channel, memory, progress, settings)


def _run(
    spec: EvaluateSpec,
    channel: JobChannel,
    memory: PeakMemory,
    progress: ChannelProgress,
    settings: configuration.Settings,
) -> dict[str, Any]:
    options, earlier = spec.options, read_earlier(spec.continues) if spec.continues else None
    workload = parse_workload(Path(options.workload).stem, Path(options.workload).read_bytes())
    python = partial(engine_status.server_python, settings)
    on_processor = any(variant.kind != "url" and is_cpu_build(python(variant)) for variant in spec.variants)
    tasks = TaskScoring(spec, settings, channel.work, progress)
    tasks.check()
    tasks.warnings += earlier.task_warnings if earlier else []
    measurement = Measurement(spec, channel, workload, progress, earlier)
    held = None if options.tasks else cache_tokens(workload.prompts, options, options.max_tokens, GREEDY_STREAMS)
    mode = earlier.document.interleave if earlier else None
    pool = ServerPool(spec.variants, options, python, channel.side_log, settings.cache / "vllm", progress, held, mode)
    hardware = _hardware(on_processor, settings)
    with pool:
        progress.phase("start", "Starting servers", weight=2.0)
        pool.start_servers()
        measurement.run(pool)
        measurement.check_answers()
        tasks.score(pool, measurement.lost_servers)
        kept_answers = (
            lossless.measure_lossless(pool, workload.prompts, measurement.lost_servers, progress)
            if spec.options.lossless
            else {}
        )
    scored = options.quality and not earlier
    qualities = _qualities(measurement, settings) if scored else {}
    progress.phase("report", "Writing the report", weight=0.5)
    evaluation = _document(measurement, pool, qualities, tasks, hardware, kept_answers)
    _publish(channel.output, evaluation, measurement, tasks)
    return {"peak_rss_bytes": memory.peak, "interleave": pool.mode, "blocks": evaluation.options.repeats}


def _qualities(measurement: Measurement, settings: configuration.Settings) -> dict[int, Quality]:
    spec, folder = measurement.spec, measurement.channel.work
    scores = measure_quality(
        spec.variants, measurement.progress, folder, kept=settings.kept_scoring, text=spec.options.quality_text
    )
    matches = compare_answers(spec.variants[0], measurement.answers, measurement.repeated_answers)
    served = served_logprobs.quality_figures(measurement.logprobs)
    return {
        index: each.model_copy(update=matches.get(index, {}) | served.get(index, {})) for index, each in scores.items()
    }


def _hardware(on_processor: bool, settings: configuration.Settings) -> dict[str, Any]:
    """What is here, on a cluster which of its nodes, and how fast its memory is read where that is what serving waits
    for. Before any server is up."""
    node = {"node": settings.node} if settings.node else {}
    return {
        **probe.probe(),
        **node,
        **({BANDWIDTH: processor_speed.processor_speed(settings.cache).bandwidth} if on_processor else {}),
    }


def _step(variant: Variant) -> StepBytes | None:
    """What a step of the variant reads; None where that is not one thing: of experts, of a target and its draft, of a
    URL. What was compiled for Neuron reads no file of the model's."""
    if variant.model_path is None or variant.speculation is not None or variant.neuron is not None:
        return None
    card = read_card(Path(variant.model_path))
    looked_up = 0 if card.tied_embeddings else sizes(card).embedding * BYTES.get(card.dtype, 2)
    return (
        None
        if card.experts
        else StepBytes(weights=card.weights_bytes - looked_up, cache_a_token=kv_bytes(card, variant.serving))
    )


def _document(
    measurement: Measurement,
    pool: ServerPool,
    qualities: dict[int, Quality],
    tasks: TaskScoring,
    hardware: dict[str, Any],
    kept_answers: dict[int, Lossless],
) -> Evaluation:
    spec, scores = measurement.spec, tasks.scores()
    results = []
    for index, variant in enumerate(spec.variants):
        before = measurement.earlier.document.variants[index] if measurement.earlier else None
        starts = [*(before.starts if before else []), *pool.startups.get(index, [])]
        levels = measurement.levels(index)
        peaks = [peak for peak in (pool.peak_rss.get(index), before and before.peak_rss_bytes) if peak]
        results.append(
            VariantResult(
                name=variant.name,
                variant=variant,
                levels=levels,
                quality=before.quality if before else qualities.get(index),
                tasks=before.tasks if before else scores.get(index, []),
                ready_seconds=min((start.ready_s for start in starts if not start.beside), default=None),
                starts=starts,
                step=_step(variant) if BANDWIDTH in hardware else None,
                peak_rss_bytes=max(peaks, default=None),
                speculates=pool.speculates(index),
                weights_sha256=before.weights_sha256 if before else artifact_folder.served_files(variant),
                findings=evidence.findings(
                    variant, pool.evidence.get(index, []), levels, before.findings if before else []
                ),
                lossless=before.lossless if before else kept_answers.get(index),
                lost=measurement.lost_servers.get(index),
            )
        )
    return _compared(measurement, results, pool.mode, hardware, tasks.warnings)


def _compared(
    measurement: Measurement,
    results: list[VariantResult],
    mode: str,
    hardware: dict[str, Any],
    task_warnings: Sequence[str],
) -> Evaluation:
    """With the verdicts, at the level that is left where others were seen before."""
    spec, earlier = measurement.spec, measurement.earlier.document if measurement.earlier else None
    options = spec.options.model_copy(update={"repeats": measurement.blocks} if spec.options.until_decided else {})
    sessions = (*(earlier.sessions if earlier else ()), options.repeats - spec.measured)
    looks = (*(earlier.looks if earlier else ()), *measurement.looks)
    number = next_continuation(looks)
    alpha = measurement.looks[-1].alpha if measurement.looks else significance_level(number)
    comparison = compare(results, alpha)
    if not measurement.looks and any(row.why is None for row in comparison):
        looks = (*looks, SequentialTest(blocks=options.repeats, alpha=alpha, continuation=number))
    warnings = [*_warnings(measurement, results), *task_warnings]
    if mode == "resident":
        warnings += filter(None, [between_starts.drift_warning(results, comparison, sessions)])
    return Evaluation(
        schema=SCHEMA,
        variants=results,
        comparison=comparison,
        workload=measurement.workload.about(spec.workload_reading),
        hardware=hardware,
        versions=engine_status.list_versions(configuration.load()),
        options=options,
        interleave=mode,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        warnings=warnings,
        continues=spec.continues.evaluation if spec.continues else None,
        sessions=sessions,
        looks=looks,
    )


def _warnings(measurement: Measurement, results: Sequence[VariantResult]) -> list[str]:
    options, variants = measurement.spec.options, measurement.spec.variants
    found = [f"{result.name} {_lost(result)} {result.lost}" for result in results if result.lost]
    again = {result.name: start.compiled_again for result in results for start in result.starts if start.compiled_again}
    found += [f"{name} was compiled again at start: {why}." for name, why in again.items()]
    found += [f"`{result.name}` {words}" for result in results if (words := lossless_warning(result.lossless))]
    found += [f"`{result.name}`: {ruined}" for result in results if (ruined := _ruined(result.quality))]
    found += [f"{variants[index].name}: {why}" for index, why in measurement.exhausted.items()]
    found += former_quantization_notes(variants)
    if options.quality and served_logprobs.must_stay_local(variants, options.quality_text):
        found.append("The held-out text was not sent to endpoints: what is said as served is of the bundled text.")
    if options.sweep:
        found.append(
            "Each variant was searched by itself, so its levels are its own and there is no verdict between variants."
        )
    elif options.most_blocks < BLOCKS_FOR_VERDICT:
        said = "1 repeat gives" if options.repeats == 1 else f"{options.repeats} repeats give"
        found.append(f"{said} figures but no verdict: a verdict takes at least {BLOCKS_FOR_VERDICT}.")
    found += [*validity_warnings(results), *filter(None, [idle_streams_warning(results)])]
    looping = sum(level.looping_outputs for result in results for level in result.levels)
    total = sum(level.requests for result in results for level in result.levels)
    if looping:
        found.append(f"{looping} of {total} answers end in a loop, which flatters speculative decoding.")
    if not any(variant.kind == "url" for variant in variants):
        found.append(SHARED_PROCESSORS)
    found += [
        words for variant in variants if variant.remote for words in sagemaker_warnings(variant.name, variant.remote)
    ]
    if disturbed := measurement.disturbance_warning():
        found.append(disturbed)
    return found


def sagemaker_warnings(name: str, remote: Remote) -> list[str]:
    """What cannot be known of an endpoint there, and what was proven of it when the evaluation was submitted."""
    unseen = (
        f"`{name}` is served at SageMaker in {remote.region} ({remote.instances}): its flags, cache, memory and whoever else "
        "asks it cannot be seen from here, and its latencies include the network."
    )
    seen = " ".join(remote.findings)
    return [f"{unseen} {seen}" if seen else f"{unseen} Nothing of it was proven, as Whetstone did not deploy it."]


def former_quantization_notes(variants: Sequence[Variant]) -> list[str]:
    """What the originals lost before they came here, or lose as they are stored, a sentence each: every quality is
    against them as they are."""
    folders = dict.fromkeys(variant.original_path for variant in variants if variant.original_path)
    records = [(folder, import_record.read(Path(folder))) for folder in folders]
    names = {variant.model_path: variant.name for variant in variants}
    imported = [
        f"`{names.get(folder, record.card_id)}`: {record.quantized_before.sentence}"
        for folder, record in records
        if record is not None and record.quantized_before is not None
    ]
    layouts = [(folder, layout) for folder in folders if (layout := _layout(Path(folder)))]
    return imported + [f"`{names.get(folder, Path(folder).name)}`: {layout.sentence}" for folder, layout in layouts]


def _layout(folder: Path) -> StoredWeights | None:
    """How an original's weights are stored where they are not plain; None also where the folder is no model any
    more."""
    try:
        return read_card(folder).stored
    except (InvalidModel, UnknownModel):
        return None


def _ruined(quality: Quality | None) -> str | None:
    if quality is None:
        return None
    scores = {
        "perplexity_before": quality.perplexity_original,
        "perplexity_after": quality.perplexity,
        "kl_mean": quality.kl_mean,
    }
    return floor_problem(scores, configuration.load().quality_floor)


def _lost(result: VariantResult) -> str:
    return "stopped answering; what was measured before is kept." if result.levels else "could not be measured."


def _publish(output: Path, evaluation: Evaluation, measurement: Measurement, tasks: TaskScoring) -> None:
    from backend.evaluate.report.report import write_report
    from backend.worker.measuring.report_data import build_extras

    output.mkdir(parents=True)
    (output / "evaluation.json").write_text(json.dumps(evaluation.model_dump(mode="json"), indent=1))
    names = [variant.name for variant in measurement.spec.variants]
    write_records(output / RECORDS, names, measurement.rows())
    write_runs(output, measurement.runs, tasks.warnings)
    tasks.write(output)
    if measurement.spec.continues and (samples := Path(measurement.spec.continues.folder) / SAMPLES).is_file():
        shutil.copyfile(samples, output / SAMPLES)
    write_report(evaluation, output, build_extras(evaluation, measurement))
