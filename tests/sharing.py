"""Which tests run in one process where pytest has several: those of a file, and those that share what is slow to start.

xdist's own `--dist loadgroup` does nothing under pytest 9.2: xdist 3.8 writes a test's group into `item._nodeid`, of
which pytest makes no use any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdist.scheduler import LoadScopeScheduling

MEASURED = (
    "tests/browser/test_loop.py",
    "tests/browser/test_report_accessible.py",
    "tests/browser/test_pages.py::test_a_page_with_a_measured_model",
)
"""How the ids of those begin that look at what test_loop.py measured."""

LONG = (
    "tests/campaign/test_tasks_served.py",
    "tests/integration/vllm/test_vllm_server.py",
    "tests/browser/test_draft_by_clicks.py",
    "tests/campaign/test_heads_served.py",
    "tests/campaign/test_family_table.py",
    "tests/campaign/test_faults.py",
    "tests/campaign/test_checkpoint_shapes.py",
)
"""Files of the campaign that take several minutes in one process. If one began late, the others would wait for it."""

GOLDEN_RATIO = 0.6180339887


def group(nodeid: str) -> str:
    """Tests of equal groups run in one process, in their order."""
    return "measured" if nodeid.startswith(MEASURED) else nodeid.partition("::")[0]


def rank(nodeid: str, *, waits: bool) -> int:
    """Return the place in the order: LONG, then those that wait for a vLLM, whose time the others fill."""
    path = nodeid.partition("::")[0]
    if path in LONG:
        return LONG.index(path)
    return len(LONG) if waits else len(LONG) + 1


def begin_elsewhere(nodeids: Sequence[str], until: int) -> list[str]:
    """Return `nodeids` with another group first, and what stood before it last, whole groups and in their order.

    A run that ends at `until` (seconds since 1970) may not reach its last tests. Which group is first follows from
    `until` alone, the same in every process, by steps of the golden ratio: over some runs each group has its turn.
    """
    groups: dict[str, list[str]] = {}
    for nodeid in nodeids:
        groups.setdefault(group(nodeid), []).append(nodeid)
    names = list(groups)
    first = int(len(names) * (until * GOLDEN_RATIO % 1))
    return [nodeid for name in names[first:] + names[:first] for nodeid in groups[name]]


class Sharing(LoadScopeScheduling):
    """Hands out a group at a time, in the order in which they were collected (`--no-loadscope-reorder`)."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)
