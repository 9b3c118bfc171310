"""Faults of a Ray cluster on whose nodes a site's jobs run."""

from __future__ import annotations

import signal
from contextlib import suppress

from backend.channel import segment_name
from backend.domain.jobs.jobs import LIVE
from tests.faults.moments import LONG, begin, some_moment
from tests.faults.nodes import Nodes
from tests.faults.site import Site
from tests.faults.supervise import AWAY_S

WRONG = (b"", b"{", b"null", b"[]", b'{"kind": "no such"}', b"\xff\xfe", b"[" * 5000)
NODE_AWAY_S = 20.0
"""Longer than its head waits for a node."""


def _cluster(site: Site) -> Nodes:
    assert site.cluster is not None
    return site.cluster


def _on_a_node(site: Site) -> int | None:
    """Begin, and the node of the first job at some moment of its work; None where it is over."""
    begin(site, steps=LONG)
    site.until_running()
    site.wait(0.0, 2.0)
    return site.node()


def killed(site: Site) -> None:
    """As when its machine is switched off; another one comes in its place, soon or once the jobs are over."""
    node = _on_a_node(site)
    if node is not None:
        _cluster(site).kill(node)
    if site.random.random() < 0.5:
        _cluster(site).restore()


def killed_with_supervisor(site: Site) -> None:
    """In either order, and nobody sees the node go."""
    node = _on_a_node(site)
    first = site.random.random() < 0.5
    if first:
        site.signal(signal.SIGKILL)
    if node is not None:
        _cluster(site).kill(node)
    if not first:
        site.wait(0.0, 0.5)
        site.signal(signal.SIGKILL)


def killed_with_host(site: Site) -> None:
    """The supervisor of one host is killed and what it had is given up by the other one's, on the same cluster; half of
    the time its node is gone too."""
    node = _on_a_node(site)
    name = str(site.row("j-0").home).rpartition("/")[2] or "home-0"
    site.signal(signal.SIGKILL, name)
    if node is not None and site.random.random() < 0.5:
        _cluster(site).kill(node)
    its = str(site.home(name))
    site.until("its jobs are given up", lambda: not any(row.state in LIVE and row.home == its for row in site.rows()))


def paused(site: Site) -> None:
    """A node that does not answer for a while, perhaps for so long that its head gives it up, and then goes on."""
    node = _on_a_node(site)
    if node is not None:
        wake = _cluster(site).pause(node)
        site.wait(0.5, NODE_AWAY_S)
        wake()
    _cluster(site).restore()


def cancelled_while_node_dies(site: Site) -> None:
    node = _on_a_node(site)
    before = site.random.random() < 0.5
    if before:
        site.cancel("j-0")
        site.wait(0.0, 0.3)
    if node is not None:
        _cluster(site).kill(node)
    if not before:
        site.wait(0.0, 3.0)
        site.cancel("j-0")


def head_replaced(site: Site) -> None:
    """What the head knew is gone; its nodes end, and new ones come."""
    begin(site, steps=LONG)
    some_moment(site)
    _cluster(site).kill(0)
    site.wait(0.0, 4.0)
    _cluster(site).restore()


def head_replaced_with_supervisor(site: Site) -> None:
    begin(site, steps=LONG)
    some_moment(site)
    _cluster(site).kill(0)
    site.wait(0.0, 1.0)
    site.signal(signal.SIGKILL)
    _cluster(site).restore()


def no_head_yet(site: Site) -> None:
    """Jobs are submitted before there is a cluster, and one of them is perhaps cancelled while it waits for that."""
    _cluster(site).kill(0)
    begin(site)
    site.wait(0.0, 3.0)
    if site.random.random() < 0.5:
        site.signal(signal.SIGKILL)
    _cluster(site).restore()


def away(site: Site) -> None:
    """Nothing of the cluster answers for a while, perhaps for longer than an attempt is waited for; then all of it goes
    on."""
    begin(site, steps=LONG)
    some_moment(site)
    wake = _cluster(site).pause()
    site.wait(0.5, AWAY_S * 1.5)
    wake()
    _cluster(site).restore()


def torn_request(site: Site) -> None:
    """What was asked is damaged before a node has it."""
    _cluster(site).kill(0)
    begin(site)
    site.until("j-0 waits for the cluster", lambda: site.row("j-0").handle is not None)
    name = site.random.choice(("spec.json", "granted.json"))
    (site.channel("j-0") / name).write_bytes(site.random.choice(WRONG))
    _cluster(site).restore()


def torn_there(site: Site) -> None:
    """A segment or the result in the attempt's folder on its node."""
    _on_a_node(site)
    for folder in _cluster(site).attempts("j-0"):
        name = site.random.choice(("result.json", f"events/{segment_name(site.random.randint(1, 40))}"))
        with suppress(OSError):
            (folder / name).write_bytes(site.random.choice(WRONG))
