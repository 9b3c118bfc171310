"""`whetstone deploy` and `whetstone endpoints ...`: an artifact on a SageMaker endpoint, and what is running there."""

from __future__ import annotations

import json as documents
import sys
from typing import Annotated, Any, Literal

import typer

from backend import service
from backend.cli.output import emit, next_command, table
from backend.cli.verbs.optimize import Json
from backend.domain.deploy.deployment import Capacity
from backend.domain.deploy.proof import Finding
from backend.domain.errors import InvalidOptions, WorkError
from backend.present import serve_command
from backend.service.serving import endpoints
from backend.service.serving.endpoints import FORMS, EndpointView, Wanted

app = typer.Typer(no_args_is_help=True)
EndpointId = Annotated[str, typer.Argument(help="An endpoint's name, as `whetstone endpoints list` shows it.")]
Region = Annotated[str | None, typer.Option(help="An AWS region; else that of the environment.")]
HEADER = ("endpoint", "state", "artifact", "instance", "USD/h", "since (UTC)", "USD so far", "by")
MARKS = {True: "proven", False: "NOT SO", None: "not proven"}


def register(app: typer.Typer) -> None:
    app.command("deploy")(deploy)


def deploy(
    artifact: Annotated[str, typer.Argument(help="An artifact id, as `whetstone artifacts list` shows it.")],
    instance: Annotated[str, typer.Option(help="An instance with NVIDIA GPUs, such as ml.g6.12xlarge.")],
    role: Annotated[str, typer.Option(help="The ARN of the role that SageMaker takes to read weights and image.")],
    bucket: Annotated[str, typer.Option(help="Where the weights are put: BUCKET or BUCKET/PREFIX.")],
    to: Annotated[Literal["sagemaker"], typer.Option(help="Where it is served.")] = "sagemaker",
    name: Annotated[str | None, typer.Option(help="The endpoint's own name; else the artifact's id.")] = None,
    region: Region = None,
    instances: Annotated[int, typer.Option(min=1, help="How many of the instance at first.")] = 1,
    container: Annotated[Literal["lmi", "vllm"], typer.Option(help="AWS's container: LMI, or vLLM alone.")] = "lmi",
    image: Annotated[str | None, typer.Option(help="The address of another image of that container.")] = None,
    tensor_parallel: Annotated[int | None, typer.Option(min=1, help="GPUs to split the weights over; else the recipe's.")] = None,
    autoscale: Annotated[
        str | None, typer.Option(metavar="MIN:MAX:N", help="Between so many instances, each for about N requests a minute.")
    ] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also an artifact whose quality is below the floor.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the exact requests, ask nothing of AWS.")] = False,
    written_as: Annotated[
        Literal["cloudformation", "terraform", "policy"] | None,
        typer.Option("--as", help="Print it as a template, or the IAM policy that it needs; ask nothing of AWS."),
    ] = None,
    json: Json = False,
) -> None:
    """Serve an artifact on a SageMaker endpoint: upload, create, wait, prove; on failure nothing is left behind.

    It costs money from then on, until `whetstone endpoints delete`. Never run on AWS yet: docs/aws.md says how it is tested.
    """
    workspace = service.open_workspace()
    wanted = Wanted(
        instance=instance, role=role, bucket=bucket, name=name, region=region, instances=instances, container=container,
        image=image, tensor_parallel=tensor_parallel, capacity=_capacity(autoscale),
    )  # fmt: skip
    planned = endpoints.plan(workspace, artifact, wanted, anyway=anyway)
    if written_as:
        typer.echo(FORMS[written_as](planned), nl=False)
        return
    if dry_run:
        found = endpoints.preview(workspace, planned)
        emit(found, as_json=json, text=_preview(found))
        return
    endpoint = endpoints.deploy(workspace, planned, lambda line: print(line, file=sys.stderr, flush=True))
    print(_text(endpoint), file=sys.stderr, flush=True)
    proofs = endpoints.prove(workspace, endpoint.id, endpoint.region)
    document = {**endpoint.model_dump(mode="json"), "proofs": [each.model_dump(mode="json") for each in proofs]}
    emit(document, as_json=json, text=f"{_text(endpoint)}\n{_proofs(proofs)}\n{next_command('endpoints', 'delete', endpoint.id)}")
    _check(proofs)


