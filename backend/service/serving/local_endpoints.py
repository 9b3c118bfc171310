"""Endpoints of this machine: an address that stays, whose server comes and goes; added, started, stopped and removed.

A row says what a person wants; supervisors of its host see to it (`store.serving.endpoint_rows`).
"""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from backend import endpoint
from backend.domain.errors import InvalidOptions, NotEnoughMemory, NotFound, PortTaken, RequestError
from backend.domain.evaluation.document import Variant
from backend.domain.frozen import Frozen
from backend.domain.jobs.endpoint_states import EndpointState, find_state
from backend.domain.jobs.jobs import EndpointSpec, JobState
from backend.domain.roles import Action
from backend.hardware import engine_status, probe
from backend.present.endpoints.exports import ExportedEndpoint
from backend.service.jobs import job_rows, jobs
from backend.service.serving import playground, serve
from backend.service.workspace import Workspace
from backend.store import history
from backend.store.serving import endpoint_rows
from backend.store.tables import EndpointRow, JobRow

PORTS = range(8701, 8999)
"""Ports of endpoints, below those that systems give out for a moment."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@=+-]{0,63}")
REQUEST_LOGS = "endpoints"
"""The folder of a home with a request log for each endpoint."""
SERVER_LOG = "server-0"


class LocalEndpoint(Frozen):
    """An endpoint of this machine as screens and tools see it. Counts, seconds and cost are since a person started it.

    `reason`: why it failed, or what it does now. `cost` is in the currency of `price_per_hour`, None without a price.
    """

    name: str
    source: str
    engine: str
    state: EndpointState
    reason: str | None
    url: str
    key_file: str | None
    host: str
    owner: str
    idle_minutes: float
    keep_loaded: bool
    job: str | None
    loads: int
    restarts: int
    requests: int
    failed_requests: int
    generated_tokens: int
    loaded_s: float
    created_at: datetime
    started_at: datetime
    price_per_hour: float | None
    cost: float | None

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()


class RunningEndpoint(NamedTuple):
    """An endpoint of this machine that is to run, as the gateway asks it."""

    name: str
    source: str
    url: str
    job: str | None
    started_at: datetime


def add(
    workspace: Workspace,
    source: str,
    *,
    name: str | None = None,
    idle_minutes: float | None = None,
    keep_loaded: bool | None = None,
    port: int | None = None,
    anyway: bool = False,
) -> LocalEndpoint:
    """Add an endpoint for a model or an artifact and let it run; one that serves it already is started.

    None leaves the name to the variant, the port to the first free one, the rest as it is or at its default. `anyway`
    allows quality below the floor. Raises what `serve.resolve_served` raises, NotEnoughMemory for a model larger than
    the machine, InvalidOptions, PortTaken, RequestError where the name is taken, NotAllowed, ReadOnly.
    """
    workspace.check(Action.ADD_ENDPOINT)
    _check_name(name)
    # 1. One that serves it already is started.
    existing = _find_same(workspace, source, name)
    if existing is not None:
        _check_same(existing, source, idle_minutes=idle_minutes, keep_loaded=keep_loaded, port=port)
        return start(workspace, existing.name)
    # 2. Check what is to be served, and the name.
    if serve.is_address(source):
        raise RequestError(f"{source[:80]} is an address, which answers already: name a model or an artifact.")
    (variant,) = serve.resolve_served(workspace, [source], anyway=anyway)
    chosen_name = _choose_name(workspace, variant, name)
    memory_bytes = serve.estimate_memory(workspace, variant)
    if memory_bytes > probe.total_memory():
        raise NotEnoughMemory(
            f"Serving {variant.name} takes about {memory_bytes / 1e9:.1f} GB of memory (estimated) and this machine "
            f"has {probe.total_memory() / 1e9:.1f} GB: choose something smaller."
        )
    # 3. Add the row; another may have taken the port meanwhile.
    for chosen_port in [port] if port is not None else _free_ports(workspace):
        if port is not None:
            _check_port(workspace, port)
        spec = EndpointSpec(
            variants=(variant.model_copy(update={"name": chosen_name}),),
            endpoint=chosen_name,
            port=chosen_port,
            idle_minutes=serve.IDLE_MINUTES if idle_minutes is None else idle_minutes,
            keep_loaded=bool(keep_loaded),
            memory_bytes=memory_bytes,
        )
        put = partial(endpoint_rows.add, row=_make_row(workspace, source, spec))
        if workspace.change(Action.ADD_ENDPOINT, chosen_name, put, detail=source, changed=bool):
            return show(workspace, chosen_name)
    raise RequestError(
        f"There is an endpoint `{chosen_name}` already, or its port is taken: choose another {{}} or {{}}.",
        "name",
        "port",
    )


def _make_row(workspace: Workspace, source: str, spec: EndpointSpec) -> EndpointRow:
    """Return the row of a new endpoint, whose jobs are checked now. Raises as `job_rows.make_row`."""
    return EndpointRow(
        name=spec.endpoint,
        stamp=secrets.token_hex(5),
        source=source,
        spec=job_rows.make_row(workspace, spec, spec.endpoint).spec,
        owner=workspace.actor.name,
        host=socket.gethostname(),
        port=spec.port,
    )


def _find_same(workspace: Workspace, source: str, name: str | None) -> LocalEndpoint | None:
    """Return the endpoint with that name; without one, that of this machine with that source."""
    for each in listing(workspace):
        if each.name == name if name is not None else (each.source == source and each.is_here):
            return each
    return None


def _check_same(existing: LocalEndpoint, source: str, **options: Any) -> None:
    """Raise RequestError where the endpoint is another than the one that is wanted. None: any will do."""
    if existing.source != source:
        raise RequestError(
            f"There is an endpoint `{existing.name}` already, of {existing.source}: choose another {{}}, or remove it "
            f"with `whetstone endpoints remove {existing.name}`.",
            "name",
        )
    current = {
        "idle_minutes": existing.idle_minutes,
        "keep_loaded": existing.keep_loaded,
        "port": endpoint.parse_address(existing.url).port,
    }
    if any(value is not None and value != current[name] for name, value in options.items()):
        raise RequestError(
            f"The endpoint `{existing.name}` serves {source} already, with other settings: remove it first, or give "
            "another {}.",
            "name",
        )


def _check_name(name: str | None) -> None:
    if name is not None and not NAME.fullmatch(name):
        raise InvalidOptions(
            "is wrong: it has 1 to 64 letters, digits and `._:@=+-`, and begins with a letter or a digit.", field="name"
        )


def _choose_name(workspace: Workspace, variant: Variant, name: str | None) -> str:
    """Return the name that was given, else that of the variant, with a number where it is taken."""
    if name is not None:
        return name
    plain = re.sub(r"[^A-Za-z0-9._:@=+-]+", "-", variant.name).strip("._:@=+-")[:58] or "model"
    used = {each.name for each in listing(workspace)}
    numbered = (f"{plain}-{number}" for number in range(2, len(used) + 3))
    return plain if plain not in used else next(each for each in numbered if each not in used)


def _free_ports(workspace: Workspace) -> Sequence[int]:
    """Return some ports that neither an endpoint of this machine has nor anything listens on. Raises PortTaken."""
    taken_ports = {endpoint.parse_address(each.url).port for each in listing(workspace) if each.is_here}
    free = [port for port in PORTS if port not in taken_ports and _is_free(port)][:3]
    if not free:
        raise PortTaken(
            f"All ports from {PORTS[0]} to {PORTS[-1]} are in use: remove an endpoint, or give a {{}}.", "port"
        )
    return free


def _check_port(workspace: Workspace, port: int) -> None:
    """Raise PortTaken where something listens on the port, or it belongs to another endpoint."""
    owner = next((each.name for each in listing(workspace) if each.url.endswith(f":{port}/v1") and each.is_here), None)
    if owner is not None:
        raise PortTaken(f"Port {port} is that of the endpoint `{owner}`: choose another {{}}.", "port")
    if not _is_free(port):
        raise PortTaken(f"Port {port} is in use: stop what listens there, or choose another with {{}}.", "port")


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def start(workspace: Workspace, name: str) -> LocalEndpoint:
    """Let a stopped or failed endpoint run again. Raises NotFound where there is none, or its files are gone; NotNow
    while it stops; EngineMissing, NotAllowed, ReadOnly."""
    workspace.check(Action.START_ENDPOINT)
    # 1. What it serves must be there still.
    with workspace.store.read() as session:
        spec = endpoint_rows.read_spec(endpoint_rows.get(session, name)[0])
    (variant,) = spec.variants
    try:
        serve.check_files(variant)
    except NotFound as error:
        raise NotFound(f"{error} `whetstone endpoints remove {name}` removes this endpoint.") from None
    engine_status.server_program(workspace.settings, variant)
    # 2. Want it to run.
    workspace.change(Action.START_ENDPOINT, name, lambda session: endpoint_rows.start(session, name))
    return show(workspace, name)


def stop(workspace: Workspace, name: str) -> LocalEndpoint:
    """Stop an endpoint: its address answers no more. Raises NotFound, NotAllowed, ReadOnly."""
    workspace.change(
        Action.STOP_ENDPOINT, name, lambda session: endpoint_rows.stop(session, name, workspace.actor.name)
    )
    return show(workspace, name)


def remove(workspace: Workspace, name: str) -> None:
    """Stop an endpoint and forget it. Raises NotFound, NotAllowed, ReadOnly."""
    workspace.change(
        Action.REMOVE_ENDPOINT, name, lambda session: endpoint_rows.remove(session, name, workspace.actor.name) and None
    )


def listing(workspace: Workspace) -> list[LocalEndpoint]:
    """Return all endpoints of this studio's machines, by name."""
    with workspace.store.read() as session:
        return [_view(workspace, session, row, job) for row, job in endpoint_rows.list_all(session)]


