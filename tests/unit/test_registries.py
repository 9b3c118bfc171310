"""No address of a package registry is written in the repository: pip's configuration and packages' metadata have
them."""

from __future__ import annotations

import subprocess

from backend.settings import CHECKOUT

HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("python" + "hosted", "org"),
        ("download", "pytorch", "org"),
        ("npmjs", "org"),
        ("crates", "io"),
        ("rubygems", "org"),
        ("anaconda", "org"),
        ("proxy", "golang", "org"),
        ("pip", "repos", "neuron", "amazonaws", "com"),
    )
)
"""Joined here, so that this file is none of those that name one."""
LOCKS = "assets/locks/"


def test_no_tracked_file_but_the_locks_names_the_host_of_a_registry() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if name and not name.startswith(LOCKS)]
    assert len(names) > 1000
    named = {}
    for name in names:
        path = CHECKOUT / name
        content = path.read_bytes().lower() if path.is_file() else b""
        if hosts := [host for host in HOSTS if host.encode() in content]:
            named[name] = hosts
    assert named == {}
