"""Runs an evaluation job: starts servers, measures speed in ABBA order, scores quality, writes document and report."""

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
from backend.domain.evaluation.blocks.sequential_tests import SequentialTest, next_continuation, significance_level
from backend.domain.evaluation.blocks.session_drift import drift_warning
from backend.domain.evaluation.comparison import compare
from backend.domain.evaluation.document import SCHEMA, Evaluation, Quality, Remote, Variant, VariantResult
from backend.domain.evaluation.evidence.lossless import lossless_warning
from backend.domain.evaluation.evidence.schema import Finding, Lossless
from backend.domain.evaluation.memory_limit import BANDWIDTH
from backend.domain.evaluation.resource_use import StepBytes
from backend.domain.evaluation.soundness import (
    SHARED_PROCESSORS,
    idle_streams_warning,
    late_warning,
    validity_warnings,
)
from backend.domain.jobs.jobs import EvaluateSpec
from backend.domain.limits.quality_loss import floor_problem
from backend.domain.load.options import BLOCKS_FOR_VERDICT
from backend.domain.load.prompt_lines import GREEDY_STREAMS
from backend.domain.model.shapes import sizes
from backend.domain.model.stored_weights import StoredWeights
from backend.domain.needs.kv_cache_tokens import peak_tokens
from backend.domain.needs.serving_memory import BYTES, kv_bytes
from backend.domain.workload.workload import parse_workload
from backend.hardware import engine_status, probe, processor_speed
from backend.serving.servers import runs_on_processor
from backend.worker.measuring import evidence, lossless, served_logprobs
from backend.worker.measuring.artifact_copies import local_artifacts
from backend.worker.measuring.continuation import read_earlier, write_runs
from backend.worker.measuring.measurement import Measurement
from backend.worker.measuring.quality import compare_answers, measure_quality
from backend.worker.measuring.records import RECORDS, write_records
from backend.worker.measuring.server_pool import ServerPool, ServerSetup
from backend.worker.measuring.tasks import SAMPLES, TaskScoring
from backend.worker.progress import ChannelProgress
from backend.worker.resources import PeakMemory


def run(spec: EvaluateSpec, channel: JobChannel, memory: PeakMemory) -> dict[str, Any]:
    """Run the evaluation and fill the channel's output; return this kind's part of the result.

    Writes evaluation.json, records.parquet, runs.json and report.html, and task_samples.jsonl if tasks were scored.
    """
    options = spec.options
    weight = 2.0 + 0.5 + 6.0 + 0.5 + options.lossless
    if options.quality and not spec.continues:
        weight += 1.5
    if options.tasks and not spec.continues:
        weight += 2.2
    progress = ChannelProgress(channel, weight)
    settings = configuration.load()
    with local_artifacts(spec.variants, settings, progress) as variants:
        return _evaluate(spec.model_copy(update={"variants": variants}), channel, memory, progress, settings)


def _evaluate(
    spec: EvaluateSpec,
    channel: JobChannel,
    memory: PeakMemory,
    progress: ChannelProgress,
    settings: configuration.Settings,
) -> dict[str, Any]:
    # 1. Read the workload and, if one is continued, the earlier evaluation.
    options = spec.options
    earlier = read_earlier(spec.continues) if spec.continues else None
    workload = parse_workload(Path(options.workload).stem, Path(options.workload).read_bytes())

    # 2. Check the tasks before any server starts.
    tasks = TaskScoring(spec, settings, channel.work, progress)
    tasks.check()
    if earlier is not None:
        tasks.warnings += earlier.task_warnings

    # 3. Prepare the servers; tasks send prompts of their own, so the cache is then sized without the workload.
    measurement = Measurement(spec, channel, workload, progress, earlier)
    program = partial(engine_status.server_program, settings)
    in_flight = None
    if not options.tasks:
        in_flight = peak_tokens(workload.prompts, options, options.max_tokens, GREEDY_STREAMS)
    mode = earlier.document.interleave if earlier else None
    setup = ServerSetup(program, channel.side_log, settings.cache / "vllm", in_flight)
    pool = ServerPool(spec.variants, options, setup, progress, mode)
    ours = [variant for variant in spec.variants if variant.kind != "url"]
    on_processor = any(runs_on_processor(variant, program(variant)) for variant in ours)
    hardware = _describe_hardware(settings, with_bandwidth=on_processor)

    # 4. Start the servers and measure everything that needs them.
    lossless_results: dict[int, Lossless] = {}
    with pool:
        progress.phase("start", "Starting servers", weight=2.0)
        pool.start_servers()
        measurement.run(pool)
        measurement.check_answers()
        tasks.score(pool, measurement.lost_servers)
        if options.lossless:
            lossless_results = lossless.measure_lossless(pool, workload.prompts, measurement.lost_servers, progress)

    # 5. Score the saved weights; a continued evaluation has its scores already.
    qualities = _score_quality(measurement, settings) if options.quality and earlier is None else {}

    # 6. Write the document, the records and the report.
    progress.phase("report", "Writing the report", weight=0.5)
    results = _variant_results(measurement, pool, qualities, tasks, lossless_results, hardware)
    evaluation = _build_document(measurement, results, pool.mode, hardware, tasks.warnings)
    _write_output(channel.output, evaluation, measurement, tasks)
    return {"peak_rss_bytes": memory.peak, "interleave": pool.mode, "blocks": evaluation.options.repeats}


