"""The faults: what each does to a site, and how jobs may stand once all is over, before anybody resumes them."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
from sqlalchemy import text

from backend.channel import JobChannel, segment_name
from backend.domain.jobs.jobs import LIVE, JobState
from tests import live_processes
from tests.faults import on_nodes
from tests.faults.moments import LONG, begin, some_moment
from tests.faults.site import Site, Stuck
from tests.faults.supervise import LEASE_S, SOON_SILENT_S, lock
from tests.small_artifacts import publish

SUCCEEDED, FAILED, CANCELLED, LOST = JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.LOST
WRONG_SEGMENTS = (
    b"",
    b"{",
    b"null\n",
    b"[]\n",
    b'{"kind": "note"',
    b'{"kind": 7}\n',
    b'{"kind": "no such"}\n',
    b"\xff\xfe\x00\n",
    b'{"kind": "note", "at": "yesterday"}\n',
    b'{"kind": "note", "progress": 2}\n',
    b"[" * 5000 + b"\n",
    b'{"kind": "note"}{}\n',
)
WRONG_RESULTS = (
    b"",
    b"{",
    b"null",
    b"[]",
    b"7",
    b'{"outcome": "won"}',
    b'{"outcome": "succeeded", "document": []}',
    b"\xff\xfe",
    b'{"outcome": "succeeded", "document": {}}',
    b'{"outcome": "succeeded", "document": {"artifact": 7}}',
    b'{"outcome": "succeeded", "document": {"artifact": "../../x"}}',
    b"[" * 5000,
)
PAUSED_S = 20.0
"""Longer than two leases, the database's and the other home's own."""


class Fault(NamedTuple):
    """`inject` begins with a site whose supervisors do not run. `homes`, `hosts`: what it needs. `ends`: the states
    that a job may have then. `needs`: `server` (one that can be restarted), `mount` (a disk of its own), `bucket` or
    `cluster`."""

    name: str
    inject: Callable[[Site], None]
    ends: frozenset[str]
    homes: int = 1
    hosts: int = 1
    needs: str = ""


def worker_killed(site: Site) -> None:
    begin(site, steps=LONG)
    site.until_running()
    site.wait(0.0, 1.0)
    worker = site.worker()
    if worker is not None:
        live_processes.kill([worker])


def supervisor_killed(site: Site) -> None:
    begin(site, jobs=3)
    some_moment(site)
    site.signal(signal.SIGKILL)
    site.wait(0.0, 0.5)


def supervisor_killed_at_a_statement(site: Site) -> None:
    site.submit(3)
    site.start(end_at=site.random.randint(1, 40))


def supervisor_and_worker_killed(site: Site) -> None:
    begin(site, steps=LONG)
    site.until_running()
    site.wait(0.0, 1.0)
    worker = site.worker()
    site.signal(signal.SIGKILL)
    if worker is not None:
        live_processes.kill([worker])


def supervisor_stopped_and_started(site: Site) -> None:
    """As when Whetstone is upgraded under its jobs."""
    begin(site, jobs=3)
    some_moment(site)
    site.signal(signal.SIGTERM)
    site.processes["home-0"].join(20)


def two_of_one_home(site: Site) -> None:
    """A second one starts while the first serves the home, and again while that one is being killed."""
    begin(site, jobs=3)
    some_moment(site)
    first = site.processes["home-0"]
    second = site.start()
    second.join(20)
    site.processes["home-0"] = first
    site.signal(signal.SIGKILL)
    for _ in range(2):
        site.start()


def two_homes_at_once(site: Site) -> None:
    """On one host or two, with one queue; one is killed and comes back, its home's jobs with it."""
    begin(site, jobs=4)
    some_moment(site)
    site.signal(signal.SIGKILL, site.random.choice(list(site.homes)))


