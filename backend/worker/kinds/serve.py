"""Runs a serve job: one server per variant, until somebody stops the job or nobody uses it for a while.

The data of the phase `serve` has the address of each. Knows nothing of who asks, or why.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from backend import settings as configuration
from backend.channel import JobChannel
from backend.domain.errors import JobCancelled, ServerFailed, WorkError
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.jobs import Event, ServeSpec
from backend.hardware import engine_status, probe
from backend.serving.model_server import ModelServer
from backend.serving.servers import make_server
from backend.settings import Settings
from backend.worker.measuring.artifact_copies import local_artifacts
from backend.worker.measuring.server_pool import memory_for_others
from backend.worker.progress import ChannelProgress
from backend.worker.resources import PeakMemory

POLL_SECONDS = 2.0
TRAFFIC = ("prompt_tokens", "generation_tokens")
"""Counters of each server that are recorded when they change (`service.serving.traffic`)."""
ALLOWED_MISSES = 3
"""Polls in a row that a server may leave unanswered: one long prefill on a busy processor is no failure."""


class IdleTimer:
    """Measures how long the servers are idle, by the tokens generated so far; `now` is monotonic, in seconds."""

    def __init__(self, now: float) -> None:
        self.tokens = 0.0
        self._heard = now

    def update(self, tokens: float, now: float) -> bool:
        """Record the counter; return whether it has changed."""
        moved = tokens != self.tokens
        if moved:
            self.tokens, self._heard = tokens, now
        return moved

    def idle_s(self, now: float) -> float:
        return now - self._heard


def run(spec: ServeSpec, channel: JobChannel, memory: PeakMemory) -> dict[str, Any]:
    """Serve until stopped or unused, and return a summary; a stop once the servers are up is success.

    Raises EngineMissing, ServerFailed, and JobCancelled while they are still being loaded.
    """
    # 1. Start the servers and announce their addresses.
    settings = configuration.load()
    progress = ChannelProgress(channel, float(len(spec.variants)))
    with local_artifacts(spec.variants, settings, progress) as variants, ExitStack() as stack:
        servers = _start(variants, settings, channel, progress, stack)
        began = time.monotonic()
        channel.emit(_announcement(spec, servers))

        # 2. Serve until somebody stops the job, or nobody uses it.
        attention = IdleTimer(began)
        why = _serve(spec, servers, attention, channel)
        print(why, flush=True)
        seconds = time.monotonic() - began

    # 3. Say what was served.
    return {
        "summary": f"{why} {attention.tokens:,.0f} tokens were generated in {_minutes(seconds)}.",
        "served_seconds": seconds,
        "generated_tokens": int(attention.tokens),
        "ready_seconds": {
            variant.source: server.started_seconds for variant, server in zip(spec.variants, servers, strict=True)
        },
        "peak_rss_bytes": memory.peak,
    }


def _start(
    variants: Sequence[Variant], settings: Settings, channel: JobChannel, progress: ChannelProgress, stack: ExitStack
) -> list[ModelServer]:
    """Start all servers, one after the other, each only if it fits into memory with those that are up."""
    servers: list[ModelServer] = []
    for number, variant in enumerate(variants):
        progress.phase("start", f"Loading {variant.name} ({number + 1} of {len(variants)})")
        _check_room(variant, servers)
        log = channel.side_log(f"server-{number}")
        program, cache = engine_status.server_program(settings, variant), settings.cache / "vllm"
        servers.append(
            stack.enter_context(make_server(variant, program=program, log=log, cache_root=cache, progress=progress))
        )
    return servers


def _check_room(variant: Variant, servers: Sequence[ModelServer]) -> None:
    """Raise WorkError if another server would not fit, judged by the largest that is up, its start included."""
    needed = max((memory_for_others(server, 1) for server in servers), default=0.0)
    free = probe.free_memory()
    if free < needed:
        raise WorkError(
            f"There is not enough memory to serve {variant.name} as well: it takes about {needed / 1e9:.1f} GB and "
            f"{free / 1e9:.1f} GB are free. Stop other programs, or serve one variant at a time."
        )


def _announcement(spec: ServeSpec, servers: Sequence[ModelServer]) -> Event:
    names = " and ".join(variant.name for variant in spec.variants)
    endpoints = [
        {
            "source": variant.source,
            "name": variant.name,
            "url": server.url,
            "served_name": server.served_name,
            "ready_seconds": server.started_seconds,
            "key_file": str(server.key_file),
        }
        for variant, server in zip(spec.variants, servers, strict=True)
    ]
    message = f"Serving {names} until stopped, or unused for {spec.idle_minutes:g} minutes"
    return Event(kind="phase", phase="serve", message=message, progress=1.0, data={"endpoints": endpoints})


def _serve(spec: ServeSpec, servers: Sequence[ModelServer], attention: IdleTimer, channel: JobChannel) -> str:
    """Poll the servers until the end and return the reason for it. Raises ServerFailed."""
    misses = 0
    try:
        # Poll until the servers are idle for too long.
        while attention.idle_s(time.monotonic()) < spec.idle_minutes * 60:
            time.sleep(POLL_SECONDS)
            try:
                counters = [server.metrics() for server in servers]
            except ServerFailed:
                misses += 1
                if misses == ALLOWED_MISSES:
                    raise
                continue
            misses = 0
            # New tokens show that somebody uses the servers.
            tokens = sum(counted.get("generation_tokens", 0.0) for counted in counters)
            if attention.update(tokens, time.monotonic()):
                served = {
                    variant.source: {name: counted.get(name, 0.0) for name in TRAFFIC}
                    for variant, counted in zip(spec.variants, counters, strict=True)
                }
                data = {"generated_tokens": tokens, "served": served}
                channel.emit(Event(kind="progress", phase="serve", progress=1.0, data=data))
    except JobCancelled:
        return "Stopped on request."
    return f"Stopped after {spec.idle_minutes:g} minutes without requests."


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