def _score_quality(measurement: Measurement, settings: configuration.Settings) -> dict[int, Quality]:
    """Return the quality of each variant: of its saved weights, of its greedy answers and of its served logprobs."""
    spec, folder = measurement.spec, measurement.channel.work
    scores = measure_quality(
        spec.variants, measurement.progress, folder, cache=settings.kept_scoring, text=spec.options.quality_text
    )
    matches = compare_answers(spec.variants[0], measurement.answers, measurement.repeated_answers)
    served = served_logprobs.quality_figures(measurement.logprobs)
    return {
        index: quality.model_copy(update=matches.get(index, {}) | served.get(index, {}))
        for index, quality in scores.items()
    }


def _describe_hardware(settings: configuration.Settings, *, with_bandwidth: bool) -> dict[str, Any]:
    """Return the machine's facts, with its node on a cluster; call it before any server runs.

    `with_bandwidth`: also measure how fast memory is read, which limits serving on a processor.
    """
    hardware = {**probe.probe()}
    if settings.node:
        hardware["node"] = settings.node
    if with_bandwidth:
        hardware[BANDWIDTH] = processor_speed.processor_speed(settings.cache).bandwidth
    return hardware


def _step_bytes(variant: Variant) -> StepBytes | None:
    """Return what one step of the variant reads from memory, or None if that is not one fixed amount.

    It is not for experts, for a target with its draft, and for a URL; what was compiled for Neuron reads no file of
    the model.
    """
    if variant.model_path is None or variant.speculation is not None or variant.neuron is not None or variant.gguf:
        return None
    card = read_card(Path(variant.model_path))
    if card.experts:
        return None
    # A table of embeddings is only looked up, unless the output head is tied to it.
    lookup_table = 0 if card.tied_embeddings else sizes(card).embedding * BYTES.get(card.dtype, 2)
    return StepBytes(weights=card.weights_bytes - lookup_table, cache_a_token=kv_bytes(card, variant.serving))


def _variant_results(
    measurement: Measurement,
    pool: ServerPool,
    qualities: dict[int, Quality],
    tasks: TaskScoring,
    lossless_results: dict[int, Lossless],
    hardware: dict[str, Any],
) -> list[VariantResult]:
    """Return what was measured of each variant, with what a continued evaluation had measured before."""
    task_scores = tasks.scores()
    results = []
    for index, variant in enumerate(measurement.spec.variants):
        # 1. What this session measured.
        levels = measurement.levels(index)
        starts = pool.startups.get(index, [])
        peak_rss_bytes = pool.peak_rss.get(index) or 0
        quality, scores, lossless_result = qualities.get(index), task_scores.get(index, []), lossless_results.get(index)
        findings: list[Finding] = []

        # 2. What the continued evaluation measured before; its scores are not measured again.
        if measurement.earlier is not None:
            before = measurement.earlier.document.variants[index]
            starts = [*before.starts, *starts]
            peak_rss_bytes = max(peak_rss_bytes, before.peak_rss_bytes or 0)
            quality, scores, lossless_result = before.quality, before.tasks, before.lossless
            findings, weights_sha256 = before.findings, before.weights_sha256
        else:
            weights_sha256 = artifact_folder.served_files(variant)

        # 3. Both together.
        result = VariantResult(
            name=variant.name,
            variant=variant,
            levels=levels,
            quality=quality,
            tasks=scores,
            ready_seconds=min((start.ready_s for start in starts if not start.beside), default=None),
            starts=starts,
            step=_step_bytes(variant) if BANDWIDTH in hardware else None,
            peak_rss_bytes=peak_rss_bytes or None,
            speculates=pool.speculates(index),
            weights_sha256=weights_sha256,
            findings=evidence.collect_findings(variant, pool.evidence.get(index, []), levels, findings),
            lossless=lossless_result,
            lost=measurement.lost_servers.get(index),
        )
        results.append(result)
    return results


