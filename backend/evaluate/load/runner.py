"""Runs a level in a subprocess and returns its records. Knows nothing of how load is made.

Each level has a subprocess of its own, so that neither the parent nor the memory of an earlier level affects a figure.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from backend.domain.errors import EndpointUnreachable, RequestError, WorkError
from backend.domain.load.order import alternate
from backend.domain.load.records import AlternatingPlan, Audit, LoadPlan, RequestRecord
from backend.endpoint import check_endpoint
from backend.evaluate.load.payload import read_prompts
from backend.settings import CHECKOUT

POLL_S = 0.2
_accepted_fields: dict[tuple[str, str], dict[str, str]] = {}
"""Fields of a plan that an endpoint, by URL and model, accepted only with another value; later levels begin with it."""
PLAN, RECORDS, AUDIT, LOG = "plan.json", "records.jsonl", "audit.json", "load.log"


def run_level(plan: LoadPlan, folder: Path, python: str = sys.executable) -> tuple[list[RequestRecord], Audit]:
    """Run one level and return its records, in order of index, and the generator's audit; both also stay in `folder`.

    Blocks until the level is over. On any exception, such as a signal's handler raises, the subprocess is killed with
    its group first.

    Raises EndpointUnreachable if nothing answers before the run (a server that stops later gives records with errors),
    InvalidWorkload for wrong prompts, RequestError for a wrong address or token variable, WorkError if the generator
    itself failed.
    """
    # 1. Check the workload and the endpoint before a process starts.
    read_prompts(Path(plan.prompts), trace=plan.load.mode == "trace")
    check_endpoint(plan.url, plan.bearer_env)

    # 2. Write the plan, with what this endpoint accepted before, and run it.
    plan = plan.model_copy(update=_accepted_fields.get((plan.url, plan.model), {}))
    _prepare(plan, folder)
    code = _run_subprocess(folder, python)
    if code != 0:
        raise _failure(code, folder / LOG)

    # 3. Read the results, and remember which options the endpoint accepted.
    records, audit = read_level(folder)
    _remember_accepted(plan, audit)
    return records, audit


def _remember_accepted(plan: LoadPlan, audit: Audit) -> None:
    if (audit.usage, audit.length_field) != (plan.usage, plan.length_field):
        _accepted_fields[plan.url, plan.model] = {"usage": audit.usage, "length_field": audit.length_field}


def run_alternating(
    runs: Sequence[Sequence[LoadPlan]], folder: Path, first: int = 0, python: str = sys.executable
) -> list[tuple[list[RequestRecord], Audit]]:
    """Run several runs, each given by its slices, in turns (`order.alternate`); return records and audit of each.

    Raises as `run_level` does.
    """
    # 1. Check the workloads and endpoints before a process starts.
    for plan in {(run[0].url, run[0].prompts): run[0] for run in runs}.values():
        read_prompts(Path(plan.prompts), trace=plan.load.mode == "trace")
        check_endpoint(plan.url, plan.bearer_env)

    # 2. Write the slices in their order, with what the endpoints accepted before, and run them.
    accepted = [
        [plan.model_copy(update=_accepted_fields.get((plan.url, plan.model), {})) for plan in run] for run in runs
    ]
    _prepare(AlternatingPlan(slices=tuple(alternate(accepted, first))), folder)
    for index in range(len(runs)):
        (folder / str(index)).mkdir(exist_ok=True)
        _remove_results(folder / str(index))
    code = _run_subprocess(folder, python)
    if code != 0:
        raise _failure(code, folder / LOG)

    # 3. Read the results.
    results = []
    for index, run in enumerate(accepted):
        records, audit = read_level(folder / str(index))
        _remember_accepted(run[0], audit)
        results.append((records, audit))
    return results


def read_level(folder: Path) -> tuple[list[RequestRecord], Audit]:
    """Return the records and audit of a finished level. Raises WorkError if the folder does not have all of it."""
    try:
        audit = Audit.model_validate_json((folder / AUDIT).read_bytes())
        with (folder / RECORDS).open("rb") as lines:
            return [RequestRecord.model_validate_json(line) for line in lines], audit
    except (OSError, ValidationError):
        raise WorkError(f"{folder} does not hold the records of a whole level: measure it again.") from None


def _remove_results(folder: Path) -> None:
    for name in (RECORDS, AUDIT):
        (folder / name).unlink(missing_ok=True)


def _prepare(plan: LoadPlan | AlternatingPlan, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_results(folder)
        (folder / PLAN).write_text(plan.model_dump_json(indent=1), encoding="utf-8")
    except OSError as error:
        raise WorkError(
            f"The load generator cannot write to {folder} ({error.strerror}): free some disk, or name another."
        ) from None


def _run_subprocess(folder: Path, python: str) -> int:
    command = [python, "-m", "backend.evaluate.load", str(folder / PLAN), str(folder), "--while-stdin"]
    path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    with (folder / LOG).open("wb") as log:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
                # not a new session: Linux's autogroups would then ignore that the server is nicer than this
                process_group=0,
            )
        except OSError as error:
            raise WorkError(
                f"The load generator cannot be started with {python} ({error.strerror}): name another."
            ) from None
    with process:
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(POLL_S)
        except BaseException:
            _kill(process)
            raise


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _failure(code: int, log: Path) -> Exception:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    last = lines[-1] if lines else ""
    match code:
        case 3:
            return EndpointUnreachable(last)
        case 2 if last:
            return RequestError(last)
        case 1 if last:
            return WorkError(f"The load generator failed: {last}")
        case _:
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            return WorkError(f"The load generator ended early ({how}): see {log}, then measure again.")
