"""Where others reach the studio, a path leads to the home, the assets and the listed folders, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.domain.errors import RequestError, UnknownModel
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.jobs import EvaluateSpec
from backend.service import Workspace, paths
from backend.service.evaluations import evaluations, task_files
from backend.service.jobs import jobs
from backend.service.models import imports, models
from tests.heads import head
from tests.homes import open_home
from tests.tiny import tiny_llama


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    for name, value in {"SHARED": "1", "HOME": str(tmp_path / "home"), "IMPORT_FOLDERS": f"{tmp_path}/listed, /mnt/none"}.items():
        monkeypatch.setenv(f"WHETSTONE_{name}", value)
    (tmp_path / "listed").mkdir()
    (tmp_path / "other").mkdir()
    return open_home(tmp_path / "home", shared=True)


def test_only_listed_folders_are_read_for_others(shared: Workspace, tmp_path: Path) -> None:
    for at in ("listed", "other"):
        (tmp_path / at / "prompts.jsonl").write_text("{}")
    assert paths.file(f"{tmp_path}/listed/prompts.jsonl") == tmp_path / "listed" / "prompts.jsonl"
    assert paths.folder(str(shared.settings.home)) == shared.settings.home
    (tmp_path / "listed" / "link").symlink_to(tmp_path / "other")
    for named in ("other/prompts.jsonl", "listed/../other/prompts.jsonl", "listed/link/prompts.jsonl"):
        with pytest.raises(RequestError, match=r"lies outside of the folders that this studio reads .*listed, /mnt/none\)"):
            paths.file(f"{tmp_path}/{named}")
    with pytest.raises(RequestError, match="WHETSTONE_IMPORT_FOLDERS"):
        paths.folder("/etc")
    assert paths.folder("/nowhere") is None


def test_a_model_elsewhere_is_not_imported_by_others(shared: Workspace, tmp_path: Path) -> None:
    model, listed = tiny_llama(tmp_path / "other" / "m"), tiny_llama(tmp_path / "listed" / "m")
    with pytest.raises(RequestError, match="lies outside"):
        models.remember(shared, str(model))
    with pytest.raises(RequestError, match="lies outside"):
        imports.prepare(shared, str(model))
    assert models.remember(shared, str(listed)).card.path == str(listed)


def test_what_the_owner_imported_before_stays_usable(shared: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama(tmp_path / "other" / "m")
    monkeypatch.setenv("WHETSTONE_SHARED", "0")
    models.remember(shared, str(model), name="ours")
    monkeypatch.setenv("WHETSTONE_SHARED", "1")
    assert models.resolve(shared, "ours").path == models.resolve(shared, str(model)).path == str(model)


def test_a_hub_id_that_is_a_folder_here_too_is_a_hub_id(
    shared: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other" / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "other")
    assert paths.folder("org/name") is None and imports.is_remote(shared, "org/name")


def test_a_head_elsewhere_is_no_draft_of_others_however_it_is_written(
    shared: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head(tmp_path / "other" / "head", {"hidden_size": 64, "vocab_size": 64, "model_type": "eagle"})
    monkeypatch.chdir(tmp_path / "listed")
    with pytest.raises(RequestError, match="lies outside"):
        models.head(shared, "../other/head")
    with pytest.raises(UnknownModel, match="give the folder of a head"):
        models.head(shared, f"x/../../..{tmp_path}/other/head")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownModel, match="give the folder of a head"):
        models.head(shared, "listed/../other/head")


def test_a_tasks_rows_lie_where_others_may_name_files(shared: Workspace, tmp_path: Path) -> None:
    (tmp_path / "other" / "rows.jsonl").write_text('{"a": "b"}\n')
    task = tmp_path / "listed" / "task.yaml"
    for rows in (f"{tmp_path}/other/rows.jsonl", "../other/rows.jsonl"):
        task.write_text(
            "task: mine\ndataset_path: json\ntest_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{a}}'\n"
            f"doc_to_choice: ['b', 'c']\ndoc_to_target: '{{{{a}}}}'\ndataset_kwargs: {{data_files: {{test: '{rows}'}}}}\n"
        )
        with pytest.raises(RequestError, match="lies outside of the folders"):
            task_files.read(task)


def test_an_evaluation_of_a_private_address_is_not_repeated_by_others(shared: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHETSTONE_SHARED", "0")
    chosen = Variant(name="own", source="http://127.0.0.1:9/v1", kind="url", url="http://127.0.0.1:9/v1")
    spec = EvaluateSpec(variants=(chosen,), options=evaluations.options())
    job = jobs.submit(shared, spec, "Evaluate")
    monkeypatch.setenv("WHETSTONE_SHARED", "1")
    with pytest.raises(RequestError, match="WHETSTONE_ALLOWED_ADDRESSES"):
        jobs.submit(shared, spec, "Again")
    jobs.cancel(shared, job.id)
    with pytest.raises(RequestError, match="WHETSTONE_ALLOWED_ADDRESSES"):
        jobs.clone(shared, job.id)
