"""The gateway's door: keys of its clients, the servers that it passes requests on to, and the process itself."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from backend import endpoint
from backend.address import is_loopback
from backend.domain.errors import InvalidOptions, NotFound, PortTaken, RequestError
from backend.domain.figures import counted
from backend.domain.frozen import Frozen
from backend.domain.jobs.jobs import JobKind, JobState
from backend.domain.limits.slo import Slo
from backend.domain.roles import Action
from backend.domain.what_if.portfolio import Portfolio, make_portfolio
from backend.gateway import keys
from backend.gateway.keys import ClientKey
from backend.gateway.options import GatewayOptions as GatewayOptions
from backend.gateway.portfolio_route import MODEL
from backend.gateway.routes import Upstream
from backend.present import portfolio_words
from backend.processes import SignalEvent
from backend.service.evaluations import evaluations
from backend.service.jobs import running_jobs
from backend.service.jobs.running_jobs import RunningJob
from backend.service.serving import local_endpoints, serve
from backend.service.workspace import Workspace
from backend.store import table_rows
from backend.store.tables import GatewayKeyRow

if TYPE_CHECKING:
    from backend.gateway.gateway import Gateway

LOG = "gateway.log"
LONGEST_NAME = 64
Say = Callable[[str], None]


class KeyView(Frozen):
    """A key as people see it: never the key itself, nor its hash."""

    name: str
    requests_per_minute: int | None
    owner: str
    created_at: datetime


class NewKey(NamedTuple):
    """A key that was just added. `token` is shown once and stored nowhere."""

    name: str
    token: str
    requests_per_minute: int | None


def add_key(workspace: Workspace, name: str, *, requests_per_minute: int | None = None) -> NewKey:
    """Add a key for a client and return it. Raises InvalidOptions, RequestError where the name is taken, NotAllowed,
    ReadOnly."""
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise InvalidOptions(
            f"A key's name has 1 to {LONGEST_NAME} printable characters, without spaces at its ends: give another."
        )
    if requests_per_minute is not None and requests_per_minute < 1:
        raise InvalidOptions("is wrong: it must be at least 1.", field="requests_per_minute")
    token = keys.make_token()

    def add(session: Any) -> bool:
        row = GatewayKeyRow(
            name=name,
            digest=keys.digest(token),
            requests_per_minute=requests_per_minute,
            owner=workspace.actor.name,
        )
        return table_rows.add_new(session, row)

    limit = None if requests_per_minute is None else f"{counted(requests_per_minute, 'request')} per minute"
    if not workspace.change(Action.ADD_KEY, name, add, detail=limit, changed=bool):
        raise RequestError(f"There is a key `{name}` already: remove it first, or choose another name.")
    return NewKey(name, token, requests_per_minute)


def remove_key(workspace: Workspace, name: str) -> None:
    """Remove a client's key; gateways that run refuse it within two seconds. Raises NotFound, NotAllowed, ReadOnly."""
    removed = workspace.change(
        Action.REMOVE_KEY, name, lambda session: table_rows.remove(session, GatewayKeyRow, name), changed=bool
    )
    if not removed:
        names = ", ".join(key.name for key in list_keys(workspace)) or "none"
        raise NotFound(f"There is no key `{name[:LONGEST_NAME]}`: there is {names}.")


def list_keys(workspace: Workspace) -> list[KeyView]:
    """Return the keys of all clients, by name."""
    with workspace.store.read() as session:
        rows = table_rows.list_rows(session, GatewayKeyRow)
    return [KeyView(**{name: getattr(row, name) for name in KeyView.model_fields}) for row in rows]


class KeysAndServers:
    """Reads the keys of clients, the servers of the serve jobs that run on this machine, and its endpoints.

    The servers of a job do not change while an attempt of it runs, so they are read once.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._by_attempt: dict[tuple[str, int], list[Upstream]] = {}

    def __call__(self) -> tuple[list[ClientKey], list[Upstream]]:
        """Return both as they are now. Raises StoreUnavailable."""
        # 1. The keys.
        with self._workspace.store.read() as session:
            rows = table_rows.list_rows(session, GatewayKeyRow)
        clients = [ClientKey(**{name: getattr(row, name) for name in ClientKey.model_fields}) for row in rows]
        # 2. The servers of each running job.
        by_attempt = {}
        for job in _serve_jobs(self._workspace):
            attempt = job.id, job.attempt
            servers = self._by_attempt.get(attempt) or _upstreams(self._workspace, job)
            if servers:
                by_attempt[attempt] = servers
        self._by_attempt = by_attempt
        servers = [server for servers in by_attempt.values() for server in servers]
        # 3. The endpoints of this machine, whether their servers are loaded or not.
        return clients, [*servers, *_endpoints(self._workspace)]


def _serve_jobs(workspace: Workspace) -> list[RunningJob]:
    """Return the serve jobs that run on this machine and are not being stopped."""
    here = socket.gethostname()
    return [
        job
        for job in running_jobs.list_running(workspace)
        if job.kind == JobKind.SERVE and job.state is JobState.RUNNING and job.host == here
    ]


def _endpoints(workspace: Workspace) -> list[Upstream]:
    """Return the endpoints of this machine that are to run; also one that is being started again."""
    upstreams = []
    for each in local_endpoints.list_running(workspace):
        address = endpoint.parse_address(each.url)
        upstreams.append(
            Upstream(
                name=each.name,
                source=each.source,
                served_name=each.name,
                base=str(address),
                key=endpoint.bearer(None, address),
                job=each.job or "",
                since=int(each.started_at.timestamp()),
                is_restarted=True,
            )
        )
    return upstreams


def _upstreams(workspace: Workspace, job: RunningJob) -> list[Upstream]:
    """Return the job's servers; none while they load."""
    servers = []
    for variant in serve.endpoints(workspace, job.id):
        address = endpoint.parse_address(variant.url)
        servers.append(
            Upstream(
                name=variant.name,
                source=variant.source,
                served_name=variant.served_name,
                base=str(address),
                key=endpoint.bearer(None, address),
                job=job.id,
                since=int(job.since.timestamp()) if job.since else 0,
            )
        )
    return servers


