"""lm-eval's own scores of what vLLM serves, against the model's logits; and an evaluation with tasks from end to
end."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend.domain.errors import WorkError
from backend.domain.evaluation.document import EvaluateOptions, Evaluation
from backend.domain.evaluation.tasks import task_rules
from backend.domain.evaluation.tasks.task_scores import compare_scores
from backend.domain.jobs.jobs import JobState
from backend.evaluate.tasks import tasks as scoring
from backend.hardware.engine_status import engine_python
from backend.service import Workspace
from backend.service.evaluations import evaluations, tasks
from backend.service.jobs import supervisors
from backend.service.tasks import task_files
from backend.serving.vllm import VllmServer
from backend.settings import ASSETS, load
from tests.homes import until_ended

pytestmark = [pytest.mark.campaign, pytest.mark.vllm]

DOCUMENTS = 24
TEXTS = (ASSETS / "text" / "held_out.txt").read_text().split("\n\n\n")
PASSAGES = [text for text in TEXTS if 200 < len(text) < 600][:8]


@pytest.fixture(scope="module")
def quality_python() -> Path:
    """The quality environment's interpreter; where it is missing the test fails with the sentence that says how to
    install it."""
    return engine_python(load(), "quality")


@pytest.fixture
def copied(home: Workspace, tmp_path: Path) -> Callable[..., str]:
    """The copy, as a job has it, of a task with these settings and rows."""

    def copy_task(rows: list[dict[str, Any]], **settings: Any) -> str:
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}}, "test_split": "test"}
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "one.yaml").write_text(yaml.safe_dump({**data, **settings}))
        (folder,) = tasks.keep_copies(home, [task_files.read(tmp_path / "one.yaml")])
        return folder

    return copy_task


def served(server: VllmServer, model: Path) -> scoring.TaskServer:
    return scoring.TaskServer(server.url, server.served_name, model, server.key)


def test_the_rules_are_those_of_the_installed_harness(quality_python: Path) -> None:
    message = (
        "import json, dataclasses; from lm_eval.api import metrics, registry; from lm_eval.config.task import "
        "TaskConfig; "
        "print(json.dumps([registry.DEFAULT_METRIC_REGISTRY, sorted(registry.METRIC_REGISTRY), "
        "[field.name for field in dataclasses.fields(TaskConfig)]]))"
    )
    out = subprocess.run([str(quality_python), "-c", message], capture_output=True, text=True, check=True).stdout
    by_default, metrics, settings = json.loads(out.splitlines()[-1])
    assert by_default == {way: [*names] for way, names in task_rules.BY_DEFAULT.items()}
    assert {name for names in task_rules.METRICS.values() for name in names} <= set(metrics)
    assert set(settings) <= task_rules.KNOWN_SETTINGS | task_rules.NEEDS_CODE


@pytest.mark.timeout(900)
def test_a_multiple_choice_is_scored_as_the_models_logits_say_and_twice_the_same(
    vllm_server: VllmServer, starter_target: Path, quality_python: Path, home: Workspace, tmp_path: Path
) -> None:
    folders = tasks.keep_copies(home, tasks.find("next-line"))
    server = served(vllm_server, starter_target)
    first, again = (
        scoring.score_tasks(quality_python, folders, DOCUMENTS, server, tmp_path / str(k)) for k in range(2)
    )
    (acc,) = [each for each in first if each.score.metric == "acc"]
    assert acc.each is not None and len(acc.each) == acc.score.samples == DOCUMENTS
    assert acc.score.value > 0.25 and acc.score.harness == "lm-eval 0.4.13" and acc.score.cut == 0
    rows = [json.loads(line) for line in (Path(folders[0]) / "test-0.jsonl").read_text().splitlines()[:DOCUMENTS]]
    likelihood = likelihoods(starter_target)
    expected = []
    for row in rows:
        sums = [likelihood(row["context"], choice) for choice in row["choices"]]
        expected.append(float(max(range(4), key=sums.__getitem__) == row["answer"]))
    differing = sum(acc.each[number] != value for number, value in enumerate(expected))
    assert differing <= 2, "bfloat16 may tip a near tie"
    twice = next(score for score in compare_scores({0: first, 1: again})[1] if score.metric == "acc")
    assert twice.outcome == "same"


@pytest.mark.timeout(600)
def test_a_rolling_likelihood_is_the_models_own(
    vllm_server: VllmServer, starter_target: Path, quality_python: Path, copied: Callable[..., str], tmp_path: Path
) -> None:
    folder = copied(
        [{"text": text} for text in PASSAGES],
        task="passages",
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "bits_per_byte"}],
    )
    (result,) = scoring.score_tasks(
        quality_python, [folder], None, served(vllm_server, starter_target), tmp_path / "cache"
    )
    likelihood = likelihoods(starter_target)
    bits = -sum(likelihood("", text) for text in PASSAGES) / math.log(2) / sum(len(text.encode()) for text in PASSAGES)
    assert result.score.value == pytest.approx(bits, rel=0.01)
    assert result.each is None and not result.score.higher_is_better


@pytest.mark.timeout(600)
def test_answers_are_written_and_matched_and_a_long_prompt_is_told(
    vllm_server: VllmServer, starter_target: Path, quality_python: Path, copied: Callable[..., str], tmp_path: Path
) -> None:
    rows = [{"text": "import os\nimport ", "answer": "sys"}, {"text": "x = 1\n" * 2000, "answer": "y"}]
    folder = copied(
        rows,
        task="imports",
        output_type="generate_until",
        doc_to_text="{{text}}",
        doc_to_target="{{answer}}",
        generation_kwargs={"until": ["\n"], "max_gen_toks": 8},
        metric_list=[{"metric": "exact_match"}],
    )
    (result,) = scoring.score_tasks(
        quality_python, [folder], None, served(vllm_server, starter_target), tmp_path / "cache"
    )
    assert (
        result.score.metric == "exact_match"
        and result.score.samples == 2
        and result.score.cut == 1
        and 0 <= result.score.value <= 1
    )


@pytest.mark.parametrize(
    "template",
    ["{{text[99] + 1}}", "{{ ''.__class__.__mro__[1].__subclasses__() }}{{text}}"],
    ids=["fails", "would run code"],
)
def test_a_template_that_cannot_be_filled_in_is_found_before_a_model_is_asked(
    quality_python: Path, copied: Callable[..., str], tmp_path: Path, template: str
) -> None:
    folder = copied(
        [{"text": "a"}], task="broken", output_type="generate_until", doc_to_text=template, doc_to_target="b"
    )
    with pytest.raises(WorkError, match="lm-eval could not score the tasks") as failed:
        scoring.count_requests(quality_python, [folder], None, tmp_path / "cache")
    assert "\n" not in str(failed.value)


@pytest.mark.timeout(300)
def test_a_server_that_is_gone_is_one_sentence(
    quality_python: Path, starter_target: Path, home: Workspace, tmp_path: Path
) -> None:
    folders = tasks.keep_copies(home, tasks.find("next-line"))
    task_server = scoring.TaskServer("http://127.0.0.1:9/v1", "x", starter_target)
    with pytest.raises(WorkError, match="lm-eval could not score the tasks"):
        scoring.score_tasks(quality_python, folders, 2, task_server, tmp_path / "cache")


@pytest.mark.timeout(1800)
def test_an_evaluation_scores_its_tasks_and_keeps_every_samples_own(
    home: Workspace, starter_target: Path, vllm_server: VllmServer
) -> None:
    """Of two models that are served for it, and of an address, which is scored in the tokens of its model."""
    options = EvaluateOptions(
        concurrency=(1,), repeats=1, requests=4, max_tokens=8, quality=False, tasks=("next-line",), task_limit=24
    )
    supervisors.ensure_running(home)
    sources = ["starter", str(starter_target), vllm_server.url]
    job = evaluations.submit(home, evaluations.prepare(home, sources, options))
    ended = until_ended(home, job.id)
    assert ended.state is JobState.SUCCEEDED, ended.error
    shown = evaluations.show(home, str(ended.result["evaluation"]))
    document: Evaluation = shown.document
    assert document.warnings and not any("tasks" in warning for warning in document.warnings)
    first, second, third = (
        next(score for score in result.tasks if score.metric == "acc") for result in document.variants
    )
    assert (first.samples, second.compared, third.compared, first.outcome) == (24, 24, 24, None)
    assert second.ci95 is not None and second.ci95[0] <= 0 <= second.ci95[1]
    assert {score.metric for score in document.variants[2].tasks} == {"acc", "acc_norm"}
    assert abs(third.value - second.value) <= 1 / 24, "the same model, served twice"
    lines = [json.loads(line) for line in (Path(shown.path) / "task_samples.jsonl").read_text().splitlines()]
    assert len(lines) == 3 * 2 * 24
    assert b"lm-eval 0.4.13" in evaluations.report_file(home, shown.id)


def likelihoods(model: Path) -> Callable[[str, str], float]:
    """Log-probability of a continuation, in nats; the text is tokenized as lm-eval does: what follows, with the
    context's end."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def log_probability(context: str, continuation: str) -> float:
        stripped = context.rstrip()
        input_ids = tokenizer(stripped)["input_ids"] or [tokenizer.eos_token_id]
        whole = tokenizer(context + continuation)["input_ids"]
        ids = whole if stripped else [*input_ids, *whole]
        with torch.no_grad():
            scores = loaded(torch.tensor([ids])).logits[0].log_softmax(-1)
        return float(sum(scores[place - 1, ids[place]] for place in range(len(input_ids), len(ids))))

    return log_probability
