"""What each role may do, in the service itself: every function that changes something is found by its source and
tried."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from backend.domain.deploy.deployment import Deployment, Rollout
from backend.domain.errors import NotAllowed, NotFound, TooMuch
from backend.domain.evaluation.document import EvaluateOptions
from backend.domain.jobs.jobs import EndpointSpec, EvaluateSpec, InstallSpec
from backend.domain.jobs.terms import Priority
from backend.domain.recipe.draft_training import Training
from backend.domain.recipe.recipe import Recipe
from backend.domain.roles import RULES, Action, Actor, Role
from backend.domain.tuning.request import TuneRequest
from backend.gateway.options import GatewayOptions
from backend.service import Workspace, open_workspace, unreadable_rows
from backend.service.evaluations import (
    continuation,
    evaluations,
    imported_results,
    payoff,
    tasks,
    workload_files,
    workloads,
)
from backend.service.jobs import artifact_storage, artifacts, jobs, limits, supervisors
from backend.service.machines import engines, machine, prices
from backend.service.models import imports, models
from backend.service.plans import calibration, cases, neuron_compilation, optimize, sagemaker_jobs, training
from backend.service.presets import presets
from backend.service.serving import endpoints, gateway, local_endpoints, playground, recorded_requests, serve
from backend.service.studio import audit, backup
from backend.service.tasks import named_tasks
from backend.service.tuning import tunings
from backend.settings import Settings
from backend.store import queue
from backend.store.tables import ArtifactRow
from tests import studio
from tests.homes import open_home
from tests.postgres import Postgres

ROOT = Path(__file__).resolve().parents[3] / "backend" / "service"
INSTALL = InstallSpec(engine="serve")
W8A8 = Recipe.model_validate({"name": "w8a8", "steps": [{"quantize": {"method": "w8a8"}}]})
Try = Callable[[Workspace, str], object]
ATTEMPTS: dict[str, Try] = {
    "unreadable_rows.remove": lambda w, _: unreadable_rows.remove(w, unreadable_rows.UnreadableRow("preset", "x", "")),
    "evaluations.continuation.prepare": lambda w, _: continuation.prepare(w, "e-1", 1),
    "evaluations.evaluations.make_spec": lambda w, _: evaluations.make_spec(w, [], EvaluateOptions()),
    "evaluations.evaluations.freeze": lambda w, _: evaluations.freeze(w, EvaluateSpec.model_construct()),
    "evaluations.imported_results.add": lambda w, _: imported_results.add(w, []),
    "evaluations.imported_results.remove": lambda w, _: imported_results.remove(w, "b-1"),
    "evaluations.tasks.keep_copies": lambda w, _: tasks.keep_copies(w, []),
    "evaluations.workload_files.keep_by_hash": lambda w, _: workload_files.keep_by_hash(w, "x", b"{}"),
    "evaluations.workload_files.store_upload": lambda w, _: workload_files.store_upload(w, "x", b"{}"),
    "evaluations.workloads.save": lambda w, _: workloads.save(w, "x.jsonl", b'{"prompt": "x"}'),
    "jobs.artifacts.delete": lambda w, _: artifacts.delete(w, "a-1"),
    "jobs.artifact_storage.collect_garbage": lambda w, _: artifact_storage.collect_garbage(w),
    "jobs.limits.check_engine_role": lambda w, _: limits.check_engine_role(w, {"kind": "install", "action": "remove"}),
    "jobs.jobs.submit": lambda w, _: jobs.submit(w, INSTALL, "x"),
    "jobs.jobs.drop_checkpoints": lambda w, job: jobs.drop_checkpoints(w, job),
    "jobs.jobs.cancel": lambda w, job: jobs.cancel(w, job),
    "jobs.jobs.resume": lambda w, job: jobs.resume(w, job),
    "jobs.jobs.release": lambda w, job: jobs.release(w, job),
    "jobs.jobs.prioritize": lambda w, job: jobs.prioritize(w, job, Priority.HIGH),
    "jobs.jobs.move_to_front": lambda w, job: jobs.move_to_front(w, job),
    "jobs.supervisors.drain": lambda w, _: supervisors.drain(w),
    "machines.engines.remove": lambda w, _: engines.remove(w, "serve"),
    "machines.machine.measure": lambda w, _: machine.measure(w),
    "machines.prices.refresh": lambda w, _: prices.refresh(w),
    "models.imports.inspect": lambda w, _: imports.inspect(w, "some/model"),
    "models.imports.prepare": lambda w, _: imports.prepare(w, "some/model"),
    "models.models.forget": lambda w, _: models.forget(w, "/nowhere"),
    "models.models.remember": lambda w, _: models.remember(w, "/nowhere"),
    "evaluations.payoff.prepare": lambda w, _: payoff.prepare(w, "starter"),
    "plans.calibration.save": lambda w, _: calibration.save(w, "x.txt", b"x"),
    "plans.neuron_compilation.prepare": lambda w, _: neuron_compilation.prepare(
        w, cases.resolve(w, models.resolve(w, "starter"), W8A8)
    ),
    "plans.sagemaker_jobs.submit": lambda w, _: sagemaker_jobs.submit(
        w, cases.resolve(w, models.resolve(w, "starter"), W8A8), []
    ),
    "plans.optimize.prepare": lambda w, _: optimize.prepare(w, cases.resolve(w, models.resolve(w, "starter"), W8A8)),
    "plans.training.prepare": lambda w, _: training.prepare(w, "starter", Training()),
    "presets.presets.remove": lambda w, _: presets.remove(w, "my/own"),
    "presets.presets.put": lambda w, _: presets.put(w, []),
    "serving.endpoints.deploy": lambda w, _: endpoints.deploy(
        w, Deployment.model_construct(id="x", artifact="a", instance="i"), print
    ),
    "serving.endpoints.update": lambda w, _: endpoints.update(
        w, Deployment.model_construct(id="x", artifact="a", instance="i"), Rollout(), print
    ),
    "serving.endpoints.delete": lambda w, _: endpoints.delete(w, "x"),
    "serving.endpoints.prove": lambda w, _: endpoints.prove(w, "x"),
    "tasks.named_tasks.get": lambda w, _: named_tasks.get(w, "piqa"),
    "serving.gateway.add_key": lambda w, _: gateway.add_key(w, "app"),
    "serving.gateway.remove_key": lambda w, _: gateway.remove_key(w, "app"),
    "serving.gateway.run": lambda w, _: gateway.run(w, "127.0.0.1", 0, GatewayOptions(), str),
    "serving.local_endpoints.add": lambda w, _: local_endpoints.add(w, "starter"),
    "serving.local_endpoints.start": lambda w, _: local_endpoints.start(w, "x"),
    "serving.local_endpoints.stop": lambda w, _: local_endpoints.stop(w, "x"),
    "serving.local_endpoints.remove": lambda w, _: local_endpoints.remove(w, "x"),
    "serving.playground.find_model_name": lambda w, _: playground.find_model_name(w, "http://127.0.0.1:9", "x"),
    "serving.serve.prepare": lambda w, _: serve.prepare(w, ["starter"]),
    "serving.recorded_requests.make_workload": lambda w, _: recorded_requests.make_workload(w),
    "tuning.tunings.prepare": lambda w, _: tunings.prepare(w, TuneRequest(model="starter")),
    "tuning.tunings.stop": lambda w, _: tunings.stop(w, "t-1"),
    "tuning.tunings.resume": lambda w, _: tunings.resume(w, "t-1"),
    "studio.backup.back_up": lambda w, _: backup.back_up(w, Path("/nowhere/x")),
    "studio.backup.restore": lambda w, _: backup.restore(w, Path("/nowhere/x")),
}
"""Every function of the service that changes something, as a viewer would call it."""
UPKEEP = {
    "workspace.Workspace.change",
    "studio.demo_export._fill",
    "models.catalog_sync.check_fits",
    # a look that is rolled back, and what a change leaves to do
    "jobs.artifact_storage.collect_garbage",
    "jobs.artifact_storage.remove_abandoned_files",
}
"""Those that write without a person: the one way itself, a demonstration's own home, the catalog made anew from its
files."""
WRITES = {"session", "run", "upkeep"}
"""Of a store."""
FILES = {"write", "staged_file", "staged_folder", "unlink", "rmtree", "write_text", "write_bytes", "copyfile"}
ON_DISK = {
    "evaluations.evaluations._copy_held_out_text",  # of `freeze`
    "evaluations.tasks._keep_copy",
    "tasks.named_tasks._write",  # of `get`
    "evaluations.tasks._copy",  # of `keep_copies`
    "evaluations.bench.run_bench",
    "evaluations.reports._render",  # a temporary folder
    "jobs.artifacts.archive",
    "studio.backup._put_files",  # of `restore`
    "tuning.records.write",  # of `begin`, `stop`, `resume`, and of `advance`, which queues jobs by `jobs.submit`
    "models.preflight._cached_preflight",  # a cache of what was seen of a model's files
    # a folder that the caller names
    "studio.demo_export.export",
    "studio.demo_export.seed",
    "studio.demo_export._write",
}


@pytest.fixture
def home_of_root(tmp_path: Path) -> Workspace:
    return open_home(tmp_path / "home", owner="root")


def person(home: Workspace, role: Role | None, name: str = "ann@example.org") -> Workspace:
    return home.acting_as(Actor(name=name, role=role, origin="page"))


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        tree = ast.parse(path.read_text())
        for holder, nodes in [
            ("", tree.body),
            *((f"{c.name}.", c.body) for c in tree.body if isinstance(c, ast.ClassDef)),
        ]:
            for node in nodes:
                if isinstance(node, ast.FunctionDef):
                    yield f"{module}.{holder}{node.name}", node


def calls(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """(what, method) of each call in it, as `workspace.store`, `session`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield ast.unparse(node.func.value), node.func.attr


