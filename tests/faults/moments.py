"""How a fault begins: jobs, supervisors, and the moment at which it comes."""

from __future__ import annotations

from tests.faults.site import Site

LONG = 30
"""Steps of a job that is still at work when something is done to it."""


def begin(site: Site, *, jobs: int = 2, steps: int = 6) -> None:
    site.submit(jobs, steps=steps)
    for name in site.homes:
        site.start(name)


def some_moment(site: Site) -> None:
    """Any, from the submission on; in half of the seeds while the first job runs."""
    if site.random.random() < 0.5:
        site.until_running()
    site.wait(0.0, 1.2 * site.slower)
