"""Reads the phases of a start of vLLM from its log while it grows, and whether a compile cache was loaded.

vLLM stamps its lines to the second; the times here are from this process's clock, when it reads the lines.
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
            r"saved AOT compiled function|[Dd]irectly load (?:AOT compilation|the compiled graph)|"
            r"torch\.compile .*took|"
            r"Local cache hit for key|Successfully loaded pre-compiled model artifacts"
        ),
    ),
    ("warm_up_s", re.compile(r"init engine \(")),
)
"""The line that ends each phase in vLLM 0.32 (the last two of `compile_s` are vllm-neuron's).

The last such line counts, since a draft has weights and a graph of its own."""
OTHER_SETTINGS = "the compile cache that came with it was made for other settings or versions"
_COMPILED = re.compile(r"saved AOT compiled function|torch\.compile .*took")
_ABANDONED = re.compile(r"Unable to find precompiled artifacts")
"""Line of vllm-neuron up to 0.5 before it spends an hour on compiling again."""
_AGAIN = re.compile(r"Compiling model again due to a load failure from .*?, reason: (.*)")


class StartLog:
    """The log, from byte `since` on, of a start that begins now; `shipped`: the variant came with a compile cache."""

    def __init__(self, log: Path, since: int, *, shipped: bool = False) -> None:
        self._log, self._position, self._shipped = log, since, shipped
        self._began = time.monotonic()
        self._rest = b""
        self._ends: dict[str, float] = {}
        self._compiled = False
        self._recompile_reason: str | None = None
        self.abandoned = False
        """True if the server compiles again for an hour: it should be stopped."""

    def read(self) -> None:
        """Read the lines that were written since the last call."""
        try:
            with self._log.open("rb") as stream:
                stream.seek(self._position)
                new = stream.read()
        except OSError:
            return
        self._position += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        now = time.monotonic() - self._began
        for line in lines:
            self._read_line(line.decode(errors="replace"), now)

    def _read_line(self, line: str, now: float) -> None:
        for name, mark in MARKS:
            if mark.search(line):
                self._ends[name] = now
        self.abandoned = self.abandoned or _ABANDONED.search(line) is not None
        self._compiled = self._compiled or _COMPILED.search(line) is not None
        if match := _AGAIN.search(line):
            self._recompile_reason = match.group(1).strip().rstrip(".")

    def startup(self) -> Startup:
        """Return the phases of a server that answers now; a phase without its line is counted with the next."""
        # 1. Seconds of each phase.
        spent: dict[str, float] = {}
        last = 0.0
        for name, end in [
            *((name, self._ends.get(name)) for name, _ in MARKS),
            ("listen_s", time.monotonic() - self._began),
        ]:
            if end is not None and end >= last:
                spent[name], last = round(end - last, 2), end

        # 2. Whether the graph was compiled, loaded from a cache, or neither.
        kind = "eager"
        if "compile_s" in self._ends:
            kind = "cold" if self._compiled else "cached"
        reason = self._recompile_reason
        if reason is None and kind == "cold" and self._shipped:
            reason = OTHER_SETTINGS
        return Startup.model_validate({"kind": kind, "compiled_again": reason, **spent})
