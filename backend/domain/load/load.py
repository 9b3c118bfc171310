"""Which load a level has: who decides when a request is sent, and how much of it is asked for. Pure.

It is the same for every variant, so it is what variants are compared at. How many requests then were under way is
measured (`Level.concurrency`), and differs from variant to variant in an open loop.
"""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import ConfigDict, field_validator
from pydantic.dataclasses import dataclass

from backend.domain.figures import counted

Mode = Literal["burst", "closed", "rate", "ramp", "trace"]
"""`closed`: the end of an earlier answer decides. `rate`, `ramp`, `trace`: a clock that does not wait for the server.
`burst`: everything at once, which only other tools do."""
_ORDER = get_args(Mode)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Load:
    """`value`: streams of a closed loop, requests a second of a rate or at the end of a ramp, 0 for a trace and a
    burst.

    A load read between two measured ones may have a part of a stream.
    """

    mode: Mode
    value: int | float = 0

    @field_validator("value")
    @classmethod
    def _plain(cls, value: float) -> int | float:
        """8 and not 8.0: one load is written in one way."""
        return int(value) if float(value).is_integer() else value

    @property
    def is_closed(self) -> bool:
        return self.mode == "closed"

    @property
    def key(self) -> str:
        """`closed-4`, `rate-2.5`, `trace`: for the names of files and the columns of tables that are searched."""
        return f"{self.mode}-{self.value}" if self.value else self.mode

    @property
    def words(self) -> str:
        """`4 streams`, `8 requests/s`, `up to 20 requests/s` or `the trace`."""
        if self.is_closed:
            return counted(self.value, "stream")
        if self.mode == "rate":
            return f"{self.value:g} requests/s"
        if self.mode == "ramp":
            return f"up to {self.value:g} requests/s"
        return "the trace" if self.mode == "trace" else "all at once"

    @property
    def cell(self) -> int | float | str:
        """Under the heading of a table that counts streams: their number, or an open loop in words."""
        return self.value if self.is_closed else self.words

    def __lt__(self, other: Load) -> bool:
        return (_ORDER.index(self.mode), self.value) < (_ORDER.index(other.mode), other.value)
