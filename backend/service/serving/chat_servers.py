"""The servers of a chat before they start: which of them the memory allows, and how long until they answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from backend.domain.errors import WhetstoneError
from backend.domain.evaluation.document import Variant
from backend.domain.figures import listed
from backend.domain.needs import engine_costs
from backend.service.jobs.jobs import JobView
from backend.service.models import variants
from backend.service.plans import estimates
from backend.service.serving import serve
from backend.service.workspace import Workspace

MEASURED = "as in earlier starts here"
"""The basis of a time that was measured."""


class ReadyTime(NamedTuple):
    """(least, most) seconds until all servers answer, one started after the other, and where they come from."""

    seconds: tuple[float, float]
    basis: str

    @property
    def short_basis(self) -> str:
        """`as in earlier starts here`, or that the time of at least one server is predicted."""
        return MEASURED if self.basis == MEASURED else "predicted"

    def after(self, elapsed_s: float) -> tuple[float, float] | None:
        """Return (least, most) seconds that are left; None where it takes longer than expected."""
        least, most = (max(0.0, end - elapsed_s) for end in self.seconds)
        return (least, most) if most > 0 else None


class ChatServers(NamedTuple):
    """The servers that a chat with some models needs. `sources` can be served together; an address among them runs
    already."""

    sources: tuple[str, ...]
    ready: ReadyTime | None
    """None where nothing is known, or they answer already."""
    is_ready: bool
    """They answer already."""
    waits_for: str | None
    """Title of the job that has to end before they start."""
    left_out: str | None
    """Why not all models that were asked for are among `sources`, in one sentence."""


def plan_servers(workspace: Workspace, sources: Sequence[str]) -> ChatServers:
    """Return the servers of a chat with these models, the result last. Where the memory does not suffice for all, or
    another cannot be served, that is the result alone.

    Raises UnknownModel, InvalidModel, NotFound, ImpossibleStack, RequestError and NotEnoughMemory of the result.
    """
    # 1. Servers that run, or start already.
    distinct = tuple(dict.fromkeys(sources))
    own_sources = [source for source in distinct if not serve.is_address(source)]
    active = serve.find_active(workspace, own_sources)
    if active is not None or not own_sources:
        answering = active is None or bool(serve.endpoints(workspace, active.id))
        left = None if active is None or answering else find_time_left(workspace, active)
        return ChatServers(distinct, left, answering, None, None)
    # 2. Without what keeps the result from starting.
    left_out = _find_obstacle(workspace, own_sources)
    if left_out is not None and len(own_sources) == 1:
        raise left_out
    if left_out is not None:
        return plan_servers(workspace, own_sources[-1:])._replace(left_out=str(left_out))
    # 3. What they wait for.
    before = next(iter(serve.jobs_in_the_way(workspace)), None)
    return ChatServers(distinct, find_ready_time(workspace, distinct), False, before.title if before else None, None)


def _find_obstacle(workspace: Workspace, sources: Sequence[str]) -> WhetstoneError | None:
    """Return why these cannot be served together now; None where they can."""
    try:
        serve.check_memory(workspace, [variants.resolve(workspace, source) for source in sources])
    except WhetstoneError as error:
        return error
    return None


def find_ready_time(workspace: Workspace, sources: Sequence[str]) -> ReadyTime | None:
    """Return how long the servers of these sources take until all answer: each as it was measured on this machine,
    else as the engine's costs predict; None where nothing is known of one of them."""
    # 1. What serve jobs measured.
    measured, ends, bases = serve.measured_starts(workspace), list[tuple[float, float]](), list[str]()
    # 2. Else what an evaluation measured, else a prediction.
    for source in (source for source in dict.fromkeys(sources) if not serve.is_address(source)):
        seconds = measured.get(source)
        ready = ReadyTime((seconds, seconds), MEASURED) if seconds is not None else _ready_time(workspace, source)
        if ready is None:
            return None
        ends.append(ready.seconds)
        bases.append(ready.basis)
    # 3. One after the other.
    if not ends:
        return None
    total = (sum(least for least, _ in ends), sum(most for _, most in ends))
    return ReadyTime(total, listed(list(dict.fromkeys(bases))))


def find_time_left(workspace: Workspace, job: JobView) -> ReadyTime | None:
    """Return how long a serve job that loads still takes; None where nothing is known, or it takes longer than that."""
    ready = find_ready_time(workspace, serve.served_sources(workspace, job.id))
    if ready is None or job.started_at is None:
        return None
    left = ready.after((datetime.now(UTC) - job.started_at).total_seconds())
    return ReadyTime(left, ready.basis) if left else None


def _ready_time(workspace: Workspace, source: str) -> ReadyTime | None:
    """Return what an evaluation measured of this source, else what is predicted."""
    try:
        variant = variants.resolve(workspace, source)
        seconds = estimates.find_ready_seconds(workspace, variant)
        return ReadyTime((seconds, seconds), MEASURED) if seconds is not None else _predicted(workspace, variant)
    except WhetstoneError:
        return None


def _predicted(workspace: Workspace, variant: Variant) -> ReadyTime | None:
    engine, hardware = variant.serving.engine_name, variants.served_hardware(variant)
    costs = engine_costs.find_costs(engine, hardware)
    seconds = engine_costs.ready_seconds(engine, hardware, serve.weight_bytes(workspace, variant))
    return ReadyTime(seconds, f"predicted from {costs.source}") if costs and seconds else None
