"""Demonstrations: the results of a home as small files in assets/demo, and a read-only home made of them.

What is exported was measured: jobs with events and logs, manifests, evaluations with their reports. Left behind are
weights, request records, and all that names the machine's user: paths are written as `@{home}` and `@{checkout}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

from backend import channel
from backend.domain.errors import NotFound, WorkError
from backend.domain.evaluation.document import Evaluation
from backend.domain.jobs.demonstration import MARK, Demonstration
from backend.domain.jobs.jobs import Event
from backend.domain.machine import instruction_sets
from backend.hardware import probe
from backend.service.presets import presets
from backend.service.workspace import Workspace, open_workspace
from backend.settings import ASSETS, CHECKOUT, Settings
from backend.store import history
from backend.store.database import open_store
from backend.store.history import JobFilter
from backend.store.tables import ArtifactRow, EvaluationRow, EventRow, JobRow

FOLDERS = ASSETS / "demo"
"""A demonstration for each kind of machine on which it was measured."""
FOLDER = FOLDERS / "amd-epyc"
"""The one for a machine that is like none of them."""
HOME_TOKEN, CHECKOUT_TOKEN, SCRIPT_TOKEN = "@{home}", "@{checkout}", "@{plotly.js}"
BUILDS_TOKEN = "@{builds}"
"""In place of the folder of compiled programs."""
MOST, MOST_PROGRESS = 1000, 100
TABLES: dict[str, type[JobRow] | type[ArtifactRow] | type[EvaluationRow]] = {
    "jobs": JobRow,
    "artifacts": ArtifactRow,
    "evaluations": EvaluationRow,
}
DOCUMENTS = ("spec", "result", "manifest", "document")
"""Columns that hold JSON text."""
OF_A_CHECKOUT = ("/assets/", "/backend/serving/")
"""Continuations by which a path into a checkout is recognised."""
LEFT_OUT = {
    "handle": None,
    "supervisor": None,
    "host": None,
    "home": None,
    "lease_until": None,
    "submission": None,
    "owner": "demo",
    "yields": False,
}
_FOREIGN = re.compile(r"(?<![\w}.])/(?:home|root|tmp|work|Users|var|mnt|opt|srv)/[^\s\"\\]*")


class NotToBeShown(WorkError):
    """The home holds something that a demonstration must not show."""


def export(workspace: Workspace, folder: Path) -> list[Path]:
    """Write what the home holds into `folder`, which is emptied first; return the files.

    Raises NotFound where nothing was evaluated, NotToBeShown where a path of the machine would remain in it.
    """
    # 1. Read the rows to show.
    tables = _read(workspace)
    if not tables["evaluations"]:
        raise NotFound("Nothing was evaluated in this home: run `whetstone demo` in it first.")
    evaluation = Evaluation.model_validate(tables["evaluations"][0]["document"])
    shown = Demonstration(
        hardware=evaluation.hardware, versions=evaluation.versions, measured_at=evaluation.measured_at
    )
    # 2. Make the texts: tables, reports and the mark of a demonstration.
    texts = {f"{name}.json": json.dumps(rows, indent=1, ensure_ascii=False) + "\n" for name, rows in tables.items()}
    texts |= {f"{row['id']}.html": _report(workspace, row["id"]) for row in tables["evaluations"]}
    texts[MARK] = shown.model_dump_json(indent=1) + "\n"
    # 3. Replace paths of this machine, then write.
    places = _places(workspace, tables)
    return _write(folder, {name: _anonymous(name, text, places) for name, text in texts.items()})


def folder_here(chosen: str | None = None) -> Path:
    """Return the folder of the demonstration with that name, else of the one measured on a machine most like this one.

    Raises NotFound for a name that there is none of.
    """
    # 1. The one that was named.
    folders = {mark.parent.name: mark.parent for mark in sorted(FOLDERS.glob(f"*/{MARK}"))}
    if chosen is not None:
        if chosen in folders:
            return folders[chosen]
        names = " or ".join(folders)
        raise NotFound(f"There is no demonstration `{chosen[:40]}`: set WHETSTONE_RECORDED to {names}.")
    # 2. The most similar one: by instruction set, then by the processor's maker, then by cores.
    here = _likeness(probe.probe())
    similar = {folder: _count_leading_matches(here, _likeness(_read_hardware(folder))) for folder in folders.values()}
    most = max(similar.values(), default=0)
    return FOLDER if similar.get(FOLDER) == most else max(similar, key=lambda folder: similar[folder])


@cache
def _read_hardware(folder: Path) -> dict[str, Any]:
    return Demonstration.model_validate_json((folder / MARK).read_bytes()).hardware


def _likeness(hardware: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what makes machines alike, the most important first."""
    maker = str(hardware["cpu"]).replace("(R)", "").split(maxsplit=1)[0]
    return instruction_sets.instruction_set(hardware["flags"]), maker, hardware["cores"]


