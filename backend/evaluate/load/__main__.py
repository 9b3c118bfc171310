"""`python -m backend.evaluate.load PLAN.json OUT_DIR [--while-stdin]`: runs one level in this process, or the
alternating slices of several runs.

Any interpreter with uvloop and pydantic will do.

Exit 0 done, 1 the work failed, 2 the plan was wrong, 3 nothing answers at the address; the last line of standard error
is the sentence. With `--while-stdin` it ends as soon as standard input closes, so that no load goes on after its
parent was killed.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from backend.domain.errors import EndpointUnreachable, WhetstoneError
from backend.domain.load.records import AlternatingPlan, LoadPlan
from backend.domain.validation import first_flaw
from backend.evaluate.load.plan_runner import run_alternating, run_plan

UNREACHABLE = 3
SLICES_WITHIN = 20
"""The field `slices`, which only an alternating plan has, is its first."""


def main(arguments: list[str]) -> int:
    # End with the process that started this one, and take the processor before others.
    if "--while-stdin" in arguments:
        arguments = [a for a in arguments if a != "--while-stdin"]
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    _raise_priority()
    # Run the plan; every failure is one sentence and an exit code.
    if len(arguments) != 2:
        return _print_error("usage: python -m backend.evaluate.load PLAN.json OUT_DIR", 2)
    try:
        _run(Path(arguments[0]).read_bytes(), Path(arguments[1]))
    except OSError as error:
        return _print_error(f"The plan {arguments[0]} cannot be read ({error.strerror}).", 2)
    except ValidationError as error:
        return _print_error(first_flaw(error).sentence("the plan"), 2)
    except EndpointUnreachable as error:
        return _print_error(str(error), UNREACHABLE)
    except WhetstoneError as error:
        return _print_error(str(error), error.exit_code)
    except KeyboardInterrupt:
        return 130
    return 0


def _run(document: bytes, folder: Path) -> None:
    """Run the plan of one level, or one whose slices alternate."""
    if b'"slices"' in document[:SLICES_WITHIN]:
        run_alternating(AlternatingPlan.model_validate_json(document), folder)
    else:
        run_plan(LoadPlan.model_validate_json(document), folder)


def _raise_priority() -> None:
    """Ask the system to run this process as soon as bytes arrive: real-time round robin if allowed, else niceness -10.

    A time stamp is taken when the process gets a core, and on CPU the server's threads spin on all of them: without
    this, 64 tokens that came over 150 ms were read at once at the end. It uses a few hundredths of a core.
    """
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    with suppress(PermissionError, OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _print_error(sentence: str, code: int) -> int:
    print(sentence, file=sys.stderr)
    return code


def _end_with_stdin() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
