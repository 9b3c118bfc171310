"""Installs engine environments, or finds that they are installed: what `make test` and `make serve` call.
`make run` has jobs for it, beside its first page (`whetstone up --install-engines`).

serve.py [NAME...]      serve and llama-cpp, where none is named; several beside each other
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from backend import settings
from backend.domain.errors import WhetstoneError
from backend.domain.jobs.progress import NoProgress
from backend.engines import environments


class Spoken(NoProgress):
    """Phases and notes on standard output."""

    def phase(
        self, name: str, message: str, *, total: float | None = None, unit: str | None = None, weight: float = 1.0
    ) -> None:
        print(f"{message}.", flush=True)

    def note(self, message: str, **data: object) -> None:
        print(message, flush=True)


def install(name: str, engines: Path) -> int:
    """The exit code; why it is not 0 stands on standard error."""
    if not (engines / name / environments.MARKER).exists():
        print(f"The {name} environment is installed once; that takes some minutes.", flush=True)
    try:
        # Nobody waits half an hour for a compiler before the first test: what was built before is used, else a wheel.
        environments.install(name, engines, Spoken(), compile_missing=False)
    except WhetstoneError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def main(names: list[str]) -> int:
    engines = settings.load().engines
    with ThreadPoolExecutor() as pool:
        return max(pool.map(lambda name: install(name, engines), names or ["serve", "llama-cpp"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