def test_every_function_that_changes_something_is_tried_here() -> None:
    changing, writing, on_disk = set(), set(), set()
    for name, function in functions():
        for subject, method in calls(function):
            if subject == "workspace" and method in {"change", "changing", "check"}:
                changing.add(name)
            if subject.endswith("store") and method in WRITES:
                writing.add(name)
            if method in FILES and (method != "write" or subject == "files") and subject != "recipe_files":
                on_disk.add(name)
    assert changing == set(ATTEMPTS)
    assert writing <= UPKEEP, "changes go through Workspace.change"
    assert on_disk - changing <= ON_DISK, "changes of files go through Workspace.changing"


@pytest.mark.parametrize("name", ATTEMPTS)
def test_a_viewer_changes_nothing(home_of_root: Workspace, name: str) -> None:
    job = jobs.submit(home_of_root, INSTALL, "x").id
    before = audit.count(home_of_root)
    with pytest.raises(NotAllowed, match="viewer may not"):
        ATTEMPTS[name](person(home_of_root, Role.VIEWER), job)
    with pytest.raises(NotAllowed, match="has no role"):
        ATTEMPTS[name](person(home_of_root, None), job)
    assert audit.count(home_of_root) == before and len(jobs.listing(home_of_root)) == 1


def test_the_table_of_roles_knows_every_action() -> None:
    assert set(RULES) == set(Action) and all(rule.least is not Role.VIEWER for rule in RULES.values())


