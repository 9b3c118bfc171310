"""A demonstration: where and when its results were measured, so that every page can say so."""

from __future__ import annotations

from backend.domain.frozen import Facts, Frozen
from backend.domain.machine.hardware_lines import hardware_line

MARK = "demonstration.json"
"""The file that makes a home a demonstration; whoever opens that home may only read it."""
READ_ONLY = "Nothing runs here, and nothing can be changed."


class Demonstration(Frozen):
    """`measured_at` is ISO 8601."""

    hardware: Facts
    versions: dict[str, str]
    measured_at: str

    @property
    def label(self) -> str:
        where = hardware_line(self.hardware)
        return f"Demonstration, nothing can be started: measured on {where} on {self.measured_at[:10]}."