def read_portfolio(
    workspace: Workspace, evaluation_id: str, limits: Slo, max_kl: float | None = None
) -> tuple[Portfolio, dict[str, str]]:
    """Return the portfolio of an evaluation, and the id of each of its variants. Raises NotFound, RequestError."""
    document = evaluations.show(workspace, evaluation_id).document
    portfolio = make_portfolio(document, limits, max_kl)
    if portfolio is None:
        raise RequestError(f"No portfolio can be read from {evaluation_id}. {portfolio_words.TOO_FEW}")
    return portfolio, {result.name: result.variant.source for result in document.variants}


def check_host(host: str, clients: Sequence[object]) -> None:
    """Raises RequestError for an address that others reach while there is no key."""
    if not clients and not is_loopback(host):
        raise RequestError(
            f"On {host[:80]} everybody who reaches the gateway could use what is served here: add a key with "
            "`whetstone gateway keys add NAME`, or leave {} out.",
            "host",
        )


def run(workspace: Workspace, host: str, port: int, options: GatewayOptions, say: Say) -> None:
    """Run the gateway until SIGTERM or Ctrl-C; main thread only. `port` 0 takes a free one.

    Raises RequestError, PortTaken, NotAllowed, ReadOnly, StoreUnavailable.
    """
    # 1. Refuse what cannot run.
    workspace.check(Action.ASK)
    clients = list_keys(workspace)
    check_host(host, clients)
    # 2. Listen, and start. aiohttp and uvicorn are loaded here, since no other command needs them.
    from backend.gateway import server
    from backend.gateway.gateway import Gateway
    from backend.gateway.request_log import RequestLog

    with (
        closing(RequestLog(options.log_path, with_content=options.log_content)) as log,
        _listen(host, port) as listening,
    ):
        reader = KeysAndServers(workspace)
        gateway = Gateway(reader, options, log, loopback_only=is_loopback(host))
        for line in _start_lines(listening, gateway.routes.names, clients, options):
            say(line)
        for line in _portfolio_lines(gateway):
            say(line)
        SignalEvent.handle((signal.SIGINT, signal.SIGTERM))  # uvicorn raises them again once it has drained
        server.run(gateway, listening, say)
    say("Stopped.")


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises PortTaken, RequestError."""
    from backend.gateway import server

    try:
        return server.listen(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"Port {port} is in use: stop what listens there, or choose another with {{}}.", "port"
            ) from None
        raise RequestError(
            f"{host[:80]}:{port} cannot be listened on ({error.strerror or error}): give another {{}} or {{}}.",
            "host",
            "port",
        ) from None


def _portfolio_lines(gateway: Gateway) -> list[str]:
    """Return what a start says of the portfolio, and which of its variants are not served; nothing without one."""
    portfolio, route = gateway.options.portfolio, gateway.portfolio
    if portfolio is None or route is None:
        return []
    # 1. Which variant answers at which load.
    sentences = [portfolio_words.sentence(portfolio), *portfolio_words.switch_sentences(portfolio)]
    lines = [f"The model `{MODEL}` is the best variant at the load of the moment. {' '.join(sentences)}"]
    # 2. What is missing: the nearest variant answers in its place.
    missing = [name for name in route.variants if route.find_server(gateway.routes, name) is None]
    if missing:
        sources = " ".join(gateway.options.portfolio_sources[name] for name in missing)
        lines.append(f"Not served yet: {', '.join(missing)}. `whetstone serve {sources} --detach` starts it.")
    return [line.replace("`", "") for line in lines]


def _start_lines(
    listening: socket.socket, names: Sequence[str], clients: Sequence[KeyView], options: GatewayOptions
) -> list[str]:
    """Return what a start says: address, models, who may ask, and where requests are logged."""
    host, port = listening.getsockname()[:2]
    written = f"[{host}]" if ":" in host else host
    lines = [f"The gateway is at http://{written}:{port}/v1; Ctrl-C stops it."]
    served = (
        f"It serves {', '.join(names)}."
        if names
        else "Nothing is served yet: `whetstone serve MODEL` makes an endpoint."
    )
    lines.append(served)
    if clients:
        lines.append(f"Requests need one of {len(clients)} keys." if len(clients) > 1 else "Requests need the key.")
    else:
        lines.append(
            "There is no key: every program on this machine may send requests, and no other machine. "
            "`whetstone gateway keys add NAME` makes one."
        )
    place = "standard output" if options.log_path is None else str(options.log_path)
    content = "with what is asked and answered" if options.log_content else "without what is asked and answered"
    lines.append(f"Requests are logged to {place}, {content}.")
    return lines