def list_running(workspace: Workspace) -> list[RunningEndpoint]:
    """Return the endpoints of this machine that are to run and have not failed, by name."""
    with workspace.store.read() as session:
        rows = endpoint_rows.list_of_host(session, socket.gethostname())
        return [RunningEndpoint(row.name, row.source, make_url(row.port), row.job_id, row.started_at) for row in rows]


def list_loaded(workspace: Workspace) -> list[str]:
    """Return the names of the endpoints that are loaded on this machine, or are being loaded."""
    busy = {EndpointState.LOADED, EndpointState.LOADING}
    return [one.name for one in listing(workspace) if one.is_here and one.state in busy]


def make_url(port: int) -> str:
    """Return the address of the endpoint with that port, up to and with `/v1`."""
    return f"http://127.0.0.1:{port}/v1"


def show(workspace: Workspace, name: str) -> LocalEndpoint:
    """Return one endpoint. Raises NotFound."""
    with workspace.store.read() as session:
        return _view(workspace, session, *endpoint_rows.get(session, name))


def find(workspace: Workspace, name: str) -> LocalEndpoint | None:
    with workspace.store.read() as session:
        pair = endpoint_rows.find(session, name)
        return None if pair is None else _view(workspace, session, *pair)


def served_variant(workspace: Workspace, name: str) -> Variant:
    """Return the variant of an endpoint as it is served. Raises NotFound."""
    with workspace.store.read() as session:
        spec = endpoint_rows.read_spec(endpoint_rows.get(session, name)[0])
    return spec.variants[0]


