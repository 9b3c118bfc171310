"""The subprocess's work: plan in, records.jsonl and audit.json out. Knows nothing of who started it.

A server that refuses `continuous_usage_stats`, or usage at all, with 400 or 422 on the very first answer is asked for
less and the level begins again; one that wants the answer's limit under its newer name is given that. Where it refuses
even the least, the cause is another, and the level runs as first asked.
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
    """Run the level and write both files, the audit last: where it is, the records are whole.

    Raises EndpointUnreachable where nothing answers at the start, InvalidWorkload, RequestError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = parse_address(plan.url)
    token = bearer(plan.bearer_env, place)
    prompts = read_prompts(Path(plan.prompts), trace=plan.load.mode == "trace")
    peer = _peer(place)
    kind = ClosedLevel if plan.load.is_closed else OpenLevel
    _allow_files(plan.streams + SPARE_FILES)

    def attempt(asked: LoadPlan, break_off: bool) -> FinishedLevel:
        payloads = Payloads(asked, prompts, place, token, asked.usage)
        with without_garbage_collection():
            finished: FinishedLevel = uvloop.run(run_to_end(kind(asked, payloads, break_off=break_off), peer))
            return finished

    plan, finished = _accepted(plan, attempt)
    cpu = time.process_time()
    exchanges = sorted(finished.exchanges, key=lambda exchange: exchange.index)
    records = [make_record(exchange, token, sagemaker=place.region is not None) for exchange in exchanges]
    parse_cpu = time.process_time() - cpu
    with files.staged_file(folder / RECORDS) as staged, staged.open("w", encoding="utf-8") as sink:
        sink.writelines(row.model_dump_json() + "\n" for row in records)
    files.write(folder / AUDIT, make_audit(plan, finished, records, parse_cpu).model_dump_json(indent=1))


def _accepted(plan: LoadPlan, attempt: Callable[[LoadPlan, bool], FinishedLevel]) -> tuple[LoadPlan, FinishedLevel]:
    """The level as the server takes it, and the plan that it was asked with in the end."""
    asked = plan
    rungs = RUNGS[RUNGS.index(plan.usage) + 1 :] if plan.stream else ()
    while True:
        finished = attempt(asked, True)
        if not finished.refused_options:
            return asked, finished
        # 1. The newer name of the limit, where the refusal tells it.
        refusal = next(exchange for exchange in finished.exchanges if exchange.status == "done")
        if asked.length_field == LENGTH and NEWER_LENGTH.encode() in b"".join(refusal.reads):
            asked = asked.model_copy(update={"length_field": NEWER_LENGTH})
            continue
        # 2. Less usage; where the least was refused too, the cause is another.
        if not rungs:
            return plan, attempt(plan, False)
        asked, rungs = asked.model_copy(update={"usage": rungs[0]}), rungs[1:]


def _peer(place: Address) -> Peer:
    """Resolve once and connect once, so that no name lookup falls into a measured request.

    Raises EndpointUnreachable, RequestError.
    """
    try:
        with connect(place, CONNECT_TIMEOUT_S) as probe:
            where = str(probe.getpeername()[0])
    except OSError as error:
        raise unreachable_error(place, error) from None
    return Peer(where, place.port, ssl.create_default_context() if place.tls else None, place.host)


def _allow_files(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise WorkError(
            f"{needed} connections are more open files than this machine allows ({hard}): lower the concurrency."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
