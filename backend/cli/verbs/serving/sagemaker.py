"""`whetstone deploy`, and the commands of `whetstone endpoints ...` for endpoints on SageMaker alone."""

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

EndpointId = Annotated[str, typer.Argument(help="An endpoint's name, as `whetstone endpoints list` shows it.")]
Region = Annotated[str | None, typer.Option(help="AWS region. Default: that of the environment.")]
Artifact = Annotated[str, typer.Argument(help="An artifact id, as `whetstone artifacts list` shows it.")]
Parallel = Annotated[int | None, typer.Option(min=1, help="GPUs to split the weights over. Default: the recipe's.")]
Anyway = Annotated[bool, typer.Option("--anyway", help="Allow an artifact whose quality is below the floor.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the exact requests without changing anything.")]
HEADER = ("endpoint", "state", "artifact", "instance", "requests/h", "USD/h", "since (UTC)", "USD so far", "by")
MARKS = {True: "proven", False: "NOT SO", None: "not proven"}


def deploy(
    artifact: Artifact,
    instance: Annotated[str, typer.Option(help="An instance with NVIDIA GPUs, such as ml.g6.12xlarge.")],
    role: Annotated[
        str | None, typer.Option(help="ARN of the role with which SageMaker reads weights and image.")
    ] = None,
    bucket: Annotated[str | None, typer.Option(help="Where to upload the weights: BUCKET or BUCKET/PREFIX.")] = None,
    to: Annotated[Literal["sagemaker"], typer.Option(help="Where to serve it.")] = "sagemaker",
    name: Annotated[str | None, typer.Option(help="Name of the endpoint. Default: the artifact's id.")] = None,
    region: Region = None,
    instances: Annotated[int, typer.Option(min=1, help="Initial number of instances.")] = 1,
    container: Annotated[Literal["lmi", "vllm"], typer.Option(help="AWS's container: LMI, or plain vLLM.")] = "lmi",
    image: Annotated[str | None, typer.Option(help="Address of another image of that container.")] = None,
    tensor_parallel: Parallel = None,
    autoscale: Annotated[
        str | None,
        typer.Option(
            metavar="MIN:MAX:N", help="Scale between MIN and MAX instances, each for about N requests per minute."
        ),
    ] = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHEN=MIN:MAX", help="Change the limits at a time: 'cron(0 8 ? * MON-FRI *)=2:4'. Repeatable."
        ),
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Time zone of the schedule, such as Europe/Berlin. Default: UTC.")
    ] = None,
    idle: Annotated[
        int | None,
        typer.Option(min=1, max=1440, metavar="MINUTES", help="Raise an alarm after this time without requests."),
    ] = None,
    idle_topic: Annotated[str | None, typer.Option(help="ARN of the SNS topic that receives the idle alarm.")] = None,
    kms_key: Annotated[str | None, typer.Option(help="Key that encrypts the instances' volumes.")] = None,
    subnets: Annotated[str | None, typer.Option(help="Subnets of the container's VPC, separated by commas.")] = None,
    security_groups: Annotated[
        str | None, typer.Option(help="Security groups of the VPC, separated by commas.")
    ] = None,
    anyway: Anyway = False,
    dry_run: DryRun = False,
    written_as: Annotated[
        Literal["cloudformation", "terraform", "policy"] | None,
        typer.Option("--as", help="Print a template, or the IAM policy it needs, without calling AWS."),
    ] = None,
    json: Json = False,
) -> None:
    """Serve an artifact on a SageMaker endpoint: upload, create, wait, prove. A failure leaves nothing behind.

    It costs money until `whetstone endpoints delete`. Role, bucket, key, VPC and region default to the environment's;
    docs/aws.md lists the variables. It has been tested against a simulation of AWS only, never on AWS itself
    (docs/aws.md).
    """
    workspace = service.open_workspace()
    # 1. Gather the options into one request.
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
    # 2. Plan the deployment without asking AWS.
    planned = endpoints.plan(workspace, artifact, request, anyway=anyway)
    # 3. Only write a template, or preview the requests.
    if written_as:
        out(FORMS[written_as](planned), newline=False)
        return
    if dry_run:
        preview = endpoints.preview(workspace, planned)
        emit(preview, as_json=json, text=_preview_text(preview))
        return
    # 4. Deploy, then prove what the endpoint serves.
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


