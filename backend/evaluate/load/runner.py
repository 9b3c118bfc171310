"""Starts a level in a subprocess of its own and brings back its records. Knows nothing of how load is made.

One subprocess a level: no figure is blurred by what the parent does, or by what an earlier level left in memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from backend.domain.errors import EndpointUnreachable, RequestError, WorkError
from backend.domain.load.records import Audit, LoadPlan, RequestRecord
from backend.endpoint import check_endpoint
from backend.evaluate.load.payload import read_prompts
from backend.settings import CHECKOUT

POLL_S = 0.2
_accepted: dict[tuple[str, str], dict[str, str]] = {}
"""(URL, model) -> the fields of a plan that the endpoint took another value of: not refused again at every level."""
PLAN, RECORDS, AUDIT, LOG = "plan.json", "records.jsonl", "audit.json", "load.log"


def run_level(plan: LoadPlan, folder: Path, python: str = sys.executable) -> tuple[list[RequestRecord], Audit]:
    """Run one level and return its records, in order of index, and the generator's audit; both also stay in `folder`.

    Blocks until the level is over; on any exception, as a signal's handler may raise, the subprocess is killed with its
    group first.

    Raises EndpointUnreachable where nothing answers before the run (a server that dies later gives records with
    errors), InvalidWorkload where the prompts are wrong, RequestError where the address or the token's variable is,
    WorkError where the generator itself failed.
    """
    read_prompts(Path(plan.prompts), trace=plan.load.mode == "trace")
    check_endpoint(plan.url, plan.bearer_env)
    plan = plan.model_copy(update=_accepted.get((plan.url, plan.model), {}))
    _prepare(plan, folder)
    code = _run(folder, python)
    if code != 0:
        raise _failure(code, folder / LOG)
    records, audit = read_level(folder)
    if (audit.usage, audit.length_field) != (plan.usage, plan.length_field):
        _accepted[plan.url, plan.model] = {"usage": audit.usage, "length_field": audit.length_field}
    return records, audit


def read_level(folder: Path) -> tuple[list[RequestRecord], Audit]:
    """Records and audit of a level that is over. Raises WorkError where the folder does not hold a whole one."""
    try:
        audit = Audit.model_validate_json((folder / AUDIT).read_bytes())
        with (folder / RECORDS).open("rb") as lines:
            return [RequestRecord.model_validate_json(line) for line in lines], audit
    except (OSError, ValidationError):
        raise WorkError(f"{folder} does not hold the records of a whole level: measure it again.") from None


def _prepare(plan: LoadPlan, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (RECORDS, AUDIT):
            (folder / name).unlink(missing_ok=True)
        (folder / PLAN).write_text(plan.model_dump_json(indent=1), encoding="utf-8")
    except OSError as error:
        raise WorkError(
            f"The load generator cannot write to {folder} ({error.strerror}): free some disk, or name another."
        ) from None


def _run(folder: Path, python: str) -> int:
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
            what = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            return WorkError(f"The load generator ended early ({what}): see {log}, then measure again.")
