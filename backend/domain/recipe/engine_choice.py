"""The choice of an engine where a person leaves it open (`engine: auto`), with the reason in one sentence.

The order: the table of serving engines, what is installed, what this machine measured, what was recorded elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from backend.domain.figures import counted
from backend.domain.recipe.serving_engines import ENGINES, EngineName, Hardware


class EngineComparison(NamedTuple):
    """Output tokens/s of one engine against another's with the same model, shown by an evaluation."""

    engine: EngineName
    other: EngineName
    ratio: float
    """`engine` / `other`."""
    load: str
    """The load in words, such as `4 streams`."""
    day: str
    """Day of the measurement, YYYY-MM-DD."""


class RecordedSpeed(NamedTuple):
    """Output tokens/s of an engine against vLLM's, as recorded once on another machine."""

    hardware: Hardware
    streams: int
    engine: str
    ratio: float


RECORD_WORDS = "recorded with SmolLM2-135M on a two-core AMD EPYC, not measured on this machine"
RECORDED: tuple[RecordedSpeed, ...] = (
    RecordedSpeed("cpu", 1, "vllm", 1.0),
    RecordedSpeed("cpu", 1, "llama.cpp", 1.67),
    RecordedSpeed("cpu", 1, "openvino", 1.36),
    RecordedSpeed("cpu", 4, "vllm", 1.0),
    RecordedSpeed("cpu", 4, "llama.cpp", 0.55),
    RecordedSpeed("cpu", 4, "openvino", 1.02),
    RecordedSpeed("cpu", 8, "vllm", 1.0),
    RecordedSpeed("cpu", 8, "llama.cpp", 0.53),
    RecordedSpeed("cpu", 8, "openvino", 1.11),
)
"""bf16 on vLLM 0.32, Q8_0 on llama.cpp and on OpenVINO GenAI 2026.4.1, without a recipe (AVX-512, no AMX). Source:
docs/decisions/0054."""
CLEAR = 1.05
"""A recorded ratio closer to 1 than this decides nothing."""


class AutomaticChoice(NamedTuple):
    """The chosen engine, and the part of a sentence that follows `because`."""

    engine: EngineName
    reason: str

    @property
    def sentence(self) -> str:
        """One sentence: the engine and why it was chosen."""
        return f"{ENGINES[self.engine].title}, because {self.reason}."


class OpenChoice(NamedTuple):
    """The facts by which an engine is chosen."""

    able: Sequence[EngineName]
    """Engines that serve the variant here by the table, in its order; at least one."""
    only_reads: str | None
    """The form of the weights (`GGUF files`) where the other engines are out because they do not read it; else
    None."""
    installed: frozenset[str]
    measured: Sequence[EngineComparison]
    """Comparisons of this variant on this machine at the load, newest first."""
    hardware: Hardware
    streams: int


def choose(facts: OpenChoice) -> AutomaticChoice:
    """Return the engine by the first rule that decides; where none does, the first of the table."""
    # 1. The table.
    if len(facts.able) == 1:
        reads = f"only it reads {facts.only_reads} here" if facts.only_reads else "no other engine serves this here"
        return AutomaticChoice(facts.able[0], reads)
    # 2. What is installed; if nothing is, all are asked the same.
    able = [engine for engine in facts.able if engine in facts.installed] or list(facts.able)
    if len(able) == 1:
        return AutomaticChoice(able[0], "it is the only installed engine that serves this")
    # 3. What this machine measured, then what was recorded elsewhere.
    chosen = _choose_measured(able, facts.measured) or _choose_recorded(able, facts)
    return chosen or AutomaticChoice(able[0], "nothing measured or recorded shows another to be faster")


def _choose_measured(able: Sequence[EngineName], measured: Iterable[EngineComparison]) -> AutomaticChoice | None:
    """Return the engine that wins the newest comparisons; None where nothing was measured between these engines."""
    # 1. The newest comparison of each pair.
    newest: dict[tuple[EngineName, EngineName], EngineComparison] = {}
    for row in measured:
        if row.engine in able and row.other in able:
            newest.setdefault((row.engine, row.other), row)
    if not newest:
        return None
    # 2. The fastest; the other one of its comparison where that is slower.
    best = max(newest.values(), key=lambda row: row.ratio)
    where = f"at {best.load} (measured on this machine, {best.day})"
    if best.ratio >= 1:
        return AutomaticChoice(
            best.engine,
            f"it gave {best.ratio:.2f} times the output tokens/s of {ENGINES[best.other].title} {where}",
        )
    return AutomaticChoice(
        best.other, f"{ENGINES[best.engine].title} gave {best.ratio:.2f} times its output tokens/s {where}"
    )


def _choose_recorded(able: Sequence[EngineName], facts: OpenChoice) -> AutomaticChoice | None:
    """Return the engine that the record names at the nearest smaller load; None where it names none clearly."""
    # 1. The recorded ratios of these engines at that load.
    levels = [row.streams for row in RECORDED if row.hardware == facts.hardware and row.streams <= facts.streams]
    if not levels:
        return None
    streams = max(levels)
    rows = [row for row in RECORDED if row.hardware == facts.hardware and row.streams == streams]
    ratios: Mapping[EngineName, float] = {engine: row.ratio for row in rows for engine in able if row.engine == engine}
    if len(ratios) < 2:
        return None
    # 2. The first two of them.
    first, second, *_ = sorted(ratios, key=lambda engine: -ratios[engine])
    gain = ratios[first] / ratios[second]
    if gain < CLEAR:
        return None
    return AutomaticChoice(
        first,
        f"it gave {gain:.2f} times the output tokens/s of {ENGINES[second].title} at {counted(streams, 'stream')} "
        f"({RECORD_WORDS})",
    )
