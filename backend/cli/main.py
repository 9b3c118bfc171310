"""The `whetstone` command. Exit codes: 0 done, 1 the work failed, 2 the request was wrong, 130 interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from backend.cli.flag_names import error_text
from backend.cli.output import say
from backend.cli.verbs import (
    artifacts,
    bench,
    engines,
    evaluate,
    gateway,
    jobs,
    maintenance,
    optimize,
    payoff,
    studio,
    train,
)
from backend.cli.verbs.evaluations import fleet, portfolio, report
from backend.cli.verbs.library import catalog, models, presets, prices, recipe, tasks
from backend.cli.verbs.serving import endpoints, sagemaker
from backend.cli.verbs.serving import serve as serve_verb
from backend.cli.verbs.tuning import tune
from backend.domain.errors import WhetstoneError

app = typer.Typer(
    name="whetstone",
    help="An open inference optimization studio: combine techniques on a model, run them as a job, measure the "
    "result against the original and use the best variant. Every command takes --json; all state is in "
    "WHETSTONE_HOME (default ~/.whetstone).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
VERBS: dict[str, Callable[..., None]] = {
    "up": studio.up,
    "demo": studio.demo,
    "audit": studio.audit,
    "optimize": optimize.optimize_command,
    "train": train.train_command,
    "payoff": payoff.payoff_command,
    "evaluate": evaluate.evaluate,
    "tune": tune.tune_command,
    "report": report.report_command,
    "portfolio": portfolio.portfolio_command,
    "fleet": fleet.fleet_command,
    "doctor": maintenance.run_doctor,
    "activity": maintenance.show_activity,
    "backup": maintenance.back_up,
    "restore": maintenance.restore,
    "serve": serve_verb.serve,
    "deploy": sagemaker.deploy,
}
for name, verb in VERBS.items():
    app.command(name)(verb)
app.add_typer(bench.app, name="bench", help="Run the load generator alone, or import results of other tools.")
app.add_typer(jobs.app, name="jobs", help="Jobs: list, show, cancel, retry, clone, resume, reorder.")
app.add_typer(studio.supervisor, name="supervisor", help="Supervisors run the jobs: list, start, drain, stop.")
app.add_typer(artifacts.app, name="artifacts", help="Results of jobs: list, show, verify, fetch, delete.")
app.add_typer(
    endpoints.app,
    name="endpoints",
    help="Endpoints: list, show, logs, start, stop, remove, export; on SageMaker: prove, update, delete.",
)
app.add_typer(
    gateway.app,
    name="gateway",
    help="Answer for all served models at one OpenAI-compatible address; keys of its clients.",
)
app.add_typer(tune.app, name="tunings", help="Searches for the best stack: list, show, stop, resume.")
app.add_typer(engines.app, name="engines", help="Engine environments: list, install, remove.")
app.add_typer(catalog.app, name="catalog", help="Models that Whetstone knows: list, show.")
app.add_typer(
    models.app,
    name="models",
    help="Your own models, from a folder, a hub or S3: inspect, import, list, forget.",
)
app.add_typer(presets.app, name="presets", help="Recipes to start from: list, show, apply, save, export, import.")
app.add_typer(recipe.app, name="recipe", help="Recipes: list, show, check, estimate.")
app.add_typer(tasks.app, name="tasks", help="Tasks by name that evaluations score: list, get.")
app.add_typer(prices.app, name="prices", help="Prices of instances: list, refresh from AWS, show changes.")


def main() -> None:
    """Run the command line; a WhetstoneError becomes one sentence on standard error and its exit code."""
    try:
        code = app(standalone_mode=False)  # click answers with the code of a `typer.Exit` instead of raising it
    except WhetstoneError as error:
        say(f"whetstone: {error_text(error)}")
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        say("whetstone: Interrupted.")
        sys.exit(130)
    except Exception as error:  # noqa: BLE001
        _usage(error)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _usage(error: Exception) -> None:
    """Print Typer's usage errors and exit 2; raise anything else, which is a defect."""
    show = getattr(error, "show", None)
    if show is None:
        raise error
    show()
    sys.exit(getattr(error, "exit_code", 2))


if __name__ == "__main__":
    main()
