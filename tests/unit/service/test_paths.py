"""Where others reach the studio, a path leads to the home, the assets and the listed folders, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from backend import settings
from backend.domain.errors import RequestError, UnknownModel, WhetstoneError
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.jobs import EvaluateSpec, JobSpec, TrainSpec
from backend.domain.recipe.draft_training import Training
from backend.domain.recipe.recipe import Recipe
from backend.service import Workspace, paths
from backend.service.evaluations import evaluations, tasks, workloads
from backend.service.jobs import jobs
from backend.service.models import imports, models
from backend.service.plans import calibration, recipe_files, training
from backend.service.presets import preset_text
from backend.service.tasks import task_files
from tests.heads import head
from tests.homes import open_home
from tests.tiny import tiny_llama

NO_PATHS = {
    "CompilePlan": "model model_type model_hash accelerator target dtype weights cache draft_hash compiler",
    "ContinuedEvaluation": "evaluation folder",
    "Deployment": "target why",
    "EvaluateOptions": "sweep columns bearer_env",
    "EndpointSpec": "seen endpoint",
    "EvaluateSpec": "seen",
    "ImportSpec": "revision name endpoint licence",
    "InstallSpec": "engine index",
    "JobTarget": "target",
    "UnusedRow": "reason",
    "RejectedTarget": "target why",
    "ManagedSpec": "model target request region",
    "OptimizeSpec": "seen target",
    "PayoffSpec": "seen revision weights",
    "ReadReport": "times settings_left_out",
    "ModelCard": "id architecture model_type dtype quantization draft revision tokenizer_hash bytes_by_dtype licence "
    "notes",
    "Plan": "notes",
    "PlannedStep": "technique engine title options kernel",
    "QuantizedBefore": "format",
    "Recipe": "name",
    "Remote": "endpoint region instances artifact price_region findings",
    "ServeSpec": "seen",
    "Speculate": "proposer",
    "Speculation": "proposer proposers",
    "StoredWeights": "layout method announced refusal",
    "TrainSpec": "seen",
    "Serving": "device attention_backend",
    "Variant": "name engine_reason url served_name compile_cache neuron stored_at recipe_hash",
}
"""Model of a job's specification -> its texts that are no paths of a person: names, and what Whetstone itself fills
in."""


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    for name, value in {
        "SHARED": "1",
        "HOME": str(tmp_path / "home"),
        "IMPORT_FOLDERS": f"{tmp_path}/listed, /mnt/none",
    }.items():
        monkeypatch.setenv(f"WHETSTONE_{name}", value)
    (tmp_path / "listed").mkdir()
    (tmp_path / "other").mkdir()
    return open_home(tmp_path / "home", shared=True)


def test_only_listed_folders_are_read_for_others(shared: Workspace, tmp_path: Path) -> None:
    for at in ("listed", "other"):
        (tmp_path / at / "prompts.jsonl").write_text("{}")
    assert paths.find_file(f"{tmp_path}/listed/prompts.jsonl") == tmp_path / "listed" / "prompts.jsonl"
    (tmp_path / "listed" / "link").symlink_to(tmp_path / "other")
    for named in ("other/prompts.jsonl", "listed/../other/prompts.jsonl", "listed/link/prompts.jsonl"):
        with pytest.raises(RequestError, match=r"is outside the folders that this studio reads .*listed, /mnt/none\)"):
            paths.find_file(f"{tmp_path}/{named}")
    with pytest.raises(RequestError, match="WHETSTONE_IMPORT_FOLDERS"):
        paths.find_folder("/etc")
    assert paths.find_folder("/nowhere") is None


def test_a_model_elsewhere_is_not_imported_by_others(shared: Workspace, tmp_path: Path) -> None:
    model, listed = tiny_llama(tmp_path / "other" / "m"), tiny_llama(tmp_path / "listed" / "m")
    with pytest.raises(RequestError, match="is outside"):
        models.remember(shared, str(model))
    with pytest.raises(RequestError, match="is outside"):
        imports.prepare(shared, str(model))
    assert models.remember(shared, str(listed)).card.path == str(listed)


def test_what_the_owner_imported_before_stays_usable(
    shared: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert paths.find_folder("org/name") is None and imports.is_remote(shared, "org/name")


def test_a_head_elsewhere_is_no_draft_of_others_however_it_is_written(
    shared: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head(tmp_path / "other" / "head", {"hidden_size": 64, "vocab_size": 64, "model_type": "eagle"})
    monkeypatch.chdir(tmp_path / "listed")
    with pytest.raises(RequestError, match="is outside"):
        models.read_head(shared, "../other/head")
    with pytest.raises(UnknownModel, match="give the folder of a head"):
        models.read_head(shared, f"x/../../..{tmp_path}/other/head")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownModel, match="give the folder of a head"):
        models.read_head(shared, "listed/../other/head")


def test_a_tasks_rows_lie_where_others_may_name_files(shared: Workspace, tmp_path: Path) -> None:
    (tmp_path / "other" / "rows.jsonl").write_text('{"a": "b"}\n')
    task = tmp_path / "listed" / "task.yaml"
    for rows in (f"{tmp_path}/other/rows.jsonl", "../other/rows.jsonl"):
        task.write_text(
            "task: mine\ndataset_path: json\ntest_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{a}}'\n"
            f"doc_to_choice: ['b', 'c']\ndoc_to_target: '{{{{a}}}}'\ndataset_kwargs: {{data_files: {{test: "
            f"'{rows}'}}}}\n"
        )
        with pytest.raises(RequestError, match="is outside the folders"):
            task_files.read(task)


def test_an_evaluation_of_a_private_address_is_not_repeated_by_others(
    shared: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHETSTONE_SHARED", "0")
    chosen = Variant(name="own", source="http://127.0.0.1:9/v1", kind="url", url="http://127.0.0.1:9/v1")
    spec = EvaluateSpec(variants=(chosen,), options=evaluations.read_options())
    job = jobs.submit(shared, spec, "Evaluate")
    monkeypatch.setenv("WHETSTONE_SHARED", "1")
    with pytest.raises(RequestError, match="WHETSTONE_ALLOWED_ADDRESSES"):
        jobs.submit(shared, spec, "Again")
    jobs.cancel(shared, job.id)
    with pytest.raises(RequestError, match="WHETSTONE_ALLOWED_ADDRESSES"):
        jobs.clone(shared, job.id)


def models_of(annotation: Any, observed: set[type[BaseModel]]) -> set[type[BaseModel]]:
    """Every model that a value of that type may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation not in observed:
            observed.add(annotation)
            for field in annotation.model_fields.values():
                models_of(field.annotation, observed)
    else:
        for part in get_args(annotation):
            models_of(part, observed)
    return observed