def paused(site: Site) -> None:
    """Past its lease, as a laptop that sleeps: another home gives its jobs up, somebody resumes them there, and it
    wakes up."""
    begin(site, steps=LONG)
    site.until_running()
    asleep = Path(str(site.row("j-0").home)).name
    workers = [site.worker(row.id) for row in site.rows() if row.home == str(site.home(asleep))]
    with_workers = site.random.random() < 0.5
    site.signal(signal.SIGSTOP, asleep)
    _signal(workers if with_workers else [], signal.SIGSTOP)
    its = str(site.home(asleep))
    with suppress(Stuck):  # it may have been stopped inside a transaction, which keeps all others out until it wakes up
        site.until(
            "its jobs are given up",
            lambda: not any(row.state in LIVE and row.home == its for row in site.rows()),
            PAUSED_S,
        )
    if site.random.random() < 0.7:
        for row in site.rows():
            if row.state == LOST:
                site.resume(row.id)
        site.wait(0.0, 1.0)
    _signal(workers, signal.SIGCONT)
    site.wait(0.0, 0.5)
    site.signal(signal.SIGCONT, asleep)


def _signal(processes: list[psutil.Process | None], number: signal.Signals) -> None:
    for process in processes:
        if process is not None:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def paused_briefly(site: Site) -> None:
    begin(site, steps=LONG // 2)
    some_moment(site)
    site.signal(signal.SIGSTOP)
    site.wait(0.0, LEASE_S * 1.5)
    site.signal(signal.SIGCONT)


def worker_hangs(site: Site) -> None:
    """For longer than it may, or almost; then its supervisor is stopped, and the next one is as patient as ever."""
    site.submit(2, steps=LONG)
    site.start(silent_s=SOON_SILENT_S)
    site.until_running()
    _signal([site.worker()], signal.SIGSTOP)
    site.wait(0.0, SOON_SILENT_S * 2)
    _signal([site.worker()], signal.SIGCONT)
    site.signal(signal.SIGTERM)
    site.processes["home-0"].join(20)


def rebooted(site: Site) -> None:
    """All its processes end, and the machine has another boot's id; a pid may be another's by then."""
    begin(site, steps=LONG)
    some_moment(site)
    site.signal(signal.SIGKILL)
    live_processes.kill(site.here())
    boot = site.folder / "boot_id"
    boot.write_text(f"{site.random.getrandbits(64):x}\n")
    site.starts["home-0"] = site.starts["home-0"].__class__(**{**site.starts["home-0"].__dict__, "boot": str(boot)})
    site.start()


def cancelled_while_it_dies(site: Site) -> None:
    begin(site, steps=LONG)
    some_moment(site)
    site.cancel("j-0")
    if site.random.random() < 0.5:
        site.wait(0.0, 0.3)
        site.signal(signal.SIGKILL)


def locked_at_a_statement(site: Site) -> None:
    site.submit(3)
    site.start(lock_at=site.random.randint(1, 30), hold_s=site.random.uniform(0.1, 2.0))


def locked(site: Site) -> None:
    begin(site, jobs=3)
    some_moment(site)
    lock(site.database, site.random.uniform(0.1, 2.0)).join()


def connections_dropped(site: Site) -> None:
    begin(site, jobs=3)
    some_moment(site)
    others = "pid <> pg_backend_pid() AND datname = current_database()"
    for _ in range(site.random.randint(1, 5)):
        with site.store.session() as session:
            session.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
        site.wait(0.0, 0.2)


def server_restarted(site: Site) -> None:
    begin(site, jobs=3)
    some_moment(site)
    assert site.lane.restart is not None
    site.lane.restart(site.random.uniform(0.0, 1.0))


def torn_events(site: Site) -> None:
    begin(site, steps=LONG)
    site.until_running()
    site.wait(0.0, 0.8)
    folder = site.channel("j-0") / "events"
    if folder.is_dir():
        number = len(list(folder.glob("*.jsonl"))) + site.random.choice((0, 1))
        (folder / segment_name(max(1, number))).write_bytes(site.random.choice(WRONG_SEGMENTS))


def wrong_result(site: Site) -> None:
    begin(site, steps=LONG)
    site.until_running()
    site.wait(0.0, 0.8)
    worker, folder = site.worker(), site.channel("j-0")
    (folder / "result.json").write_bytes(site.random.choice(WRONG_RESULTS))
    if worker is not None and site.random.random() < 0.8:
        live_processes.kill([worker])


def output_changed(site: Site) -> None:
    """Somebody writes into what a job published before it is verified."""
    begin(site, steps=LONG)
    site.until_running()
    worker, folder = site.worker(), site.channel("j-0")
    _signal([worker], signal.SIGSTOP)
    if (folder / "work").is_dir():
        _publish(folder, site.random.choice(("changed", "extra", "missing", "no manifest", "link")))
    _signal([worker], signal.SIGKILL)


def _publish(folder: Path, spoiled: str = "") -> None:
    """As its worker would, since that one is stopped or gone."""
    channel = JobChannel(folder)
    created, model = publish(channel, "what a zombie made"), channel.output / "model"
    match spoiled:
        case "changed":
            (model / "weights").write_text("something else")
        case "extra":
            (model / "more").write_text("more")
        case "missing":
            (model / "weights").unlink()
        case "no manifest":
            (channel.output / "manifest.json").unlink()
        case "link":
            (model / "link").symlink_to("/etc/hostname")
    channel.result({"outcome": "succeeded", "document": {"artifact": created.id}})


def zombie_writes_late(site: Site) -> None:
    """What an attempt that is over still writes, in its own folder, whatever it is, is no later attempt's."""
    begin(site, steps=LONG)
    site.until_running()
    site.wait(0.0, 0.5)
    first = site.channel("j-0")
    if (worker := site.worker()) is not None:
        live_processes.kill([worker])
    site.until("the first attempt is over", lambda: site.row("j-0").state not in LIVE)
    site.resume("j-0")
    site.wait(0.0, 0.8)
    with suppress(OSError):
        (first / "events").mkdir(exist_ok=True)
        message = '{"kind": "note", "message": "step 0 of attempt 1"}\n'
        (first / "events" / segment_name(site.random.randint(1, 9))).write_text(message)
        _publish(first)


def disk_full(site: Site) -> None:
    """The disk of the home fills up, that of a SQLite database too in half of the seeds, and is freed after a while."""
    assert site.disk is not None
    begin(site, steps=LONG)
    some_moment(site)
    filler = site.disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as sink:
        while True:
            sink.write(b"\0" * 65536)
    site.wait(0.2, 1.5)
    filler.unlink()


def home_read_only(site: Site) -> None:
    """Nothing new can be written under it for a while."""
    begin(site, steps=LONG)
    some_moment(site)
    pairs = [(path, path.stat().st_mode) for path in [site.home(), *site.home().rglob("*")] if path.is_dir()]
    for path, _ in pairs:
        path.chmod(0o555)
    site.wait(0.2, 1.5)
    for path, mode in pairs:
        with suppress(FileNotFoundError):
            path.chmod(mode)


def channel_deleted(site: Site) -> None:
    """Somebody deletes the work folder of a running job."""
    begin(site, steps=LONG)
    site.until_running()
    site.wait(0.0, 0.5)
    shutil.rmtree(site.channel("j-0") / site.random.choice(("work", "events", "")), ignore_errors=True)


def bucket_answers(*what: int | str) -> Callable[[Site], None]:
    """A few of the requests to the bucket, whichever come, get such answers."""

    def inject(site: Site) -> None:
        rows = [
            {"do": site.random.choice(what), "times": site.random.randint(1, 4)}
            for _ in range(site.random.randint(1, 4))
        ]
        gaps = [{"do": None, "times": site.random.randint(0, 3)} for _ in rows]
        site.break_bucket(*[each for pair in zip(gaps, rows, strict=True) for each in pair if each.get("times")])
        begin(site, jobs=3)

    return inject


def bucket_away(site: Site) -> None:
    """Nobody answers for it for a while; in half of the seeds the supervisor is killed meanwhile."""
    site.break_bucket({"do": "drop", "times": 1 << 30})
    begin(site, jobs=3)
    some_moment(site)
    site.wait(0.5, 3.0)
    if site.random.random() < 0.5:
        site.signal(signal.SIGKILL)
    site.break_bucket()


ONLY = frozenset({SUCCEEDED})
FAULTS = (
    Fault("worker killed", worker_killed, frozenset({SUCCEEDED, FAILED, LOST})),
    Fault("supervisor killed", supervisor_killed, ONLY),
    Fault("supervisor killed at a statement", supervisor_killed_at_a_statement, ONLY),
    Fault("supervisor and worker killed", supervisor_and_worker_killed, frozenset({SUCCEEDED, FAILED, LOST})),
    Fault("stopped in order and started again", supervisor_stopped_and_started, ONLY),
    Fault("two supervisors of one home", two_of_one_home, ONLY),
    Fault("two homes on one host, one killed", two_homes_at_once, frozenset({SUCCEEDED, LOST}), homes=2),
    Fault("two hosts, one killed", two_homes_at_once, frozenset({SUCCEEDED, LOST}), homes=2, hosts=2),
    Fault("paused past the lease", paused, frozenset({SUCCEEDED, LOST}), homes=2, hosts=2),
    Fault("paused briefly", paused_briefly, ONLY),
    Fault("worker hangs", worker_hangs, frozenset({SUCCEEDED, FAILED})),
    Fault("machine restarted", rebooted, frozenset({SUCCEEDED, LOST})),
    Fault("cancelled while its supervisor dies", cancelled_while_it_dies, frozenset({SUCCEEDED, CANCELLED})),
    Fault("database locked at a statement", locked_at_a_statement, ONLY),
    Fault("database locked", locked, ONLY),
    Fault("connections dropped", connections_dropped, ONLY, needs="server"),
    Fault("PostgreSQL restarted", server_restarted, ONLY, needs="server"),
    Fault("torn or wrong-shaped events", torn_events, frozenset({SUCCEEDED, FAILED})),
    Fault("torn or wrong-shaped result", wrong_result, frozenset({SUCCEEDED, FAILED})),
    Fault("output changed before it is verified", output_changed, frozenset({SUCCEEDED, FAILED})),
    Fault("channel deleted", channel_deleted, frozenset({SUCCEEDED, FAILED, LOST})),
    Fault("zombie attempt writes late", zombie_writes_late, frozenset({SUCCEEDED, FAILED})),
    Fault("bucket answers 500 or 503", bucket_answers(500, 503), ONLY, needs="bucket"),
    Fault("bucket drops connections", bucket_answers("drop", "lost"), ONLY, needs="bucket"),
    Fault("bucket's answers are cut", bucket_answers("cut"), ONLY, needs="bucket"),
    Fault("bucket away", bucket_away, ONLY, needs="bucket"),
    Fault("node killed", on_nodes.killed, ONLY, needs="cluster"),
    Fault("node and supervisor killed", on_nodes.killed_with_supervisor, ONLY, needs="cluster"),
    Fault(
        "node killed, another host has its job",
        on_nodes.killed_with_host,
        frozenset({SUCCEEDED, LOST}),
        2,
        2,
        "cluster",
    ),
    Fault("node paused", on_nodes.paused, ONLY, needs="cluster"),
    Fault(
        "cancelled while its node dies",
        on_nodes.cancelled_while_node_dies,
        frozenset({SUCCEEDED, CANCELLED}),
        needs="cluster",
    ),
    Fault("head killed and replaced", on_nodes.head_replaced, ONLY, needs="cluster"),
    Fault("head and supervisor killed", on_nodes.head_replaced_with_supervisor, ONLY, needs="cluster"),
    Fault("no head yet", on_nodes.no_head_yet, ONLY, needs="cluster"),
    Fault("cluster away", on_nodes.away, ONLY, needs="cluster"),
    Fault("torn request", on_nodes.torn_request, frozenset({SUCCEEDED, FAILED}), needs="cluster"),
    Fault("files of a node torn", on_nodes.torn_there, frozenset({SUCCEEDED, FAILED}), needs="cluster"),
    Fault("disk full", disk_full, frozenset({SUCCEEDED, FAILED, LOST}), needs="mount"),
    Fault("read-only home", home_read_only, frozenset({SUCCEEDED, FAILED, LOST}), needs="mount"),
)
