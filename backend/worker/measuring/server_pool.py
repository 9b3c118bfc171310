"""Starts and stops the servers of an evaluation: all up together (`resident`) or one at a time (`restart`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.domain.evaluation.evidence.served_variant import StartEvidence
from backend.domain.evaluation.startup import Startup
from backend.domain.jobs.progress import Progress
from backend.domain.load import prompt_lines
from backend.evaluate.public_counters import PublicCounters
from backend.hardware import neuron, probe
from backend.serving.model_server import ModelServer
from backend.serving.servers import make_server, runs_on_processor

HEADROOM = 1.25
"""Factor by which a resident server may grow under load."""
TOGETHER = 2
"""Servers that start at the same time."""


def memory_for_others(server: ModelServer, others: int, together: int = 1) -> float:
    """Estimate the bytes that `others` more servers like this one need.

    Each needs what this one holds now, with headroom; the `together` that start at the same time also need what a
    server holds only during its start.
    """
    resident = server.resident_bytes()
    return HEADROOM * resident * others + together * max(0, server.peak_rss_bytes - resident)


def most_streams(options: EvaluateOptions) -> int:
    """Return the most requests at one time that an evaluation sends."""
    return max(*prompt_lines.warm_up_streams(options), prompt_lines.GREEDY_STREAMS)


@dataclass
class Endpoint:
    """The address of a variant, and its server if it runs here."""

    url: str
    served_name: str | None
    server: ModelServer | None
    starts: int = 1
    """Starts of the variant's server so far; a new one is cold again."""
    public: PublicCounters | None = None
    """Reads /metrics of a server that was not started here."""

    def counters(self) -> dict[str, float]:
        """Return the counters since the server's start, named as in `domain.load.counters`, or nothing."""
        if self.server is not None:
            return self.server.metrics()
        return self.public.read() if self.public is not None else {}


class ServerSetup(NamedTuple):
    """Settings that every server of a pool starts with."""

    program: Callable[[Variant], Path]
    """Returns the program that serves a variant (`engine_status.server_program`)."""
    log: Callable[[str], Path]
    """Returns the file for the log of a server, by its name."""
    cache: Path
    """vLLM's folder for what it compiles."""
    tokens_in_flight: int | None = None
    """The most tokens that all requests hold at once; None: not known before."""


class ServerPool:
    """The servers of all variants. Mode `auto` becomes `resident` if all fit, else `restart`."""

    def __init__(
        self,
        variants: Sequence[Variant],
        options: EvaluateOptions,
        setup: ServerSetup,
        progress: Progress,
        mode: str | None = None,
    ) -> None:
        """`mode` replaces the options' if an evaluation is continued."""
        # 1. What is to be served, and how.
        self.variants, self.options = list(variants), options
        self._setup, self._progress = setup, progress
        self.mode: str = mode or options.interleave

        # 2. What is known of the servers: those that are up, and what is left of those that were stopped.
        self._up: dict[int, ModelServer] = {}
        self.startups: dict[int, list[Startup]] = {}
        """Every start of each variant's server."""
        self.evidence: dict[int, list[StartEvidence]] = {}
        """The evidence of each start of each variant's server, collected when it was stopped."""
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
        """Start the servers that are up from the beginning and return the mode, `resident` or `restart`."""
        ours = [index for index, variant in enumerate(self.variants) if variant.kind != "url"]
        if not ours:
            self.mode = "resident"
            return self.mode
        # 1. Where all are said to fit, they start at once; else the first one shows how much memory one takes.
        if self.mode == "resident" and self._may_start_together(ours):
            self._start_in_groups(ours, TOGETHER)
            return self.mode
        self._start(ours[0])
        if self.mode == "auto":
            self.mode = "resident" if self._fits(ours) else "restart"

        # 2. In resident mode all others start now.
        if self.mode == "resident":
            self._start_in_groups(ours[1:], self._together(ours))
        return self.mode

    def _start_in_groups(self, indices: list[int], together: int) -> None:
        for start in range(0, len(indices), together):
            self._start(*indices[start : start + together])

    def use(self, index: int) -> Endpoint:
        """Return the variant's endpoint; if its server is not up, stop the others and start it."""
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
        """Add a variant that is in no schedule and return its index."""
        self.variants.append(variant)
        return len(self.variants) - 1

    def speculates(self, index: int) -> bool | None:
        """Tell whether the variant's server speculates; None if it was not started here and does not report it."""
        public_counters = self._public.get(index)
        return self.variants[index].speculation is not None if public_counters is None else public_counters.speculates

    def _fits(self, ours: list[int], together: int = 1) -> bool:
        degrees = sum((self.variants[index].neuron or {}).get("tensor_parallel", 0) for index in ours)
        return (
            degrees <= neuron.count_cores()
            and memory_for_others(self._up[ours[0]], len(ours) - 1, together) < probe.free_memory()
        )

    def _together(self, ours: list[int]) -> int:
        """Return how many of the other servers start at the same time: two where they may and memory allows."""
        return TOGETHER if self._may_start_together(ours) and self._fits(ours, TOGETHER) else 1

    def _may_start_together(self, ours: list[int]) -> bool:
        """Tell whether two servers may start at the same time: on a processor, unless start times are measured.

        A start spends half of its time on one core. On a GPU each server would count the other's memory as taken.
        """
        variants = [self.variants[index] for index in ours]
        on_processor = all(runs_on_processor(variant, self._setup.program(variant)) for variant in variants)
        return on_processor and not self.options.starts_apart

    def _start(self, *indices: int) -> None:
        """Start the servers at the same time and wait until all answer."""
        # 1. Launch all.
        waiting = {}
        for index in indices:
            variant = self.variants[index]
            waiting[index] = self._up[index] = make_server(
                variant,
                program=self._setup.program(variant),
                log=self._setup.log(f"server-{index}"),
                cache_root=self._setup.cache,
                progress=self._progress,
                tokens_in_flight=self._setup.tokens_in_flight,
                streams=most_streams(self.options),
            )
            self._progress.note(f"Starting {waiting[index].title} for {variant.name}.")
            waiting[index].launch()

        # 2. Check each in turn until none is left.
        while waiting:
            for index in [index for index, server in waiting.items() if server.check_ready()]:
                del waiting[index]

        # 3. Time the first answer, which the first user would otherwise wait for.
        for index in indices:
            server = self._up[index]
            server.time_first_answer()
            assert server.startup is not None
            self.startups.setdefault(index, []).append(server.startup.model_copy(update={"beside": len(indices) > 1}))

    def _stop(self, index: int, *, with_evidence: bool = True) -> None:
        """Stop a server; its evidence is of no use if the evaluation ends without a document."""
        server = self._up.pop(index)
        if with_evidence:
            self.evidence.setdefault(index, []).append(server.evidence())
        server.stop()
        self.peak_rss[index] = max(self.peak_rss.get(index, 0), server.peak_rss_bytes)
