"""Runs plans in the subprocess: reads them, writes records.jsonl and audit.json of each run. Knows nothing of who
started it.

If a server refuses `continuous_usage_stats`, or usage at all, with 400 or 422 on the very first answer, it is asked for
less and the level begins again; if it wants the answer's limit under its newer name, it gets that. If it refuses even
the least, something else is wrong, and the level runs with the plan as it was.
"""

from __future__ import annotations

import resource
import ssl
import time
from collections import Counter
from pathlib import Path
from typing import Any

import uvloop

from backend import files
from backend.address import Address, connect
from backend.domain.errors import WorkError
from backend.domain.load.openai_json import LENGTH, NEWER_LENGTH
from backend.domain.load.records import AlternatingPlan, LoadPlan, UsageRung
from backend.endpoint import bearer, parse_address, unreachable_error
from backend.evaluate.load.audit import make_audit
from backend.evaluate.load.level import ClosedLevel, FinishedLevel, add_up, run_to_end, without_garbage_collection
from backend.evaluate.load.open_level import OpenLevel
from backend.evaluate.load.parse import make_record
from backend.evaluate.load.payload import Payloads, read_prompts
from backend.evaluate.load.runner import AUDIT, RECORDS
from backend.evaluate.load.stream import Peer
from backend.hardware import energy

RUNGS: tuple[UsageRung, ...] = ("continuous", "final", "none")
CONNECT_TIMEOUT_S = 5.0
SPARE_FILES = 64


def run_plan(plan: LoadPlan, folder: Path) -> None:
    """Run the level and write both files, the audit last: if it exists, the records are complete.

    Raises EndpointUnreachable if nothing answers at the start, InvalidWorkload, RequestError.
    """
    run = _Run(plan, folder)
    run.send(plan)
    run.write()


def run_alternating(plan: AlternatingPlan, folder: Path) -> None:
    """Run the slices of all runs in their order, then write each run's files into a folder named by its index.

    Raises as `run_plan` does, before anything is sent.
    """
    # 1. Prepare every run before the clock starts.
    runs: dict[int, _Run] = {}
    for index, part in plan.slices:
        if index not in runs:
            runs[index] = _Run(part, folder / str(index))

    # 2. Send slice after slice.
    for index, part in plan.slices:
        runs[index].send(part)

    # 3. Read the answers only now, so that it costs no slice time.
    for run in runs.values():
        run.write()


class _Run:
    """One run against one endpoint: its prompts, its address, and the slices sent so far."""

    def __init__(self, plan: LoadPlan, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._address = parse_address(plan.url)
        self._token = bearer(plan.bearer_env, self._address)
        self._prompts = read_prompts(Path(plan.prompts), trace=plan.load.mode == "trace")
        self._peer = _peer(self._address)
        _allow_files(plan.streams + SPARE_FILES)
        self._accepted: dict[str, Any] = {}
        """Fields of the plan that the server accepted only with another value."""
        self._payloads: dict[str, Payloads] = {}
        """The encoded requests, by the options that the server is sent."""
        self._plan = plan
        self._slices: list[FinishedLevel] = []
        self._joules: Counter[str] = Counter()
        """Joules by energy counter."""

    def send(self, plan: LoadPlan) -> None:
        """Send one slice, the first with fewer options if the server refuses them, and add up the energy used."""
        before = energy.read_counters()
        self._send(plan.model_copy(update=self._accepted))
        self._joules.update(energy.energy_used(before, energy.read_counters()))

    def _send(self, plan: LoadPlan) -> None:
        if self._slices:
            self._slices.append(self._attempt(plan, break_off=False))
            return
        accepted, finished = self._send_accepted(plan)
        self._accepted = {name: getattr(accepted, name) for name in ("usage", "length_field")}
        self._plan = accepted
        self._slices.append(finished)

    def write(self) -> None:
        """Read the answers, then write records and audit."""
        cpu = time.process_time()
        finished = self._slices[0] if len(self._slices) == 1 else add_up(self._slices)
        exchanges = sorted(finished.exchanges, key=lambda exchange: exchange.index)
        is_sagemaker = self._address.region is not None
        records = [make_record(exchange, self._token, sagemaker=is_sagemaker) for exchange in exchanges]
        parse_cpu = time.process_time() - cpu
        with files.staged_file(self._folder / RECORDS) as staged, staged.open("w", encoding="utf-8") as sink:
            sink.writelines(row.model_dump_json() + "\n" for row in records)
        audit = make_audit(self._plan, finished, records, parse_cpu).model_copy(update={"joules": dict(self._joules)})
        files.write(self._folder / AUDIT, audit.model_dump_json(indent=1))

    def _attempt(self, plan: LoadPlan, *, break_off: bool) -> FinishedLevel:
        """Run one slice with exactly these options."""
        sent_options = f"{plan.usage} {plan.length_field}"
        if sent_options not in self._payloads:
            self._payloads[sent_options] = Payloads(plan, self._prompts, self._address, self._token, plan.usage)
        payloads = self._payloads[sent_options].with_seed(plan.seed)
        level_class = ClosedLevel if plan.load.is_closed else OpenLevel
        with without_garbage_collection():
            finished: FinishedLevel = uvloop.run(
                run_to_end(level_class(plan, payloads, break_off=break_off), self._peer)
            )
        return finished

    def _send_accepted(self, plan: LoadPlan) -> tuple[LoadPlan, FinishedLevel]:
        """Send with the most options that the server accepts; return the plan used and the level."""
        attempted = plan
        rungs = RUNGS[RUNGS.index(plan.usage) + 1 :] if plan.stream else ()
        while True:
            finished = self._attempt(attempted, break_off=True)
            if not finished.refused_options:
                return attempted, finished
            # 1. The newer name of the limit, if the refusal mentions it.
            refusal = next(exchange for exchange in finished.exchanges if exchange.status == "done")
            if attempted.length_field == LENGTH and NEWER_LENGTH.encode() in b"".join(refusal.reads):
                attempted = attempted.model_copy(update={"length_field": NEWER_LENGTH})
                continue
            # 2. Less usage; if even the least is refused, something else is wrong.
            if not rungs:
                return plan, self._attempt(plan, break_off=False)
            attempted, rungs = attempted.model_copy(update={"usage": rungs[0]}), rungs[1:]


def _peer(address: Address) -> Peer:
    """Resolve the name and connect once, so that no name lookup is part of a measured request.

    Raises EndpointUnreachable, RequestError.
    """
    try:
        with connect(address, CONNECT_TIMEOUT_S) as probe:
            host = str(probe.getpeername()[0])
    except OSError as error:
        raise unreachable_error(address, error) from None
    return Peer(host, address.port, ssl.create_default_context() if address.tls else None, address.host)


def _allow_files(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise WorkError(
            f"{needed} connections are more open files than this machine allows ({hard}): lower the concurrency."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