def test_an_operator_changes_what_is_theirs_and_an_admin_everything(home_of_root: Workspace) -> None:
    ann, bob = person(home_of_root, Role.OPERATOR), person(home_of_root, Role.OPERATOR, "bob@example.org")
    own = jobs.submit(ann, INSTALL, "x")
    assert own.owner == "ann@example.org"
    for change in (jobs.cancel, jobs.move_to_front):
        with pytest.raises(NotAllowed, match=r"ann@example\.org's"):
            change(bob, own.id)
    assert jobs.cancel(ann, own.id).cause == "ann@example.org"
    for change in (jobs.resume, jobs.drop_checkpoints):
        with pytest.raises(NotAllowed):
            change(bob, own.id)
    assert jobs.resume(person(home_of_root, Role.ADMIN, "eve"), own.id).owner == "ann@example.org"
    with pytest.raises(NotFound):
        jobs.cancel(bob, "j-none")
    assert jobs.clone(bob, own.id).owner == "bob@example.org"


@pytest.mark.parametrize(
    ("spec", "refused"),
    [
        (
            InstallSpec(engine="neuron", index="https://index.example/simple"),
            "install engines from a package index",
        ),
        (InstallSpec(engine="serve", action="remove"), "remove engines"),
    ],
)
def test_only_an_admin_installs_an_engine_from_an_index_or_removes_one(
    home_of_root: Workspace, spec: InstallSpec, refused: str
) -> None:
    ann, refusal = person(home_of_root, Role.OPERATOR), f"The role operator may not {refused}"
    with pytest.raises(NotAllowed, match=refusal):
        jobs.submit(ann, spec, "x")
    with pytest.raises(NotAllowed, match=refusal):
        jobs.submit(ann, INSTALL, "x", then=(lambda _: spec, "y"))
    assert jobs.count(home_of_root) == 0
    job = jobs.submit(home_of_root, spec, "x")
    with home_of_root.store.session() as session:  # as a restored backup may say
        queue.get(session, job.id).owner = ann.actor.name
    jobs.cancel(ann, job.id)
    for again in (jobs.clone, jobs.retry, jobs.resume):
        with pytest.raises(NotAllowed, match=refusal):
            again(ann, job.id)
    with home_of_root.store.session() as session:
        queue.get(session, job.id).aside = True
    with pytest.raises(NotAllowed, match=refusal):
        jobs.release(ann, job.id)
    assert jobs.release(home_of_root, job.id).state == "queued"


