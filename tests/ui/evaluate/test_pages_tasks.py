"""Tasks on the Evaluate page: the field where they can be scored, the sentence where not, and their scores
afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.domain.evaluation.document import Evaluation
from backend.domain.evaluation.tasks.task_scores import TaskScore
from backend.domain.jobs.jobs import JobState
from backend.service import Workspace
from backend.service.jobs import jobs
from tests import data_sets, simulated, studio
from tests.fakes.running import running

URL = "http://127.0.0.1:1"


@pytest.fixture
def installed(studio_home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """As far as a page can see, which starts nothing."""
    for name in ("serve", "quality"):
        folder = tmp_path / "engines" / name
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").touch()
        (folder / "INSTALLED.json").write_text(f'{{"name": "{name}", "version": "1"}}')
    monkeypatch.setenv("WHETSTONE_ENGINES", str(tmp_path / "engines"))
    return studio_home


def test_without_the_environment_it_is_said_how_to_get_it(
    studio_home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHETSTONE_ENGINES", str(tmp_path / "none"))
    at = studio.open_page("evaluate", variants=URL)
    assert "`whetstone engines install quality`" in studio.says(at)
    assert "evaluate_tasks" not in [field.key for field in at.multiselect]


def test_a_task_of_the_field_goes_into_the_job_by_a_copy(installed: Workspace) -> None:
    at = studio.open_page("evaluate", variants="starter", evaluate_tasks="next-line", evaluate_task_limit="30")
    assert "--tasks next-line --task-limit 30" in " ".join(code.value for code in at.code)
    at.button(key="evaluate_submit").click().run()
    studio.check(at)
    (job,) = jobs.listing(installed)
    options = jobs.specification(installed, job.id)["options"]
    assert options["task_limit"] == 30
    (folder,) = options["tasks"]
    assert Path(folder).name.startswith("next-line-") and (Path(folder) / "task.json").is_file()


def test_the_field_offers_names_with_items_and_licence_and_gets_their_data(
    installed: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_sets.store(tmp_path / "hub", "baber/piqa")
    at = studio.open_page("evaluate", variants="starter")
    offered = at.multiselect(key="evaluate_tasks").options
    assert "arc_easy (2,376 items, licence CC BY-SA 4.0)" in offered and "next-line" in offered
    assert "get_tasks" not in [button.key for button in at.button]
    # A hub that does not answer is a sentence, and the page stays as it was.
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    at = studio.open_page("evaluate", variants="starter", evaluate_tasks="piqa")
    says = studio.says(at)
    assert "is not here yet" in says and "1,838 items; guessing reaches 0.500" in says
    assert at.button(key="evaluate_submit").disabled
    at.button(key="get_tasks").click().run()
    assert "Cannot reach http://127.0.0.1:9" in studio.says(at)
    # One that does, and the evaluation can start.
    with running("hub.py", "--root", tmp_path / "hub") as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        at.button(key="get_tasks").click().run()
    studio.check(at)
    assert "get_tasks" not in [button.key for button in at.button]
    at.button(key="evaluate_submit").click().run()
    (folder,) = jobs.specification(installed, jobs.listing(installed)[0].id)["options"]["tasks"]
    assert Path(folder).name.startswith("piqa-") and (Path(folder) / "task.json").is_file()


@pytest.mark.parametrize(
    ("variants", "tasks", "message"),
    [("starter", "nowhere.yaml", "There is no task"), (URL, "next-line", "Tasks need a model's tokenizer")],
)
def test_what_cannot_be_scored_is_said_before_the_start(
    installed: Workspace, variants: str, tasks: str, message: str
) -> None:
    at = studio.open_page("evaluate", variants=variants, evaluate_tasks=tasks)
    assert message in studio.says(at) and at.button(key="evaluate_submit").disabled


def scored(document: Evaluation) -> Evaluation:
    values = {"task": "sums", "metric": "acc", "stderr": 0.05, "samples": 100, "higher_is_better": True, "floor": 0.5}
    scores = [TaskScore(value=value, harness="lm-eval 0.4.13", sha256="ab" * 32, **values) for value in (0.62, 0.5)]
    scores[1] = scores[1].model_copy(
        update={"difference": -0.12, "ci95": (-0.2, -0.04), "p_value": 0.003, "outcome": "worse"}
    )
    results = [
        result.model_copy(update={"tasks": [score]}) for result, score in zip(document.variants, scores, strict=False)
    ]
    return document.model_copy(update={"variants": results})


def test_scores_stand_under_quality_with_what_measured_them(studio_home: Workspace) -> None:
    identity = studio.evaluation(studio_home, scored(simulated.evaluation()))
    at = studio.open_page("evaluate", id=identity, evaluate_view="Quality")
    (table,) = [table.value for table in at.table if "Task" in table.value.columns]
    assert list(table["Guessing"]) == ["0.500", "0.500"]
    assert "is not above guessing in sums, acc (95% interval 0.404 to 0.596, guessing 0.500)" in studio.says(at)
    assert list(table["Score"]) == ["0.620\u00a0±\u00a00.050", "0.500\u00a0±\u00a00.050"]
    assert [cell.replace("\\", "") for cell in table["Task"]] == ["sums, acc (100)", "sums, acc (100)"]
    against = [cell.replace("\\", "") for cell in table["Against the baseline"]]
    assert against == ["the baseline", "worse (-0.120, 95% -0.200 to -0.0400)"]
    assert "Measured by lm-eval 0.4.13 on the served variants" in studio.says(at)


def test_without_tasks_nothing_is_said_of_them(studio_home: Workspace) -> None:
    at = studio.open_page(
        "evaluate", id=studio.evaluation(studio_home, simulated.evaluation()), evaluate_view="Quality"
    )
    assert not [table for table in at.table if "Task" in table.value.columns]


def test_a_ruined_artifact_is_measured_only_after_a_tick(installed: Workspace) -> None:
    """And the held-out text that was chosen goes into the job."""
    ruined = {"kl_mean": 1.66, "below_floor": "The result is ruined."}
    job = studio.optimize_job(installed, JobState.SUCCEEDED)
    artifact_id = studio.artifact(installed, job, studio.optimize_spec(installed).model, ruined)
    at = studio.open_page("evaluate", variants=f"starter,{artifact_id}", evaluate_quality_text="prose")
    assert "The result is ruined." in at.error[0].value or "The result is ruined." in at.error[-1].value
    assert at.button(key="evaluate_submit").disabled
    at.checkbox(key="evaluate_anyway_evaluate").check().run()
    (command,) = [code.value for code in at.code if code.value.startswith("whetstone evaluate")]
    assert command.endswith("--anyway") and "--quality-text prose" in command
    at.button(key="evaluate_submit").click().run()
    assert jobs.specification(installed, jobs.listing(installed)[0].id)["options"]["quality_text"] == "prose"
