"""`whetstone serve NAME...`: endpoints of this machine, added or started, and waited for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from backend import service
from backend.cli.interrupts import defer_interrupts
from backend.cli.output import Json, emit, next_command, say, table
from backend.cli.verbs.serving import sagemaker
from backend.domain.errors import InvalidOptions, JobCancelled, WorkError
from backend.domain.jobs.endpoint_states import EndpointState
from backend.domain.recipe.serving_engines import ENGINES
from backend.present.endpoints import words
from backend.present.words import engines as engine_words
from backend.service import Workspace
from backend.service.jobs import supervisors
from backend.service.models import variants
from backend.service.serving import local_endpoints
from backend.service.serving import serve as servers
from backend.service.serving.local_endpoints import LocalEndpoint

POLL_S = 0.25
HEADER = ("endpoint", "state", "address", "model", "key in")
SETTLED = frozenset({EndpointState.LOADED, EndpointState.IDLE, EndpointState.FAILED, EndpointState.STOPPED})
"""States in which a start is over."""


def serve(
    sources: Annotated[
        list[str], typer.Argument(help="Model ids, folders or artifact ids; each becomes an endpoint of its own.")
    ],
    engine: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(ENGINES)} or auto, for all but those written SOURCE@engine=NAME."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the endpoint, which clients send as `model`. Default: the variant's.")
    ] = None,
    idle: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            metavar="MINUTES",
            help=f"Unload after so long without requests; the next one loads again. Default: {servers.IDLE_MINUTES:g}.",
        ),
    ] = None,
    keep_loaded: Annotated[
        bool | None, typer.Option("--keep-loaded/--unload", help="Never unload, or unload when idle (the default).")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port of the address. Default: the first free one from 8701.")
    ] = None,
    anyway: sagemaker.Anyway = False,
    wait: Annotated[bool, typer.Option("--wait/--detach", help="Wait until the endpoints answer.")] = True,
    json: Json = False,
) -> None:
    """Serve models or artifacts at addresses of this machine that stay, for programs and the gateway.

    An endpoint goes on after this command, in the background: the supervisor starts it again after a crash. Its model
    is unloaded when nobody asks and loaded for the next request. `whetstone endpoints stop NAME` stops it.
    """
    workspace = service.open_workspace()
    if len(sources) > 1 and (name is not None or port is not None):
        field = "port" if name is None else "name"
        raise InvalidOptions("is for one endpoint: serve the models one after the other.", field=field)
    # 1. Add or start them.
    endpoints = [
        local_endpoints.add(
            workspace,
            variants.with_engine(source, engine),
            name=name,
            idle_minutes=idle,
            keep_loaded=keep_loaded,
            port=port,
            anyway=anyway,
        )
        for source in sources
    ]
    names = [each.name for each in endpoints]
    for sentence in engine_words.choice_sentences([local_endpoints.served_variant(workspace, each) for each in names]):
        say(sentence)
    # 2. Wait until they answer, and print where.
    if wait:
        endpoints = wait_until_settled(workspace, names)
    else:
        endpoints = [local_endpoints.show(workspace, each) for each in names]
    emit(endpoints, as_json=json, text=f"{endpoints_text(endpoints)}\n{_next_line(workspace, names, wait=wait)}")
    failed = [each for each in endpoints if each.state is EndpointState.FAILED]
    if failed:
        raise WorkError(f"{failed[0].name} failed. {failed[0].reason}")


def _next_line(workspace: Workspace, names: Sequence[str], *, wait: bool) -> str:
    if not wait and not supervisors.is_alive(workspace):
        return "No supervisor is running: `whetstone up` starts one and the endpoints with it."
    return next_command("endpoints", "show" if not wait else "stop", names[0])


def wait_until_settled(workspace: Workspace, names: Sequence[str]) -> list[LocalEndpoint]:
    """Return the endpoints once each of them answers, has failed or is stopped, with what they do on standard error.

    Ctrl-C ends the wait and leaves them running. Raises JobCancelled then.
    """
    printed: dict[str, str] = {}
    with defer_interrupts() as interrupted:
        while not interrupted.is_set():
            supervisors.ensure_running(workspace)
            endpoints = [local_endpoints.show(workspace, name) for name in names]
            for each in endpoints:
                line = f"{each.name}: {each.state}. {each.reason or ''}".strip()
                if printed.get(each.name) != line and each.state not in SETTLED:
                    say(line)
                printed[each.name] = line
            if all(each.state in SETTLED for each in endpoints):
                _say_why_not_loaded(endpoints)
                return endpoints
            time.sleep(POLL_S)
    raise JobCancelled(f"Interrupted. The endpoints go on starting: `whetstone endpoints stop {names[0]}` stops one.")


def _say_why_not_loaded(endpoints: Sequence[LocalEndpoint]) -> None:
    """Say why an endpoint that answers has no model in memory: others may have the memory."""
    for each in endpoints:
        if each.state is EndpointState.IDLE:
            say(f"{each.name}: {words.state_sentence(each.state, each.reason)}")


def endpoints_text(endpoints: Sequence[LocalEndpoint]) -> str:
    """Return where endpoints answer, as a table."""
    rows: list[tuple[Any, ...]] = [
        (each.name, str(each.state), each.url, each.source, each.key_file or "-") for each in endpoints
    ]
    return table(HEADER, rows)
