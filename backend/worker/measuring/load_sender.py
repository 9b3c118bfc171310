"""Sends load to the endpoints of one evaluation, and records every run.

Knows nothing of schedules, searches and verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.channel import JobChannel
from backend.domain.errors import ServerFailed
from backend.domain.jobs.jobs import EvaluateSpec
from backend.domain.load import counters, order
from backend.domain.load.load import Load
from backend.domain.load.records import Audit, Disturbance, LoadPlan, RequestRecord
from backend.domain.workload.workload import Prompt, Workload, write_prompts
from backend.endpoint import models
from backend.evaluate import load_plans
from backend.evaluate.unused_prompts import UnusedPrompts, cache_block_tokens
from backend.worker.measuring.continuation import RunKey
from backend.worker.measuring.disturbance import DisturbanceMeter
from backend.worker.measuring.runs import MeasuredRun
from backend.worker.measuring.server_pool import Endpoint


class LoadSender:
    """Sends the workload's lines to endpoints, no line twice, and holds all runs."""

    def __init__(
        self, spec: EvaluateSpec, channel: JobChannel, workload: Workload, runs: Mapping[RunKey, list[MeasuredRun]]
    ) -> None:
        """`runs` are those of the evaluation that is continued."""
        self._spec, self._channel, self._workload = spec, channel, workload
        self.runs: dict[RunKey, list[MeasuredRun]] = dict(runs)
        self.unused_prompts = UnusedPrompts(spec.options, workload, spec.continues.origin if spec.continues else 0)
        self._load_number = 0

    def run(
        self, variant: int, endpoint: Endpoint, load: Load, first_line: int, requests: int | None = None
    ) -> MeasuredRun:
        """Load the endpoint once, from `first_line` of the workload on, and record everything known of the run."""
        # 1. Read the counters, then send the load.
        counters_before, meter = endpoint.counters(), DisturbanceMeter()
        plan = self._plan(variant, endpoint, load, self._prompts_file(), requests)
        plan = plan.model_copy(update={"first_line": first_line})
        result = self._send(plan)

        # 2. Read the counters again and record the run.
        disturbance = meter.disturbance()
        counters_after = endpoint.counters()
        return self._record_run(variant, endpoint, plan, result, (counters_before, counters_after), disturbance)

    def run_in_turns(
        self, slot: order.Slot, endpoints: Mapping[int, Endpoint]
    ) -> tuple[dict[int, MeasuredRun], dict[int, ServerFailed]]:
        """Load the endpoints request by request in turns, and record everything known of each one's run.

        Returns the runs, and the error of each server that ended in the meantime, whose run is not recorded. Raises
        EndpointUnreachable or ServerFailed where one had ended before anything was sent.
        """
        from backend.evaluate.load import run_alternating

        # 1. Plan the same prompts for all.
        load = self._spec.options.loads[slot.level]
        first_line = self.unused_prompts.first_line(slot.block, slot.level)
        plans = {
            variant: self._plan(variant, endpoint, load, self._prompts_file()).model_copy(
                update={"first_line": first_line}
            )
            for variant, endpoint in endpoints.items()
        }

        # 2. Read the counters of all servers, and send.
        before, meter = {variant: endpoint.counters() for variant, endpoint in endpoints.items()}, DisturbanceMeter()
        slices = [order.cut_slices(plan) for plan in plans.values()]
        self._load_number += 1
        folder = self._channel.work / f"slot-{self._load_number}"
        results = run_alternating(slices, folder, slot.block * len(slices[0]))
        disturbance = meter.disturbance()

        # 3. Record the run of each server that still answers.
        runs, ended = {}, {}
        for (variant, endpoint), (records, audit) in zip(endpoints.items(), results, strict=True):
            try:
                read = (before[variant], endpoint.counters())
            except ServerFailed as error:
                ended[variant] = error
                continue
            runs[variant] = self._record_run(variant, endpoint, plans[variant], (records, audit), read, disturbance)
        return runs, ended

    def _record_run(
        self,
        variant: int,
        endpoint: Endpoint,
        plan: LoadPlan,
        result: tuple[list[RequestRecord], Audit],
        counters_read: tuple[dict[str, float], dict[str, float]],
        disturbance: Disturbance,
    ) -> MeasuredRun:
        """Record one run of a variant; `counters_read` are the server's counters before and after it."""
        records, audit = result
        before, after = counters_read
        counted = counters.counter_increase(before, after)
        hits = self.unused_prompts.record_sent(variant, plan, records, counted, cache_block_tokens(after))
        # Energy counts only for servers on this machine.
        joules = audit.joules if endpoint.server is not None else None
        run = MeasuredRun(records, audit, disturbance, joules, counted, hits)
        self.runs.setdefault((variant, plan.load), []).append(run)
        return run

    def send_unmeasured(
        self, variant: int, endpoint: Endpoint, streams: int, changes: dict[str, Any]
    ) -> list[RequestRecord]:
        """Send the workload's first lines, which no measured level reads; `changes` are fields of the plan."""
        plan = self._plan(variant, endpoint, Load("closed", streams), self._prompts_file(single_turn=True))
        records, _ = self._send(plan.model_copy(update={"seconds": None, **changes}))
        self.unused_prompts.record_sent(variant, plan, records, {}, cache_block_tokens(endpoint.counters()))
        return records

    def _plan(
        self, variant: int, endpoint: Endpoint, load: Load, prompts: Path, requests: int | None = None
    ) -> LoadPlan:
        bearer = self.bearer(endpoint)
        plan = load_plans.make_plan(
            load,
            self._spec.options,
            url=endpoint.url,
            model=endpoint.served_name or models(endpoint.url, bearer)[0],
            prompts=str(prompts),
            bearer=bearer,
            requests=requests,
        )
        return self.unused_prompts.plan_with_salt(variant, plan)

    def bearer(self, endpoint: Endpoint) -> str | None:
        """Return the variable that holds the token of an endpoint that was not started here."""
        return self._spec.options.bearer_env if endpoint.server is None else None

    def _prompts_file(self, *, single_turn: bool = False) -> Path:
        """Write all lines of the workload in its order, once, and return the file.

        `single_turn`: only the first turn of each, even if the load consists of conversations.
        """
        path = self._channel.work / ("prompts-plain.jsonl" if single_turn else "prompts.jsonl")
        if not path.exists():
            prompts = self._workload.prompts
            if single_turn:
                prompts = tuple(Prompt(prompt=prompt.prompt, max_tokens=prompt.max_tokens) for prompt in prompts)
            path.write_bytes(write_prompts(prompts))
        return path

    def _send(self, plan: LoadPlan) -> tuple[list[RequestRecord], Audit]:
        from backend.evaluate.load import run_level

        self._load_number += 1
        return run_level(plan, self._channel.work / f"slot-{self._load_number}")
