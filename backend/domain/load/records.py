"""Plan that the load generator receives (LoadPlan), and its reply: a record for every request, and an audit of itself.

Times are seconds on the generator's monotonic clock (CLOCK_MONOTONIC on Linux), comparable within one machine and one
boot. Knows nothing of sockets; `backend.evaluate.load` sends, `backend.domain.evaluation.metrics` summarises.
"""

from __future__ import annotations

from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from backend.domain.frozen import Facts, Frozen
from backend.domain.load.load import Load
from backend.domain.load.options import RequestOptions

UsageRung = Literal["continuous", "final", "none"]
"""Source of token counts: usage with every chunk, usage once at the end, or none."""
LengthField = Literal["max_tokens", "max_completion_tokens"]
"""The field of a request that limits its answer (`openai_json.LENGTH`, `openai_json.NEWER_LENGTH`)."""
TURN_SEEDS = 1_000_000
"""Seeds from one turn of a session to its next: more than a level takes prompts."""


class LoadPlan(RequestOptions):
    """One level of load.

    Closed loop: so many streams, each sending its next request when its last answer has ended. The level ends after
    `requests` measured requests or `seconds` of steady load, whichever comes first.

    Open loop: a clock sends, whether or not earlier answers have come, over at most `connections`; latencies count from
    the intended start (no coordinated omission: G. Tene, How NOT to Measure Latency, 2013). A rate: request n is due n
    / rate seconds from the start, or at the n-th event of a Poisson process of that rate. A ramp: the rate goes
    linearly from `ramp_from` to the load's over `seconds`. A trace: each line of the prompts is due at its `timestamp`.
    What is due in the first `warmup_seconds` is warm-up, handed over without draining: nothing waits for it.

    Answers under way are always awaited. Prompts are taken from `first_line` on, those of warm-up first, the measured
    ones behind them: no line twice while there are as many. The one taken as number k, from 0, is line `first_line` + k
    (modulo the lines) and has seed `seed` + k whatever the timing, so that two variants are asked the same.

    A prompt of several turns is a session: each turn is sent when the answer before it has ended, with the whole
    conversation so far. Every turn counts as a request, but takes no prompt: turn t of session k, both from 0, has seed
    `seed` + k + t x TURN_SEEDS, wherever in the order of issue it came to stand.
    """

    url: str
    """`http[s]://host[:port][/prefix]`, with or without `/v1`, or `sagemaker://REGION/NAME`. Never with credentials."""
    model: str
    load: Load
    requests: int | None = Field(None, ge=1)
    seconds: float | None = Field(None, gt=0)
    ramp_from: float = Field(0.0, ge=0)
    """Requests (sessions) a second at the start of a ramp."""
    process: Literal["constant", "poisson"] = "constant"
    warmup_seconds: float = Field(0.0, ge=0)
    """Open loop only."""
    prompts: str
    """A file of a workload's own lines (`workload.write_prompts`): `{"prompt": str}` or
    `{"turns": [str, ...], "system": str}` (a session), each with an optional `max_tokens` and, for a trace, `timestamp`
    in seconds."""
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = 0
    first_line: int = Field(0, ge=0)
    """Number, from 0, of the first prompt that this level sends."""
    cache_salt: str | None = None
    """vLLM's extra: prefixes that it keeps are shared by requests of one salt only."""
    usage: UsageRung = "continuous"
    """The most that is asked for; a server that refuses it with 400 is asked for less."""
    length_field: LengthField = "max_tokens"
    """A server that refuses the older name with 400 and tells the newer one is asked with that."""
    bearer_env: str | None = None
    """The NAME of the environment variable that holds the bearer token; the token itself is never stored."""

    @field_validator("url")
    @classmethod
    def _plain_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https", "sagemaker"} or not parts.hostname:
            raise ValueError("url must be http://HOST[:PORT] or https://HOST[:PORT]")
        if parts.username or parts.password:
            raise ValueError("url must not hold credentials; name an environment variable in bearer_env")
        if parts.query or parts.fragment:
            raise ValueError("url must end with the path; leave out the part from ? or # on")
        return url

    @model_validator(mode="after")
    def _an_end(self) -> Self:
        mode, value = self.load.mode, self.load.value
        if mode == "burst" or (mode == "closed" and value < 1) or (mode == "rate" and value <= 0):
            raise ValueError("a closed loop has at least one stream, and a rate is above 0")
        if mode == "ramp" and (self.seconds is None or self.ramp_from + value <= 0):
            raise ValueError("a ramp goes from one rate to another, not both 0, over a number of seconds")
        if self.requests is None and self.seconds is None and mode != "trace":
            raise ValueError("give requests or seconds, or the level would never end")
        return self

    @property
    def streams(self) -> int:
        """Streams of a closed loop; for an open loop the most requests that may be open at once."""
        return int(self.load.value) if self.load.is_closed else self.connections


class AlternatingPlan(Frozen):
    """Runs of several variants whose slices take turns in one process of the load generator.

    `slices` are in the order of sending, each with the index of its run, from 0; every run has at least one.
    """

    slices: tuple[tuple[int, LoadPlan], ...] = Field(min_length=1)


