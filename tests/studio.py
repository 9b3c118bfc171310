"""The studio under AppTest: a home of its own, the entry script, and jobs in any state without running them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import psutil
import streamlit as st
from pytest import MonkeyPatch
from sqlmodel import Session
from streamlit.components.v2.component_manager import BidiComponentManager
from streamlit.runtime.scriptrunner_utils.script_requests import RerunData
from streamlit.testing.v1 import AppTest, local_script_runner
from streamlit.testing.v1.element_tree import Multiselect, Selectbox

from backend import processes
from backend.domain.evaluation.document import Evaluation, Variant
from backend.domain.jobs.artifact import Manifest
from backend.domain.jobs.jobs import LIVE, Event, InstallSpec, JobSpec, JobState, OptimizeSpec, ServeSpec
from backend.domain.model.facts import ModelCard
from backend.domain.recipe.recipe import Recipe
from backend.service import Workspace
from backend.service.jobs import job_rows, jobs
from backend.service.jobs.jobs import JobView
from backend.service.models import models as model_facts
from backend.service.plans import cases
from backend.store import history, leases, models, queue
from backend.store.tables import ArtifactRow, EvaluationRow, JobRow, SupervisorRow, now
from tests.homes import open_home

ROOT = Path(__file__).resolve().parents[1]
W8A8 = Recipe.model_validate({"name": "w8a8", "steps": [{"quantize": {"method": "w8a8"}}]})
TIMEOUT_S = 120


@contextmanager
def home(folder: Path, monkeypatch: MonkeyPatch) -> Iterator[Workspace]:
    """The home that the studio's pages will open, and nothing cached from another test."""
    monkeypatch.setenv("WHETSTONE_HOME", str(folder))
    monkeypatch.delenv("DATABASE_URL", raising=False)
    st.cache_resource.clear()
    opened = open_home(folder, probed=False)
    yield opened
    st.cache_resource.clear()
    opened.store.engine.dispose()  # hundreds of homes in one process have more files open than a process may


@cache
def _components() -> BidiComponentManager:
    """What a first run asks of every installed distribution, asked once: it takes ten times as long as most pages."""
    components = BidiComponentManager()
    components.discover_and_register_components(start_file_watching=False)
    return components


def _new_session() -> AppTest:
    at = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=TIMEOUT_S)
    at._bidi_component_manager = _components()
    return at


def start() -> AppTest:
    """The studio as a browser that comes to it sees it: Home."""
    return _new_session().run()


def open_page(name: str, **query: str | Sequence[str]) -> AppTest:
    """The page as a browser sees it that comes to its address, Home never drawn; it must not end in an exception."""
    at = _new_session()
    at.switch_page(f"../pages/{name}.py")
    for key, value in query.items():
        at.query_params[key] = value if isinstance(value, str) else list(value)
    at.run()
    check(at)
    return at


def step_back(at: AppTest) -> AppTest:
    """Run the page with the address that `at` has, as the browser's Back and Forward do, which say what they are."""
    with MonkeyPatch.context() as patch:
        patch.setattr(local_script_runner, "RerunData", partial(RerunData, is_history_navigation=True))
        at.run()
    check(at)
    return at


def type_text(at: AppTest, widget: Selectbox[str] | Multiselect[str], text: str) -> AppTest:
    """Type a text that is no option into a field that takes one, which AppTest cannot do by itself, and press Enter."""
    states = at._tree.get_widget_states()
    (state,) = (each for each in states.widgets if each.id == widget.id)
    if isinstance(widget, Selectbox):
        state.string_value = text
    else:
        state.string_array_value.data.append(text)
    at._run(states)
    check(at)
    return at


def check(at: AppTest) -> None:
    assert not at.exception, [(item.message, item.stack_trace) for item in at.exception]


def says(at: AppTest) -> str:
    """Every word on the page that is not in a table or a button."""
    kinds = (at.title, at.subheader, at.markdown, at.caption, at.info, at.success, at.warning, at.error, at.code)
    bars = [bar.proto.text for bar in at.get("progress")]
    metrics = [f"{metric.label} {metric.value} {metric.delta}" for metric in at.metric]
    return "\n".join([*(str(element.value) for kind in kinds for element in kind), *bars, *metrics]).replace("\\", "")


def param(at: AppTest, name: str) -> str:
    """Return the first value of a parameter of the page's address."""
    value = at.query_params[name]
    return value if isinstance(value, str) else value[0]


def headings(at: AppTest) -> list[str]:
    """Return the titles of the charts on the page."""
    return [json.loads(chart.proto.spec)["layout"]["title"]["text"] for chart in at.get("plotly_chart")]


def click(at: AppTest, key: str) -> AppTest:
    """Click the button of that key."""
    at.button(key=key).click().run()
    check(at)
    return at


def links(at: AppTest) -> list[str]:
    """Return the labels of the page's own links, without those of the sidebar."""
    return [link.proto.label.replace("\\", "") for link in at.main.get("page_link")]


def claim(session: Session, job_id: str) -> None:
    """Bring a queued job to `starting`, on a host of its own."""
    owner = SupervisorRow(id="s-test", host=f"host of {job_id}", home="", pid=1, process_started="")
    assert leases.claim(session, queue.get(session, job_id), owner) is not None


