"""`whetstone gateway` and `whetstone gateway keys ...`: one address for all served models, and the keys of its
clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from backend import service
from backend.cli.options import limits
from backend.cli.options.numbers import number_option
from backend.cli.output import Json, emit, next_command, out, say, table
from backend.domain.errors import RequestError
from backend.domain.figures import counted
from backend.domain.jobs import terms
from backend.service.serving import gateway, recorded_requests
from backend.service.serving.gateway import GatewayOptions

app = typer.Typer(invoke_without_command=True)
keys = typer.Typer(no_args_is_help=True)
app.add_typer(keys, name="keys", help="Keys of the gateway's clients: add, list, remove.")
DEFAULTS = GatewayOptions()
ENDPOINT = {"chat": ("--endpoint", "chat"), "completion": ("--endpoint", "completions")}
MIB = 2**20


@app.callback()
def run_gateway(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")] = 8600,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Other addresses than loopback need at least one key.")
    ] = "127.0.0.1",
    max_body: Annotated[
        float, number_option("Largest body of a request, in MiB.", least=0.001, metavar="MIB")
    ] = DEFAULTS.most_body_bytes / MIB,
    stall: Annotated[
        float,
        number_option("Fail a request when its server sends no byte for so long.", least=0.1, metavar="SECONDS"),
    ] = DEFAULTS.stall_s,
    drain: Annotated[
        float, number_option("Time that requests under way have when the gateway stops.", metavar="SECONDS")
    ] = DEFAULTS.drain_s,
    log: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="File of the request log, `-` for standard output. Default: in the home."),
    ] = None,
    log_content: Annotated[bool, typer.Option("--log-content", help="Also log what is asked and answered.")] = False,
    portfolio: Annotated[
        str | None,
        typer.Option(
            metavar="EVALUATION",
            help="Also answer for the model `auto`: the best variant of this evaluation for the streams in flight.",
        ),
    ] = None,
    ttft: limits.MaxTtft = None,
    tpot: limits.MaxTpot = None,
    percentile: limits.PercentileName = limits.USUAL,
    max_kl: Annotated[
        float | None, number_option("The portfolio leaves out variants with a mean KL divergence above this.")
    ] = None,
) -> None:
    """Answer for all served models at one OpenAI-compatible address, until Ctrl-C or SIGTERM.

    Models are the endpoints of this machine (`whetstone serve`) and the servers of serve jobs, by name or id.
    """
    if context.invoked_subcommand is not None:
        return
    workspace = service.open_workspace()
    log_path: Path | None = Path(log).expanduser() if log else workspace.settings.home / gateway.LOG
    if log == "-":
        log_path = None
    options = GatewayOptions(
        most_body_bytes=int(max_body * MIB),
        stall_s=stall,
        drain_s=drain,
        log_path=log_path,
        log_content=log_content,
    )
    if portfolio is None and {ttft, tpot, max_kl} != {None}:
        raise RequestError("Limits and a floor are those of a portfolio: give --portfolio EVALUATION with them.")
    if portfolio is not None:
        slo = limits.read_limits(ttft, tpot, percentile)
        chosen, sources = gateway.read_portfolio(workspace, portfolio, slo, max_kl)
        options = options.model_copy(update={"portfolio": chosen, "portfolio_sources": sources})
    gateway.run(workspace, host, port, options, say)


@app.command()
def workload(
    name: Annotated[str, typer.Argument(help="The name of the workload; the start of its hash is added.")] = "recorded",
    log: Annotated[
        str | None, typer.Option(metavar="FILE", help="A request log. Default: that of the home, with its older files.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Take requests for this model only.")] = None,
    key: Annotated[str | None, typer.Option(help="Take requests with the key of this name only.")] = None,
    last: Annotated[
        str | None, typer.Option(metavar="TIME", help="Take requests of this time until now: 90m, 24h, 7d.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a workload of the requests that went through the gateway, to evaluate, or train a draft, on your own
    traffic. The gateway must have run with --log-content."""
    last_s = None if last is None else terms.parse_seconds(last, "last")
    summary = recorded_requests.make_workload(
        service.open_workspace(), name, log=log, model=model, key=key, last_s=last_s
    )
    lines = [
        f"{counted(summary.requests, 'request')} became the workload {summary.name}, "
        f"{counted(summary.conversations, 'line')}.",
        recorded_requests.left_out_words(summary.left_out),
        f"Evaluate on it: {next_command('evaluate', 'MODEL', '--workload', summary.path, *ENDPOINT[summary.kind])}",
        f"Train a draft on it: {next_command('train', 'MODEL', '--prompts', summary.path)}",
    ]
    emit(summary, as_json=json, text="\n".join(filter(None, lines)))


@keys.command()
def add(
    name: Annotated[str, typer.Argument(help="The client's name, as metrics and the log show it.")],
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="At most so many requests in any 60 seconds.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a key for a client and print it, once: only its hash is stored."""
    key = gateway.add_key(service.open_workspace(), name, requests_per_minute=requests_per_minute)
    if json:
        emit(key, as_json=True, text="")
        return
    say(f"The key of {key.name}, shown only now. A gateway that runs takes it within two seconds.")
    out(key.token)


@keys.command("list")
def list_keys(json: Json = False) -> None:
    """List the keys of all clients, without the keys themselves."""
    views = gateway.list_keys(service.open_workspace())
    rows = [
        (view.name, view.requests_per_minute or "no limit", view.owner, f"{view.created_at:%Y-%m-%d %H:%M}")
        for view in views
    ]
    text = table(("key of", "requests per minute", "added by", "at (UTC)"), rows) if rows else "There is no key."
    emit(views, as_json=json, text=text)


@keys.command()
def remove(
    name: Annotated[str, typer.Argument(help="The client's name.")],
    json: Json = False,
) -> None:
    """Remove a client's key. A gateway that runs refuses it within two seconds."""
    gateway.remove_key(service.open_workspace(), name)
    emit({"removed": name}, as_json=json, text=f"The key of {name} is removed.")
