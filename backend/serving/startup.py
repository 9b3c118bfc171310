"""Reads a start of vLLM from its log while it grows: when each phase ended, and whether what was compiled before was
loaded.

vLLM stamps its lines to the second; the moments here are of this process's clock, as the lines are seen.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from backend.domain.evaluation.startup import Startup

MARKS = (
    ("processes_s", re.compile(r"Starting to load model ")),
    ("weights_s", re.compile(r"Loading weights took|Model loading took|Loading drafter model")),
    (
        "compile_s",
        re.compile(
            r"saved AOT compiled function|[Dd]irectly load (?:AOT compilation|the compiled graph)|torch\.compile .*took|"
            r"Local cache hit for key|Successfully loaded pre-compiled model artifacts"
        ),
    ),
    ("warm_up_s", re.compile(r"init engine \(")),
)
"""The line with which each phase ends, in vLLM 0.32 (of `compile_s` the last two are vllm-neuron's); the last such line
counts: a draft has weights and a graph of its own."""
OTHER_SETTINGS = "the compile cache that came with it was made for other settings or versions"
_COMPILED = re.compile(r"saved AOT compiled function|torch\.compile .*took")
_ABANDONED = re.compile(r"Unable to find precompiled artifacts")
"""vllm-neuron up to 0.5, before it compiles for an hour what was compiled before."""
_AGAIN = re.compile(r"Compiling model again due to a load failure from .*?, reason: (.*)")


class StartLog:
    """The log from byte `since` on, of a start that begins now; `shipped` where a compile cache came with what is
    served."""

    def __init__(self, log: Path, since: int, *, shipped: bool = False) -> None:
        self._log, self._place, self._shipped = log, since, shipped
        self._began = time.monotonic()
        self._rest = b""
        self._ends: dict[str, float] = {}
        self._compiled = False
        self._again: str | None = None
        self.abandoned = False
        """The server goes on with what nobody waits for: it is to be stopped."""

    def read(self) -> None:
        """Take note of the lines that came since the last call."""
        try:
            with self._log.open("rb") as stream:
                stream.seek(self._place)
                new = stream.read()
        except OSError:
            return
        self._place += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        now = time.monotonic() - self._began
        for line in lines:
            self._take(line.decode(errors="replace"), now)

    def _take(self, line: str, now: float) -> None:
        for name, mark in MARKS:
            if mark.search(line):
                self._ends[name] = now
        self.abandoned = self.abandoned or _ABANDONED.search(line) is not None
        self._compiled = self._compiled or _COMPILED.search(line) is not None
        if match := _AGAIN.search(line):
            self._again = match.group(1).strip().rstrip(".")

    def startup(self) -> Startup:
        """The phases of a server that answers now. A phase without its line belongs to the next one that has one."""
        spent: dict[str, float] = {}
        last = 0.0
        for name, end in [
            *((name, self._ends.get(name)) for name, _ in MARKS),
            ("listen_s", time.monotonic() - self._began),
        ]:
            if end is not None and end >= last:
                spent[name], last = round(end - last, 2), end
        kind = "eager" if "compile_s" not in self._ends else "cold" if self._compiled else "cached"
        again = self._again or (OTHER_SETTINGS if kind == "cold" and self._shipped else None)
        return Startup.model_validate({"kind": kind, "compiled_again": again, **spent})