def move(session: Session, job_id: str, state: JobState, **values: Any) -> None:
    """Change its state by the queue's own statement."""
    leases.move(session, leases.read_lease(queue.get(session, job_id)), state, **values)


def supervisor(workspace: Workspace) -> None:
    """A fresh heartbeat, of this very process."""
    own = psutil.Process(os.getpid())
    with workspace.store.session() as session:
        start = processes.start_stamp(own.pid)
        leases.renew(
            session, SupervisorRow(id="s-test", host=socket.gethostname(), home="", pid=own.pid, process_started=start)
        )


def install_job(workspace: Workspace, state: JobState = JobState.QUEUED, **changes: Any) -> JobView:
    return put(
        workspace, InstallSpec(engine="serve"), changes.pop("title", "Install the engine serve"), state, **changes
    )


def optimize_spec(workspace: Workspace, source: str = "starter", recipe: Recipe = W8A8) -> OptimizeSpec:
    case = cases.resolve(workspace, model_facts.resolve(workspace, source), recipe)
    assert case.verdict.plan is not None
    return OptimizeSpec.model_validate(
        {"model": case.model, "recipe": recipe, "plan": case.verdict.plan, "draft": case.draft}
    )


def optimize_job(workspace: Workspace, state: JobState = JobState.QUEUED, **changes: Any) -> JobView:
    return put(workspace, optimize_spec(workspace), "Optimize starter with w8a8", state, **changes)


def put(
    workspace: Workspace, spec: JobSpec, title: str, state: JobState, *, events: Sequence[Event] = (), **changes: Any
) -> JobView:
    """Submit it and bring it into `state` by the queue's own statements, then set the row's fields as given."""
    job = job_rows.make_row(workspace, spec, title)
    with workspace.store.session() as session:
        queue.submit(session, job)
        if state is not JobState.QUEUED:
            claim(session, job.id)  # at once, before a supervisor of the home can
    with workspace.store.session() as session:
        if state in {JobState.RUNNING, JobState.CANCELLING}:
            move(session, job.id, JobState.RUNNING)
        if state not in {JobState.QUEUED, JobState.STARTING, JobState.RUNNING}:
            move(session, job.id, state)
        history.append(session, job.id, [event.model_copy(update={"at": now()}) for event in events])
        row = queue.get(session, job.id)
        for name, value in changes.items():
            setattr(row, name, value)
    assert state in LIVE or jobs.show(workspace, job.id).state is state
    return jobs.show(workspace, job.id)


def serve_spec(*sources: str) -> ServeSpec:
    """A request to serve these sources, whose files are not there."""
    return ServeSpec(
        variants=tuple(Variant(name=source, source=source, kind="model", model_path="/m") for source in sources)
    )


def serving(*answering: tuple[str, str]) -> Event:
    """What a serve job says once each (source, URL) answers."""
    rows = [
        {"source": source, "name": source, "url": url, "served_name": "", "ready_seconds": 1.0}
        for source, url in answering
    ]
    return Event(kind="phase", phase="serve", message="Serving", progress=1.0, data={"endpoints": rows})


def artifact(
    workspace: Workspace,
    job: JobView,
    parent: ModelCard,
    quality: dict[str, Any] | None = None,
    *,
    recipe: Recipe = W8A8,
    training: dict[str, Any] | None = None,
    structure: dict[str, Any] | None = None,
) -> str:
    """A registered artifact with made-up layers; its files are not there. With `training` it is a draft, and with
    `structure` a smaller model whose linears are the original's."""
    layers = [
        {"name": f"model.layers.{number}.{linear}", "relative_error": 0.01 * (number + 1)}
        for number in range(2)
        for linear in ("self_attn.q_proj", "mlp.down_proj")
    ]
    manifest = Manifest(
        job=job.id,
        parent=parent,
        recipe=recipe,
        recipe_hash=recipe.hash,
        files=[],
        bytes_before=22_000_000,
        bytes_after=13_000_000,
        quality=None if training else quality or {"kl_mean": 0.0004},
        layers=[] if training or structure else layers,
        structure=structure,
        training=training,
    )
    row = ArtifactRow(
        id=manifest.id,
        job_id=job.id,
        model=parent.id,
        recipe=recipe.name,
        recipe_hash=recipe.hash,
        path=str(workspace.settings.artifacts / manifest.id),
        bytes=13_000_000,
        manifest=manifest.model_dump_json(),
    )
    with workspace.store.session() as session:
        session.merge(row)
        models.list_in_catalog(session, parent)
    return manifest.id


def evaluation(
    workspace: Workspace, document: Evaluation, identity: str = "e-1", title: str = "Evaluate starter, w8a8"
) -> str:
    row = EvaluationRow(
        id=identity,
        job_id="j-none",
        title=title,
        baseline=document.variants[0].name,
        path="none",
        document=document.model_dump_json(),
    )
    with workspace.store.session() as session:
        session.add(row)
    return identity


def job_row(number: int, state: JobState) -> JobRow:
    """One of many, written without the queue."""
    return JobRow(
        id=f"j-{number:05d}",
        kind="install",
        state=state,
        title=f"Job number {number}",
        owner="t",
        spec=InstallSpec(engine="serve").model_dump_json(),
        rank=float(number),
    )
