"""The load options that `evaluate` and `bench` share: their help, and from a user's words to fields of the options."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from backend.domain.errors import InvalidOptions

DEFAULT_LEVELS = "1,4"

Concurrency = Annotated[
    str | None,
    typer.Option(
        help="Closed loop: streams that each wait for their answer; levels, comma-separated, such as 1,4,16 "
        f"({DEFAULT_LEVELS} unless another mode is chosen).",
    ),
]
Rate = Annotated[
    str | None,
    typer.Option(
        metavar="R[,R]",
        help="Open loop: requests a second, whether or not answers have come; latency counts from when a request was due. "
        "Levels such as 2,8.",
    ),
]
Poisson = Annotated[
    bool, typer.Option("--poisson", help="With --rate or --ramp: requests at random moments, as of many independent users.")
]
Ramp = Annotated[
    str | None, typer.Option(metavar="FROM:TO", help="Open loop: requests a second rising (or falling) evenly over --seconds.")
]
Trace = Annotated[
    str | None,
    typer.Option(metavar="FILE", help='Replay: JSONL with a "timestamp" in seconds beside each prompt; used as the workload.'),
]
Sweep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OBJECTIVE",
        help="Search the highest concurrency (or rate, from the lowest --rate on) that keeps an objective such as "
        "'ttft_p95<=300ms'; of ttft, tpot and latency; give it again for more.",
    ),
]
SweepTo = Annotated[float | None, typer.Option(help="Highest level the sweep tries: 256 streams, or 256 times the first rate.")]
Connections = Annotated[int, typer.Option(help="Open loop: the most connections at once.")]
WarmupSeconds = Annotated[float, typer.Option(help="With --rate: seconds at the start that are not counted.")]
Warmup = Annotated[int, typer.Option(help="Closed loop: requests a stream at the start of each run that are not counted.")]
Ratio = Annotated[float, typer.Option(help="Input tokens an output token, for the blended price.")]
Chat = Annotated[bool, typer.Option("--chat/--completions", help="Which endpoint is asked.")]
Streaming = Annotated[bool, typer.Option("--stream/--no-stream", help="Without streaming only whole answers are timed.")]
Workload = Annotated[str, typer.Option(help="A built-in workload's name, or a JSONL, JSON, CSV or Parquet file.")]
Column = Annotated[
    list[str] | None,
    typer.Option(metavar="FIELD=COLUMN", help="Of a CSV or Parquet workload: prompt=question, max_tokens=length, ..."),
]
Requests = Annotated[int | None, typer.Option(help="Requests a level and repeat, warm-up not counted.")]
Seconds = Annotated[float | None, typer.Option(help="Or: seconds a level and repeat.")]
Repeats = Annotated[int, typer.Option(help="Blocks; five or more give a verdict.")]
MaxTokens = Annotated[int, typer.Option(help="Longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option(help="Sampling temperature.")]
Timeout = Annotated[float, typer.Option(help="Seconds until an answer that does not end counts as an error.")]
Seed = Annotated[int, typer.Option(help="Of the sampling, of random arrivals and of built-in workloads.")]
Price = Annotated[float | None, typer.Option(help="Hourly price of the machine; without it prices stay empty.")]
Discount = Annotated[float, typer.Option(help="Share taken off the hourly price, 0 to 1.")]


def shape(
    *, concurrency: str | None, rate: str | None, poisson: bool, ramp: str | None, trace: str | None, sweep: list[str] | None,
    sweep_to: float | None, chat: bool,
) -> dict[str, Any]:  # fmt: skip
    """Fields of the options that say when requests are sent. Raises InvalidOptions with one sentence."""
    others = [name for name, given in (("rate", rate), ("ramp", ramp), ("trace", trace)) if given is not None]
    if concurrency is not None and others:
        raise InvalidOptions("is for a closed loop: leave it out with {}.", others[0], field="concurrency")
    fields: dict[str, Any] = {
        "concurrency": levels(concurrency if concurrency is not None else DEFAULT_LEVELS),
        "process": "poisson" if poisson else "constant",
        "sweep": tuple(sweep or ()),
        "sweep_to": sweep_to,
        "trace": trace is not None,
        "endpoint": "chat" if chat else "completions",
    }
    if rate is not None:
        fields["rate"] = _rates(rate)
    if ramp is not None:
        fields["ramp"] = _ends(ramp)
    return fields


def levels(text: str) -> tuple[int, ...]:
    """Raises InvalidOptions."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InvalidOptions(f"is wrong: `{text}` is not a list such as 1,4,16.", field="concurrency") from None


def _rates(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = ()
    if not found:
        raise InvalidOptions(f"is wrong: `{text}` is not a list of requests a second such as 2,8.", field="rate")
    return found


def _ends(text: str) -> tuple[float, float]:
    try:
        start, end = (float(part) for part in text.split(":"))
    except ValueError:
        raise InvalidOptions(f"is wrong: `{text}` is not two rates in requests a second such as 1:20.", field="ramp") from None
    return start, end


def columns(given: list[str] | None) -> dict[str, str]:
    """`prompt=question` as a mapping. Raises InvalidOptions."""
    pairs = [text.partition("=") for text in given or ()]
    for field, sign, column in pairs:
        if not (sign and field.strip() and column.strip()):
            raise InvalidOptions(
                f"is wrong: `{field}{sign}{column}` is not FIELD=COLUMN such as prompt=question.", field="columns"
            )
    return {field.strip(): column.strip() for field, _, column in pairs}
