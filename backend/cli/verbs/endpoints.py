"""`whetstone deploy` and `whetstone endpoints ...`: an artifact on a SageMaker endpoint, and what is running there."""

from __future__ import annotations

import json as documents
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError

from backend import service
from backend.cli.output import Json, emit, next_command, out, say, table
from backend.domain.deploy.deployment import Capacity, Idle, Scheduled
from backend.domain.errors import InvalidOptions, WorkError
from backend.domain.evaluation.evidence.schema import Finding
from backend.domain.validation import first_flaw
from backend.present import serve_command
from backend.present.words import endpoints as words
from backend.service.serving import endpoints
from backend.service.serving.endpoints import FORMS, DeploymentRequest, EndpointView, UpdateRequest

app = typer.Typer(no_args_is_help=True)
EndpointId = Annotated[str, typer.Argument(help="An endpoint's name, as `whetstone endpoints list` shows it.")]
Region = Annotated[str | None, typer.Option(help="An AWS region; else that of the environment.")]
Artifact = Annotated[str, typer.Argument(help="An artifact id, as `whetstone artifacts list` shows it.")]
Parallel = Annotated[int | None, typer.Option(min=1, help="GPUs to split the weights over; else the recipe's.")]
Anyway = Annotated[bool, typer.Option("--anyway", help="Also an artifact whose quality is below the floor.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the exact requests, change nothing.")]
HEADER = ("endpoint", "state", "artifact", "instance", "requests/h", "USD/h", "since (UTC)", "USD so far", "by")
MARKS = {True: "proven", False: "NOT SO", None: "not proven"}


def deploy(
    artifact: Artifact,
    instance: Annotated[str, typer.Option(help="An instance with NVIDIA GPUs, such as ml.g6.12xlarge.")],
    role: Annotated[
        str | None, typer.Option(help="The ARN of the role with which SageMaker reads weights and image.")
    ] = None,
    bucket: Annotated[str | None, typer.Option(help="Where the weights are put: BUCKET or BUCKET/PREFIX.")] = None,
    to: Annotated[Literal["sagemaker"], typer.Option(help="Where it is served.")] = "sagemaker",
    name: Annotated[str | None, typer.Option(help="The endpoint's own name; else the artifact's id.")] = None,
    region: Region = None,
    instances: Annotated[int, typer.Option(min=1, help="How many of the instance at first.")] = 1,
    container: Annotated[Literal["lmi", "vllm"], typer.Option(help="AWS's container: LMI, or vLLM alone.")] = "lmi",
    image: Annotated[str | None, typer.Option(help="The address of another image of that container.")] = None,
    tensor_parallel: Parallel = None,
    autoscale: Annotated[
        str | None,
        typer.Option(metavar="MIN:MAX:N", help="Between so many instances, each for about N requests a minute."),
    ] = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHEN=MIN:MAX", help="So many instances from then on: 'cron(0 8 ? * MON-FRI *)=2:4'; once for each."
        ),
    ] = None,
    timezone: Annotated[str | None, typer.Option(help="Of the schedule, such as Europe/Berlin; else UTC.")] = None,
    idle: Annotated[
        int | None,
        typer.Option(min=1, max=1440, metavar="MINUTES", help="An alarm when nothing was asked for so long."),
    ] = None,
    idle_topic: Annotated[str | None, typer.Option(help="The ARN of the SNS topic that is told so.")] = None,
    kms_key: Annotated[str | None, typer.Option(help="The key that encrypts the volume of the instances.")] = None,
    subnets: Annotated[str | None, typer.Option(help="Of the VPC that the container is in, with commas.")] = None,
    security_groups: Annotated[str | None, typer.Option(help="Of the VPC, with commas.")] = None,
    anyway: Anyway = False,
    dry_run: DryRun = False,
    written_as: Annotated[
        Literal["cloudformation", "terraform", "policy"] | None,
        typer.Option("--as", help="Print it as a template, or the IAM policy that it needs; ask nothing of AWS."),
    ] = None,
    json: Json = False,
) -> None:
    """Serve an artifact on a SageMaker endpoint: upload, create, wait, prove; on failure nothing is left behind.

    It costs money from then on, until `whetstone endpoints delete`. Role, bucket, key, VPC and region are the
    environment's unless given: docs/aws.md has the names, and says how this is tested, since it was never run on AWS
    yet.
    """
    workspace = service.open_workspace()
    request = DeploymentRequest(
        instance=instance,
        role=role,
        bucket=bucket,
        name=name,
        region=region,
        instances=instances,
        container=container,
        image=image,
        tensor_parallel=tensor_parallel,
        capacity=_read_autoscaling(autoscale),
        schedule=tuple(map(_read_schedule, schedule or ())),
        timezone=timezone,
        idle=_read_idle(idle, idle_topic),
        kms_key=kms_key,
        subnets=_split_list(subnets),
        security_groups=_split_list(security_groups),
    )
    planned = endpoints.plan(workspace, artifact, request, anyway=anyway)
    if written_as:
        out(FORMS[written_as](planned), newline=False)
        return
    if dry_run:
        preview = endpoints.preview(workspace, planned)
        emit(preview, as_json=json, text=_preview_text(preview))
        return
    endpoint = endpoints.deploy(workspace, planned, say)
    say(_text(endpoint))
    proofs = endpoints.prove(workspace, endpoint.id, endpoint.region)
    document = {**endpoint.model_dump(mode="json"), "proofs": proofs}
    emit(
        document,
        as_json=json,
        text=f"{_text(endpoint)}\n{_findings_text(proofs)}\n{next_command('endpoints', 'delete', endpoint.id)}",
    )
    _require_proven(proofs)


