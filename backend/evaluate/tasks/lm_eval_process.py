"""The process that scores tasks: reads one request, runs lm-eval against a server, writes one answer in JSON.

    python -m backend.evaluate.tasks.lm_eval_process

Runs under the `quality` interpreter: the standard library and lm-eval. What lm-eval prints goes to standard error,
which is the job's log. It ends when its standard input does. Knows nothing of variants or evaluations.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

ANSWER_S = 600
"""Seconds until one request counts as failed."""

KEY = "OPENAI_API_KEY"
"""The environment variable from which lm-eval takes the server's token."""

MOST_ANSWER_TOKENS = 256
"""Most tokens of an answer if the task does not say: lm-eval's own default."""


def main() -> int:
    """Answer one request; return 0 with a result, 1 with an error's sentence."""
    # 1. Only the answer goes to standard output; what libraries print goes to standard error.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    # 2. Read the request and run it.
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        answer = check(request) if request["url"] is None else score(request)
    except Exception as error:  # noqa: BLE001 - a library may raise anything; it must become a sentence
        traceback.print_exc()
        first = (str(error).strip() or type(error).__name__).partition("\n")[0].rstrip(".")
        answer = {"error": f"{type(error).__name__}: {first[:300]}"}

    # 3. Write the answer.
    out.write(json.dumps(answer) + "\n")
    out.flush()
    return int("error" in answer)


def check(request: dict[str, Any]) -> dict[str, Any]:
    """Build the requests of every task without a model, which finds rows that a template cannot fill.

    Returns `harness` and the requests of each task.
    """
    import lm_eval

    counts = {}
    for name, task in _load(request).items():
        task.build_all_requests(limit=request["limit"])
        counts[name] = len(task.instances)
    return {"harness": f"lm-eval {lm_eval.__version__}", "requests": counts}


def score(request: dict[str, Any]) -> dict[str, Any]:
    """Ask the server at `url` (OpenAI completions, `served_name`) with the tokenizer in the folder `tokenizer`.

    Prompts are sent as token ids and scored from the log-probabilities that the server echoes. Returns `harness`, `cut`
    (a count for each task of the prompts that were longer than the context) and `scores`: task, metric, value, stderr,
    samples, higher_is_better, `chance` (the share that guessing reaches, of choices only) and `each`, [sample, score]
    where a sample has a score that is a number.
    """
    import lm_eval

    # Load the tasks, and count what lm-eval cuts and only logs.
    tasks, cut = _load(request), _CutCounter()
    context = _context(request)
    logging.getLogger("lm_eval.models.api_models").addHandler(cut)
    scores, cuts = [], {}
    # Score one task after the other, so that each has its own count.
    for name, task in tasks.items():
        cut.count = 0
        results = lm_eval.simple_evaluate(
            model="local-completions",
            model_args=_model(request, context),
            tasks=[task],
            limit=request["limit"],
            bootstrap_iters=1000,
            log_samples=True,
            task_manager=_manager(),
        )
        scores += _scores(name, task, results)
        cuts[name] = cut.count + _cut_answers(task, request["tokenizer"], context)
    return {"harness": f"lm-eval {lm_eval.__version__}", "scores": scores, "cut": cuts}


def _load(request: dict[str, Any]) -> dict[str, Any]:
    """Load the tasks by name, with templates in a sandbox: lm-eval's own environment would let them run code."""
    from jinja2 import BaseLoader, StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment
    from lm_eval import utils

    sandbox = SandboxedEnvironment(loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=True)
    sandbox.filters.update(utils.env.filters)
    utils.env = sandbox
    return dict(_manager().load([_config(Path(folder)) for folder in request["folders"]])["tasks"])


def _manager() -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_defaults=False)


def _config(folder: Path) -> dict[str, Any]:
    """Return the settings of a task's copy, with the paths of its data files."""
    config: dict[str, Any] = json.loads((folder / "task.json").read_text())["config"]
    files = config["dataset_kwargs"]["data_files"]
    named = {split: [str(folder / name) for name in names] for split, names in files.items()}
    return {**config, "dataset_kwargs": {"data_files": named}}


def _model(request: dict[str, Any], context: int) -> dict[str, Any]:
    return {
        "model": request["served_name"],
        "base_url": f"{request['url']}/completions",
        "tokenizer": request["tokenizer"],
        "tokenizer_backend": "huggingface",
        "tokenized_requests": True,
        "num_concurrent": request["streams"],
        "max_length": context,
        "timeout": ANSWER_S,
    }


def _context(request: dict[str, Any]) -> int:
    """Return the tokens that the server accepts, prompt and answer together: as it says, else as the request does, else
    lm-eval's 2048."""
    import requests

    token = os.environ.get(KEY)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    models = requests.get(f"{request['url']}/models", timeout=30, headers=headers).json()["data"]
    context = next((row.get("max_model_len") for row in models if row["id"] == request["served_name"]), None)
    return int(context or request["context"] or 2048)


def _cut_answers(task: Any, tokenizer: str, context: int) -> int:
    """Count the prompts of open answers that do not fit, which lm-eval cuts without reporting it.

    The room for a prompt is the context less one token less the longest answer. 0 without a tokenizer.json.
    """
    from tokenizers import Tokenizer

    # Without open answers or a tokenizer there is nothing to count.
    file = Path(tokenizer) / "tokenizer.json"
    prompts = [instance.args for instance in task.instances if instance.request_type == "generate_until"]
    if not prompts or not file.is_file():
        return 0
    # Count the prompts that are longer than their room.
    encoder = Tokenizer.from_file(str(file))
    cut = 0
    for text, options in prompts:
        room = context - 1 - int(options.get("max_gen_toks", MOST_ANSWER_TOKENS))
        cut += len(encoder.encode(text).ids) > room
    return cut


class _CutCounter(logging.Handler):
    """Counts the log lines in which lm-eval reports a prompt that did not fit."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "truncat" in record.getMessage().lower()


def _scores(name: str, task: Any, results: Any) -> list[dict[str, Any]]:
    """Return one row per metric and filter; the filter is named only if it is not lm-eval's `none`."""
    # Skip standard errors and what is no figure.
    figures, better = results["results"][name], results["higher_is_better"][name]
    rows = []
    for key, value in figures.items():
        metric, _, chosen = key.partition(",")
        if not chosen or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        stderr = figures.get(f"{metric}_stderr,{chosen}")
        # Each figure with its standard error and the scores of single samples.
        samples = [row for row in results["samples"][name] if row["filter"] == chosen]
        rows.append(
            {
                "task": name,
                "metric": metric if chosen == "none" else key,
                "value": _number(value),
                "stderr": _number(stderr),
                "samples": len(samples),
                "higher_is_better": bool(better.get(metric, True)),
                "chance": _chance(task, [row["doc"] for row in samples]),
                "each": [
                    [row["doc_id"], float(row[metric])] for row in samples if isinstance(row.get(metric), int | float)
                ],
            }
        )
    return rows


def _chance(task: Any, docs: list[Any]) -> float | None:
    """Return the mean of one in the number of choices; None where an answer is not chosen."""
    if task.OUTPUT_TYPE != "multiple_choice" or not docs:
        return None
    return math.fsum(1 / len(task.doc_to_choice(doc)) for doc in docs) / len(docs)


def _number(value: Any) -> float | None:
    """Return a figure as float, or None for lm-eval's `N/A` and for what is not finite."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _end_with_stdin() -> None:
    """End this process when standard input ends, as it does when the parent ends in any way."""
    while sys.stdin.read(1):
        continue
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
