"""Which tests run in one process where pytest has several: those of a file, and those that share what is slow to start.

xdist's own `--dist loadgroup` does nothing under pytest 9.2: xdist 3.8 writes a test's group into `item._nodeid`, of
which pytest makes no use any more.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

MEASURED = (
    "tests/browser/test_loop.py",
    "tests/browser/test_report_accessible.py",
    "tests/browser/test_pages.py::test_a_page_with_a_measured_model",
)
"""How the ids of those begin that look at what test_loop.py measured."""

SERVED = ("tests/integration/vllm/test_vllm_server.py", "tests/campaign/test_tasks_served.py")
"""Files that ask the session's one vLLM server, which each process would start anew."""


def group(nodeid: str) -> str:
    """Tests of equal groups run in one process, in their order."""
    if nodeid.startswith(MEASURED):
        return "measured"
    return "served" if nodeid.startswith(SERVED) else nodeid.partition("::")[0]


class Sharing(LoadScopeScheduling):
    """Hands out a group at a time, in the order in which they were collected (`--no-loadscope-reorder`)."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)