def _split_list(written: str | None) -> tuple[str, ...] | None:
    return None if written is None else tuple(filter(None, map(str.strip, written.split(","))))


def _read_autoscaling(written: str | None) -> Capacity | None:
    """Raises InvalidOptions."""
    if written is None:
        return None
    try:
        least, most, invocations = written.split(":")
        return Capacity(minimum=int(least), maximum=int(most), invocations=float(invocations))
    except ValueError:
        raise InvalidOptions("must be MIN:MAX:N, such as 1:4:60, with MIN from 1 to MAX.", field="autoscale") from None


def _read_schedule(written: str) -> Scheduled:
    """Raises InvalidOptions."""
    time_text, _, bounds = written.rpartition("=")
    try:
        least, most = bounds.split(":")
        return Scheduled(at=time_text, minimum=int(least), maximum=int(most))
    except ValueError:
        raise InvalidOptions(
            "must be WHEN=MIN:MAX, such as `cron(0 8 ? * MON-FRI *)=2:4`, with MIN from 1 to MAX.", field="schedule"
        ) from None


def _read_idle(minutes: int | None, topic: str | None) -> Idle | None:
    """Raises InvalidOptions."""
    if minutes is None and topic:
        raise InvalidOptions("goes with --idle MINUTES: give that too.", field="idle_topic")
    try:
        return None if minutes is None else Idle(minutes=minutes, topic=topic)
    except ValidationError as error:
        raise InvalidOptions(f"{first_flaw(error).problem}.", field="idle_topic") from None


def _preview_text(preview: dict[str, Any]) -> str:
    calls = [
        f"{call['service']}.{call['operation']} {documents.dumps(call['parameters'], indent=1)}"
        for call in preview["requests"]
    ]
    return "\n".join(
        [
            f"The weights go to {preview['weights']}.",
            *calls,
            f"It would cost {_hour_text(preview)}. Nothing was changed.",
        ]
    )


def _hour_text(preview: dict[str, Any]) -> str:
    where = "" if preview["usd_per_hour"] is None else f" (price of {preview['price_region']})"
    return words.hour(preview["usd_per_hour"], preview["discount"]) + where


@app.command("list")
def list_endpoints(region: Region = None, json: Json = False) -> None:
    """The endpoints of a region that Whetstone made, asked of AWS, with what they cost."""
    endpoint_views = endpoints.listing(service.open_workspace(), region)
    rows = [
        (
            e.id,
            f"{e.state}, idle" if e.idle else e.state,
            e.artifact,
            f"{e.instances} x {e.instance or '?'}",
            words.last_hour(e.traffic),
            e.usd_per_hour,
            f"{e.since:%Y-%m-%d %H:%M}",
            e.usd_so_far,
            e.owner or "-",
        )
        for e in endpoint_views
    ]
    hour = sum(each.usd_per_hour or 0 for each in endpoint_views)
    together = words.hour(hour, max((each.discount for each in endpoint_views), default=0.0))
    text = f"{table(HEADER, rows)}\nTogether {together}." if rows else "No endpoints of Whetstone's there."
    emit(endpoint_views, as_json=json, text=text)


