"""Measures the variants of one evaluation: every run of the schedule, or a search for each variant.

Knows nothing of the document that is made from the runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, groupby
from typing import Literal

from backend.channel import JobChannel
from backend.domain.errors import EndpointUnreachable, ServerFailed, WorkError
from backend.domain.evaluation.blocks import stopping_rule
from backend.domain.evaluation.blocks.late_blocks import find_late_blocks
from backend.domain.evaluation.blocks.sequential_tests import SequentialTest
from backend.domain.evaluation.comparison import compare, is_primary
from backend.domain.evaluation.document import Level, VariantResult
from backend.domain.jobs.jobs import EvaluateSpec
from backend.domain.load import order, prompt_lines
from backend.domain.load.load import Load
from backend.domain.load.records import Audit, Disturbance, RequestRecord
from backend.domain.workload.workload import Workload
from backend.endpoint import check_endpoint
from backend.evaluate import load_plans
from backend.evaluate.load_plans import SearchedLevel
from backend.evaluate.unused_prompts import WorkloadExhausted
from backend.worker.measuring import runs, served_logprobs
from backend.worker.measuring.continuation import EarlierEvaluation, RunKey
from backend.worker.measuring.disturbance import describe, worst
from backend.worker.measuring.load_sender import LoadSender
from backend.worker.measuring.quality import Answers
from backend.worker.measuring.records import MeasuredLevel
from backend.worker.measuring.runs import MeasuredRun
from backend.worker.measuring.server_pool import Endpoint, ServerPool
from backend.worker.progress import ChannelProgress


class Measurement:
    """Measures the variants of one evaluation, slot by slot, and holds all runs."""

    def __init__(
        self,
        spec: EvaluateSpec,
        channel: JobChannel,
        workload: Workload,
        progress: ChannelProgress,
        earlier: EarlierEvaluation | None = None,
    ) -> None:
        # 1. What was requested, and what a continued evaluation has measured.
        self.spec, self.channel, self.workload, self.progress = spec, channel, workload, progress
        self.earlier = earlier
        self._sender = LoadSender(spec, channel, workload, earlier.runs if earlier else {})

        # 2. What is measured: greedy answers, log-probabilities, searched levels, and what ended early.
        self.answers: dict[int, Answers] = {}
        """The greedy answers of each variant."""
        self.repeated_answers: Answers | None = None
        """The baseline's greedy answers to the same prompts, asked a second time."""
        self.logprobs: dict[int, served_logprobs.WindowLogprobs] = {}
        """The log-probabilities that the server of each variant reports on the held-out text."""
        self.searched: dict[int, list[SearchedLevel]] = {}
        """The levels that the search of each variant has judged."""
        self.lost_servers: dict[int, str] = {}
        """The error of each variant whose server stopped answering."""
        self.exhausted: dict[int, str] = {}
        """The reason why the search of a variant ended for lack of unused prompts."""
        self.looks: list[SequentialTest] = []
        """The tests of the stopping rule so far."""

        # 3. How far the schedule is.
        self.loads = spec.options.loads
        self._prompt_kinds = [prompt.kind for prompt in workload.prompts]
        self._held_out_windows: list[list[int]] | None = None
        self.blocks = spec.measured
        """Complete blocks so far, those of a continued evaluation included."""
        self._warmed: dict[int, int] = {}
        """The start of each variant's server that was warmed."""

    @property
    def runs(self) -> dict[RunKey, list[MeasuredRun]]:
        """Return all runs by variant and load, those of a continued evaluation included."""
        return self._sender.runs

    def run(self, pool: ServerPool) -> None:
        """Measure every slot of the schedule, or search each variant's highest load where the options ask for that."""
        options = self.spec.options

        # 1. Warm servers that stay up; a server that is started for its slot is warmed then.
        mode: Literal["resident", "restart"] = "restart" if pool.mode == "restart" else "resident"
        if mode == "resident":
            self._warm_all(pool)

        # 2. A search has levels of its own for each variant, so it has no schedule.
        if options.sweep:
            self._search_all(pool)
            return

        # 3. Measure block after block until the schedule ends or the stopping rule is satisfied.
        variants, levels = len(self.spec.variants), range(len(self.loads))
        slots = order.schedule(variants, levels, options.most_blocks, mode, self.blocks)
        self.progress.phase("measure", "Measuring", total=len(slots), unit="runs", weight=6.0)
        slots_done = count(1)
        for block, slots_of_block in groupby(slots, key=lambda slot: slot.block):
            for _, slots_of_level in groupby(slots_of_block, key=lambda slot: slot.level):
                for measured_slots in self._steps(list(slots_of_level), mode):
                    self._measure_slots(measured_slots, pool)
                    self._report_progress(measured_slots, slots_done)
            self.blocks = block + 1
            if self._is_decided():
                break

    def _steps(self, slots: list[order.Slot], mode: str) -> list[list[order.Slot]]:
        """Return what is measured at a time: all variants where their requests can alternate, else one."""
        is_cut = prompt_lines.is_cut(self.loads[slots[0].level], self.spec.options, self.workload.least_turns)
        return [slots] if mode == "resident" and is_cut else [[slot] for slot in slots]

    def _report_progress(self, slots: list[order.Slot], slots_done: count[int]) -> None:
        """Report each slot that was measured."""
        for slot in slots:
            load = self.loads[slot.level]
            self.progress.advance(
                next(slots_done),
                variant=self.spec.variants[slot.variant].name,
                concurrency=_streams(load),
                load=load.words,
                block=slot.block,
            )

    def _measure_slots(self, slots: list[order.Slot], pool: ServerPool) -> None:
        """Run one load against the variants of these slots, in turns if there are several; skip lost variants."""
        if len(slots) == 1:
            self._measure_slot(slots[0], pool)
            return

        # 1. Send to all that answer, in turns; if a server ends before that, begin again without it.
        runs: dict[int, MeasuredRun] = {}
        ended: dict[int, ServerFailed] = {}
        while endpoints := self._answering_endpoints(slots, pool):
            try:
                runs, ended = self._sender.run_in_turns(slots[0], endpoints)
                break
            except (EndpointUnreachable, ServerFailed):
                if len(self._answering_endpoints(slots, pool)) == len(endpoints):
                    raise

        # 2. A server that ended while it was asked loses this run, and the others keep theirs.
        for variant, error in ended.items():
            with self._recording_loss(variant):
                raise error

        # 3. Report a point for each.
        for slot in slots:
            if slot.variant in runs:
                self._report_point(slot, runs[slot.variant].records)

    def _answering_endpoints(self, slots: list[order.Slot], pool: ServerPool) -> dict[int, Endpoint]:
        """Return the endpoint of each variant that is not lost, in the order of variants."""
        endpoints: dict[int, Endpoint] = {}
        for slot in sorted(slots, key=lambda slot: slot.variant):
            if slot.variant not in self.lost_servers:
                with self._recording_loss(slot.variant):
                    endpoint = self._prepare(slot.variant, pool)
                    check_endpoint(endpoint.url, self._sender.bearer(endpoint))
                    endpoints[slot.variant] = endpoint
        return endpoints

    def _measure_slot(self, slot: order.Slot, pool: ServerPool) -> None:
        """Run one load against one variant; skip a variant whose server is lost."""
        if slot.variant in self.lost_servers:
            return
        with self._recording_loss(slot.variant):
            endpoint = self._prepare(slot.variant, pool)
            first_line = self._sender.unused_prompts.first_line(slot.block, slot.level)
            most_requests = self._sender.unused_prompts.most_requests(slot.level)
            run = self._sender.run(slot.variant, endpoint, self.loads[slot.level], first_line, most_requests)
            self._report_point(slot, run.records)

    def _is_decided(self) -> bool:
        """Test after the blocks where the stopping rule tests, record the result, and say whether to stop."""
        options = self.spec.options
        if not options.until_decided:
            return False
        blocks_of_tests = stopping_rule.blocks_of_tests(options.max_blocks)
        if self.blocks not in blocks_of_tests:
            return False

        # 1. Compare at the share of significance that the rule spends on this test.
        alpha = stopping_rule.significance_levels(options.max_blocks)[blocks_of_tests.index(self.blocks)]
        results = [
            VariantResult(name=variant.name, variant=variant, levels=self.levels(index))
            for index, variant in enumerate(self.spec.variants)
        ]
        comparison = compare(results, alpha, options.same_within)

        # 2. Record the test; it counts against the significance of all later ones.
        undecided = len(stopping_rule.find_undecided(comparison))
        self.looks.append(SequentialTest(blocks=self.blocks, alpha=alpha, most=options.max_blocks, undecided=undecided))
        total = sum(is_primary(row.metric) for row in comparison)
        self.progress.note(
            f"After {self.blocks} of at most {options.max_blocks} blocks, {total - undecided} of {total} comparisons "
            "are decided."
        )
        return undecided == 0

    @contextmanager
    def _recording_loss(self, variant: int) -> Iterator[None]:
        """Record a server that stops answering, so that everything measured before remains.

        Raises what the block raises if nothing was measured yet, and if the evaluation continues another, which is
        still there unchanged.
        """
        try:
            yield
        except (EndpointUnreachable, ServerFailed) as error:
            if self.earlier or next(self._measured_keys(), None) is None:
                raise
            self.lost_servers[variant] = str(error)

    def _prepare(self, variant: int, pool: ServerPool) -> Endpoint:
        """Return the variant's endpoint, warm, after its greedy answers and log-probabilities were collected once."""
        endpoint = pool.use(variant)
        self._warm(variant, endpoint)
        if self.spec.options.quality and not self.earlier and variant not in self.answers:
            self.answers[variant] = self._greedy_answers(variant, endpoint)
            if variant == 0:
                self.repeated_answers = self._greedy_answers(variant, endpoint)
            self._fetch_logprobs(variant, endpoint)
        return endpoint

    def _fetch_logprobs(self, variant: int, endpoint: Endpoint) -> None:
        """Read the server's own probabilities on the held-out text, if the original's server reports them too."""
        if self._held_out_windows is None:
            self._held_out_windows = served_logprobs.held_out_windows(
                self.spec.variants, self.spec.options.quality_text, self.spec.options.quality_prompts
            )
        if not self._held_out_windows or (variant and 0 not in self.logprobs):
            return
        logprobs = served_logprobs.fetch_logprobs(endpoint, self._held_out_windows, self._sender.bearer(endpoint))
        if logprobs is not None:
            self.logprobs[variant] = logprobs

    def _search_all(self, pool: ServerPool) -> None:
        """Search each variant by itself: the levels differ, so there are no blocks and no verdicts."""
        self.progress.phase("measure", "Searching", total=len(self.spec.variants), unit="variants", weight=6.0)
        for index in range(len(self.spec.variants)):
            with self._recording_loss(index):
                self._search(index, self._prepare(index, pool))
            self.progress.advance(index + 1)

    def _search(self, index: int, endpoint: Endpoint) -> None:
        """Search the variant's highest load within the objectives; stop early if the workload has no line left."""
        levels = self.searched.setdefault(index, [])

        def measure(load: Load, requests: int, attempt: int) -> tuple[list[RequestRecord], Audit]:
            self.progress.note(f"{self.spec.variants[index].name}: {load.words}")
            first_line = self._sender.unused_prompts.take_lines(index, load, requests)
            run = self._sender.run(index, endpoint, load, first_line, requests)
            return run.records, run.audit

        try:
            load_plans.search_highest_load(self.spec.options, measure, levels.append)
        except WorkloadExhausted as error:
            self.exhausted[index] = str(error)

    def _warm_all(self, pool: ServerPool) -> None:
        """Warm every server at every level before the first block, which would otherwise be colder than the others."""
        self.progress.phase("warm", "Warming the servers", total=len(self.spec.variants), unit="variants", weight=0.5)
        for index in range(len(self.spec.variants)):
            self._warm(index, pool.use(index))
            self.progress.advance(index + 1)

    def _warm(self, variant: int, endpoint: Endpoint) -> None:
        """Ask for one answer per stream at every level and discard them; do nothing if this start is warm already.

        Afterwards the buffers, thread pools and kernels of each batch size exist.
        """
        if self._warmed.get(variant) == endpoint.starts:
            return
        for streams in prompt_lines.warm_up_streams(self.spec.options):
            self._sender.send_unmeasured(variant, endpoint, streams, {"requests": streams, "warmup_requests": 0})
        self._warmed[variant] = endpoint.starts

    def levels(self, variant: int) -> list[Level]:
        """Return the measured levels of a variant, those before its server was lost included."""
        # 1. What was measured; a search has no blocks.
        options, searched = self.spec.options, self.searched.get(variant, [])
        if options.sweep:
            loads = [level.load for level in searched]
        else:
            loads = [load for load in self.loads if (variant, load) in self.runs]
        # 2. Each level, without the blocks in which the load generator was late for any variant; a variant whose
        #    server was lost may have no other block.
        late = {load: () if options.sweep else self._late_blocks(load) for load in loads}
        levels = [
            runs.summarise_runs(
                load,
                self.runs[variant, load],
                options,
                self.spec.variants[variant],
                self._prompt_kinds,
                late[load],
            )
            for load in loads
            if {*range(len(self.runs[variant, load]))} - {*late[load]}
        ]
        return load_plans.mark_levels(levels, searched, options) if options.sweep else levels

    def _late_blocks(self, load: Load) -> tuple[int, ...]:
        """Return the blocks that are left out of the levels of this load, for every variant."""
        return find_late_blocks(
            [run.audit for run in runs_of_load] for (_, other), runs_of_load in self.runs.items() if other == load
        )

    def _measured_keys(self) -> Iterator[RunKey]:
        """Yield variant and load of every level so far.

        A search yields only the levels that it has judged: a server may stop between two runs of one level.
        """
        if not self.spec.options.sweep:
            yield from self.runs
            return
        for variant, levels in self.searched.items():
            for level in levels:
                yield variant, level.load

    def check_answers(self) -> None:
        """Raise WorkError if every measured request failed: that is no measurement."""
        measured: list[RequestRecord] = []
        for runs_of_load in self.runs.values():
            for run in runs_of_load:
                measured += [record for record in run.records if not record.warm]
        if not measured or any(record.ok for record in measured):
            return
        counts = Counter(record.status for record in measured)
        listed = ", ".join(f"{number:,} {status}" for status, number in counts.most_common())
        first = next((record.error for record in measured if record.error), "no reason given")
        raise WorkError(
            f"Every one of {len(measured):,} requests failed ({listed}; the first: {first.rstrip('.')}): see the log."
        )

    def disturbance_warning(self) -> str | None:
        """Return one sentence about the most disturbed level, or None if the machine was quiet.

        Levels of a URL do not count: its server may be what used the processor.
        """
        # 1. Collect the worst disturbance of each level that our servers answered.
        keys = [key for key in self._measured_keys() if self.spec.variants[key[0]].kind != "url"]
        disturbed: dict[RunKey, tuple[Disturbance, str]] = {}
        for key in keys:
            disturbance = worst(run.disturbance for run in self.runs[key])
            description = describe(disturbance) if disturbance else None
            if disturbance is not None and description is not None:
                disturbed[key] = disturbance, description
        if not disturbed:
            return None

        # 2. Name the level in which others used most.
        (variant, load), (_, description) = max(
            disturbed.items(), key=lambda item: item[1][0].others + item[1][0].stolen
        )
        where = f"while `{self.spec.variants[variant].name}` was measured at {load.words}"
        return (
            f"The machine was not quiet in {len(disturbed)} of {len(keys)} levels ({where}, {description}): small "
            "differences may be chance."
        )

    def rows(self) -> Iterator[MeasuredLevel]:
        """Yield all that was measured, level by level."""
        for variant, load in self._measured_keys():
            yield MeasuredLevel(variant, load, [run.records for run in self.runs[variant, load]])

    def _report_point(self, slot: order.Slot, records: list[RequestRecord]) -> None:
        """Report the run's throughput for the live chart, which labels it approximate."""
        good = [record for record in records if record.ok and not record.warm]
        began = min((record.sent or record.intended for record in good), default=0.0)
        seconds = max((record.end for record in good), default=0.0) - began
        rate = None
        if seconds > 0 and all(record.output_tokens is not None for record in good):
            rate = sum(record.output_tokens or 0 for record in good) / seconds
        self.progress.point(
            variant=self.spec.variants[slot.variant].name,
            concurrency=_streams(self.loads[slot.level]),
            block=slot.block,
            output_tokens_per_s=rate,
        )

    def _greedy_answers(self, variant: int, endpoint: Endpoint) -> Answers:
        """Return greedy answers to the first prompts, None for a request that failed."""
        prompts = min(self.spec.options.quality_prompts, len(self.workload.prompts))
        changes = {"requests": prompts, "temperature": 0.0, "warmup_requests": 1}
        records = self._sender.send_unmeasured(variant, endpoint, prompt_lines.GREEDY_STREAMS, changes)
        records.sort(key=lambda record: record.index)
        return [record.text if record.ok else None for record in records if not record.warm]


def _streams(load: Load) -> int:
    """Return the streams of a closed loop, else the rounded rate, for the live chart."""
    return max(1, round(load.value))