def test_an_operator_installs_from_an_index_by_no_command(home_of_root: Workspace) -> None:
    with pytest.raises(NotAllowed, match="ask an admin"):
        engines.install(person(home_of_root, Role.OPERATOR), "neuron", index="https://index.example/simple")
    assert engines.install(home_of_root, "neuron", index="https://index.example/simple").state == "queued"


def test_artifacts_presets_and_models_have_owners_too(home_of_root: Workspace, tmp_path: Path) -> None:
    ann, bob = person(home_of_root, Role.OPERATOR), person(home_of_root, Role.OPERATOR, "bob@example.org")
    row = ArtifactRow(
        id="a-1",
        job_id="j",
        owner=ann.actor.name,
        model="m",
        recipe="r",
        recipe_hash="0",
        path="",
        bytes=1,
        manifest="{}",
    )
    with home_of_root.store.session() as session:
        session.add(row)
    saved = presets.save(ann, "my/own", model="starter", goal="balanced", recipe=W8A8)
    assert saved.owner == ann.actor.name
    other = W8A8.model_copy(update={"name": "other"})
    with pytest.raises(NotAllowed):
        presets.save(bob, "my/own", model="starter", goal="balanced", recipe=other, replace=True)
    with pytest.raises(NotAllowed):
        presets.remove(bob, "my/own")
    with pytest.raises(NotAllowed):
        artifacts.delete(bob, "a-1")
    presets.remove(ann, "my/own")
    artifacts.delete(ann, "a-1")


def test_one_person_has_no_more_than_is_set(tmp_path: Path) -> None:
    home = open_home(tmp_path / "home", max_jobs=1, max_artifacts_gb=0.5)
    ann, bob = person(home, Role.OPERATOR), person(home, Role.OPERATOR, "bob")
    first = jobs.submit(ann, INSTALL, "x", submission="once")
    assert jobs.submit(ann, INSTALL, "x", submission="once").id == first.id
    with pytest.raises(TooMuch, match=r"ann@example\.org has 1 jobs queued or running, and one person may have 1 here"):
        jobs.submit(ann, INSTALL, "y")
    assert jobs.count(home) == 1 and audit.count(home) == 1
    jobs.submit(bob, INSTALL, "y")
    jobs.cancel(ann, first.id)
    spec = studio.optimize_spec(home)
    job = jobs.submit(ann, spec, "z")
    with pytest.raises(TooMuch, match="queued or running"):
        jobs.resume(ann, first.id)
    jobs.cancel(ann, job.id)
    # An endpoint stays until it is stopped, so it takes no place.
    variants = studio.serve_spec("starter").variants
    endpoint = EndpointSpec(variants=variants, endpoint="e", port=5000, memory_bytes=1)
    jobs.submit(ann, INSTALL, "x")
    assert jobs.submit(ann, endpoint, "e").kind == "endpoint"
    jobs.cancel(ann, jobs.listing(home, kinds=("install",))[0].id)
    row = ArtifactRow(
        id="a-1",
        job_id="j",
        owner=ann.actor.name,
        model="m",
        recipe="r",
        recipe_hash="0",
        path="",
        bytes=500_000_000,
        manifest="{}",
    )
    with home.store.session() as session:
        session.add(row)
    with pytest.raises(TooMuch, match=r"has 0\.50 GB of artifacts, and one person may have 0\.5 GB here"):
        jobs.submit(ann, spec, "z")
    jobs.submit(ann, INSTALL, "x")


def test_the_second_of_two_jobs_counts_against_a_persons_limit_and_is_in_the_trail(tmp_path: Path) -> None:
    home = open_home(tmp_path / "home", max_jobs=2)
    ann = person(home, Role.OPERATOR)
    first = jobs.submit(ann, INSTALL, "x", submission="once", then=(lambda _: INSTALL, "y"))
    second = jobs.find_follower(home, first.id)
    assert second is not None
    assert jobs.submit(ann, INSTALL, "x", submission="once", then=(lambda _: INSTALL, "y")).id == first.id
    rows = [(each.who, each.action, each.target, each.detail) for each in reversed(audit.listing(home))]
    assert rows == [(ann.actor.name, "submit", second.id, "y"), (ann.actor.name, "submit", first.id, "x")]
    jobs.cancel(ann, second.id)
    with pytest.raises(TooMuch, match="has 2 jobs queued or running, and one person may have 2 here"):
        jobs.submit(ann, INSTALL, "z", then=(lambda _: INSTALL, "w"))
    assert jobs.count(home) == 2, "none of the two"


