"""Runs a plan in the subprocess: reads the plan, writes records.jsonl and audit.json. Knows nothing of who started it.

If a server refuses `continuous_usage_stats`, or usage at all, with 400 or 422 on the very first answer, it is asked for
less and the level begins again; if it wants the answer's limit under its newer name, it gets that. If it refuses even
the least, something else is wrong, and the level runs with the plan as it was.
"""

from __future__ import annotations

import resource
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from backend import files
from backend.address import Address, connect
from backend.domain.errors import WorkError
from backend.domain.load.openai_json import LENGTH, NEWER_LENGTH
from backend.domain.load.records import LoadPlan, UsageRung
from backend.endpoint import bearer, parse_address, unreachable_error
from backend.evaluate.load.audit import make_audit
from backend.evaluate.load.level import ClosedLevel, FinishedLevel, run_to_end, without_garbage_collection
from backend.evaluate.load.open_level import OpenLevel
from backend.evaluate.load.parse import make_record
from backend.evaluate.load.payload import Payloads, read_prompts
from backend.evaluate.load.runner import AUDIT, RECORDS
from backend.evaluate.load.stream import Peer

RUNGS: tuple[UsageRung, ...] = ("continuous", "final", "none")
CONNECT_TIMEOUT_S = 5.0
SPARE_FILES = 64


def run_plan(plan: LoadPlan, folder: Path) -> None:
    """Run the level and write both files, the audit last: if it exists, the records are complete.

    Raises EndpointUnreachable if nothing answers at the start, InvalidWorkload, RequestError.
    """
    # 1. Read the prompts and resolve the address, before the clock runs.
    folder.mkdir(parents=True, exist_ok=True)
    address = parse_address(plan.url)
    token = bearer(plan.bearer_env, address)
    prompts = read_prompts(Path(plan.prompts), trace=plan.load.mode == "trace")
    peer = _peer(address)
    level_class = ClosedLevel if plan.load.is_closed else OpenLevel
    _allow_files(plan.streams + SPARE_FILES)

    # 2. Run the level, with fewer options if the server refuses them.
    def attempt(attempted: LoadPlan, break_off: bool) -> FinishedLevel:
        payloads = Payloads(attempted, prompts, address, token, attempted.usage)
        with without_garbage_collection():
            finished: FinishedLevel = uvloop.run(
                run_to_end(level_class(attempted, payloads, break_off=break_off), peer)
            )
            return finished

    plan, finished = _run_accepted(plan, attempt)

    # 3. Read the answers, then write records and audit.
    cpu = time.process_time()
    exchanges = sorted(finished.exchanges, key=lambda exchange: exchange.index)
    records = [make_record(exchange, token, sagemaker=address.region is not None) for exchange in exchanges]
    parse_cpu = time.process_time() - cpu
    with files.staged_file(folder / RECORDS) as staged, staged.open("w", encoding="utf-8") as sink:
        sink.writelines(row.model_dump_json() + "\n" for row in records)
    files.write(folder / AUDIT, make_audit(plan, finished, records, parse_cpu).model_dump_json(indent=1))


def _run_accepted(plan: LoadPlan, attempt: Callable[[LoadPlan, bool], FinishedLevel]) -> tuple[LoadPlan, FinishedLevel]:
    """Run the level with the most options that the server accepts; return the plan used and the level."""
    attempted = plan
    rungs = RUNGS[RUNGS.index(plan.usage) + 1 :] if plan.stream else ()
    while True:
        finished = attempt(attempted, True)
        if not finished.refused_options:
            return attempted, finished
        # 1. The newer name of the limit, if the refusal mentions it.
        refusal = next(exchange for exchange in finished.exchanges if exchange.status == "done")
        if attempted.length_field == LENGTH and NEWER_LENGTH.encode() in b"".join(refusal.reads):
            attempted = attempted.model_copy(update={"length_field": NEWER_LENGTH})
            continue
        # 2. Less usage; if even the least is refused, something else is wrong.
        if not rungs:
            return plan, attempt(plan, False)
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
