"""`whetstone endpoints ...`: endpoints of this machine, and beside them those on SageMaker."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from backend import service
from backend.cli.output import Json, emit, next_command, table
from backend.cli.verbs.serving import sagemaker
from backend.cli.verbs.serving.serve import endpoints_text, wait_until_settled
from backend.domain.errors import WorkError
from backend.domain.jobs.endpoint_states import EndpointState
from backend.present import serve_command
from backend.present.endpoints import exports, words
from backend.service import Workspace
from backend.service.machines import prices
from backend.service.serving import endpoints as aws_endpoints
from backend.service.serving import local_endpoints, playground
from backend.service.serving.local_endpoints import LocalEndpoint

app = typer.Typer(no_args_is_help=True)
app.command()(sagemaker.prove)
app.command()(sagemaker.update)
app.command()(sagemaker.delete)
Name = Annotated[str, typer.Argument(help="An endpoint's name, as `whetstone endpoints list` shows it.")]
HEADER = ("endpoint", "state", "engine", "address", "requests", "failed", "loads", "restarts", "since (UTC)", "cost")


@app.command("list")
def list_endpoints(
    region: sagemaker.Region = None,
    here: Annotated[bool, typer.Option("--here", help="Only those of this studio's machines, without AWS.")] = False,
    json: Json = False,
) -> None:
    """List the endpoints of this studio's machines, and with AWS credentials those that Whetstone made in a region."""
    workspace = service.open_workspace()
    # 1. Those of this studio's machines.
    local = local_endpoints.listing(workspace)
    text = _table(local) if local else "No endpoint on this machine: `whetstone serve MODEL` makes one."
    # 2. Those of AWS.
    at_aws = []
    if not here and (region is not None or not prices.missing_credentials()):
        at_aws = aws_endpoints.listing(workspace, region)
        text = f"{text}\n\n{sagemaker.listing_text(at_aws)}"
    emit([*local, *at_aws], as_json=json, text=text)


def _table(endpoints: list[LocalEndpoint]) -> str:
    rows = [
        (
            each.name,
            str(each.state),
            each.engine,
            each.url if each.is_here else f"{each.url} on {each.host}",
            each.requests,
            each.failed_requests,
            each.loads,
            each.restarts,
            f"{each.started_at:%Y-%m-%d %H:%M}",
            "-" if each.cost is None else f"{each.cost:,.2f}",
        )
        for each in endpoints
    ]
    return table(HEADER, rows)


@app.command()
def show(name: Name, region: sagemaker.Region = None, json: Json = False) -> None:
    """Show one endpoint, with client code: of this studio's machines, else of SageMaker."""
    workspace = service.open_workspace()
    endpoint = local_endpoints.find(workspace, name) if region is None else None
    if endpoint is None and region is None and prices.missing_credentials():
        local_endpoints.show(workspace, name)  # says which there are
    if endpoint is None:
        view = aws_endpoints.show(workspace, name, region)
        emit(view, as_json=json, text=sagemaker.show_text(view))
        return
    emit(endpoint, as_json=json, text=_show_text(workspace, endpoint))


def _show_text(workspace: Workspace, endpoint: LocalEndpoint) -> str:
    folder = local_endpoints.served_variant(workspace, endpoint.name).model_path
    code = serve_command.curl(
        endpoint.name,
        chat=bool(playground.has_chat_template(folder)),
        url=endpoint.url,
        key_file=endpoint.key_file,
    )
    started = f"{endpoint.started_at:%Y-%m-%d %H:%M} UTC"
    lines = [
        f"{endpoint.name}: {words.state_sentence(endpoint.state, endpoint.reason)}",
        f"Serves {endpoint.source} by {endpoint.engine} at {endpoint.url}; job {endpoint.job or '-'}.",
        f"Since {started}: {_counts_text(endpoint)}.",
        words.cost(endpoint.cost, endpoint.price_per_hour),
    ]
    return "\n".join([*lines, "", code])


def _counts_text(endpoint: LocalEndpoint) -> str:
    return words.counts(
        requests=endpoint.requests,
        failed=endpoint.failed_requests,
        loads=endpoint.loads,
        restarts=endpoint.restarts,
        loaded_s=endpoint.loaded_s,
    )


@app.command()
def logs(
    name: Name,
    requests: Annotated[
        bool, typer.Option("--requests", help="The request log instead: a line of JSON each, without contents.")
    ] = False,
    lines: Annotated[int, typer.Option(min=1, metavar="N", help="Only the last so many lines.")] = 200,
    json: Json = False,
) -> None:
    """Print what an endpoint's worker and server wrote, or its request log."""
    workspace = service.open_workspace()
    read = local_endpoints.request_log if requests else local_endpoints.logs
    text = "\n".join(read(workspace, name).splitlines()[-lines:])
    emit({"endpoint": name, "log": text}, as_json=json, text=text)


@app.command()
def start(
    name: Name,
    wait: Annotated[bool, typer.Option("--wait/--detach", help="Wait until it answers.")] = True,
    json: Json = False,
) -> None:
    """Start a stopped or failed endpoint again, at the same address."""
    workspace = service.open_workspace()
    endpoint = local_endpoints.start(workspace, name)
    if wait:
        (endpoint,) = wait_until_settled(workspace, [name])
    emit(endpoint, as_json=json, text=f"{endpoints_text([endpoint])}\n{next_command('endpoints', 'stop', name)}")
    if endpoint.state is EndpointState.FAILED:
        raise WorkError(f"{name} failed. {endpoint.reason}")


@app.command()
def stop(name: Name, json: Json = False) -> None:
    """Stop an endpoint: requests under way have five seconds. It stays in the list."""
    endpoint = local_endpoints.stop(service.open_workspace(), name)
    emit(
        endpoint,
        as_json=json,
        text=f"{name} is {endpoint.state}. {next_command('endpoints', 'start', name)}",
    )


@app.command()
def remove(name: Name, json: Json = False) -> None:
    """Stop an endpoint and forget it. What it served stays."""
    local_endpoints.remove(service.open_workspace(), name)
    emit({"endpoint": name, "removed": True}, as_json=json, text=f"{name} is removed.")


@app.command()
def export(
    form: Annotated[
        Literal["llama-swap", "litellm", "vllm-router"], typer.Option(help="The program that is to read it.")
    ],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Endpoints. Default: all of this machine.")
    ] = None,
    gateway: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ask them at the gateway's address, with a key of it, not at their own."),
    ] = None,
    json: Json = False,
) -> None:
    """Print the configuration by which another proxy serves these endpoints."""
    exported = local_endpoints.list_exported(service.open_workspace(), names or (), gateway)
    text = exports.FORMS[form](exported)
    emit({"form": form, "text": text}, as_json=json, text=text.rstrip("\n"))