def test_every_change_is_in_the_trail_with_who_and_from_where(home_of_root: Workspace) -> None:
    ann = person(home_of_root, Role.OPERATOR)
    job = jobs.submit(ann, INSTALL, "Install it", submission="once")
    assert jobs.submit(ann, INSTALL, "Install it", submission="once").id == job.id
    jobs.cancel(home_of_root, job.id)
    workloads.save(ann, "mine.jsonl", b'{"prompt": "x"}\n')
    rows = [(r.who, r.origin, r.action, r.kind, r.detail) for r in reversed(audit.listing(home_of_root))]
    assert rows == [
        ("ann@example.org", "page", "submit", "job", "Install it"),
        ("root", "command line", "cancel", "job", None),
        ("ann@example.org", "page", "upload", "file", "workload"),
    ]
    assert [r.action for r in audit.listing(home_of_root, words=job.id[:6])] == ["cancel", "submit"]
    assert audit.people(home_of_root) == ["ann@example.org", "root"]
    with pytest.raises(NotAllowed, match="Only an admin"):
        audit.listing(ann)
    assert len(audit.listing(ann, who=["ann@example.org"])) == 2


def test_a_change_that_fails_leaves_no_record(home_of_root: Workspace) -> None:
    with pytest.raises(NotFound):
        jobs.cancel(home_of_root, "j-none")
    assert audit.listing(home_of_root) == []


FORGED = (
    "INTO audit (id, at, who, role, origin, action, kind, target) VALUES ({}, '2026-01-01', 'x', '', '', '', '', '')"
)
ONTO = "(id) DO UPDATE SET who = 'x'"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET who = 'x'",
        "UPDATE OR REPLACE audit SET id = 1",
        "DELETE FROM audit",
        f"INSERT OR REPLACE {FORGED.format(1)}",
        f"REPLACE {FORGED.format(1)}",
        f"INSERT {FORGED.format(1)} ON CONFLICT {ONTO}",
        f"INSERT OR IGNORE {FORGED.format(1)}",
        f"INSERT OR REPLACE {FORGED.format(-1)}",
    ],
)
def test_the_database_itself_refuses_to_change_the_trail(home_of_root: Workspace, statement: str) -> None:
    jobs.submit(home_of_root, INSTALL, "x")
    with pytest.raises(DBAPIError, match="append-only"), home_of_root.store.engine.begin() as connection:
        connection.execute(text(statement))
    assert [(record.id, record.who) for record in audit.listing(home_of_root)] == [(1, "root")]
    jobs.submit(home_of_root, INSTALL, "y")
    assert [record.id for record in audit.listing(home_of_root)] == [2, 1]


@pytest.mark.process
def test_so_does_a_server(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.new()
    opened = open_workspace(Settings(home=tmp_path, database_url=url))
    jobs.submit(opened, INSTALL, "x")
    for statement in (
        "UPDATE audit SET who = 'x'",
        "DELETE FROM audit",
        "TRUNCATE audit",
        f"INSERT {FORGED.format(1)} ON CONFLICT {ONTO}",
    ):
        with pytest.raises(DBAPIError, match="append-only"), opened.store.engine.begin() as connection:
            connection.execute(text(statement))
    opened.store.engine.dispose()
    postgres.drop(url)


def test_the_command_line_has_the_role_that_is_set(
    home_of_root: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.helpers.unreadable_rows import command

    monkeypatch.setenv("WHETSTONE_ROLE", "viewer")
    assert command(home_of_root, monkeypatch, "engines", "install", "serve", "--detach") == 2
    assert "The role viewer may not submit jobs" in capsys.readouterr().err
    monkeypatch.setenv("WHETSTONE_ROLE", "operator")
    assert command(home_of_root, monkeypatch, "engines", "remove", "serve", "--detach") == 2
    monkeypatch.setenv("WHETSTONE_ROLE", "king")
    assert command(home_of_root, monkeypatch, "jobs", "list") == 2
    assert "WHETSTONE_ROLE is `king`" in capsys.readouterr().err
    monkeypatch.setenv("WHETSTONE_ROLE", "admin")
    jobs.submit(home_of_root, INSTALL, "Install it")
    assert command(home_of_root, monkeypatch, "audit", "--json") == 0
    assert [(r["who"], r["action"]) for r in json.loads(capsys.readouterr().out)] == [("root", "submit")]
