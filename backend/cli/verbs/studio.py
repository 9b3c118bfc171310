"""`whetstone up`, `audit`, `demo` and `supervisor ...`: start the studio, and list, start, drain and stop
supervisors."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from backend import service
from backend.cli.interrupts import defer_interrupts
from backend.cli.options.numbers import port_option
from backend.cli.output import Json, emit, say, table
from backend.cli.submit_and_wait import wait_for_end
from backend.cli.verbs.evaluate import summary_text
from backend.domain.errors import NotNow
from backend.present.words import headline
from backend.service.jobs import supervisors
from backend.service.studio import audit as trail
from backend.service.studio import demo as loop
from backend.service.studio import studio

supervisor = typer.Typer(no_args_is_help=True)


def up(
    port: Annotated[int, port_option("Port of the web studio.")] = 8501,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on. Other addresses than loopback also need names in WHETSTONE_HOSTS."),
    ] = "127.0.0.1",
    without_sign_in: Annotated[
        bool,
        typer.Option("--without-sign-in", help="Let everybody who reaches the address act as you, without sign-in."),
    ] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser if there is one.")] = True,
    metrics_port: Annotated[
        int | None, port_option("Port of the supervisor's Prometheus metrics. Default: WHETSTONE_METRICS_PORT.")
    ] = None,
    install_engines: Annotated[
        bool,
        typer.Option(
            "--install-engines",
            help="Install llama.cpp and vLLM by jobs beside the first page, if they are missing or out of date.",
        ),
    ] = False,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            help="Show results that were measured elsewhere, read-only. Nothing runs, and your home is not used.",
        ),
    ] = False,
) -> None:
    """Start the supervisor and the web studio. Ctrl-C stops both.

    In a home without jobs it queues the demo, which yields to your own jobs. WHETSTONE_NO_DEMO=1 turns that off.
    """
    studio.check_host(host, without_sign_in=without_sign_in)
    studio.check_port(port)
    if demo:
        studio.serve_demonstration(port, host=host, browser=browser, say=say)
    else:
        studio.serve(
            service.open_workspace(),
            port,
            host=host,
            browser=browser,
            say=say,
            metrics_port=metrics_port,
            install_engines=install_engines,
        )


def audit(
    who: Annotated[
        list[str] | None, typer.Option(help="Only changes by this person or supervisor. Repeatable.")
    ] = None,
    action: Annotated[list[str] | None, typer.Option(help="Only this action, such as `submit`. Repeatable.")] = None,
    words: Annotated[str, typer.Option(help="Only changes whose target has all of these words.")] = "",
    limit: Annotated[int, typer.Option(help="At most this many, latest first.", min=1)] = 100,
    json: Json = False,
) -> None:
    """Show who changed what, when, and from where: page, command line or supervisor."""
    records = trail.listing(service.open_workspace(), who=who or (), actions=action or (), words=words, limit=limit)
    rows = [
        (
            f"{record.at:%Y-%m-%d %H:%M:%S}",
            record.who,
            record.origin,
            record.action,
            f"{record.kind} {record.target}",
            record.detail or "",
        )
        for record in records
    ]
    text = table(("at (UTC)", "who", "from", "action", "what", "detail"), rows) if rows else "No changes yet."
    emit(records, as_json=json, text=text)


def demo(
    starter: Annotated[bool, typer.Option("--starter", help="Use the small bundled model, without network.")] = False,
    repeats: Annotated[int | None, typer.Option(help="Blocks of the evaluation. Default: until conclusive.")] = None,
    price_per_hour: Annotated[
        float, typer.Option(help="USD per hour; the default is an assumption.")
    ] = loop.ASSUMED_PRICE,
    json: Json = False,
) -> None:
    """Run the whole loop without a browser on a real language model: fetch, optimize, evaluate against the original,
    print the table, the report and the verdict. Without network it uses the starter model."""
    workspace = service.open_workspace()
    supervisors.ensure_running(workspace)
    # Run the loop; every job is waited for here.
    with defer_interrupts():
        shown = loop.run_demo(
            workspace,
            lambda job: wait_for_end(workspace, job),
            say,
            starter=starter,
            repeats=repeats,
            price_per_hour=price_per_hour,
        )
    report = loop.report_path(shown)
    say(f"Report: {report}")
    emit(
        shown.document,
        as_json=json,
        text=f"{summary_text(shown.document)}\n\nReport: {report}\n\n{headline.headline_sentence(shown.document)}",
    )


POLL_S = 0.5


@supervisor.command("list")
def list_supervisors(json: Json = False) -> None:
    """List the supervisors of all hosts that share the database."""
    supervisor_views = supervisors.listing(service.open_workspace())
    rows = [
        (view.host, view.home, view.pid, "draining" if view.draining else "takes jobs", ", ".join(view.jobs))
        for view in supervisor_views
    ]
    text = (
        table(("host", "home", "process", "state", "jobs"), rows)
        if rows
        else "No supervisor: `whetstone up` starts one."
    )
    emit(supervisor_views, as_json=json, text=text)


@supervisor.command()
def start(json: Json = False) -> None:
    """Start this home's supervisor, also after draining."""
    workspace = service.open_workspace()
    supervisors.start(workspace)
    emit(supervisors.listing(workspace), as_json=json, text="The supervisor of this home takes jobs.")


@supervisor.command()
def drain(
    wait: Annotated[bool, typer.Option("--wait/--detach", help="Wait until its last job has ended.")] = True,
    hand_over: Annotated[
        bool, typer.Option("--hand-over", help="Stop now; workers go on, and the next supervisor adopts them.")
    ] = False,
    json: Json = False,
) -> None:
    """Take no new jobs in this home and stop after the last one. `whetstone supervisor start` takes jobs again."""
    workspace = service.open_workspace()
    supervisors.drain(workspace)
    if hand_over:
        supervisors.stop(workspace)
    # Its workers may take hours: wait without a limit.
    while wait and supervisors.is_alive(workspace, own=True):
        time.sleep(POLL_S)
    stopped = not supervisors.is_alive(workspace, own=True)
    text = "The supervisor has ended." if stopped else "The supervisor takes no new jobs and ends after its last."
    emit({"ended": stopped}, as_json=json, text=text)


@supervisor.command()
def stop(json: Json = False) -> None:
    """Stop this home's supervisor. Workers go on, and the next supervisor adopts them."""
    if not supervisors.stop(service.open_workspace()):
        raise NotNow("No supervisor of this home is running.")
    emit({"ended": True}, as_json=json, text="The supervisor has ended; running jobs go on.")
