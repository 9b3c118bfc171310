"""The options of a load: which levels there are, and how each of their requests is asked. Pure.

The command line has an option for each field, in this order and with these words, where `{rate}` stands for how the
field is written there; the page shows the same as a command (`present.evaluate_command`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from backend.domain.frozen import Frozen
from backend.domain.load.load import Load
from backend.domain.workload.trace_times import TimeUnit

BLOCKS_FOR_VERDICT = 5
"""Repeats (blocks) that a test of a difference takes: with fewer there are figures and no verdict."""


class LevelOptions(Frozen):
    """Which levels there are, and how long each of them is. A level runs `repeats` times a variant."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    concurrency: tuple[int, ...] = (1, 4)
    """Closed loop: streams that each wait for their answer; levels, comma-separated, such as 1,4,16 (1,4 unless another
    mode is chosen)."""
    rate: tuple[Annotated[float, Field(gt=0, le=100_000)], ...] = ()
    """Open loop: requests a second, whether or not answers have come; latency counts from when a request was due.
    Levels such as 2,8."""
    process: Literal["constant", "poisson"] = "constant"
    """With {rate} or {ramp}: requests at random moments, as of many independent users."""
    ramp: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(gt=0, le=100_000)]] | None = None
    """Open loop: requests a second rising (or falling) evenly over {seconds}."""
    trace: bool = False
    """Replay: a workload whose rows have a "timestamp", each sent at its own time; also a trace of lengths without
    text."""
    sweep: tuple[str, ...] = ()
    """Search the highest concurrency (or rate, from the lowest {rate} on) that keeps an objective such as
    'ttft_p95<=300ms'; of ttft, tpot and latency; give it again for more."""
    sweep_to: float | None = Field(None, gt=0)
    """Highest level the sweep tries: 256 streams, or 256 times the first rate."""
    workload: str = "starter-code"
    """A built-in workload's name, or a JSONL, JSON, CSV or Parquet file; where none is given, assistant (in its
    template) for a chat model and starter-code for others."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Columns of a CSV or Parquet workload: prompt=question, max_tokens=length, timestamp=time, or input_tokens=length
    where it has no texts."""
    time_unit: TimeUnit = Field("auto", exclude_if=lambda value: value == "auto")
    """Unit of a workload's times where its file does not say it: s, ms, us or ns."""
    requests: int | None = Field(None, ge=1, le=1_000_000)
    """Requests a level and repeat, warm-up not counted."""
    seconds: float | None = Field(None, gt=0, le=604_800)
    """Seconds a level and repeat; or {requests}, whichever ends first."""
    repeats: int = Field(BLOCKS_FOR_VERDICT, ge=1, le=1000)
    """Blocks; five or more give a verdict."""
    until_decided: bool = False
    """In place of {repeats}: blocks are added until each throughput is shown to be faster, slower or the same,
    looked at after 6, 8, 12, 16, ... of at most {max_blocks}; all looks together keep the error rate of one."""
    max_blocks: int = Field(20, ge=6, le=1000)
    """With {until_decided}: where it ends at the latest."""
    prefix_cache: Literal["recipe", "on", "off", "per-run"] = "recipe"
    """Prefix cache of the servers: on, off, or as each recipe says (vLLM: on). No line is sent to a server twice unless
    this is off (for a URL you assert it) or per-run: each run has a cache of its own (vLLM's cache_salt)."""

    @property
    def most_blocks(self) -> int:
        """So many at most."""
        return self.max_blocks if self.until_decided else self.repeats

    @property
    def may_repeat(self) -> bool:
        """Tell whether a line may be sent again, because no cache remembers the first time."""
        return self.prefix_cache in {"off", "per-run"}

    @property
    def loads(self) -> list[Load]:
        """Return the loads of the requested levels, in order; a search begins at the lowest and chooses the others."""
        if self.trace:
            return [Load("trace")]
        if self.ramp is not None:
            return [Load("ramp", self.ramp[1])]
        return [Load("rate", rate) for rate in self.rate] or [Load("closed", streams) for streams in self.concurrency]


class RequestOptions(Frozen):
    """Options of requests, the same at every level: a field that is added here reaches the load generator with its
    plan."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    max_tokens: int = Field(64, ge=1)
    """Longest answer, in tokens."""
    temperature: float = Field(0.0, ge=0)
    """Sampling temperature; 0 is greedy: the same answer each time."""
    endpoint: Literal["completions", "chat"] = "completions"
    """Which endpoint is asked; of chat the model's own template is put around each turn."""
    stream: bool = True
    """Without streaming only whole answers are timed."""
    connections: int = Field(1024, ge=1, le=4096)
    """Open loop: the most connections at once; requests beyond wait, which is counted."""
    warmup_requests: int = Field(1, ge=0, le=10_000)
    """Closed loop: requests a stream at the start of each run that are not counted."""
    warmup_seconds: float = Field(2.0, ge=0, le=86_400)
    """With {rate}: seconds at the start that are not counted."""
    timeout_s: float = Field(120.0, gt=0)
    """Seconds until an answer that does not end counts as an error."""
    ignore_eos: bool | None = None
    """Every answer as long as was asked, whether or not the model would have ended it (vLLM's extra); as a rule so for
    built-in workloads that are generated, where all servers are started here."""


class LoadOptions(RequestOptions, LevelOptions):
    """Both: all that the load generator is told."""
