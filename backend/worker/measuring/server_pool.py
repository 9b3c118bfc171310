"""The servers of an evaluation: all up at once (`resident`) or one at a time (`restart`), behind one `use`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.domain.evaluation.evidence.served_variant import StartEvidence
from backend.domain.evaluation.startup import Startup
from backend.domain.jobs.progress import Progress
from backend.evaluate.public_counters import PublicCounters
from backend.hardware import neuron, probe
from backend.serving.installed_packages import is_cpu_build
from backend.serving.vllm import VllmServer

HEADROOM = 1.25
"""A resident server may grow by this factor under load."""
TOGETHER = 2
"""Servers that start at a time."""


def memory_for_others(server: VllmServer, others: int, together: int = 1) -> float:
    """Bytes that so many others like this one take beside it: what each holds once it is up, and what so many at a time
    hold only while they start."""
    held = server.resident_bytes()
    return HEADROOM * held * others + together * max(0, server.peak_rss_bytes - held)


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
        python: Callable[[Variant], Path],
        log: Callable[[str], Path],
        cache: Path,
        progress: Progress,
        tokens_in_flight: int | None = None,
        mode: str | None = None,
    ) -> None:
        """`python`: the interpreter that serves a variant. `mode`: that of an evaluation which is continued, else as
        asked."""
        self.variants, self.options = list(variants), options
        self._python, self._log, self._cache, self._progress = python, log, cache, progress
        self._tokens_in_flight = tokens_in_flight
        self._up: dict[int, VllmServer] = {}
        self.mode: str = mode or options.interleave
        self.startups: dict[int, list[Startup]] = {}
        """Variant -> each start of its server."""
        self.evidence: dict[int, list[StartEvidence]] = {}
        """Variant -> what each start of its server showed of how it serves, once it was stopped."""
        self.peak_rss: dict[int, int] = {}
        self._public = {
            index: PublicCounters(variant.url, options.bearer_env)
            for index, variant in enumerate(self.variants)
            if variant.url is not None
        }

    def __enter__(self) -> ServerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for index in list(self._up):
            self._stop(index, with_evidence=kind is None)

    def start_servers(self) -> str:
        """Start what the mode wants up from the start, and answer with the mode: resident or restart."""
        ours = [index for index, variant in enumerate(self.variants) if variant.kind != "url"]
        if not ours:
            self.mode = "resident"
            return self.mode
        self._start(ours[0])
        if self.mode == "auto":
            self.mode = "resident" if self._fits(ours) else "restart"
        if self.mode == "resident":
            together = self._together(ours)
            for start in range(1, len(ours), together):
                self._start(*ours[start : start + together])
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

    def add(self, variant: Variant) -> int:
        """One more, which no schedule knows; its index."""
        self.variants.append(variant)
        return len(self.variants) - 1

    def speculates(self, index: int) -> bool | None:
        """Whether the variant's server guesses tokens ahead; None where it is not ours and has not told."""
        public_counters = self._public.get(index)
        return self.variants[index].speculation is not None if public_counters is None else public_counters.speculates

    def _fits(self, ours: list[int], together: int = 1) -> bool:
        degrees = sum((self.variants[index].neuron or {}).get("tensor_parallel", 0) for index in ours)
        return (
            degrees <= neuron.count_cores()
            and memory_for_others(self._up[ours[0]], len(ours) - 1, together) < probe.free_memory()
        )

    def _together(self, ours: list[int]) -> int:
        """How many of the others start at a time: on a processor two, where memory allows and nobody asked for the time
        that a start takes. A start spends half of its time on one core, and a GPU's servers would each find the other's
        memory."""
        processor = all(is_cpu_build(self._python(self.variants[index])) for index in ours)
        both = processor and not self.options.starts_apart and self._fits(ours, TOGETHER)
        return TOGETHER if both else 1

    def _start(self, *indices: int) -> None:
        """At the same time, and look at each in turn until all answer."""
        beside = len(indices) > 1
        waiting = {}
        for index in indices:
            variant = self.variants[index]
            self._progress.note(f"Starting vLLM for {variant.name}.")
            waiting[index] = self._up[index] = VllmServer(
                variant,
                python=self._python(variant),
                log=self._log(f"server-{index}"),
                cache_root=self._cache,
                progress=self._progress,
                tokens_in_flight=self._tokens_in_flight,
            )
            waiting[index].launch()
        while waiting:
            for index in [index for index, server in waiting.items() if server.check_ready()]:
                del waiting[index]
        for index in indices:
            server = self._up[index]
            server.time_first_answer()
            assert server.startup is not None
            self.startups.setdefault(index, []).append(server.startup.model_copy(update={"beside": beside}))

    def _stop(self, index: int, *, with_evidence: bool = True) -> None:
        """Nobody looks at a server whose evaluation ends without a document."""
        server = self._up.pop(index)
        if with_evidence:
            self.evidence.setdefault(index, []).append(server.evidence())
        server.stop()
        self.peak_rss[index] = max(self.peak_rss.get(index, 0), server.peak_rss_bytes)
