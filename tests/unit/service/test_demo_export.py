"""Demonstrations: exported without a trace of the machine, seeded as a home that refuses every change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from backend.domain.errors import NotFound, ReadOnly, UnknownModel
from backend.domain.jobs.jobs import Event, InstallSpec, JobState
from backend.hardware import probe
from backend.present.words import headline
from backend.service import Workspace, open_workspace
from backend.service.evaluations import evaluations, workloads
from backend.service.jobs import artifacts, jobs, supervisors
from backend.service.machines import engines
from backend.service.models import catalog, models
from backend.service.studio import demo, demo_export, demo_model, first_run
from backend.store import history
from tests import simulated, studio
from tests.homes import open_home

MOST_BYTES = 1_500_000


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The demonstration that comes with Whetstone."""
    return demo_export.seed(tmp_path_factory.mktemp("shown"))


def first_job(workspace: Workspace) -> str:
    return jobs.listing(workspace)[0].id


CHANGES: dict[str, Callable[[Workspace], object]] = {
    "submit": lambda home: jobs.submit(home, InstallSpec(engine="serve"), "mine"),
    "cancel": lambda home: jobs.cancel(home, first_job(home)),
    "clone": lambda home: jobs.clone(home, first_job(home)),
    "resume": lambda home: jobs.resume(home, first_job(home)),
    "drop": lambda home: jobs.drop_checkpoints(home, first_job(home)),
    "move to front": lambda home: jobs.move_to_front(home, first_job(home)),
    "install": lambda home: engines.install(home, "serve"),
    "delete": lambda home: artifacts.delete(home, artifacts.listing(home)[0].id),
    "optimize": lambda home: demo.prepare(home, demo_model.starter_card(home), demo.RECIPES["w8a8"]),
    "evaluate": lambda home: demo.evaluate_spec(home, demo_model.starter_card(home), [artifacts.listing(home)[0].id]),
    "workload": lambda home: workloads.save(home, "mine.jsonl", b'{"prompt": "a"}\n'),
    "supervisor": supervisors.start,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_every_change_is_refused_with_the_sentence(shown: Workspace, change: Callable[[Workspace], object]) -> None:
    before = sorted(path for path in shown.settings.home.rglob("*") if path.is_file())
    with pytest.raises(ReadOnly, match="demonstration: nothing can be started or changed"):
        change(shown)
    assert sorted(path for path in shown.settings.home.rglob("*") if path.is_file()) == before


def test_whoever_opens_that_home_may_only_read_it(shown: Workspace) -> None:
    again = open_workspace(shown.settings)
    assert again.read_only and again.demonstration == shown.demonstration
    with pytest.raises(ReadOnly):
        jobs.cancel(again, first_job(again))


def test_what_comes_with_whetstone_is_small_whole_and_of_one_machine(shown: Workspace) -> None:
    assert sum(path.stat().st_size for path in demo_export.FOLDER.iterdir()) < MOST_BYTES
    assert shown.demonstration is not None
    (latest,) = evaluations.list_titles(shown)
    document = evaluations.show(shown, latest.id).document
    assert headline.find_win(document) is not None and "faster" in headline.headline_sentence(document), (
        "the first evaluation that a person sees decides something"
    )
    assert shown.demonstration.hardware == document.hardware and shown.demonstration.measured_at == document.measured_at
    assert (
        document.measured_at[:10] in shown.demonstration.label and document.hardware["cpu"] in shown.demonstration.label
    )
    assert {job.state for job in jobs.listing(shown)} == {JobState.SUCCEEDED}
    ids = {artifact.id for artifact in artifacts.listing(shown)}
    assert ids == {job.result["artifact"] for job in jobs.listing(shown, kinds=["optimize"])} and len(ids) >= 2
    assert all(jobs.timeline(shown, job.id) for job in jobs.listing(shown))
    assert first_run.begin(shown) is None and first_run.status(shown) is None


def test_the_models_that_it_shows_results_of_are_imported_ones_without_weights(shown: Workspace) -> None:
    (known,) = models.list_remembered(shown)
    assert known.card.id == "SmolLM2-135M-Instruct" and not known.present
    assert models.resolve(shown, known.card.path) == known.card


def test_the_report_is_whole_again(shown: Workspace) -> None:
    report = evaluations.report_file(shown, evaluations.list_titles(shown)[0].id).decode()
    assert "plotly.js v" in report and demo_export.SCRIPT_TOKEN not in report and report.count("</html>") == 1


def test_files_that_are_not_there_are_said_so(shown: Workspace) -> None:
    with pytest.raises(ReadOnly, match="not part of this demonstration"):
        artifacts.verify(shown, artifacts.listing(shown)[0].id)


@pytest.fixture
def measured(tmp_path: Path) -> Workspace:
    """A home of a person with one job, one artifact and one evaluation with its report."""
    home = open_home(tmp_path / "home")
    job = studio.optimize_job(
        home, JobState.SUCCEEDED, owner="somebody", handle='{"host": "secret-host"}', submission="k"
    )
    folder = home.settings.jobs / job.id / "1"
    folder.mkdir(parents=True)
    (folder / "log.txt").write_text(f"reading {home.settings.home}/jobs\n")
    artifact_id = studio.artifact(home, job, studio.optimize_spec(home).model)
    identity = studio.evaluation(home, simulated.evaluation())
    with home.store.session() as session:
        history.get_artifact(session, artifact_id).path = str(home.settings.artifacts / artifact_id)
        history.get_evaluation(session, identity).path = str(home.settings.evaluations / identity)
    report = home.settings.evaluations / identity / "report.html"
    report.parent.mkdir(parents=True)
    report.write_text(f"<html><script>{demo_export._plotly_script()}</script></html>")
    return home


def test_exported_and_seeded_it_is_the_same_and_names_nobody(measured: Workspace, tmp_path: Path) -> None:
    files = demo_export.export(measured, tmp_path / "out")
    assert [file.read_text() for file in demo_export.export(measured, tmp_path / "again")] == [
        file.read_text() for file in files
    ]
    text = "".join(file.read_text() for file in files)
    for word in (str(tmp_path), str(demo_export.CHECKOUT), "somebody", "secret-host"):
        assert word not in text
    home = demo_export.seed(tmp_path / "seeded", tmp_path / "out")
    before, after = jobs.listing(measured)[0], jobs.listing(home)[0]
    assert after == before.model_copy(update={"owner": "demo"})
    assert jobs.specification(home, after.id) == jobs.specification(measured, before.id)
    assert jobs.events(home, after.id) == jobs.events(measured, before.id)
    assert jobs.logs(home, after.id) == f"reading {home.settings.home}/jobs\n"
    assert artifacts.listing(home)[0].manifest == artifacts.listing(measured)[0].manifest
    assert artifacts.listing(home)[0].path == str(home.settings.artifacts / artifacts.listing(home)[0].id)
    assert evaluations.show(home, "e-1").document == evaluations.show(measured, "e-1").document
    assert evaluations.report_file(home, "e-1") == evaluations.report_file(measured, "e-1")


def test_a_model_whose_weights_are_not_there_is_known_by_its_card(measured: Workspace, tmp_path: Path) -> None:
    job = studio.optimize_job(measured, JobState.SUCCEEDED)
    folder = str(measured.settings.models / "real@1")
    fetched = studio.optimize_spec(measured).model.model_copy(
        update={"id": "Real", "origin": "imported", "path": folder}
    )
    artifact_id = studio.artifact(measured, job, fetched)
    with measured.store.session() as session:
        history.get_artifact(session, artifact_id).path = str(measured.settings.artifacts / artifact_id)
    demo_export.export(measured, tmp_path / "out")
    home = demo_export.seed(tmp_path / "seeded", tmp_path / "out")
    card = models.resolve(home, "Real")
    assert card.path == str(home.settings.models / "real@1") and models.resolve(home, card.path) == card
    assert catalog.show(home, card.path).id == "Real" and not catalog.show(home, card.path).present
    with pytest.raises(UnknownModel):
        models.resolve(home, "other")


@pytest.mark.parametrize("part", ["assets/starter/target", "backend/serving/vllm_plugin"])
def test_what_was_measured_by_another_checkout_is_shown_as_this_ones(
    measured: Workspace, tmp_path: Path, part: str
) -> None:
    model = studio.optimize_spec(measured).model.model_copy(update={"path": f"/srv/elsewhere/{part}"})
    studio.artifact(measured, studio.optimize_job(measured, JobState.SUCCEEDED), model)
    files = demo_export.export(measured, tmp_path / "out")
    text = "".join(file.read_text() for file in files)
    assert "/srv/elsewhere" not in text and f"@{{checkout}}/{part}" in text


def test_of_a_thousand_words_on_how_far_it_was_a_hundred_are_shown(measured: Workspace, tmp_path: Path) -> None:
    events = [Event(kind="progress", phase="optimize", done=float(done), total=1000.0) for done in range(1, 1001)]
    job = studio.optimize_job(measured, JobState.SUCCEEDED, events=[Event(kind="note", message="begun"), *events])
    demo_export.export(measured, tmp_path / "out")
    home = demo_export.seed(tmp_path / "seeded", tmp_path / "out")
    remaining = [event for _, event in jobs.events(home, job.id)]
    assert (
        sum(event.kind == "progress" for event in remaining) == demo_export.MOST_PROGRESS and remaining[-1].done == 1000
    )
    assert any(event.message == "begun" for event in remaining)


def test_a_path_of_the_machine_that_would_remain_is_refused_and_nothing_is_written(
    measured: Workspace, tmp_path: Path
) -> None:
    job = first_job(measured)
    (measured.settings.jobs / job / "1" / "log.txt").write_text("reading /home/somebody/secrets.txt\n")
    with pytest.raises(demo_export.NotToBeShown, match="/home/somebody/secrets"):
        demo_export.export(measured, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_a_bundled_prompt_quotes_is_no_path_of_the_machine(measured: Workspace, tmp_path: Path) -> None:
    log = measured.settings.jobs / first_job(measured) / "1" / "log.txt"
    log.write_text("backup started, target /mnt/b\n")
    demo_export.export(measured, tmp_path / "out")
    log.write_text("backup started, target /mnt/backup\n")
    with pytest.raises(demo_export.NotToBeShown, match="/mnt/backup"):
        demo_export.export(measured, tmp_path / "again")


def test_a_home_without_results_and_a_folder_without_a_demonstration_are_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="whetstone demo"):
        demo_export.export(open_home(tmp_path / "home"), tmp_path / "out")
    with pytest.raises(NotFound, match="no demonstration"):
        demo_export.seed(tmp_path / "seeded", tmp_path)


def test_what_is_exported_holds_no_weights_and_no_records() -> None:
    assert {path.suffix for path in demo_export.FOLDER.iterdir()} <= {".json", ".html"}
    assert json.loads((demo_export.FOLDER / "demonstration.json").read_text())["hardware"]["cpu"]


def test_the_demonstration_is_that_of_the_most_similar_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {}
    for cpu in ("AMD EPYC 9R14", "Intel(R) Xeon(R) Processor", "Neoverse-V2"):
        facts = {"cpu": cpu, "cores": 2, "flags": ["avx512_vnni"]}
        monkeypatch.setattr(probe, "probe", lambda facts=facts: facts)
        folders[cpu.partition(" ")[0]] = demo_export.folder_here().name
    assert folders == {"AMD": "amd-epyc", "Intel(R)": "intel-xeon", "Neoverse-V2": "amd-epyc"}
    for folder in ("amd-epyc", "intel-xeon"):
        document = demo_export.recorded_evaluation(demo_export.folder_here(folder))
        assert document is not None and headline.find_win(document) is not None
    with pytest.raises(NotFound, match="no demonstration `sse`: set WHETSTONE_RECORDED to amd-epyc or intel-xeon"):
        demo_export.folder_here("sse")