def _build_document(
    measurement: Measurement,
    results: list[VariantResult],
    mode: str,
    hardware: dict[str, Any],
    task_warnings: Sequence[str],
) -> Evaluation:
    """Compare the variants and return the whole document.

    If an earlier evaluation was tested before this one continued it, the comparison uses the significance level that
    is left.
    """
    spec = measurement.spec
    earlier = measurement.earlier.document if measurement.earlier else None

    # 1. The options as they came out, and the sessions and tests of all evaluations in the chain.
    options = spec.options
    if options.until_decided:
        options = options.model_copy(update={"repeats": measurement.blocks})
    sessions = (*(earlier.sessions if earlier else ()), options.repeats - spec.measured)
    tests = (*(earlier.looks if earlier else ()), *measurement.looks)

    # 2. The comparison; without a stopping rule it is itself one more test.
    continuation = next_continuation(tests)
    alpha = measurement.looks[-1].alpha if measurement.looks else significance_level(continuation)
    comparison = compare(results, alpha, options.same_within)
    if not measurement.looks and any(row.why is None for row in comparison):
        tests = (*tests, SequentialTest(blocks=options.repeats, alpha=alpha, continuation=continuation))

    # 3. The warnings.
    warnings = [*_warnings(measurement, results), *task_warnings]
    if mode == "resident":
        warnings += filter(None, [drift_warning(results, comparison, sessions)])

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
        looks=tests,
    )


def _warnings(measurement: Measurement, results: Sequence[VariantResult]) -> list[str]:
    """Return all that limits what the figures say, a sentence each."""
    # 1. What happened to single variants.
    options, variants = measurement.spec.options, measurement.spec.variants
    warnings = _variant_warnings(results)
    warnings += [f"{variants[index].name}: {reason}" for index, reason in measurement.exhausted.items()]
    warnings += former_quantization_notes(variants)

    # 2. What was asked for: the text, the search, the number of repeats.
    if options.quality and served_logprobs.must_stay_local(variants, options.quality_text):
        warnings.append(
            "The held-out text was not sent to endpoints: their served quality was measured on the bundled text."
        )
    if options.sweep:
        warnings.append(
            "Each variant was searched by itself, so its levels are its own and there is no verdict between variants."
        )
    elif options.most_blocks < BLOCKS_FOR_VERDICT:
        repeats = "1 repeat gives" if options.repeats == 1 else f"{options.repeats} repeats give"
        warnings.append(f"{repeats} figures but no verdict: a verdict needs {BLOCKS_FOR_VERDICT} or more.")

    # 3. How sound the figures are.
    levels = [level for result in results for level in result.levels]
    warnings += [*validity_warnings(results), *filter(None, [late_warning(levels), idle_streams_warning(results)])]
    looping, total = sum(level.looping_outputs for level in levels), sum(level.requests for level in levels)
    if looping:
        warnings.append(f"{looping} of {total} answers end in a loop, which inflates the gain of speculative decoding.")

    # 4. Where the servers ran.
    if not any(variant.kind == "url" for variant in variants):
        warnings.append(SHARED_PROCESSORS)
    for variant in variants:
        if variant.remote:
            warnings += sagemaker_warnings(variant.name, variant.remote)
    disturbance = measurement.disturbance_warning()
    if disturbance is not None:
        warnings.append(disturbance)
    return warnings