@app.command()
def show(endpoint: EndpointId, region: Region = None, json: Json = False) -> None:
    """One endpoint, and how a client asks it."""
    view = endpoints.show(service.open_workspace(), endpoint, region)
    emit(view, as_json=json, text=f"{_text(view)}\n\n{serve_command.boto3(view.name, view.region)}")


@app.command()
def prove(endpoint: EndpointId, region: Region = None, json: Json = False) -> None:
    """Ask it once and read in the engine's log what it serves; exit 1 where it serves something else."""
    findings = endpoints.prove(service.open_workspace(), endpoint, region)
    emit(findings, as_json=json, text=_findings_text(findings))
    _require_proven(findings)


@app.command()
def update(
    endpoint: EndpointId,
    artifact: Artifact,
    region: Region = None,
    instance: Annotated[str | None, typer.Option(help="Another instance; else the one that it runs on.")] = None,
    instances: Annotated[int | None, typer.Option(min=1, help="How many; else as many as run now.")] = None,
    container: Annotated[Literal["lmi", "vllm"] | None, typer.Option(help="The other of AWS's containers.")] = None,
    image: Annotated[str | None, typer.Option(help="The address of another image of that container.")] = None,
    tensor_parallel: Parallel = None,
    alarm: Annotated[
        list[str] | None, typer.Option(help="A CloudWatch alarm at which AWS goes back by itself; once for each.")
    ] = None,
    watch: Annotated[
        int, typer.Option(min=0, max=60, help="Minutes for which both run and the alarms are watched.")
    ] = 0,
    anyway: Anyway = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Serve another artifact, or on another instance, without an interruption: AWS starts it beside the old one and
    goes over.

    Proven before the old one is removed; what fails leaves the old one serving and nothing of the new. Both cost money
    meanwhile.
    """
    workspace = service.open_workspace()
    changes = UpdateRequest(
        instance=instance,
        instances=instances,
        container=container,
        image=image,
        tensor_parallel=tensor_parallel,
        alarms=tuple(alarm or ()),
        bake_s=60 * watch,
    )
    planned, rollout = endpoints.plan_update(workspace, endpoint, artifact, changes, region, anyway=anyway)
    if dry_run:
        preview = endpoints.preview(workspace, planned, rollout)
        emit(preview, as_json=json, text=_preview_text(preview))
        return
    proofs = endpoints.update(workspace, planned, rollout, say)
    now = endpoints.show(workspace, endpoint, planned.region)
    document = {**now.model_dump(mode="json"), "proofs": proofs}
    emit(document, as_json=json, text=f"{_text(now)}\n{_findings_text(proofs)}")
    _require_proven(proofs)


@app.command()
def delete(endpoint: EndpointId, region: Region = None, json: Json = False) -> None:
    """Delete it with its configuration, model, autoscaling and weights in the bucket; waits until it is gone."""
    endpoints.delete(service.open_workspace(), endpoint, region)
    emit(
        {"endpoint": endpoint, "deleted": True},
        as_json=json,
        text=f"{endpoint} is deleted, with all that was made for it.",
    )


def _text(view: EndpointView) -> str:
    hour = words.hour(view.usd_per_hour, view.discount)
    so_far = "" if view.usd_so_far is None else f", about {view.usd_so_far:,.2f} USD so far"
    why = f" ({view.reason})" if view.reason else ""
    idle = ", nothing was asked for a while" if view.idle else ""
    return (
        f"{view.name} in {view.region}: {view.state}{why}{idle}, {view.artifact} ({view.variant}) on {view.instances} x "
        f"{view.instance}, {hour}, since {view.since:%Y-%m-%d %H:%M} UTC{so_far}; {words.requests(view.traffic)}."
    )


def _findings_text(findings: list[Finding]) -> str:
    return "\n".join(f"{MARKS[each.proven]:>10}  {each.what}: {each.words}" for each in findings)


def _require_proven(findings: list[Finding]) -> None:
    """Raises WorkError where it serves something else than what was deployed."""
    wrong = [each.words for each in findings if each.proven is False]
    if wrong:
        raise WorkError(f"The endpoint runs, and does not serve what was deployed. {' '.join(wrong)}")
