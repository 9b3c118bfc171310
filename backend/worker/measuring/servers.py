"""The servers of an evaluation: all up at once (`resident`) or one at a time (`restart`), behind one `use`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.domain.evaluation.startup import Startup
from backend.domain.jobs.progress import Progress
from backend.evaluate.public_counters import PublicCounters
from backend.hardware import probe
from backend.serving.vllm import VllmServer

HEADROOM = 1.25
"""A resident server may grow by this factor under load."""


@dataclass
class Endpoint:
    """Where a variant answers."""

    url: str
    served_name: str | None
    server: VllmServer | None
    starts: int = 1
    """How often the variant's server has been started so far: a new one is cold again."""
    public: PublicCounters | None = None
    """Of a server that is not ours."""

    def counters(self) -> dict[str, float]:
        """Since the server's start, as `domain.load.counters` names them; empty where it does not tell."""
        if self.server is not None:
            return self.server.metrics()
        return self.public.read() if self.public is not None else {}


class ServerPool:
    """`mode` is settled after the first server is up: resident where the others would fit beside it."""

    def __init__(
        self,
        variants: Sequence[Variant],
        options: EvaluateOptions,
        python: Path,
        log: Callable[[str], Path],
        cache: Path,
        progress: Progress,
        held_tokens: int | None = None,
        mode: str | None = None,
    ) -> None:
        """`mode`: that of an evaluation which is continued; else the options'."""
        self.variants, self.options = list(variants), options
        self._python, self._log, self._cache, self._progress = python, log, cache, progress
        self._held_tokens = held_tokens
        self._up: dict[int, VllmServer] = {}
        self.mode: str = mode or options.interleave
        self.startups: dict[int, list[Startup]] = {}
        """Variant -> each start of its server."""
        self.peak_rss: dict[int, int] = {}
        self._public = {
            index: PublicCounters(variant.url, options.bearer_env)
            for index, variant in enumerate(self.variants)
            if variant.url is not None
        }

    def __enter__(self) -> ServerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for index in list(self._up):
            self._stop(index)

    def settle(self) -> str:
        """Start what the mode wants up from the start, and answer with the mode: resident or restart."""
        ours = [index for index, variant in enumerate(self.variants) if variant.kind != "url"]
        if not ours:
            self.mode = "resident"
            return self.mode
        self._start(ours[0])
        if self.mode == "auto":
            self.mode = "resident" if self._fits(ours) else "restart"
        if self.mode == "resident":
            for index in ours[1:]:
                self._start(index)
        return self.mode

    def use(self, index: int) -> Endpoint:
        """The variant's endpoint; in restart mode the others go down first."""
        variant = self.variants[index]
        if variant.kind == "url":
            assert variant.url is not None
            return Endpoint(variant.url, variant.served_name, None, public=self._public[index])
        if index not in self._up:
            for other in list(self._up):
                self._stop(other)
            self._start(index)
        server = self._up[index]
        return Endpoint(server.url, server.served_name, server, starts=len(self.startups[index]))

    def speculates(self, index: int) -> bool | None:
        """Whether the variant's server guesses tokens ahead; None where it is not ours and has not told."""
        found = self._public.get(index)
        return self.variants[index].speculation is not None if found is None else found.speculates

    def _fits(self, ours: list[int]) -> bool:
        """By what the first server holds now; the most that it held while it started only one other will need at a time."""
        server = self._up[ours[0]]
        held = server.held_bytes()
        starting = max(0, server.peak_rss_bytes - held)
        return HEADROOM * held * (len(ours) - 1) + starting < probe.free_memory()

    def _start(self, index: int) -> None:
        variant = self.variants[index]
        log = self._log(f"server-{index}")
        self._progress.note(f"Starting vLLM for {variant.name}.")
        server = VllmServer(
            variant, python=self._python, log=log, cache_root=self._cache, progress=self._progress, held_tokens=self._held_tokens
        )
        server.start()
        self._up[index] = server
        server.first_answer()
        assert server.startup is not None
        self.startups.setdefault(index, []).append(server.startup)

    def _stop(self, index: int) -> None:
        server = self._up.pop(index)
        server.stop()
        self.peak_rss[index] = max(self.peak_rss.get(index, 0), server.peak_rss_bytes)
