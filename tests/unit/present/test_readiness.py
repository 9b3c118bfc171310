"""Time to ready in words: each kind of start by its fastest."""

from __future__ import annotations

from backend.domain.evaluation.startup import Startup
from backend.present.words.measured import readiness
from tests import simulated

COLD = Startup(kind="cold", processes_s=10.0, weights_s=1.0, compile_s=30.0, warm_up_s=2.0, listen_s=1.0, first_answer_s=0.5)
CACHED = COLD.model_copy(update={"kind": "cached", "compile_s": 3.0})


def test_the_fastest_start_of_each_kind_stands_with_its_phases() -> None:
    found = simulated.result("m", []).model_copy(update={"starts": [COLD, CACHED, CACHED.model_copy(update={"weights_s": 9.0})]})
    assert readiness(found) == (
        "17.0 s, compile cache loaded (processes and imports 10.0 s, weights 1.00 s, compilation 3.00 s, warm-up 2.00 s, "
        "listening 1.00 s, first answer 0.500 s); 44.0 s, compiled at start (processes and imports 10.0 s, weights 1.00 s, "
        "compilation 30.0 s, warm-up 2.00 s, listening 1.00 s, first answer 0.500 s)"
    )


def test_without_phases_the_whole_stands_alone() -> None:
    assert readiness(simulated.result("m", [])) == "24.0 s"