def _capacity(written: str | None) -> Capacity | None:
    """Raises InvalidOptions."""
    if written is None:
        return None
    try:
        least, most, invocations = written.split(":")
        return Capacity(minimum=int(least), maximum=int(most), invocations=float(invocations))
    except ValueError:
        raise InvalidOptions("must be MIN:MAX:N, such as 1:4:60, with MIN from 1 to MAX.", field="autoscale") from None


def _preview(found: dict[str, Any]) -> str:
    calls = [
        f"{call['service']}.{call['operation']} {documents.dumps(call['parameters'], indent=1)}" for call in found["requests"]
    ]
    return "\n".join([f"The weights go to {found['weights']}.", *calls, f"It would cost {_hour(found)}. Nothing was started."])


def _hour(found: dict[str, Any]) -> str:
    price = found["usd_per_hour"]
    return "an unknown price" if price is None else f"{price:,.2f} USD an hour on demand (price of {found['price_region']})"


@app.command("list")
def list_endpoints(region: Region = None, json: Json = False) -> None:
    """The endpoints of a region that Whetstone made, asked of AWS, with what they cost."""
    endpoint_views = endpoints.listing(service.open_workspace(), region)
    rows = [
        (e.id, e.state, e.artifact, f"{e.instances} x {e.instance or '?'}", e.usd_per_hour, f"{e.since:%Y-%m-%d %H:%M}",
         e.usd_so_far, e.owner or "-")
        for e in endpoint_views
    ]  # fmt: skip
    hour = sum(each.usd_per_hour or 0 for each in endpoint_views)
    text = f"{table(HEADER, rows)}\nTogether {hour:,.2f} USD an hour on demand." if rows else "No endpoints of Whetstone's there."
    emit(endpoint_views, as_json=json, text=text)


@app.command()
def show(endpoint: EndpointId, region: Region = None, json: Json = False) -> None:
    """One endpoint, and how a client asks it."""
    found = endpoints.show(service.open_workspace(), endpoint, region)
    emit(found, as_json=json, text=f"{_text(found)}\n\n{serve_command.boto3(found.name, found.region)}")


@app.command()
def prove(endpoint: EndpointId, region: Region = None, json: Json = False) -> None:
    """Ask it once and read in the engine's log what it serves; exit 1 where it serves something else."""
    found = endpoints.prove(service.open_workspace(), endpoint, region)
    emit(found, as_json=json, text=_proofs(found))
    _check(found)


@app.command()
def delete(endpoint: EndpointId, region: Region = None, json: Json = False) -> None:
    """Delete it with its configuration, model, autoscaling and weights in the bucket; waits until it is gone."""
    endpoints.delete(service.open_workspace(), endpoint, region)
    emit({"endpoint": endpoint, "deleted": True}, as_json=json, text=f"{endpoint} is deleted, with all that was made for it.")


def _text(found: EndpointView) -> str:
    hour = "an unknown price" if found.usd_per_hour is None else f"{found.usd_per_hour:,.2f} USD an hour on demand"
    so_far = "" if found.usd_so_far is None else f", about {found.usd_so_far:,.2f} USD so far"
    why = f" ({found.reason})" if found.reason else ""
    return (
        f"{found.name} in {found.region}: {found.state}{why}, {found.artifact} ({found.variant}) on {found.instances} x "
        f"{found.instance}, {hour}, since {found.since:%Y-%m-%d %H:%M} UTC{so_far}."
    )


def _proofs(found: list[Finding]) -> str:
    return "\n".join(f"{MARKS[each.proven]:>10}  {each.what}: {each.words}" for each in found)


def _check(found: list[Finding]) -> None:
    """Raises WorkError where it serves something else than what was deployed."""
    wrong = [each.words for each in found if each.proven is False]
    if wrong:
        raise WorkError(f"The endpoint runs, and does not serve what was deployed. {' '.join(wrong)}")
