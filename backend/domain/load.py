"""What the load generator is asked (LoadPlan), and what it answers: a record for every request, and an audit of itself.

Times are seconds on the generator's monotonic clock (CLOCK_MONOTONIC on Linux), comparable within one machine and one boot.
Knows nothing of sockets; `backend.evaluate.load` sends, `backend.domain.metrics` summarises.
"""

from __future__ import annotations

from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

UsageRung = Literal["continuous", "final", "none"]
"""How tokens are counted: usage with every chunk, usage once at the end, or not at all."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class LoadPlan(_Frozen):
    """One closed-loop level: `concurrency` streams, each sending its next request when the last answer has ended.

    The level ends after `requests` measured requests or `seconds` of steady load, whichever comes first; answers under way
    are always awaited. Measured request k has prompt k (cyclic) and seed `seed` + k whatever the timing, so that two variants
    are asked the same.
    """

    url: str
    """`http[s]://host[:port][/prefix]`, with or without `/v1`. Never with credentials."""
    endpoint: Literal["completions", "chat"] = "completions"
    model: str
    concurrency: int = Field(ge=1)
    requests: int | None = Field(None, ge=1)
    seconds: float | None = Field(None, gt=0)
    warmup_requests: int = Field(2, ge=0)
    """A stream, before its measured ones; handed over without draining."""
    prompts: str
    """A JSONL file: `{"prompt": str}` or `{"prompt_token_ids": [int]}`, each with an optional `max_tokens`."""
    max_tokens: int = Field(64, ge=1)
    temperature: float = Field(0.0, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = 0
    ignore_eos: bool = False
    """vLLM's extra: always generate `max_tokens`."""
    usage: UsageRung = "continuous"
    """The most that is asked for; a server that refuses it with 400 is asked for less."""
    timeout_s: float = Field(120.0, gt=0)
    bearer_env: str | None = None
    """The NAME of the environment variable that holds the bearer token; the token itself is never stored."""

    @field_validator("url")
    @classmethod
    def _plain_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("url must be http://HOST[:PORT] or https://HOST[:PORT]")
        if parts.username or parts.password:
            raise ValueError("url must not hold credentials; name an environment variable in bearer_env")
        if parts.query or parts.fragment:
            raise ValueError("url must end with the path; leave out the part from ? or # on")
        return url

    @model_validator(mode="after")
    def _an_end(self) -> Self:
        if self.requests is None and self.seconds is None:
            raise ValueError("give requests or seconds, or the level would never end")
        return self


class RequestRecord(_Frozen):
    """One request as the client saw it. A stamp is None where that moment never came.

    `status` is `ok`, or the kind of error: `refused`, `unreachable`, `tls`, `timeout`, `reset` (connection lost with an error
    or before any answer), `truncated` (closed inside an answer), `malformed`, `server_error` (an error document inside a
    stream), `http_NNN`.
    """

    index: int
    """0.. over the level in order of issue: warm-up of stream s first, then measured ones from concurrency x warm-up on."""
    stream: int
    prompt: int
    """Line of the prompts file, from 0."""
    warm: bool
    intended: float
    """When the stream was free to send it."""
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
    """Where chunk_tokens come from: the server's running count, its total spread evenly over the chunks, or nowhere."""
    status: str
    error: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    text: str = ""
    finish_reason: str | None = None
    reads: int = 0
    """Socket reads that brought content, and of these, `coalesced`: those that brought more than one server send."""
    coalesced: int = 0

    @property
    def ok(self) -> bool:
        return self.status == "ok"


class Audit(_Frozen):
    """What the generator found out about itself over one level. `client_limited` voids the level as a figure of the server."""

    wall_s: float
    cpu_s: float
    """CPU of the run itself, both user and system."""
    parse_cpu_s: float
    """CPU of reading the kept bytes afterwards: costs the machine, but not the measurement."""
    loop_lag_ms_p50: float
    loop_lag_ms_p99: float
    loop_lag_ms_max: float
    coalesced_share: float
    concurrency: int
    achieved_concurrency: float | None
    """Mean number of requests under way over the steady window; None where there was none."""
    steady_start: float | None
    steady_end: float | None
    usage: UsageRung
    """What the server was asked for in the end."""
    reconnects: int = 0
    client_limited: bool
    reason: str | None = None
    versions: dict[str, Any] = {}
