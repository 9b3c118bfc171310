"""The phases of a server's start and their times: a result of its own, beside the speed of its answers. Pure."""

from __future__ import annotations

from typing import Literal

from backend.domain.frozen import Frozen

PHASES = {
    "processes_s": "Processes and imports",
    "weights_s": "Weights",
    "compile_s": "Compilation",
    "warm_up_s": "Warm-up",
    "listen_s": "Listening",
    "first_answer_s": "First answer",
}
"""Fields of a `Startup` in the order in which they pass, and what they are called."""
KINDS = {"cold": "compiled at start", "cached": "compile cache loaded", "eager": "not compiled"}


class Startup(Frozen):
    """One start of a server, phase by phase, in seconds; None of a phase that its log did not show.

    `kind` is cold where something was compiled, cached where all of it was loaded, eager where nothing is compiled.
    """

    kind: Literal["cold", "cached", "eager"]
    processes_s: float | None = None
    """From the command to the first look at the model: three processes start one after the other, each with its
    imports."""
    weights_s: float | None = None
    compile_s: float | None = None
    """Compiling, or loading what was compiled before."""
    warm_up_s: float | None = None
    """The run at full batch size, and the key-value cache made."""
    listen_s: float | None = None
    first_answer_s: float | None = None
    """One token, asked of the server when it was ready."""
    compiled_again: str | None = None
    """Why what was kept was not loaded, in the server's words."""
    beside: bool = False
    """Another server of the evaluation started at the same time, so that these times are of two starts and no time to
    ready."""

    @property
    def ready_s(self) -> float:
        """Until the server answers; without the first answer itself."""
        return sum(getattr(self, name) or 0.0 for name in PHASES if name != "first_answer_s")
