"""The report of an evaluation, written anew with a what-if and other tools' results; without them the one that is
stored.

It is rendered in a process of its own: the writer is no part of the service, and a few megabytes of page leave no trace
here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from backend.domain.errors import NotFound, WorkError
from backend.domain.evaluation.document import Level
from backend.domain.limits.goodput import RequestLimits
from backend.domain.load.records import RequestRecord
from backend.domain.what_if.costs import WhatIf
from backend.present.report_content import LATENCIES, Extras, Pair, Requests, Spread, Within, gather, make_spread
from backend.service.evaluations import evaluations, imported_results, latencies, request_pairs
from backend.service.evaluations.evaluations import EvaluationView
from backend.service.workspace import Workspace


def write_page(
    workspace: Workspace, evaluation_id: str, what_if: WhatIf | None = None, others: Sequence[str] = ()
) -> bytes:
    """The HTML file. `others` are ids of imported results. Raises NotFound, WorkError where it could not be written."""
    view = evaluations.show(workspace, evaluation_id)
    theirs = [imported_results.show(workspace, imported_id) for imported_id in others]
    if what_if is None and not theirs and (Path(view.path) / "report.html").is_file():
        return evaluations.report_file(workspace, evaluation_id)
    chosen = what_if or WhatIf()
    extras = Extras(requests=_requests(view), what_if=chosen, goodput=_goodput(view, chosen), imported=tuple(theirs))
    return _render(view, extras)


def _render(view: EvaluationView, extras: Extras) -> bytes:
    # 1. Hand the document to a process of its own, which has the charting library.
    request = {"evaluation": view.document.model_dump(mode="json"), "extras": extras.model_dump(mode="json")}
    with tempfile.TemporaryDirectory(prefix="whetstone-report-") as folder:
        (Path(folder) / "request.json").write_text(json.dumps(request))
        done = subprocess.run(
            [sys.executable, "-m", "backend.evaluate.report.report", folder],
            capture_output=True,
            text=True,
            check=False,
        )
        # 2. Read the page that it wrote.
        file = Path(folder) / "report.html"
        if not file.is_file():
            last_line = done.stderr.strip().splitlines()[-1:] or ["no reason was given"]
            raise WorkError(
                f"The report could not be written ({last_line[0][:200]}): the figures are here as JSON and CSV."
            )
        return file.read_bytes()


def _requests(view: EvaluationView) -> Requests | None:
    """Return the source of single requests; None if their file is missing."""
    try:
        return gather(view.document, _StoredRequests(view))
    except NotFound:
        return None


class _StoredRequests:
    """A `Source` over the stored file."""

    def __init__(self, view: EvaluationView) -> None:
        self._view = view

    def spreads(self, level: Level, names: Sequence[str]) -> dict[str, dict[str, Spread]]:
        return {
            metric: {
                name: make_spread(own)
                for name in names
                if (own := latencies.sorted_latencies(self._view, name, level.load, metric))
            }
            for metric in LATENCIES
        }

    def run(self, level: Level, name: str) -> Sequence[RequestRecord]:
        return request_pairs.read_run(self._view, level.load, name, 0)

    def pairs(self, level: Level, name: str) -> Iterable[Pair]:
        pairs = request_pairs.read_pairs(self._view, name, level.load)
        return ((pair.block, pair.prompt_text, pair.baseline, pair.variant) for pair in pairs)


def _goodput(view: EvaluationView, what_if: WhatIf) -> tuple[Within, ...]:
    """Count requests within the limits at every level; empty without limits or without the requests' file."""
    if not what_if.request_limits:
        return ()
    try:
        counts = latencies.count_within(view, RequestLimits.model_validate(what_if.request_limits))
    except NotFound:
        return ()
    return tuple(
        Within(variant=name, load=load, within=counted.within, of=counted.of)
        for (name, load), counted in counts.items()
    )
