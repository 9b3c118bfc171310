"""The subprocess's work: plan in, records.jsonl and audit.json out. Knows nothing of who started it.

A server that refuses `continuous_usage_stats`, or usage at all, with 400 or 422 on the very first answer is asked for less
and the level begins again; where it refuses even the least, the cause is another, and the level runs as first asked.
"""

from __future__ import annotations

import resource
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from backend import files
from backend.domain.errors import WorkError
from backend.domain.load.records import LoadPlan, UsageRung
from backend.endpoint import address, bearer, unreachable
from backend.evaluate.load.audit import audit
from backend.evaluate.load.level import ClosedLevel, Run, run, still_memory
from backend.evaluate.load.open_level import OpenLevel
from backend.evaluate.load.parse import record
from backend.evaluate.load.payload import Payloads, read_prompts
from backend.evaluate.load.runner import AUDIT, RECORDS
from backend.evaluate.load.stream import Peer
from backend.place import Address, connect

RUNGS: tuple[UsageRung, ...] = ("continuous", "final", "none")
CONNECT_TIMEOUT_S = 5.0
SPARE_FILES = 64


def work(plan: LoadPlan, folder: Path) -> None:
    """Run the level and write both files, the audit last: where it is, the records are whole.

    Raises EndpointUnreachable where nothing answers at the start, InvalidWorkload, RequestError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = address(plan.url)
    token = bearer(plan.bearer_env, place)
    prompts = read_prompts(Path(plan.prompts), plan.endpoint, trace=plan.load.mode == "trace")
    peer = _peer(place)
    kind = ClosedLevel if plan.load.is_closed else OpenLevel
    _allow_files(plan.streams + SPARE_FILES)

    def attempt(usage: UsageRung, break_off: bool) -> Run:
        payloads = Payloads(plan, prompts, place, token, usage)
        with still_memory():
            finished: Run = uvloop.run(run(kind(plan, payloads, break_off=break_off), peer))
            return finished

    usage, finished = _descend(plan.usage, attempt) if plan.stream else (plan.usage, attempt(plan.usage, False))
    cpu = time.process_time()
    exchanges = sorted(finished.exchanges, key=lambda exchange: exchange.index)
    records = [record(exchange, token, sagemaker=place.region is not None) for exchange in exchanges]
    parse_cpu = time.process_time() - cpu
    with files.staged_file(folder / RECORDS) as staged, staged.open("w", encoding="utf-8") as sink:
        sink.writelines(row.model_dump_json() + "\n" for row in records)
    files.write(folder / AUDIT, audit(plan, finished, records, usage, parse_cpu).model_dump_json(indent=1))


def _descend(most: UsageRung, attempt: Callable[[UsageRung, bool], Run]) -> tuple[UsageRung, Run]:
    for usage in RUNGS[RUNGS.index(most) :]:
        finished = attempt(usage, True)
        if not finished.refused_options:
            return usage, finished
    return most, attempt(most, False)


def _peer(place: Address) -> Peer:
    """Resolve once and connect once, so that no name lookup falls into a measured request.

    Raises EndpointUnreachable, RequestError.
    """
    try:
        with connect(place, CONNECT_TIMEOUT_S) as probe:
            where = str(probe.getpeername()[0])
    except OSError as error:
        raise unreachable(place, error) from None
    return Peer(where, place.port, ssl.create_default_context() if place.tls else None, place.host)


def _allow_files(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise WorkError(f"{needed} connections are more open files than this machine allows ({hard}): lower the concurrency.")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