def texts_of(model: type[BaseModel]) -> Iterator[str]:
    """The fields that may hold any text; not those of a few fixed words."""

    def holds_text(annotation: Any) -> bool:
        if get_origin(annotation) is Literal:
            return False
        return annotation in (str, Path, Any) or any(map(holds_text, get_args(annotation)))

    return (name for name, field in model.model_fields.items() if holds_text(field.annotation))


def test_every_text_of_a_job_is_known_to_be_a_path_or_none() -> None:
    """A new field has to be written into `paths.PATH_FIELDS`, or here."""
    for model in models_of(JobSpec, set()):
        written = {name for parent, names in paths.PATH_FIELDS.items() if issubclass(model, parent) for name in names}
        plain = set(NO_PATHS.get(model.__name__, "").split())
        assert not written & plain and set(texts_of(model)) == written | plain, model.__name__


@pytest.mark.parametrize(
    "name", ["cookie.secret", "sign-in.toml", "whetstone.db", "studio.log", "jobs/j-1/1/log", "cache/x"]
)
def test_the_homes_own_files_are_named_by_nobody_else(
    shared: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Neither by their path, nor by a link in a room, nor since a folder around the home is listed."""
    home = shared.settings.home
    secret, link = home / name, home / "workloads" / "link.jsonl"
    secret.parent.mkdir(parents=True, exist_ok=True)
    secret.touch()
    link.parent.mkdir()
    link.symlink_to(secret)
    monkeypatch.setenv("WHETSTONE_IMPORT_FOLDERS", f"{tmp_path},{home}")
    for written in (str(secret), f"{home}/workloads/../{name}", str(link)):
        with pytest.raises(RequestError, match="is outside"):
            paths.find_file(written)
    with pytest.raises(RequestError, match="is outside"):
        paths.find_folder(str(home))


def test_what_people_bring_into_the_home_is_named_by_everybody(shared: Workspace) -> None:
    for room in (*paths.HOME_FOLDERS, "artifacts"):
        file = shared.settings.home / room / "x" / "file"
        file.parent.mkdir(parents=True)
        file.touch()
        assert paths.find_file(str(file)) == file and paths.find_folder(str(file.parent)) == file.parent


def test_no_field_that_takes_a_file_takes_the_homes_secret(shared: Workspace) -> None:
    secret = str(shared.settings.home / "cookie.secret")
    Path(secret).write_text("of the sign-in")
    gguf = f"{shared.settings.home}/secret.gguf"
    Path(gguf).symlink_to(secret)
    starter = models.resolve(shared, "starter")
    options = evaluations.read_options(quality_text=secret)
    for act in (
        lambda: evaluations.prepare(shared, ["starter"], options),
        lambda: workloads.find_file(secret),
        lambda: tasks.find(secret),
        lambda: training.prepare(shared, "starter", Training(), secret),
        lambda: calibration.find_file(
            Recipe.model_validate({"name": "x", "steps": [{"quantize": {"method": "awq", "calibration": secret}}]})
        ),
        lambda: imports.is_remote(shared, gguf),
        lambda: imports.inspect(shared, gguf),
        lambda: jobs.submit(shared, TrainSpec(model=starter, options=Training(), prompts_path=secret), "Train"),
    ):
        with pytest.raises(RequestError, match="is outside"):
            act()


def test_a_job_of_before_that_names_a_file_elsewhere_is_not_repeated_by_others(
    shared: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = shared.settings.home / "cookie.secret"
    secret.write_text("of the sign-in")
    monkeypatch.setenv("WHETSTONE_SHARED", "0")
    spec = TrainSpec(model=models.resolve(shared, "starter"), options=Training(), prompts_path=str(secret))
    job = jobs.submit(shared, spec, "Train")
    jobs.cancel(shared, job.id)
    monkeypatch.setenv("WHETSTONE_SHARED", "1")
    with pytest.raises(RequestError, match="is outside"):
        jobs.clone(shared, job.id)
    assert settings.load().shared


@pytest.mark.parametrize("path", ["/proc/self/mem", "/proc/cpuinfo", "/proc/self/../self/environ", "/sys/kernel/notes"])
def test_a_file_that_the_kernel_makes_is_no_text_of_a_recipe(path: str, tmp_path: Path) -> None:
    if not Path(path).exists():
        pytest.skip("this kernel has no such file")
    recipe = Recipe.model_validate({"name": "x", "steps": [{"quantize": {"method": "awq", "calibration": path}}]})
    home = open_home(tmp_path / "home")
    with pytest.raises(
        RequestError, match=r"is no file on a disk but made by the kernel \((proc|sysfs)\): copy what you mean"
    ):
        calibration.check_file(models.resolve(home, "starter"), recipe)
    with pytest.raises(RequestError, match="made by the kernel"):
        paths.find_file(path)
    link = tmp_path / "text.txt"
    link.symlink_to(path)
    with pytest.raises(RequestError, match="made by the kernel"):
        paths.find_file(str(link))


def test_a_device_is_no_file_either_and_a_file_in_memory_is_one(tmp_path: Path) -> None:
    assert paths.find_file("/dev/zero") is None and paths.find_file("/dev/null") is None
    (tmp_path / "text.txt").write_text("x")
    assert paths.find_file(str(tmp_path / "text.txt")) == (tmp_path / "text.txt").resolve()


@pytest.mark.parametrize("read", [recipe_files.read_file, preset_text.read_file], ids=["recipe", "presets"])
def test_recipes_and_presets_are_read_of_files_on_a_disk_alone(read: Callable[[Path], Any]) -> None:
    """The kernel's files have no size that a limit could be held against, and a device has no end."""
    with pytest.raises(RequestError, match="made by the kernel"):
        read(Path("/proc/self/mem"))
    with pytest.raises(WhetstoneError, match="/dev/zero"):
        read(Path("/dev/zero"))
