"""The load generator alone, against any OpenAI-compatible endpoint: one level after the other, each in its own
subprocess."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from backend import endpoint
from backend.address import check_public
from backend.domain.errors import EndpointUnreachable, RequestError, WhetstoneError, WorkError
from backend.domain.evaluation.document import EvaluateOptions
from backend.service.evaluations import workloads
from backend.service.evaluations.workloads import PreparedLoad
from backend.service.models import endpoint_variants
from backend.service.workspace import Workspace

ERRORS: dict[int, type[WhetstoneError]] = {2: RequestError, 3: EndpointUnreachable}
"""Error class by exit code of the bench process; any other code is a WorkError."""


class BenchResult(NamedTuple):
    """`levels` as dictionaries, those done before the `failure` too."""

    levels: list[dict[str, Any]]
    failure: WhetstoneError | None

    @property
    def answered(self) -> bool:
        """Tell whether any request was answered."""
        return any(level["invocations"] > level["invocation_errors"] for level in self.levels)


def run_bench(
    workspace: Workspace,
    url: str,
    model: str | None,
    chosen: EvaluateOptions,
    *,
    tokenizer: str | None = None,
    on_prepared: Callable[[PreparedLoad], None] = lambda _: None,
) -> BenchResult:
    """Measure. `on_prepared` is called with what will be asked, before anything starts.

    Raises InvalidWorkload, RequestError before anything starts; WorkError where the process left no result.
    """
    # 1. Resolve the endpoint and check its address.
    if endpoint_variants.is_endpoint(url):
        named = endpoint_variants.with_aws_facts(workspace, endpoint_variants.make_variant(workspace, url))
        url, model = str(named.url), model or named.served_name
        chosen = chosen.model_copy(update={"price_per_hour": chosen.hourly_price(named)})
    place = endpoint.parse_address(url)
    check_public(place)
    endpoint.check_bearer(chosen.bearer_env, place)
    # 2. Prepare the workload.
    prepared = workloads.prepare(workspace, chosen, tokenizer)
    on_prepared(prepared)
    request = {
        "url": url.rstrip("/"),
        "model": model,
        "bearer_env": chosen.bearer_env,
        "options": prepared.chosen.model_copy(update={"workload": str(prepared.file)}).model_dump(mode="json"),
    }
    # 3. Run the load generator in a process of its own.
    with tempfile.TemporaryDirectory(prefix="whetstone-bench-") as folder:
        (Path(folder) / "request.json").write_text(json.dumps(request))
        done = subprocess.run(
            [sys.executable, "-m", "backend.evaluate.bench", folder], stdout=subprocess.DEVNULL, check=False
        )
        written = Path(folder) / "levels.json"
        if not written.exists():
            raise WorkError(f"The load generator ended with exit code {done.returncode} and no result.")
        document = json.loads(written.read_text())
    # 4. Turn its exit code into an error.
    failure = _process_error(done.returncode, document["error"]) if done.returncode else None
    outcome = BenchResult(document["levels"], failure)
    if failure is None and outcome.levels and not outcome.answered:
        return outcome._replace(failure=all_failed_error(outcome.levels))
    return outcome


def _process_error(code: int, written: dict[str, Any]) -> WhetstoneError:
    """The error that the bench process ended with."""
    return ERRORS.get(code, WorkError)(written["problem"], *written["named"], field=written["field"])


def all_failed_error(levels: list[dict[str, Any]]) -> WorkError:
    """Return the error for a run in which every request failed, with the kinds of failure."""
    kinds: Counter[str] = Counter()
    for level in levels:
        kinds.update(level["errors"])
    how = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    requests = sum(level["invocations"] for level in levels)
    return WorkError(
        f"Every one of {requests} requests failed ({how}): ask the endpoint once by hand, with the same model name."
    )
