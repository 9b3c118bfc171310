"""Runs an install job: one engine environment, from its exact lock."""

from __future__ import annotations

from typing import Any

from backend import settings as configuration
from backend.channel import JobChannel
from backend.domain.jobs.jobs import InstallSpec
from backend.worker.progress import ChannelProgress
from backend.worker.resources import PeakMemory


def run(spec: InstallSpec, channel: JobChannel, memory: PeakMemory) -> dict[str, Any]:
    """Install or remove the environment and return what is installed now."""
    from backend.engines import environments

    progress = ChannelProgress(channel, 1.0)
    folder = configuration.load().engines
    if spec.action == "remove":
        environments.remove(spec.engine, folder)
        return {"engine": spec.engine, "removed": True}
    installed = environments.install(spec.engine, folder, progress, index=spec.index, compile_missing=spec.compiled)
    return {"engine": spec.engine, **{name: installed[name] for name in ("version", "build", "lock", "origin")}}