def logs(workspace: Workspace, name: str, *, tail_bytes: int | None = None) -> str:
    """Return what the worker and the server of the endpoint's latest job printed; empty before its first. Raises
    NotFound."""
    job = show(workspace, name).job
    if job is None:
        return ""
    return jobs.logs(workspace, job, tail_bytes=tail_bytes) + jobs.side_log(
        workspace, job, SERVER_LOG, tail_bytes=tail_bytes
    )


def request_log(workspace: Workspace, name: str, *, tail_bytes: int = 100_000) -> str:
    """Return the last lines of an endpoint's request log, JSON each; empty while there is none. Raises NotFound."""
    path = workspace.settings.home / REQUEST_LOGS / f"{show(workspace, name).name}.log"
    if not path.is_file():
        return ""
    with path.open("rb") as lines:
        size = lines.seek(0, 2)
        lines.seek(max(0, size - tail_bytes))
        text = lines.read().decode(errors="replace")
    return text if size <= tail_bytes else text.partition("\n")[2]


def list_exported(
    workspace: Workspace, names: Sequence[str] = (), gateway: str | None = None
) -> list[ExportedEndpoint]:
    """Return these endpoints, or all of this machine, as other programs ask them: at their own addresses, or at that of
    a gateway. Raises NotFound, RequestError for an address that is none."""
    chosen = [show(workspace, name) for name in names] or [each for each in listing(workspace) if each.is_here]
    exported = []
    for each in chosen:
        address = endpoint.parse_address(gateway or each.url)
        chat = playground.has_chat_template(served_variant(workspace, each.name).model_path)
        key_file = None if gateway else each.key_file
        exported.append(ExportedEndpoint(each.name, str(address), key_file, bool(chat)))
    return exported


def _view(workspace: Workspace, session: Any, row: EndpointRow, job: JobRow | None) -> LocalEndpoint:
    spec = endpoint_rows.read_spec(row)
    job_state = None if job is None else JobState(job.state)
    state = find_state(
        to_run=row.to_run, given_up=row.reason is not None, job_state=job_state, phase=job.phase if job else None
    )
    # 1. The counts of earlier jobs, and of the one that runs.
    counts = {name: getattr(row, name) for name in (*endpoint_rows.COUNTS, "restarts")}
    tokens = 0
    now = datetime.now(UTC)
    if job is not None:
        event = history.latest_with(session, job.id, "loads")
        data = event.data if event is not None else {}
        tokens = int(sum(each.get("generation_tokens", 0) for each in data.get("served", {}).values()))
        if not endpoint_rows.is_summed_up(row):
            counts = {name: value + data.get(name, 0) for name, value in counts.items()}
            if event is not None and state is EndpointState.LOADED:
                counts["loaded_s"] += max(0.0, (now - event.at).total_seconds())
    # 2. Its cost, which is that of the machine.
    price = workspace.settings.price_per_hour
    stopped_at = None if row.to_run or job is None else job.finished_at
    hours = max(0.0, ((stopped_at or now) - row.started_at).total_seconds() / 3600)
    url = make_url(row.port)
    return LocalEndpoint(
        name=row.name,
        source=row.source,
        engine=spec.variants[0].serving.engine_name,
        state=state,
        reason=row.reason or (job.message if job is not None and state not in STEADY else None),
        url=url,
        key_file=endpoint.key_file(endpoint.parse_address(url)) if row.host == socket.gethostname() else None,
        host=row.host,
        owner=row.owner,
        idle_minutes=spec.idle_minutes,
        keep_loaded=spec.keep_loaded,
        job=row.job_id,
        generated_tokens=tokens,
        created_at=row.created_at,
        started_at=row.started_at,
        price_per_hour=price,
        cost=None if price is None else price * hours,
        **counts,
    )


STEADY = frozenset({EndpointState.LOADED, EndpointState.STOPPED})
"""States that need no explanation."""