class RequestRecord(Frozen):
    """One request as the client saw it. A stamp is None where that moment never came.

    `status` is `ok`, or the kind of error: `refused`, `unreachable`, `tls`, `timeout`, `reset` (connection lost with an
    error or before any answer), `truncated` (closed inside an answer), `malformed`, `too_large` (more bytes than are
    kept of one answer), `server_error` (an error document inside a stream), `http_NNN`.
    """

    index: int
    """0.. over the level in order of issue; in a closed loop warm-up of stream s first, then measured ones from
    concurrency x warm-up on."""
    stream: int
    prompt: int
    """Line of the prompts file, from 0."""
    warm: bool
    slice: int = 0
    """0.. over the level's slices (`order.cut_slices`); between two of them other variants were asked."""
    intended: float
    """Closed loop: when the stream was free to send it. Open loop: when it was due."""
    clock: Literal["sent", "intended"] = "sent"
    """Moment from which its latencies count: `intended` in an open loop."""
    session: int | None = None
    """Number of the conversation in the level; None where the request stands alone."""
    turn: int | None = None
    """0.. in its session."""
    streamed: bool = True
    """Asked for in chunks; where not, only the end of the answer has a time."""
    sent: float | None = None
    """When it was written to the socket."""
    first_content: float | None = None
    last_content: float | None = None
    end: float
    """Last byte of the answer, or the moment of the error."""
    chunk_times: tuple[float, ...] = ()
    """Arrival of each chunk with non-empty content."""
    chunk_tokens: tuple[float, ...] = ()
    """Tokens received up to and including each of those; empty where the server gave no count."""
    token_times: UsageRung = "none"
    """Source of chunk_tokens: the server's running count, its total spread evenly over the chunks, or none."""
    status: str
    error: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Tokens of the prompt that the server had in its cache; None where it does not report them."""
    output_tokens: int | None = None
    text: str = ""
    finish_reason: str | None = None
    reads: int = 0
    """Socket reads that brought content, and of these, `coalesced`: those that brought more than one server send."""
    coalesced: int = 0

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def start(self) -> float | None:
        """Moment from which its latencies count."""
        return self.intended if self.clock == "intended" else self.sent


class Audit(Frozen):
    """Audit of the generator itself over one level. `client_limited` voids the level as a figure of the server."""

    wall_s: float
    cpu_s: float
    """CPU of the run itself, both user and system."""
    parse_cpu_s: float
    """CPU of reading the kept bytes afterwards: costs the machine, but not the measurement."""
    loop_lag_ms_p50: float
    loop_lag_ms_p99: float
    loop_lag_ms_max: float
    coalesced_share: float
    achieved_concurrency: float | None
    """Mean number of requests under way over the steady window; None where there was none. In an open loop that
    window is from the first measured request due to the last one due."""
    offered_per_s: float | None = None
    """Open loop: requests due a second over that window, turns that follow an answer not counted."""
    completed_per_s: float | None = None
    """Open loop: answers that ended a second, over the same window; clearly fewer than offered: the server did not keep
    up."""
    send_lag_ms_p50: float | None = None
    send_lag_ms_p99: float | None = None
    """Open loop: how late the generator took up a request that was due, waiting for a connection included."""
    waited: int = 0
    """Open loop: requests that had to wait because all connections were taken."""
    steady_start: float | None
    steady_end: float | None
    usage: UsageRung
    """Usage that the server was asked for in the end."""
    length_field: LengthField = "max_tokens"
    """The name that the limit of answers was sent under in the end."""
    reconnects: int = 0
    peak_rss_bytes: int | None = None
    """Peak memory of the generator's process, reading included; None where the system does not report it."""
    joules: dict[str, float] = Field(default_factory=dict)
    """Energy that the machine used while the run's slices were sent, by counter; empty where none can be read."""
    client_limited: bool
    late: bool = False
    """Its own loop was late or had no slack, whatever the server did; `client_limited` is then true as well."""
    reason: str | None = None
    versions: Facts = Field(default_factory=dict)


class Disturbance(Frozen):
    """Other work of the machine over a stretch of time: `others` and `stolen` in mean cores, `throttled` in events of
    throttling, None where the kernel does not report them.
    """

    seconds: float
    cores: int
    others: float
    stolen: float
    throttled: int | None


class LevelAudit(Frozen):
    """The audits of all repeats of a level as one: the worst of each figure, the sum of times and counts, every reason.

    None is what no audit told, of a closed loop all that only an open one has.
    """

    warmup_requests: int = 0
    warmup_errors: int = 0
    prefill_share: float | None = None
    """Estimated part of the time spent in prefill, 0 to 1 (`metrics.prefill_share`)."""
    token_times: tuple[UsageRung, ...] = ()
    loop_lag_ms_p50: float | None = None
    loop_lag_ms_p99: float | None = None
    loop_lag_ms_max: float | None = None
    coalesced_share: float | None = None
    wall_s: float | None = None
    cpu_s: float | None = None
    parse_cpu_s: float | None = None
    reconnects: int | None = None
    achieved_concurrency: float | None = None
    waited: int | None = None
    offered_per_s: float | None = None
    completed_per_s: float | None = None
    send_lag_ms_p50: float | None = None
    send_lag_ms_p99: float | None = None
    reasons: tuple[str, ...] = ()
    """Why the client held the level back, a sentence each."""
    late_blocks: tuple[int, ...] = ()
    """Blocks, from 0 on, that are not part of the level: the load generator was late in them."""
    disturbance: Disturbance | None = None
    """Disturbance of the repeat that was disturbed most; None where it was not observed."""

    @property
    def others(self) -> float | None:
        """Mean cores that other programs used meanwhile."""
        return self.disturbance.others if self.disturbance else None

    @property
    def headroom(self) -> float | None:
        """The share of one core that the load generator, one process of one thread, had left; None where it is not
        known."""
        return max(0.0, 1 - self.cpu_s / self.wall_s) if self.cpu_s is not None and self.wall_s else None