def _variant_warnings(results: Sequence[VariantResult]) -> list[str]:
    """Return lost servers, starts that compiled again, answers that speculation changed and ruined weights."""
    warnings = [f"{result.name} {_loss_words(result)} {result.lost}" for result in results if result.lost]
    for result in results:
        reasons = [start.compiled_again for start in result.starts if start.compiled_again]
        if reasons:
            warnings.append(f"{result.name} was compiled again at start: {reasons[-1]}.")
    lossless_words = [(result.name, lossless_warning(result.lossless)) for result in results]
    ruined_words = [(result.name, _ruined_words(result.quality)) for result in results]
    warnings += [f"`{name}` {words}" for name, words in lossless_words if words]
    warnings += [f"`{name}`: {words}" for name, words in ruined_words if words]
    return warnings


def sagemaker_warnings(name: str, remote: Remote) -> list[str]:
    """Return what cannot be known about an endpoint at SageMaker, and what was proven of it at submit."""
    unknown = (
        f"`{name}` is served at SageMaker in {remote.region} ({remote.instances}): its flags, cache, memory and "
        "whoever else asks it cannot be seen from here, and its latencies include the network."
    )
    findings = " ".join(remote.findings) or "Nothing of it was proven, as Whetstone did not deploy it."
    return [f"{unknown} {findings}"]


def former_quantization_notes(variants: Sequence[Variant]) -> list[str]:
    """Return a sentence for each original that was quantized before it was imported, or is stored quantized.

    Every quality figure compares with the original as it is, so such a loss is not part of the figures.
    """
    # 1. The folder of each original, once, with the name that the report gives it.
    folders = dict.fromkeys(variant.original_path for variant in variants if variant.original_path)
    names = {variant.model_path: variant.name for variant in variants}

    # 2. Collect a sentence for what happened before the import, and one for how the weights are stored.
    imported: list[str] = []
    stored: list[str] = []
    for folder in folders:
        record = import_record.read(Path(folder))
        if record is not None and record.quantized_before is not None:
            imported.append(f"`{names.get(folder, record.card_id)}`: {record.quantized_before.sentence}")
        layout = _find_layout(Path(folder))
        if layout is not None:
            stored.append(f"`{names.get(folder, Path(folder).name)}`: {layout.sentence}")
    return imported + stored


def _find_layout(folder: Path) -> StoredWeights | None:
    """Return how an original's weights are stored; None if they are plain or the folder is no model any more."""
    try:
        return read_card(folder).stored
    except (InvalidModel, UnknownModel):
        return None


def _ruined_words(quality: Quality | None) -> str | None:
    """Return why the weights count as ruined, or None."""
    if quality is None:
        return None
    scores = {
        "perplexity_before": quality.perplexity_original,
        "perplexity_after": quality.perplexity,
        "kl_mean": quality.kl_mean,
    }
    return floor_problem(scores, configuration.load().quality_floor)


def _loss_words(result: VariantResult) -> str:
    return "stopped answering; what was measured before is kept." if result.levels else "could not be measured."


def _write_output(output: Path, evaluation: Evaluation, measurement: Measurement, tasks: TaskScoring) -> None:
    """Write the document, every request, what a continuation needs, task samples and the report."""
    from backend.evaluate.report.report import write_report
    from backend.worker.measuring.report_data import build_extras

    # 1. The document, its requests, and what a continuation needs beside them.
    output.mkdir(parents=True)
    (output / "evaluation.json").write_text(json.dumps(evaluation.model_dump(mode="json"), indent=1))
    names = [variant.name for variant in measurement.spec.variants]
    write_records(output / RECORDS, names, measurement.rows())
    write_runs(output, measurement.runs, tasks.warnings)

    # 2. The samples of scored tasks; a continued evaluation takes over those it had.
    tasks.write(output)
    if measurement.spec.continues:
        samples = Path(measurement.spec.continues.folder) / SAMPLES
        if samples.is_file():
            shutil.copyfile(samples, output / SAMPLES)

    # 3. The report.
    write_report(evaluation, output, build_extras(evaluation, measurement))
