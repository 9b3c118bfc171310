"""What one evaluation gathers: every run of the schedule, or a sweep a variant. Knows nothing of the document made of
it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, groupby
from pathlib import Path
from typing import Any

from backend.channel import JobChannel
from backend.domain.errors import EndpointUnreachable, ServerFailed, WorkError
from backend.domain.evaluation.blocks import stopping_rule
from backend.domain.evaluation.blocks.sequential_tests import SequentialTest
from backend.domain.evaluation.comparison import compare, higher_is_better
from backend.domain.evaluation.document import Level, VariantResult
from backend.domain.jobs.jobs import EvaluateSpec
from backend.domain.load import counters, order, prompt_lines
from backend.domain.load.load import Load
from backend.domain.load.records import Audit, LoadPlan, RequestRecord
from backend.domain.workload.workload import Prompt, Workload, write_prompts
from backend.endpoint import models
from backend.evaluate import load_plans
from backend.evaluate.load_plans import SearchedLevel
from backend.evaluate.unused_prompts import UnusedPrompts, WorkloadExhausted, cache_block_tokens
from backend.hardware import energy
from backend.worker.measuring import disturbance as neighbours
from backend.worker.measuring import runs, served_logprobs
from backend.worker.measuring.continuation import EarlierEvaluation, RunKey
from backend.worker.measuring.quality import Answers
from backend.worker.measuring.records import MeasuredLevel
from backend.worker.measuring.runs import MeasuredRun
from backend.worker.measuring.server_pool import Endpoint, ServerPool
from backend.worker.progress import ChannelProgress


class Measurement:
    """What one evaluation gathers, slot by slot."""

    def __init__(
        self,
        spec: EvaluateSpec,
        channel: JobChannel,
        workload: Workload,
        progress: ChannelProgress,
        earlier: EarlierEvaluation | None = None,
    ) -> None:
        self.spec, self.channel, self.workload, self.progress = spec, channel, workload, progress
        self.earlier = earlier
        self.runs: dict[RunKey, list[MeasuredRun]] = dict(earlier.runs) if earlier else {}
        self.answers: dict[int, Answers] = {}
        """Variant -> its greedy answers."""
        self.repeated_answers: Answers | None = None
        """The baseline's, asked a second time."""
        self.logprobs: dict[int, served_logprobs.WindowLogprobs] = {}
        """Variant -> what its server tells of its probabilities."""
        self._asked_tokens: list[list[int]] | None = None
        self.loads = spec.options.loads
        self._kinds = [prompt.kind for prompt in workload.prompts]
        self.swept: dict[int, list[SearchedLevel]] = {}
        self.lost_servers: dict[int, str] = {}
        """Variant -> what happened when its server went away in the middle."""
        self.exhausted: dict[int, str] = {}
        """Variant -> why its search ended where the workload had no line left."""
        self.unused_prompts = UnusedPrompts(spec.options, workload, spec.continues.origin if spec.continues else 0)
        self.blocks = spec.measured
        """That are whole."""
        self.looks: list[SequentialTest] = []
        """Of a rule that says how many."""
        self._slots = 0
        self._warmed: dict[int, int] = {}
        """Variant -> start of its server that was warmed."""

    def run(self, pool: ServerPool) -> None:
        """Load every slot of the schedule. Each slot has warm-up requests of its own beside the first pass over all
        levels."""
        options = self.spec.options
        mode = "restart" if pool.mode == "restart" else "resident"
        if mode == "resident":
            self._warm_all(pool)
        if options.sweep:
            self._sweep_all(pool)
            return
        variants, levels = len(self.spec.variants), range(len(self.loads))
        slots = order.schedule(variants, levels, options.most_blocks, mode, self.blocks)  # type: ignore[arg-type]
        self.progress.phase("measure", "Measuring", total=len(slots), unit="runs", weight=6.0)
        done = count(1)
        for block, runs_of_block in groupby(slots, key=lambda slot: slot.block):
            for slot in runs_of_block:
                self._measure(slot, pool)
                name, load = self.spec.variants[slot.variant].name, self.loads[slot.level]
                self.progress.advance(
                    next(done), variant=name, concurrency=_streams(load), load=load.words, block=block
                )
            self.blocks = block + 1
            if self._is_decided():
                break

    def _measure(self, slot: order.Slot, pool: ServerPool) -> None:
        """Nothing of a variant whose server is gone."""
        if slot.variant in self.lost_servers:
            return
        with self._kept(slot.variant):
            endpoint = self._ready(slot.variant, pool)
            first_line, most = (
                self.unused_prompts.first_line(slot.block, slot.level),
                self.unused_prompts.most_requests(slot.level),
            )
            run = self._run(slot.variant, endpoint, self.loads[slot.level], first_line, most)
            self._point(slot, run.records)

    def _is_decided(self) -> bool:
        """Of a rule (`blocks.rule`): test where it looks, note what came of it, and say whether that is enough."""
        options = self.spec.options
        places = stopping_rule.test_points(options.max_blocks) if options.until_decided else ()
        if self.blocks not in places:
            return False
        alpha = stopping_rule.significance_levels(options.max_blocks)[places.index(self.blocks)]
        results = [
            VariantResult(name=each.name, variant=each, levels=self.levels(i))
            for i, each in enumerate(self.spec.variants)
        ]
        compared = compare(results, alpha)
        missing = len(stopping_rule.find_undecided(compared))
        self.looks.append(SequentialTest(blocks=self.blocks, alpha=alpha, most=options.max_blocks, undecided=missing))
        of = sum(higher_is_better(row.metric) for row in compared)
        self.progress.note(
            f"After {self.blocks} of at most {options.max_blocks} blocks {of - missing} of {of} are decided."
        )
        return missing == 0

    @contextmanager
    def _kept(self, variant: int) -> Iterator[None]:
        """A server that is gone takes nothing with it that was measured, its own or others'; with nothing yet, the
        evaluation fails, and so does one that goes on from another, which is there as it was."""
        try:
            yield
        except (EndpointUnreachable, ServerFailed) as error:
            if self.earlier or next(self._measured(), None) is None:
                raise
            self.lost_servers[variant] = str(error)

    def _ready(self, variant: int, pool: ServerPool) -> Endpoint:
        """Its server, warm, and asked for the answers that quality is read from."""
        endpoint = pool.use(variant)
        self._warm(variant, endpoint)
        if self.spec.options.quality and not self.earlier and variant not in self.answers:
            self.answers[variant] = self._answer(variant, endpoint)
            if variant == 0:
                self.repeated_answers = self._answer(variant, endpoint)
            self._tell(variant, endpoint)
        return endpoint

    def _tell(self, variant: int, endpoint: Endpoint) -> None:
        """The server's own probabilities on the held-out text, where the original's server tells them too."""
        if self._asked_tokens is None:
            self._asked_tokens = served_logprobs.held_out_windows(self.spec.variants, self.spec.options.quality_text)
        if variant and 0 not in self.logprobs:
            return
        bearer = self.spec.options.bearer_env if endpoint.server is None else None
        if (
            self._asked_tokens
            and (found := served_logprobs.fetch_logprobs(endpoint, self._asked_tokens, bearer)) is not None
        ):
            self.logprobs[variant] = found

    def _sweep_all(self, pool: ServerPool) -> None:
        """Each variant is searched by itself: its levels are its own, so there are no blocks and no verdicts."""
        self.progress.phase("measure", "Searching", total=len(self.spec.variants), unit="variants", weight=6.0)
        for index in range(len(self.spec.variants)):
            with self._kept(index):
                self._sweep(index, self._ready(index, pool))
            self.progress.advance(index + 1)

    def _sweep(self, index: int, endpoint: Endpoint) -> None:
        found = self.swept.setdefault(index, [])

        def measure(load: Load, requests: int, look: int) -> tuple[list[RequestRecord], Audit]:
            self.progress.note(f"{self.spec.variants[index].name}: {load.words}")
            run = self._run(index, endpoint, load, self.unused_prompts.take_lines(index, load, requests), requests)
            return run.records, run.audit

        try:
            load_plans.search_highest_load(self.spec.options, measure, found.append)
        except WorkloadExhausted as spent:
            self.exhausted[index] = str(spent)

    def _warm_all(self, pool: ServerPool) -> None:
        """Every server at every level before the first block, which would else be colder than the others."""
        self.progress.phase("warm", "Warming the servers", total=len(self.spec.variants), unit="variants", weight=0.5)
        for index in range(len(self.spec.variants)):
            self._warm(index, pool.use(index))
            self.progress.advance(index + 1)

    def _warm(self, variant: int, endpoint: Endpoint) -> None:
        """One answer a stream at every level, thrown away: buffers, thread pools and kernels of each batch size exist
        then."""
        if self._warmed.get(variant) == endpoint.starts:
            return
        for concurrency in prompt_lines.warm_up_streams(self.spec.options):
            self._apart(variant, endpoint, concurrency, {"requests": concurrency, "warmup_requests": 0})
        self._warmed[variant] = endpoint.starts

    def levels(self, variant: int) -> list[Level]:
        """Those that were measured, also before a server went away."""
        options, of, found = self.spec.options, self.spec.variants[variant], self.swept.get(variant, [])
        done = (
            [each.load for each in found]
            if options.sweep
            else [load for load in self.loads if (variant, load) in self.runs]
        )
        levels = [runs.summarise_runs(load, self.runs[variant, load], options, of, self._kinds) for load in done]
        return load_plans.mark_levels(levels, found, options) if options.sweep else levels

    def _measured(self) -> Iterator[RunKey]:
        """Every level so far, of a search those that were judged: a server may go away between two looks at one."""
        if self.spec.options.sweep:
            yield from ((variant, each.load) for variant, found in self.swept.items() for each in found)
        else:
            yield from self.runs

    def check_answers(self) -> None:
        """Raises WorkError where every measured request failed: that is no measurement."""
        asked = [record for found in self.runs.values() for run in found for record in run.records if not record.warm]
        if asked and not any(record.ok for record in asked):
            kinds = Counter(record.status for record in asked)
            first = next((record.error for record in asked if record.error), "no reason given")
            told = ", ".join(f"{number:,} {kind}" for kind, number in kinds.most_common())
            raise WorkError(
                f"Every one of {len(asked):,} requests failed ({told}; the first: {first.rstrip('.')}): see the log."
            )

    def disturbance_warning(self) -> str | None:
        """One sentence where the machine was not quiet. Not of a URL: its server may be what the others are."""
        own = [key for key in self._measured() if self.spec.variants[key[0]].kind != "url"]
        worst = {key: neighbours.worst(run.disturbance for run in self.runs[key]) for key in own}
        found = {key: (each, words) for key, each in worst.items() if each and (words := neighbours.describe(each))}
        if not found:
            return None
        (variant, load), (_, words) = max(found.items(), key=lambda row: row[1][0].others + row[1][0].stolen)
        where = f"while `{self.spec.variants[variant].name}` was measured at {load.words}"
        return f"The machine was not quiet in {len(found)} of {len(own)} levels ({where}, {words}): small differences may be chance."

    def rows(self) -> Iterator[MeasuredLevel]:
        """All that was measured, level by level."""
        for variant, load in self._measured():
            yield MeasuredLevel(variant, load, [run.records for run in self.runs[variant, load]])

    def _run(
        self, variant: int, endpoint: Endpoint, load: Load, first_line: int, requests: int | None = None
    ) -> MeasuredRun:
        """Load the endpoint once, from that line of the workload on, and keep all that is known of the run."""
        before, watch, joules_before = endpoint.counters(), neighbours.DisturbanceMeter(), energy.read_counters()
        plan = self._plan(variant, endpoint, load, self._prompts(), requests).model_copy(
            update={"first_line": first_line}
        )
        records, audit = self._load(plan)
        disturbance = watch.disturbance()
        joules = energy.energy_used(joules_before, energy.read_counters()) if endpoint.server is not None else None
        after = endpoint.counters()
        counted = counters.counter_increase(before, after)
        hits = self.unused_prompts.record_sent(variant, plan, records, counted, cache_block_tokens(after))
        run = MeasuredRun(records, audit, disturbance, joules, counted, hits)
        self.runs.setdefault((variant, load), []).append(run)
        return run

    def _point(self, slot: order.Slot, records: list[RequestRecord]) -> None:
        """A figure for the live chart, labelled approximate there."""
        good = [r for r in records if r.ok and not r.warm]
        tokens = sum(r.output_tokens or 0 for r in good)
        began = min((r.sent or r.intended for r in good), default=0.0)
        seconds = max((r.end for r in good), default=0.0) - began
        told = all(r.output_tokens is not None for r in good)
        rate = tokens / seconds if seconds > 0 and told else None
        self.progress.point(
            variant=self.spec.variants[slot.variant].name,
            concurrency=_streams(self.loads[slot.level]),
            block=slot.block,
            output_tokens_per_s=rate,
        )

    def _answer(self, variant: int, endpoint: Endpoint) -> Answers:
        """Greedy answers, None for a request that failed."""
        asked = min(prompt_lines.GREEDY_PROMPTS, len(self.workload.prompts))
        changed = {"requests": asked, "temperature": 0.0, "warmup_requests": 1}
        records = self._apart(variant, endpoint, prompt_lines.GREEDY_STREAMS, changed)
        return [r.text if r.ok else None for r in sorted(records, key=lambda r: r.index) if not r.warm]

    def _apart(self, variant: int, endpoint: Endpoint, streams: int, changed: dict[str, Any]) -> list[RequestRecord]:
        """Ask the workload's first lines, which no level reads: nothing of it is measured."""
        plan = self._plan(variant, endpoint, Load("closed", streams), self._prompts(plain=True))
        records, _ = self._load(plan.model_copy(update={"seconds": None, **changed}))
        self.unused_prompts.record_sent(variant, plan, records, {}, cache_block_tokens(endpoint.counters()))
        return records

    def _plan(
        self, variant: int, endpoint: Endpoint, load: Load, prompts: Path, requests: int | None = None
    ) -> LoadPlan:
        bearer = self.spec.options.bearer_env if endpoint.server is None else None
        model = endpoint.served_name or models(endpoint.url, bearer)[0]
        plan = load_plans.make_plan(
            load,
            self.spec.options,
            url=endpoint.url,
            model=model,
            prompts=str(prompts),
            bearer=bearer,
            requests=requests,
        )
        return self.unused_prompts.plan_with_salt(variant, plan)

    def _prompts(self, *, plain: bool = False) -> Path:
        """All lines of the workload, in its order; `plain`: the first turns alone, where the load is made of
        conversations."""
        path = self.channel.work / ("prompts-plain.jsonl" if plain else "prompts.jsonl")
        if not path.exists():
            prompts = self.workload.prompts
            if plain:
                prompts = tuple(Prompt(prompt=prompt.prompt, max_tokens=prompt.max_tokens) for prompt in prompts)
            path.write_bytes(write_prompts(prompts))
        return path

    def _load(self, plan: LoadPlan) -> tuple[list[RequestRecord], Audit]:
        from backend.evaluate.load import run_level

        self._slots += 1
        return run_level(plan, self.channel.work / f"slot-{self._slots}")


def _streams(load: Load) -> int:
    """For the live chart: streams of a closed loop, else the rate, rounded."""
    return max(1, round(load.value))
