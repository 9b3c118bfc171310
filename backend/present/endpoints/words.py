"""An endpoint of this machine in words: its state, its counts and its cost. Pure."""

from __future__ import annotations

from backend.domain.figures import counted, span
from backend.domain.jobs.endpoint_states import EndpointState

SENTENCES = {
    EndpointState.STARTING: "Starting.",
    EndpointState.LOADING: "Loading: requests wait for the model.",
    EndpointState.LOADED: "Loaded. It answers.",
    EndpointState.IDLE: "Idle.",
    EndpointState.WAITING: "Waiting: requests wait with it.",
    EndpointState.RESTARTING: "Starting again.",
    EndpointState.FAILED: "Failed, until you start it again.",
    EndpointState.STOPPING: "Stopping.",
    EndpointState.STOPPED: "Stopped.",
}
EXPLAINED = frozenset({EndpointState.IDLE, EndpointState.WAITING, EndpointState.RESTARTING, EndpointState.FAILED})
"""States for which the reason is said too."""


def state_sentence(state: EndpointState, reason: str | None) -> str:
    """Return what the endpoint does, with the reason where it explains something."""
    return f"{SENTENCES[state]} {reason}" if reason and state in EXPLAINED else SENTENCES[state]


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
