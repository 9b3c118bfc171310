"""What real servers of vLLM 0.32.0 on a processor wrote and told (tests/recorded/vllm-0.32), with how they were asked.

`NAME.log` is the whole start but for routes, banners and shutdown, and some of its lines under load; `NAME.metrics`,
where there is one, the samples that are read of `/metrics` after the load. `asked.json` has serving settings,
speculation, size of the weights, the fields of config.json that are read, and whether the start compiled, loaded what
was compiled, or was eager.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from backend.domain.evaluation.document import Level, Variant
from backend.domain.evaluation.evidence import draft_counts, engine_log
from backend.domain.evaluation.evidence.findings import findings
from backend.domain.evaluation.evidence.schema import Finding, failed_findings
from backend.domain.evaluation.evidence.served_variant import StartEvidence
from backend.domain.evaluation.startup import Startup
from backend.domain.load import counters
from tests import simulated

FOLDER = Path(__file__).parent / "recorded" / "vllm-0.32"
REQUESTS: dict[str, dict[str, Any]] = json.loads((FOLDER / "asked.json").read_text())
NAMES = tuple(REQUESTS)


def judged(name: str, **instead: Any) -> list[Finding]:
    """As it was asked; `instead` are fields of a variant that asked for something else than was served."""
    values = dict(REQUESTS[name])
    config, started = values.pop("config"), values.pop("started")
    draft = {"draft_path": "/draft"} if (values.get("speculation") or {}).get("draft_path") else {}
    speculation = values.pop("speculation", None)
    if speculation:
        values["speculation"] = {**speculation, **draft}
    variant = Variant.model_validate({"name": name, "source": name, "kind": "model", **values, **instead})
    log = engine_log.parse_engine_log((FOLDER / f"{name}.log").read_text().splitlines())
    startup = Startup.model_validate({"kind": started})
    return findings(
        variant, config, [StartEvidence(log, engine_log.parse_cache_settings(metrics(name)), startup)], _levels(name)
    )


def wrong(name: str) -> list[Finding]:
    """What an honest server is accused of."""
    return failed_findings(judged(name))


def metrics(name: str) -> str:
    file = FOLDER / f"{name}.metrics"
    return file.read_text() if file.exists() else ""


def _levels(name: str) -> list[Level]:
    """One, of the counters after the load; none where they were not recorded."""
    counted = {each: int(value) for each, value in counters.parse_counters(metrics(name)).items()}
    return (
        [simulated.level(1, requests=2).model_copy(update={"drafting": draft_counts.count_drafting([counted], [])})]
        if counted
        else []
    )
