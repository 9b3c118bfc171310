"""`python -m backend.evaluate.bench FOLDER`: the load generator against one endpoint, level after level.

Reads FOLDER/request.json, writes FOLDER/levels.json. Exit 0 done, 3 nothing answers there, 1 anything else that has a sentence.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from backend.domain.errors import EndpointUnreachable, WhetstoneError
from backend.domain.evaluation import EvaluateOptions, Level
from backend.domain.load import LoadPlan
from backend.domain.metrics import summarise
from backend.domain.prices import Pricing
from backend.evaluate.load import check_endpoint, models, run_level


def main(folder: Path) -> int:
    request = json.loads((folder / "request.json").read_text())
    try:
        levels = _levels(request, folder)
    except EndpointUnreachable as error:
        return _end(folder, 3, {"error": str(error)})
    except WhetstoneError as error:
        return _end(folder, 1, {"error": str(error)})
    return _end(folder, 0, {"levels": [level.model_dump(mode="json") for level in levels]})


def _levels(request: dict[str, Any], folder: Path) -> list[Level]:
    url, bearer = request["url"], request["bearer_env"]
    check_endpoint(url, bearer)
    model = request["model"] or models(url, bearer)[0]
    options = EvaluateOptions.model_validate(request["options"])
    return [_level(url, model, bearer, options, concurrency, folder) for concurrency in options.concurrency]


def _level(url: str, model: str, bearer: str | None, options: EvaluateOptions, concurrency: int, folder: Path) -> Level:
    print(f"{url}: {concurrency} stream(s)", file=sys.stderr, flush=True)
    requests = options.requests or (None if options.seconds else max(8, 4 * concurrency))
    plan = LoadPlan(
        url=url, model=model, concurrency=concurrency, requests=requests, seconds=options.seconds, prompts=options.workload,
        warmup_requests=options.warmup_requests, max_tokens=options.max_tokens, temperature=options.temperature,
        seed=options.seed, timeout_s=options.timeout_s, bearer_env=bearer,
    )  # fmt: skip
    runs = [run_level(plan, folder / f"{concurrency}-{repeat}") for repeat in range(options.repeats)]
    pricing = None
    if options.price_per_hour is not None:
        pricing = Pricing(
            per_hour=options.price_per_hour, discount=options.discount, input_output_ratio=options.input_output_ratio
        )
    return summarise(
        concurrency, [records for records, _ in runs], [audit for _, audit in runs], pricing=pricing, acceptance=None
    )


def _end(folder: Path, code: int, document: dict[str, Any]) -> int:
    aside = folder / "levels.json.new"
    aside.write_text(json.dumps(document))
    aside.replace(folder / "levels.json")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