def listing_text(endpoint_views: list[EndpointView]) -> str:
    """Return the endpoints of a region as a table, with what they cost."""
    # 1. A row for each.
    rows = [
        (
            endpoint.id,
            f"{endpoint.state}, idle" if endpoint.idle else endpoint.state,
            endpoint.artifact,
            f"{endpoint.instances} x {endpoint.instance or '?'}",
            words.last_hour(endpoint.traffic),
            endpoint.usd_per_hour,
            f"{endpoint.since:%Y-%m-%d %H:%M}",
            endpoint.usd_so_far,
            endpoint.owner or "-",
        )
        for endpoint in endpoint_views
    ]
    # 2. Add up what they cost.
    hour = sum(view.usd_per_hour or 0 for view in endpoint_views)
    together = words.hour(hour, max((view.discount for view in endpoint_views), default=0.0))
    return f"{table(HEADER, rows)}\nIn total {together}." if rows else "No endpoints made by Whetstone in this region."


def show_text(view: EndpointView) -> str:
    """Return one endpoint, with client code."""
    return f"{_text(view)}\n\n{serve_command.boto3(view.name, view.region)}"


def prove(endpoint: EndpointId, region: Region = None, json: Json = False) -> None:
    """Check what the endpoint serves, with one request and the engine's log. Exit 1 if it serves something else."""
    findings = endpoints.prove(service.open_workspace(), endpoint, region)
    emit(findings, as_json=json, text=_findings_text(findings))
    _require_proven(findings)


def update(
    endpoint: EndpointId,
    artifact: Artifact,
    region: Region = None,
    instance: Annotated[str | None, typer.Option(help="Instance type. Default: the current one.")] = None,
    instances: Annotated[
        int | None, typer.Option(min=1, help="Number of instances. Default: as many as run now.")
    ] = None,
    container: Annotated[
        Literal["lmi", "vllm"] | None, typer.Option(help="AWS's container. Default: the current one.")
    ] = None,
    image: Annotated[str | None, typer.Option(help="Address of another image of that container.")] = None,
    tensor_parallel: Parallel = None,
    alarm: Annotated[
        list[str] | None, typer.Option(help="CloudWatch alarm that makes AWS roll back. Repeatable.")
    ] = None,
    watch: Annotated[
        int, typer.Option(min=0, max=60, help="Minutes during which both run and AWS watches the alarms.")
    ] = 0,
    anyway: Anyway = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Serve another artifact, or on another instance, without interruption: AWS starts the new version and then
    switches.

    The new version is proven before the old one is removed. On failure the old one goes on serving and nothing of the
    new one is left. Both cost money meanwhile.
    """
    workspace = service.open_workspace()
    # 1. Gather the changes into one request.
    changes = UpdateRequest(
        instance=instance,
        instances=instances,
        container=container,
        image=image,
        tensor_parallel=tensor_parallel,
        alarms=tuple(alarm or ()),
        bake_s=60 * watch,
    )
    # 2. Plan the update from what runs now.
    planned, rollout = endpoints.plan_update(workspace, endpoint, artifact, changes, region, anyway=anyway)
    # 3. Only preview the requests.
    if dry_run:
        preview = endpoints.preview(workspace, planned, rollout)
        emit(preview, as_json=json, text=_preview_text(preview))
        return
    # 4. Update, then prove what the endpoint serves.
    proofs = endpoints.update(workspace, planned, rollout, say)
    now = endpoints.show(workspace, endpoint, planned.region)
    document = {**now.model_dump(mode="json"), "proofs": proofs}
    emit(document, as_json=json, text=f"{_text(now)}\n{_findings_text(proofs)}")
    _require_proven(proofs)


def delete(endpoint: EndpointId, region: Region = None, json: Json = False) -> None:
    """Delete an endpoint with its configuration, model, autoscaling and weights in the bucket, and wait until it is
    gone."""
    endpoints.delete(service.open_workspace(), endpoint, region)
    emit(
        {"endpoint": endpoint, "deleted": True},
        as_json=json,
        text=f"{endpoint} is deleted, with everything that was created for it.",
    )


def _text(view: EndpointView) -> str:
    hour = words.hour(view.usd_per_hour, view.discount)
    so_far = "" if view.usd_so_far is None else f", about {view.usd_so_far:,.2f} USD so far"
    why = f" ({view.reason})" if view.reason else ""
    idle = ", no requests recently" if view.idle else ""
    return (
        f"{view.name} in {view.region}: {view.state}{why}{idle}, {view.artifact} ({view.variant}) on {view.instances} "
        f"x {view.instance}, {hour}, since {view.since:%Y-%m-%d %H:%M} UTC{so_far}; {words.requests(view.traffic)}."
    )


def _findings_text(findings: list[Finding]) -> str:
    return "\n".join(f"{MARKS[finding.proven]:>10}  {finding.what}: {finding.words}" for finding in findings)


def _require_proven(findings: list[Finding]) -> None:
    """Raises WorkError where it serves something else than what was deployed."""
    wrong = [finding.words for finding in findings if finding.proven is False]
    if wrong:
        raise WorkError(f"The endpoint runs but does not serve what was deployed. {' '.join(wrong)}")
