"""An endpoint of this machine in words: its state, its counts and its cost. Pure."""

from __future__ import annotations

from backend.domain.figures import counted, span
from backend.domain.jobs.endpoint_states import EndpointState

SENTENCES = {
    EndpointState.STARTING: "It is starting.",
    EndpointState.LOADING: "Its model is being loaded; requests wait for it.",
    EndpointState.LOADED: "It answers.",
    EndpointState.IDLE: "Its model is unloaded; the first request loads it.",
    EndpointState.WAITING: "It waits for memory that others have; requests wait with it.",
    EndpointState.RESTARTING: "It ended without being asked to, and is started again.",
    EndpointState.FAILED: "It has failed, until you start it again.",
    EndpointState.STOPPING: "It is being stopped.",
    EndpointState.STOPPED: "It is stopped.",
}


def state_sentence(state: EndpointState, reason: str | None) -> str:
    """Return what the endpoint does, with the reason where there is one."""
    return f"{state}. {SENTENCES[state]}" + (f" {reason}" if reason else "")


def counts(*, requests: int, failed: int, loads: int, restarts: int, loaded_s: float) -> str:
    """Return what the endpoint did since it was started, without a full stop."""
    failures = f" ({failed:,} failed)" if failed else ""
    return (
        f"{counted(requests, 'request')}{failures}, {counted(loads, 'load')}, {counted(restarts, 'restart')}, "
        f"loaded for {span(loaded_s)}"
    )


def cost(amount: float | None, price_per_hour: float | None) -> str:
    """Return what the machine cost since the endpoint was started."""
    if amount is None or price_per_hour is None:
        return "Its cost is unknown: set WHETSTONE_PRICE_PER_HOUR to the price of this machine."
    return f"The machine cost {amount:,.2f} since then, at {price_per_hour:,.2f} an hour."
