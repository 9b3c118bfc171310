"""Options for latency limits of measured levels: one percentile for both, as under Your load on the pages."""

from __future__ import annotations

from typing import Annotated

import typer

from backend.cli.options.numbers import require_finite
from backend.domain.errors import RequestError
from backend.domain.limits.latency_limit import PERCENTILES, USUAL_PERCENTILE
from backend.domain.limits.slo import Slo
from backend.domain.validation import validate_fields


def _limit(names: tuple[str, str], latency: str) -> object:
    help_ = f"Only levels with a {latency} up to this, in ms, at the percentile of --percentile."
    return typer.Option(*names, callback=require_finite, min=0.0, help=help_)


MaxTtft = Annotated[float | None, _limit(("--ttft", "--ttft-p95"), "time to first token")]
MaxTpot = Annotated[float | None, _limit(("--tpot", "--tpot-p95"), "time per output token")]
PercentileName = Annotated[
    str, typer.Option("--percentile", help=f"Percentile of both latency limits: {', '.join(PERCENTILES)}.")
]
USUAL = USUAL_PERCENTILE


def read_limits(ttft: float | None, tpot: float | None, percentile: str) -> Slo:
    """Return the limits in ms. Raises RequestError for a percentile that is none."""
    if percentile not in PERCENTILES:
        raise RequestError(f"--percentile is one of {', '.join(PERCENTILES)}, not {percentile[:20]!r}.")
    return validate_fields(Slo, {"ttft_ms": ttft, "tpot_ms": tpot, "percentile": percentile}, RequestError)
