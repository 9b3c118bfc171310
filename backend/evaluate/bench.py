"""`python -m backend.evaluate.bench FOLDER`: loads one endpoint, level after level.

Reads FOLDER/request.json, writes FOLDER/levels.json: `levels`, also those before an error, and `error`. Exit 0 done, 2
the request was wrong, 3 nothing answers there, 1 anything else that has a sentence.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from backend import files
from backend.domain.errors import EndpointUnreachable, WhetstoneError
from backend.domain.evaluation.blocks.late_blocks import find_late_blocks
from backend.domain.evaluation.document import EvaluateOptions, Level
from backend.domain.evaluation.metrics import summarise_level
from backend.domain.evaluation.prefix_cache import PrefixHits, with_hit_rates
from backend.domain.evaluation.prices import Pricing
from backend.domain.evaluation.soundness import late_warning
from backend.domain.load import counters
from backend.domain.load.load import Load
from backend.domain.load.records import Audit, RequestRecord
from backend.domain.workload.workload import parse_workload
from backend.endpoint import check_endpoint, models
from backend.evaluate import load_plans
from backend.evaluate.load import run_level
from backend.evaluate.load_plans import SearchedLevel
from backend.evaluate.public_counters import PublicCounters
from backend.evaluate.unused_prompts import UnusedPrompts, WorkloadExhausted, cache_block_tokens

RecordsAndAudit = tuple[list[RequestRecord], Audit]


class EndpointBench:
    """One request to measure an endpoint, and the levels measured so far."""

    def __init__(self, request: dict[str, Any], folder: Path) -> None:
        self.url, self.bearer, self.model = request["url"], request["bearer_env"], request["model"]
        self.options = EvaluateOptions.model_validate(request["options"])
        self.folder = folder
        self.levels: list[Level] = []
        self._levels_searched: list[SearchedLevel] = []
        workload = Path(self.options.workload)
        self._unused_prompts = UnusedPrompts(self.options, parse_workload(workload.stem, workload.read_bytes()))
        self._counters = PublicCounters(self.url, self.bearer)
        self._hits: list[PrefixHits] = []
        """Cache hits of the runs since the last level."""

    def run(self) -> None:
        check_endpoint(self.url, self.bearer)
        self.model = self.model or models(self.url, self.bearer)[0]
        if self.options.sweep:
            try:
                load_plans.search_highest_load(self.options, self._measure_once, self._record_level)
            except WorkloadExhausted as error:
                print(error, file=sys.stderr, flush=True)
            return
        for number, load in enumerate(self.options.loads):
            first_lines = [self._unused_prompts.first_line(block, number) for block in range(self.options.repeats)]
            runs = [self._measure(load, line, self._unused_prompts.most_requests(number)) for line in first_lines]
            self.levels.append(self._level(load, runs))

    def results(self) -> list[Level]:
        """Return the levels measured so far, also after a failure."""
        return (
            load_plans.mark_levels(self.levels, self._levels_searched, self.options)
            if self.options.sweep
            else self.levels
        )

    def _measure_once(self, load: Load, requests: int, _attempt: int) -> RecordsAndAudit:
        return self._measure(load, self._unused_prompts.take_lines(0, load, requests), requests)

    def _measure(self, load: Load, first_line: int, requests: int | None) -> RecordsAndAudit:
        # Make the plan, with prompts that the server has not seen.
        print(f"{self.url}: {load.words}", file=sys.stderr, flush=True)
        plan = load_plans.make_plan(
            load,
            self.options,
            url=self.url,
            model=self.model,
            prompts=self.options.workload,
            bearer=self.bearer,
            requests=requests,
        )
        plan = self._unused_prompts.plan_with_salt(0, plan).model_copy(update={"first_line": first_line})
        # Send the requests between two readings of the server's counters.
        before = self._counters.read()
        run = run_level(plan, self.folder / f"{load.key}-{first_line}")
        after = self._counters.read()
        # Record the prefix-cache hits, which tell whether the prompts were new to the server.
        self._hits.append(
            self._unused_prompts.record_sent(
                0, plan, run[0], counters.counter_increase(before, after), cache_block_tokens(after)
            )
        )
        return run

    def _record_level(self, level: SearchedLevel) -> None:
        self._levels_searched.append(level)
        self.levels.append(self._level(level.load, level.runs))
        print(f"{level.load.words}: objectives {level.check.verdict}", file=sys.stderr, flush=True)

    def _level(self, load: Load, runs: list[RecordsAndAudit]) -> Level:
        options = self.options
        pricing = None
        if options.price_per_hour is not None:
            pricing = Pricing(
                per_hour=options.price_per_hour,
                discount=options.discount,
                input_output_ratio=options.input_output_ratio,
            )
        # Without the repeats in which the load generator was late; a search has none.
        late = () if options.sweep else find_late_blocks([[audit for _, audit in runs]])
        used = [run for number, run in enumerate(runs) if number not in late]
        hits, self._hits = [hits for number, hits in enumerate(self._hits) if number not in late], []
        # Summarise the others.
        records, audits = [records for records, _ in used], [audit for _, audit in used]
        level = summarise_level(load, records, audits, pricing=pricing, acceptance=None, late_blocks=late)
        if (warning := late_warning([level])) is not None:
            print(warning, file=sys.stderr, flush=True)
        return with_hit_rates(level, hits)


def main(folder: Path) -> int:
    # Measure; an error is kept beside the levels that were measured before it.
    bench = EndpointBench(json.loads((folder / "request.json").read_text()), folder)
    code: int = 0
    error: WhetstoneError | None = None
    try:
        bench.run()
    except EndpointUnreachable as failure:
        code, error = 3, failure
    except WhetstoneError as failure:
        code, error = failure.exit_code, failure
    # Write both for the worker, which also reads the exit code.
    document = {
        "levels": [level.model_dump(mode="json") for level in bench.results()],
        "error": error and _error_fields(error),
    }
    files.write(folder / "levels.json", json.dumps(document))
    return code


def _error_fields(error: WhetstoneError) -> dict[str, Any]:
    """Return the fields from which the reader builds the error again, under the names that it uses."""
    return {"problem": error.problem, "named": error.named, "field": error.field}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
