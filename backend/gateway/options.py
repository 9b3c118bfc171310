"""Settings of one gateway."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from backend.domain.frozen import Frozen
from backend.domain.what_if.portfolio import Portfolio

MIB = 2**20


class GatewayOptions(Frozen):
    """Limits and log of a gateway. `log_path` None is standard output."""

    most_body_bytes: int = Field(32 * MIB, ge=1)
    """The largest body of a request."""
    stall_s: float = Field(300.0, gt=0)
    """Seconds without a byte from a server after which a request fails. A long prompt on a processor takes minutes."""
    connect_s: float = Field(5.0, gt=0)
    """Seconds that a server may take to accept a connection."""
    body_s: float = Field(60.0, gt=0)
    """Seconds without a byte of a request's body after which the request fails."""
    unread_s: float = Field(120.0, gt=0)
    """Seconds that a client may leave an answer unread, after which it is given up: its server is for others too."""
    drain_s: float = Field(30.0, ge=0)
    """Seconds that requests under way have left when the gateway stops."""
    refresh_s: float = Field(2.0, gt=0)
    """Seconds between two readings of keys and servers."""
    log_path: Path | None = None
    log_content: bool = False
    """Log what was asked and answered."""
    portfolio: Portfolio | None = None
    """The variants between which requests for the model `auto` are divided; None: there is no such model."""
    portfolio_sources: dict[str, str] = Field(default_factory=dict)
    """The id of each variant of the portfolio."""
