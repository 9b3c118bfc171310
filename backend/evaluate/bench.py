"""`python -m backend.evaluate.bench FOLDER`: the load generator against one endpoint, level after level.

Reads FOLDER/request.json, writes FOLDER/levels.json: `levels`, and `error` where it ended early; levels that were done stay.
Exit 0 done, 2 the request was wrong, 3 nothing answers there, 1 anything else that has a sentence.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from backend import files
from backend.domain.errors import EndpointUnreachable, WhetstoneError
from backend.domain.evaluation.document import EvaluateOptions, Level
from backend.domain.evaluation.metrics import summarise
from backend.domain.evaluation.prices import Pricing
from backend.domain.load.load import Load
from backend.domain.load.records import Audit, RequestRecord
from backend.evaluate import load_plans
from backend.evaluate.load import check_endpoint, models, run_level
from backend.evaluate.load_plans import Found

Run = tuple[list[RequestRecord], Audit]


class Bench:
    """One request, and the levels done so far."""

    def __init__(self, request: dict[str, Any], folder: Path) -> None:
        self.url, self.bearer, self.model = request["url"], request["bearer_env"], request["model"]
        self.options = EvaluateOptions.model_validate(request["options"])
        self.folder = folder
        self.levels: list[Level] = []
        self._found: list[Found] = []

    def run(self) -> None:
        check_endpoint(self.url, self.bearer)
        self.model = self.model or self._first_model()
        if self.options.sweep:
            load_plans.search(self.options, self._measure, self._tell)
            return
        for load in self.options.loads:
            self.levels.append(self._level(load, [self._measure(load, None, n) for n in range(self.options.repeats)]))

    def results(self) -> list[Level]:
        """Also after a failure: what was done until then."""
        return load_plans.mark(self.levels, self._found, self.options) if self.options.sweep else self.levels

    def _first_model(self) -> str:
        return models(self.url, self.bearer)[0]

    def _measure(self, load: Load, requests: int | None, number: int) -> Run:
        print(f"{self.url}: {load.words}", file=sys.stderr, flush=True)
        plan = load_plans.plan(
            load, self.options, url=self.url, model=self.model, prompts=self.options.workload, bearer=self.bearer,
            requests=requests,
        )  # fmt: skip
        return run_level(plan, self.folder / f"{load.key}-{number}")

    def _tell(self, found: Found) -> None:
        self._found.append(found)
        self.levels.append(self._level(found.load, found.runs))
        print(f"{found.load.words}: objectives {found.check.verdict}", file=sys.stderr, flush=True)

    def _level(self, load: Load, runs: list[Run]) -> Level:
        options, audits = self.options, [audit for _, audit in runs]
        pricing = None
        if options.price_per_hour is not None:
            pricing = Pricing(
                per_hour=options.price_per_hour, discount=options.discount, input_output_ratio=options.input_output_ratio
            )
        return summarise(load, [records for records, _ in runs], audits, pricing=pricing, acceptance=None)


def main(folder: Path) -> int:
    bench = Bench(json.loads((folder / "request.json").read_text()), folder)
    code, error = 0, None
    try:
        bench.run()
    except EndpointUnreachable as failure:
        code, error = 3, str(failure)
    except WhetstoneError as failure:
        code, error = failure.exit_code, str(failure)
    document = {"levels": [level.model_dump(mode="json") for level in bench.results()], "error": error}
    files.write(folder / "levels.json", json.dumps(document))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
