"""Hardware in every state: the machine, engines there or not, being installed, failed, in use, removed after a
question."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from app.hardware import machine_rows
from backend.domain.errors import NotNow
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.jobs import Event, InstallSpec, JobState, ServeSpec
from backend.domain.machine.environments import SERVE
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.machines import engines
from backend.service.machines.engines import EngineStatus
from backend.service.machines.machine import AcceleratorView, MachineView
from backend.store.artifact_contents import Contents
from backend.store.tables import ContentRow
from tests import studio


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, studio_home: Workspace) -> Workspace:
    """No engine is installed."""
    monkeypatch.setenv("WHETSTONE_ENGINES", str(tmp_path / "engines"))
    return studio_home


@pytest.fixture
def equipped(bare: Workspace, tmp_path: Path) -> Workspace:
    """An environment `serve` with the marker that an installation writes last."""
    folder = tmp_path / "engines" / "serve"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    (folder / "INSTALLED.json").write_text('{"name": "serve", "version": "0.32.0"}')
    return bare


def keys(at: object) -> list[str]:
    return [button.key for button in at.button]  # type: ignore[attr-defined]


def test_without_an_engine_it_is_offered_and_the_others_say_why_not(bare: Workspace) -> None:
    at = studio.open_page("hardware")
    text = studio.says(at)
    for name in ("studio", "serve", "compress", "quality", "neuron"):
        assert f"**{name}**" in text
    assert "**serve** · :material/radio_button_unchecked: not installed" in text
    assert "Could do here: serve, speculate draft" in text
    assert "its packages come from AWS" in text and "NxD Inference succeeds it" in text
    cards = [f"hardware_install-{name}" for name in ("serve", "llama-cpp", "openvino", "compress", "quality", "ray")]
    assert keys(at) == [*cards, "hardware_measure", "hardware_collect_look"]
    assert at.button(key="hardware_install-serve").label == "Install"


def test_the_machine_is_told_with_what_its_instruction_sets_are_for(bare: Workspace) -> None:
    at = studio.open_page("hardware")
    assert "cores" in studio.says(at) and "Memory" in studio.says(at) and "Disk" in studio.says(at)
    for table in at.dataframe:
        assert "" not in list(table.value.iloc[:, 1])


def test_an_installation_is_started_by_a_click_and_watched_in_place(bare: Workspace) -> None:
    at = studio.open_page("hardware")
    at.button(key="hardware_install-serve").click().run()
    studio.check(at)
    (job,) = jobs.active(bare)
    assert job.title == "Install the engine serve"
    assert "hardware_install-serve" not in keys(at)
    assert "Install the engine serve: Waiting" in studio.says(at) and "Log" in studio.links(at)


def test_a_running_installation_shows_its_bar_and_can_be_cancelled(bare: Workspace) -> None:
    event = Event(kind="phase", phase="install", message="Installing 180 packages", progress=0.25)
    job = studio.install_job(bare, JobState.RUNNING, events=[event])
    at = studio.open_page("hardware")
    assert "Installing 180 packages · 25%" in studio.says(at)
    at.button(key=f"hardware_cancel-{job.id}").click().run()
    studio.check(at)
    assert jobs.show(bare, job.id).cancel_requested


def test_a_failed_installation_is_its_sentence_with_the_log_and_another_try(bare: Workspace) -> None:
    studio.install_job(bare, JobState.FAILED, error="It failed while installing serve-cpu.txt: no <b>network</b>.")
    at = studio.open_page("hardware")
    assert len(at.error) == 1 and "no \\<b\\>network" in at.error[0].value
    assert "See the log" in studio.links(at) and "hardware_install-serve" in keys(at)
    at.button(key="hardware_install-serve").click().run()
    assert len(jobs.active(bare)) == 1 and not at.error


def test_a_failure_is_forgotten_once_the_engine_is_there(equipped: Workspace) -> None:
    studio.install_job(equipped, JobState.FAILED, error="No network.")
    at = studio.open_page("hardware")
    assert not at.error
    assert "**serve** · :material/check_circle: installed, 0.32.0" in studio.says(at)
    assert at.button(key="hardware_install-serve").label == "Reinstall"


def test_removing_is_asked_and_then_a_job(equipped: Workspace) -> None:
    at = studio.open_page("hardware")
    at.button(key="hardware_remove-serve").click().run()
    studio.check(at)
    (job,) = jobs.active(equipped)
    assert jobs.specification(equipped, job.id) == InstallSpec(engine="serve", action="remove").model_dump()
    assert "remove-serve" not in keys(at)


def test_an_engine_in_use_is_not_removed(equipped: Workspace) -> None:
    variant = Variant(name="starter", source="starter", kind="model", model_path="/m")
    studio.put(equipped, ServeSpec(variants=(variant,)), "Serve starter", JobState.RUNNING)
    with pytest.raises(NotNow, match="in use by “Serve starter”"):
        engines.remove(equipped, "serve")
    compiled = variant.model_copy(update={"neuron": {"stack": "vllm-neuron", "tensor_parallel": 8}})
    at = studio.open_page("hardware")
    at.button(key="hardware_remove-serve").click().run()
    studio.check(at)
    assert "in use" in at.toast[0].value
    studio.put(equipped, ServeSpec(variants=(compiled,)), "Serve on Neuron", JobState.RUNNING)
    with pytest.raises(NotNow, match="in use by “Serve on Neuron”"):
        engines.remove(equipped, "neuron-vllm")
    assert [job.kind for job in jobs.active(equipped)] == ["serve", "serve"]


def test_the_same_click_twice_is_one_job(bare: Workspace) -> None:
    assert engines.install(bare, "serve", submission="k").id == engines.install(bare, "serve", submission="k").id


def status(*, installed: bool, reason: str | None, name: str = "serve") -> EngineStatus:
    return EngineStatus(name, "serving", installed, "0.32.0" if installed else None, "any", "serve", reason)


def test_engine_status_is_icon_and_word() -> None:
    assert machine_rows.engine_line(status(installed=True, reason=None)) == ":material/check_circle: installed, 0.32.0"
    assert "but needs more" in machine_rows.engine_line(status(installed=True, reason="needs more"))


def test_an_engine_this_machine_cannot_run_is_not_offered_and_says_why() -> None:
    unfit = status(installed=False, reason=f"needs {SERVE.hardware}; this machine has neither")
    assert machine_rows.available_action(unfit) is None
    assert machine_rows.why_not(unfit) == f"Needs {SERVE.hardware}; this machine has neither."
    absent = status(installed=False, reason="not installed: run `whetstone engines install serve`")
    assert machine_rows.available_action(absent) == "Install" and machine_rows.why_not(absent) is None


def test_gpus_stand_in_a_table_of_their_own() -> None:
    gpu = AcceleratorView(name="H200", memory_bytes=150_000_000_000, compute_capability="9.0", driver="570")
    machine = MachineView(
        cpu="c",
        cores=2,
        features=("avx2", "unheard_of"),
        memory_bytes=1,
        free_memory_bytes=1,
        free_disk_bytes=1,
        home="/h",
        os="o",
        machine="m",
        python="3",
        compiler=False,
        accelerators=(gpu,),
    )
    assert machine_rows.accelerator_rows(machine)[0]["Memory"] == "150 GB"
    assert machine_rows.figures(machine)[0] == ("Accelerators", "1", "H200")
    assert [row["Instruction set"] for row in machine_rows.instruction_sets(machine)] == ["avx2", "unheard_of"]


def test_what_nothing_names_is_shown_and_then_removed(studio_home: Workspace) -> None:
    lost = studio.optimize_job(studio_home, JobState.LOST)
    hold = Contents(studio_home.store, lost.id).hold(
        str(studio_home.settings.artifacts), {"a-1": 5_000_000}, plain=True
    )["a-1"]
    Contents(studio_home.store, lost.id).arrived([hold.address])
    Path(hold.address).mkdir(parents=True)
    page = studio.open_page("hardware")
    assert "5 MB" in [metric.value for metric in page.metric]
    page.button(key="hardware_collect_look").click().run()
    assert "less than a day old" in studio.says(page)
    with studio_home.store.session() as session:
        session.get(ContentRow, hold.address).held_at -= timedelta(days=2)
    page.button(key="hardware_collect_look").click().run()
    assert "To delete: 0 artifacts in 1 piece, 5 MB." in studio.says(page) and Path(hold.address).exists()
    page.button(key="hardware_collect_go").click().run()
    assert "Deleted: 0 artifacts in 1 piece; 5 MB freed." in studio.says(page) and not Path(hold.address).exists()
    assert "0 B" in [metric.value for metric in page.metric]
