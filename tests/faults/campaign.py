"""The campaign of seeded faults: real supervisors, real workers, one fault a seed, and a look at the history
afterwards.

Each seed has a database and homes of its own; `benchmarks/faults.py` runs many. All runs in namespaces of its own too
(util-linux `unshare`), so that disks can be mounted and no process of it outlives it; the PostgreSQL servers stay
outside, one a lane, since one may not run as root.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, nullcontext, suppress
from functools import partial
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import psycopg

from backend.cli.output import table
from backend.domain.errors import WhetstoneError
from backend.domain.jobs.jobs import JobState
from backend.settings import Settings
from backend.store.database import open_store
from tests.fakes.running import running
from tests.faults import checker
from tests.faults.injuries import FAULTS, Fault
from tests.faults.nodes import Nodes
from tests.faults.site import BUCKET, Lane, Site, Stuck
from tests.postgres import Postgres

DATABASES = ("SQLite", "PostgreSQL")
PLACES = ("disk", "S3")
"""Where artifacts go; S3 is moto's server behind a proxy."""
LOCAL, RAY = "local", "Ray"
"""Where jobs run: processes of the supervisor's machine, or nodes of a real cluster."""
AWS = {
    "AWS_ACCESS_KEY_ID": "k",
    "AWS_SECRET_ACCESS_KEY": "s",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
LANES = 2
"""Of each database; with a cluster, one of each share that."""
POLL_S = 0.02
PRINTING = threading.Lock()
MEMORY = Path("/dev/shm")
LOG_BYTES = 4000
ISOLATED = (
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "--pid",
    "--fork",
    "--mount-proc",
    "--kill-child",
    "setpriv",
    "--bounding-set=-dac_override",
    "sh",
    "-c",
    '"$@"; exit $?',
    "sh",
)
"""Root of its own mounts, who yet may not write where nobody may, and who goes with whoever started it; the shell waits
for whatever its workers leave behind."""


class Case(NamedTuple):
    seed: int
    fault: Fault
    database: str
    place: str
    where: str = LOCAL


def cases(first: int, seeds: int, words: str = "", places: Iterable[str] = PLACES, where: str = LOCAL) -> list[Case]:
    """Every fault on every database and with every place of artifacts that it can happen to, over and over."""
    chosen = [each for each in combinations(places, where) if words in each[0].name]
    return [Case(first + n, *each) for n, each in enumerate(islice(cycle(chosen), first, first + seeds))]


def combinations(places: Iterable[str] = PLACES, where: str = LOCAL) -> list[tuple[Fault, str, str, str]]:
    had = {"server": {"PostgreSQL"}, "bucket": {"S3"}, "cluster": {RAY}}
    return [
        (fault, database, place, where)
        for fault, database, place in product(FAULTS, DATABASES, places)
        if had.get(fault.needs, {where}) & {database, place, where}
    ]


def once() -> list[Case]:
    """Every fault of local jobs once on each database, on disk and in S3 by turns."""
    by_pair: dict[tuple[str, str], list[tuple[Fault, str, str, str]]] = {}
    for each in combinations():
        by_pair.setdefault((each[0].name, each[1]), []).append(each)
    return [Case(n, *result[n // 2 % len(result)]) for n, result in enumerate(by_pair.values())]


def run(chosen: list[Case], lanes: int = LANES) -> Iterator[dict[str, Any]]:
    """What came of each case, in the order in which they end: `seed`, KEYS, `jobs` (how many in which state
    before anybody resumed them), `wrong` (sentences), `seconds`, and `log` where something is wrong."""
    folder = Path(tempfile.mkdtemp(prefix="whetstone-faults-", dir=MEMORY if MEMORY.is_dir() else None))
    servers = {
        f"PostgreSQL-{n}": Postgres() for n in range(lanes if any(c.database == "PostgreSQL" for c in chosen) else 0)
    }
    try:
        (folder / "servers.json").write_text(json.dumps({name: server.url("{}") for name, server in servers.items()}))
        (folder / "cases.json").write_text(json.dumps([(seed, fault.name, *rest) for seed, fault, *rest in chosen]))
        command = [*ISOLATED, sys.executable, "-m", "tests.faults.campaign", str(folder), str(lanes)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as inside:
            restarts = threading.Thread(target=_restart, args=(folder, servers, inside), daemon=True)
            restarts.start()
            assert inside.stdout is not None
            try:
                yield from map(json.loads, inside.stdout)
            finally:
                inside.terminate()
        if inside.returncode:
            raise RuntimeError(f"the campaign ended with {inside.returncode}")
    finally:
        for server in servers.values():
            server.remove()
        shutil.rmtree(folder, ignore_errors=True)


def _restart(folder: Path, servers: dict[str, Postgres], inside: subprocess.Popen[str]) -> None:
    """Does what lanes ask for (`Lane.restart`): a file with the seconds, which goes once it is done."""
    while inside.poll() is None:
        for name, server in servers.items():
            if (request := folder / f"restart-{name}").exists():
                server.stop()
                time.sleep(float(request.read_text()))
                server.start()
                request.unlink()
        time.sleep(POLL_S)


def _ask(folder: Path, name: str, seconds: float) -> None:
    request = folder / f"restart-{name}"
    (folder / f".{name}").write_text(str(seconds))
    (folder / f".{name}").rename(request)
    while request.exists():
        time.sleep(POLL_S)


def _inside(folder: Path, lanes: int) -> None:
    named = {fault.name: fault for fault in FAULTS}
    chosen = [Case(seed, named[fault], *rest) for seed, fault, *rest in json.loads((folder / "cases.json").read_text())]
    template = folder / "template"
    open_store(Settings(home=template)).engine.dispose()
    with ExitStack() as stack:
        bucket_url = stack.enter_context(running("s3.py")) if any(case.place == "S3" for case in chosen) else None
        if bucket_url:
            os.environ |= {**AWS, "AWS_ENDPOINT_URL": bucket_url}
            boto3.client("s3").create_bucket(Bucket=BUCKET)
        created = lanes * len({case.database for case in chosen})
        proxies = [stack.enter_context(running("faulty.py", bucket_url)) for _ in range(created) if bucket_url]
        clusters = lanes if any(case.where == RAY for case in chosen) else 0
        nodes = [stack.enter_context(closing(Nodes())) for _ in range(clusters)]
        _lanes(folder, lanes, chosen, template, proxies, nodes)


def _lanes(
    folder: Path, lanes: int, chosen: list[Case], template: Path, proxies: list[str], nodes: list[Nodes]
) -> None:
    servers = json.loads((folder / "servers.json").read_text())
    threads = []
    for database in sorted({case.database for case in chosen}):
        waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
        for case in chosen:
            if case.database == database:
                waiting.put(case)
        for number in range(lanes):
            name = f"{database}-{number}"
            lane = _postgres(folder, name, servers[name]) if name in servers else Lane(name, partial(_sqlite, template))
            lane.bucket = proxies.pop() if proxies else ""
            lane.cluster = nodes[number] if nodes else None
            threads.append(threading.Thread(target=_lane, args=(folder / "sites", lane, waiting), daemon=True))
    (folder / "sites").mkdir()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _sqlite(template: Path, folder: Path) -> str:
    (folder / "store").mkdir()
    shutil.copyfile(template / "whetstone.db", folder / "store" / "whetstone.db")
    return f"sqlite:///{folder}/store/whetstone.db"


def _postgres(folder: Path, name: str, address: str) -> Lane:
    def execute(statement: str) -> None:
        with psycopg.connect(address.replace("{}", "postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def make_database(place: Path) -> str:
        execute(f'CREATE DATABASE "{place.name}" TEMPLATE template_whetstone')
        return address.replace("{}", place.name)

    def drop(url: str) -> None:
        execute(f'DROP DATABASE "{url.partition("?")[0].rpartition("/")[2]}" WITH (FORCE)')

    return Lane(name, make_database, partial(_ask, folder, name), drop)


def _lane(folder: Path, lane: Lane, waiting: queue.SimpleQueue[Case]) -> None:
    with suppress(queue.Empty):
        while True:
            case = waiting.get_nowait()
            with lane.cluster.mine if lane.cluster is not None else nullcontext():
                outcome = json.dumps(_one(folder / f"seed-{case.seed}", lane, case))
            with PRINTING:  # `print` writes a line and its end apart, and lanes end beside each other
                print(outcome, flush=True)


def _one(folder: Path, lane: Lane, case: Case) -> dict[str, Any]:
    """One seed: its fault, then what must hold."""
    began, fault, ends, log = time.monotonic(), case.fault, dict[str, str](), ""
    disk, s3, ray = fault.needs == "mount", case.place == "S3", case.where == RAY
    if lane.cluster is not None:
        lane.cluster.restore()
    place = Site(folder, lane, case.seed, homes=fault.homes, hosts=fault.hosts, disk=disk, s3=s3, ray=ray)
    results = ["an error nobody foresaw"]  # stands where an error that is not caught below ends the seed
    try:
        fault.inject(place)
        ends = place.settle()
        results = [f"{job} ended {state}" for job, state in ends.items() if state not in fault.ends]
        place.finish()
        place.stop()
        results += checker.wrong(place)
    except (Stuck, WhetstoneError, OSError, psycopg.Error, AssertionError) as error:
        results = [f"{type(error).__name__}: {error}"]
    finally:
        if results:
            log = _logs(place)
        place.close()
    shutil.rmtree(folder, ignore_errors=True)
    counted = {state: list(ends.values()).count(state) for state in sorted(set(ends.values()))}
    seconds = round(time.monotonic() - began, 2)
    return {
        "seed": case.seed,
        "fault": fault.name,
        "database": case.database,
        "place": case.place,
        "jobs": counted,
        "where": case.where,
        "wrong": results,
        "seconds": seconds,
        "log": log,
    }


def _logs(place: Site) -> str:
    results = [f"{row.id} {row.state} {row.attempt} {row.error}" for row in place.rows()]
    for name in place.homes:
        with suppress(OSError):
            results.append((place.home(name) / "supervisor.log").read_text(errors="replace")[-LOG_BYTES:])
    return "\n".join(results)


ENDS = (JobState.SUCCEEDED, JobState.FAILED, JobState.LOST, JobState.CANCELLED)
HEADER = (
    "fault",
    "jobs ran",
    "database",
    "artifacts",
    "seeds",
    "jobs",
    "succeeded",
    "failed",
    "lost",
    "cancelled",
    "wrong",
)


KEYS = ("fault", "where", "database", "place")


def summary(outcomes: list[dict[str, Any]]) -> str:
    """A row for each fault and where it happened: how jobs stood once all was over and before anybody resumed them."""
    rows: list[tuple[Any, ...]] = []
    for fault, database, place, where in (*combinations(), *combinations(where=RAY)):
        own = [each for each in outcomes if tuple(each[name] for name in KEYS) == (fault.name, where, database, place)]
        if own:
            rows.append(_row((fault.name, where, database, place), own))
    return table(HEADER, [*rows, _row(("all", "", "", ""), outcomes)])


def _row(named: tuple[str, ...], own: list[dict[str, Any]]) -> tuple[Any, ...]:
    ends = [sum(each["jobs"].get(state, 0) for each in own) for state in ENDS]
    return (*named, len(own), sum(ends), *ends, sum(bool(each["wrong"]) for each in own))


if __name__ == "__main__":
    _inside(Path(sys.argv[1]), int(sys.argv[2]))