def _count_leading_matches(one: Sequence[object], other: Sequence[object]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=True))))


def _read(workspace: Workspace) -> dict[str, list[dict[str, Any]]]:
    with workspace.store.read() as session:
        jobs = history.list_jobs(session, JobFilter(), limit=MOST)
        events = {job.id: [event for _, event in history.list_events(session, job.id)] for job in jobs}
        tables = {
            "jobs": [_document(row) for row in jobs],
            "artifacts": [_document(row) for row in history.list_artifacts(session, limit=MOST)],
            "evaluations": [_document(row) for row in history.list_evaluations(session, limit=MOST)],
        }
    for job in tables["jobs"]:
        job["events"] = [
            event.model_dump(mode="json", exclude_defaults=True) for event in _thin_events(events[job["id"]])
        ]
        job["log"] = channel.attempt_channel(workspace.settings, job["id"], job["attempt"], job["home"]).log()
    return tables


def _thin_events(events: list[Event]) -> list[Event]:
    """With no more than `MOST_PROGRESS` words on how far it is, the last among them."""
    progress = [number for number, event in enumerate(events) if event.kind == "progress"]
    shown = set(progress[:: -max(1, -(-len(progress) // MOST_PROGRESS))])
    return [event for number, event in enumerate(events) if event.kind != "progress" or number in shown]


def _document(row: JobRow | ArtifactRow | EvaluationRow) -> dict[str, Any]:
    fields = row.model_dump(mode="json")
    fields |= {name: json.loads(fields[name]) for name in DOCUMENTS if fields.get(name)}
    return {name: LEFT_OUT.get(name, fields[name]) for name in type(row).model_fields}


def _report(workspace: Workspace, identity: str) -> str:
    """The report without the charting script, which is nine tenths of it and comes with the plotly package."""
    path = workspace.settings.evaluations / identity / "report.html"
    text, script = path.read_text("utf-8"), _plotly_script()
    if script not in text:
        raise NotToBeShown(f"The report {path} was written with another version of plotly: run `whetstone demo` again.")
    return text.replace(script, SCRIPT_TOKEN)


def _plotly_script() -> str:
    """Return plotly's script as the report's writer embeds it (backend.evaluate.report, which this package may not
    import)."""
    package = find_spec("plotly")
    if package is None or package.origin is None:
        raise WorkError("The reports need the plotly package: run `make run` or `pip install plotly`.")
    script = (Path(package.origin).parent / "package_data" / "plotly.min.js").read_text("utf-8")
    return re.sub(r"</(script)", r"<\\/\1", script, flags=re.IGNORECASE)


def _places(workspace: Workspace, tables: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """Folder -> token, longest first: where the home is and was, and the checkouts whose models, workloads and
    proposers of drafts were used."""
    paths = [Path(row["path"]) for name in ("artifacts", "evaluations") for row in tables[name]]
    homes = {str(workspace.settings.home), *(str(path.parents[1]) for path in paths)}
    used = [path.partition(part) for path in _strings(tables) if path.startswith("/") for part in OF_A_CHECKOUT]
    checkouts = {checkout for checkout, there, _ in used if there} | {str(CHECKOUT)}
    tokens = dict.fromkeys(checkouts, CHECKOUT_TOKEN) | dict.fromkeys(homes, HOME_TOKEN)
    tokens[str(workspace.settings.builds)] = BUILDS_TOKEN
    return dict(sorted(tokens.items(), key=lambda item: -len(item[0])))


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def _anonymous(name: str, text: str, places: dict[str, str]) -> str:
    for place, token in places.items():
        text = text.replace(place, token)
    prompt_paths = _prompt_paths()
    if match := next((match for match in _FOREIGN.finditer(text) if match.group() not in prompt_paths), None):
        raise NotToBeShown(f"{name} would name {match.group()}, a path of this machine: nothing was written.")
    return text


@cache
def _prompt_paths() -> frozenset[str]:
    """Return the texts in bundled prompts that look like paths, since reports quote them."""
    files = sorted((ASSETS / "workloads").iterdir())
    return frozenset(path for file in files for path in _FOREIGN.findall(file.read_text("utf-8")))


def _write(folder: Path, texts: dict[str, str]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("*.json"), *folder.glob("*.html")]:
        old.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def seed(home: Path, folder: Path = FOLDER) -> Workspace:
    """Make the empty folder `home` a read-only home that shows what stands in `folder`. Raises NotFound."""
    if not (folder / MARK).is_file():
        raise NotFound(f"There is no demonstration in {folder}: this checkout is not complete.")
    # 1. Read the tables, with this machine's paths in place of tokens.
    settings = Settings(home=home.resolve())
    places = {
        HOME_TOKEN: str(settings.home),
        CHECKOUT_TOKEN: str(CHECKOUT),
        BUILDS_TOKEN: str(settings.builds),
    }
    tables = {name: json.loads(_with_places((folder / f"{name}.json").read_text("utf-8"), places)) for name in TABLES}
    # 2. Fill the store, logs and reports.
    _fill(settings, tables)
    for job in tables["jobs"]:
        with channel.attempt_channel(settings, job["id"], job["attempt"]).log_sink() as sink:
            sink.write(job["log"].encode())
    script = _plotly_script()
    for row in tables["evaluations"]:
        (settings.evaluations / row["id"]).mkdir(parents=True)
        report = (folder / f"{row['id']}.html").read_text("utf-8").replace(SCRIPT_TOKEN, script)
        (settings.evaluations / row["id"] / "report.html").write_text(report, encoding="utf-8")
    # 3. Mark the home as read-only last.
    (settings.home / MARK).write_bytes((folder / MARK).read_bytes())
    return open_workspace(settings)


@cache
def recorded_evaluation(folder: Path = FOLDER) -> Evaluation | None:
    """Return the evaluation that comes with Whetstone, measured elsewhere; None if it is missing."""
    file = folder / "evaluations.json"
    if not file.is_file():
        return None
    return Evaluation.model_validate(json.loads(file.read_text("utf-8"))[0]["document"])


def _with_places(text: str, places: dict[str, str]) -> str:
    """Inside of JSON strings."""
    for token, place in places.items():
        text = text.replace(token, json.dumps(place)[1:-1])
    return text


def _fill(settings: Settings, tables: dict[str, list[dict[str, Any]]]) -> None:
    store = open_store(settings)
    presets.sync(store)
    with store.session() as session:
        for name, table in TABLES.items():
            for row in tables[name]:
                documents = {column: json.dumps(row[column]) for column in DOCUMENTS if row.get(column) is not None}
                session.add(table.model_validate(row | documents))
        session.flush()  # an event refers to its job
        for job in tables["jobs"]:
            for number, event in enumerate(job["events"], 1):
                fields = {"kind": event["kind"], "at": event["at"], "document": json.dumps(event)}
                session.add(EventRow.model_validate({"job_id": job["id"], "seq": number, **fields}))
